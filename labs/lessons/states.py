"""Attention states over pieces of a context, made up: what exercise `merge` is tried with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch

State: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # out [..., D], lse [...]
DIM = 64


@dataclass(frozen=True, slots=True)
class Case:
    """Two states, and what is special about them."""

    words: str
    a: State
    b: State

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """As they are handed in: out_a, lse_a, out_b, lse_b."""
        return (*self.a, *self.b)


@cache
def cases() -> tuple[Case, ...]:
    """From the plainest to the strangest."""
    near, far = state((4,), 40, 0), state((4,), 24, 1)
    long, one = state((4,), 500, 2), state((4,), 1, 3)
    none = (torch.zeros(4, DIM), torch.full((4,), -torch.inf))
    some = torch.tensor([True, False, True, False])
    made = [
        Case("one query, pieces of 40 and 24 tokens", state((), 40, 4), state((), 24, 5)),
        Case("4 queries at once", near, far),
        Case("the same pieces in the other order", far, near),
        Case("pieces of 500 tokens and of one", long, one),
        Case("8 readers with 3 x 3 heads each", state((8, 3, 3), 40, 6), state((8, 3, 3), 24, 7)),
        Case("the first piece is empty", none, far),
        Case("the second piece is empty", near, none),
        Case("both pieces are empty", none, none),
        Case("scores near 500", _moved(near, 500.0), _moved(far, 500.0)),
        Case("scores near -500", _moved(near, -500.0), _moved(far, -500.0)),
        Case("scores near 600 and near -600", _moved(near, 600.0), _moved(far, -600.0)),
        Case("the first piece is empty for two of 4 queries", _where(some, near, none), far),
        Case(
            "both are empty for two of 4 queries", _where(some, near, none), _where(some, far, none)
        ),
    ]
    return tuple(made)


def state(shape: tuple[int, ...], tokens: int, seed: int) -> State:
    """Attention of made-up queries over a made-up piece."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*size, DIM, generator=rng) for size in (shape, (tokens,), (tokens,)))
    scores = q @ k.T / DIM**0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _moved(state: State, by: float) -> State:
    """The state if every score were larger by so much."""
    return state[0], state[1] + by


def _where(some: torch.Tensor, one: State, other: State) -> State:
    return torch.where(some[:, None], one[0], other[0]), torch.where(some, one[1], other[1])
