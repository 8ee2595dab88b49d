"""What is compared with full prefill, and with what certainty: KL, agreement, perplexity, KV error.

Everything here takes tensors or numbers and gives numbers; which contexts are compared is in
variants.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inms_lab.errors import BadInput
from inms_lab.interference.contexts import Part, Scratch


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over samples and the ends of its bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def through(self, f: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the mean."""
        return Interval(f(self.mean), f(self.low), f(self.high))


def kl(truth: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """KL(truth || got) in nats per row [T]; both are logits [T, vocab]."""
    p, q = truth.double().log_softmax(-1), got.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0)  # rounding may go below zero


def agreement(truth: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Whether both have the same best token, per row [T] of logits [T, vocab]."""
    return truth.argmax(-1) == got.argmax(-1)


def surprise(logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """-log p of the tokens that came, in nats [T]; row i of the logits predicts token i."""
    if len(logits) != len(tokens):
        raise BadInput(f"{len(logits)} rows of logits for {len(tokens)} tokens")
    wanted = torch.as_tensor(list(tokens), device=logits.device).unsqueeze(-1)
    return -logits.double().log_softmax(-1).gather(-1, wanted).squeeze(-1)


def perplexity_change(difference: float) -> float:
    """How much larger the perplexity is, as a share, for a mean surprise that is larger by this."""
    return math.expm1(difference)


def kv_error(truth: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Relative error |got - truth| / |truth| of keys and of values [layers, 2, T].

    Both are KV [layers, 2, K, T, D], the keys at the same place; norms are over heads and channels.
    """
    size = truth.double().pow(2).sum(dim=(2, 4))
    return ((got.double() - truth.double()).pow(2).sum(dim=(2, 4)) / size).sqrt()


def kv_as_read(scratch: Scratch, parts: Sequence[Part], place: int) -> torch.Tensor:
    """KV of neighbouring parts as a reader has it that has the first at `place`.

    [layers, 2, K, T, D]. Keys that it reads at the wrong shift stand at the wrong place.
    """
    pieces = []
    for part in parts:
        pieces.append(scratch.kv(part, at=part.first + part.sense * (place - part.first)))
        place += len(part)
    return torch.cat(pieces, dim=3)


def bootstrap(
    values: Sequence[float], seed: int = 0, num_draws: int = 10_000, level: float = 0.95
) -> Interval:
    """The mean of one value per sample with its percentile bootstrap interval.

    Source: Efron (1979). Samples are drawn anew with replacement, `num_draws` times.
    """
    x = np.asarray(values, dtype=np.float64)
    if not len(x):
        raise BadInput("an interval needs at least one sample")
    draws = np.random.default_rng(seed).integers(0, len(x), (num_draws, len(x)))
    low, high = np.quantile(x[draws].mean(axis=1), ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(x.mean()), float(low), float(high))
