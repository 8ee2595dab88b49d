"""From logits to the next token. A pure function of logits, seed and position: no hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch

from inms_lab.errors import BadInput


@dataclass(frozen=True, slots=True)
class Sampling:
    """Greedy at temperature 0; else seeded sampling among the `top_p` most likely mass."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < float("inf") and 0 < self.top_p <= 1):
            raise BadInput("temperature must be at least 0, and top_p above 0 and at most 1")


def sample(logits: torch.Tensor, how: Sampling, position: int) -> int:
    """The next token for `logits` [vocab]; `position` is where it will stand."""
    if how.temperature == 0:
        return int(logits.argmax())
    probs = torch.softmax(logits.double().cpu() / how.temperature, dim=-1)
    probs, order = probs.sort(descending=True, stable=True)
    keep = probs.cumsum(0) - probs < how.top_p
    cumulative = (probs * keep).cumsum(0)
    key = blake2b(f"{how.seed}:{position}".encode(), digest_size=8).digest()
    uniform = int.from_bytes(key, "little") / 2**64
    index = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    return int(order[min(int(index), len(order) - 1)])
