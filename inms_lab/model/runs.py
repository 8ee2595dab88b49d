"""Decoder layers that are computed in one go, when the first of them is called.

Between two layers of a step there is nothing to do but to call the next one, and with a few rows
waking the threads for each costs more than some layers. What each layer gave is kept: when the next
one is called with just that, it is given its own result. When it is called with anything else
(another order, a hook, something written into it), it is computed as if there were no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from inms_lab.model.layers import Layer

TURNED, BATCH = "position_embeddings", "inms_batch"


class Run:
    """Layers, what each of them gives [1, T, N], and how many were called."""

    def __init__(
        self, layers: Sequence[Layer], outs: Sequence[torch.Tensor], kwargs: dict[str, Any]
    ) -> None:
        self.layers, self.outs, self.called = layers, outs, 1
        self.kwargs = {k: v for k, v in kwargs.items() if k != BATCH}  # which holds this run
        self.version = outs[0]._version  # of the memory behind all of them

    def comes_to(
        self, layer: Layer, x: torch.Tensor, kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        """What this layer gives, if it is the next one and asked what it was computed for."""
        last = self.layers[self.called - 1]
        straight = (
            x is self.outs[self.called - 1]
            and x._version == self.version
            and kwargs.keys() == {*self.kwargs, BATCH}
            and all(_same(name, kwargs[name], value) for name, value in self.kwargs.items())
        )
        last.following = layer if straight else None
        if not straight or self.is_whole or self.layers[self.called] is not layer:
            return None
        self.called += 1
        return self.outs[self.called - 1]

    @property
    def is_whole(self) -> bool:
        """Whether all its layers were called."""
        return self.called == len(self.layers)

    def end(self) -> None:
        """The forward is over: what was not called is not computed the next time."""
        if not self.is_whole:
            self.layers[self.called - 1].following = None


def _same(name: str, value: Any, before: Any) -> bool:
    if name == TURNED:
        return all(a is b for a, b in zip(value, before, strict=True))
    return value is before
