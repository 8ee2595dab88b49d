"""A module and the kernel that would take its place, on the same random numbers."""

from __future__ import annotations

from typing import Any

import torch

from inms_lab.errors import InmsError

ROWS, TOLERANCE = 3, 1e-5  # of a trial; relative to the largest number
SIZES = (1.0, 1e4)  # of its numbers: large ones meet what clips


class Recorder:
    """A batch that keeps what an attention asks; its answer depends on the shape alone."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Keep the question."""
        self.asked = [q.clone(), k.clone(), v.clone(), torch.tensor([float(layer), scale])]
        return torch.linspace(-1, 1, q.numel()).view(q.shape)


class Instead:
    """A forward by a kernel in the place of `module`'s own. A copy of the module, or a file of it,
    has the module's own."""

    module: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, "forward")


def agree(made: Any) -> bool:
    """Whether `made`, a forward by a kernel with its own `pairs`, gives what the module gives."""
    try:
        found = [pair for size in SIZES for pair in made.pairs(size)]
    except (InmsError, TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return False  # it is not what it looks like
    return all(
        mine.shape == own.shape
        and bool((mine - own).abs().max() <= TOLERANCE * own.abs().max().clamp(min=1e-3))
        for mine, own in found
    )


def drawn(*shape: int) -> torch.Tensor:
    """Random numbers of a trial's own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
