"""Decoder layers that are computed in one go, and what shows that they no longer may be.

Between two layers of a step there is nothing to do but to call the next one, and with a few rows
waking the threads for each costs more than some layers. That nothing happens in between is seen in
a forward that computes layer by layer; it is looked at again in every one that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from inms_lab.model.layers import Layer


class Run:
    """Layers that were computed when the first of them was called, and how many were called."""

    def __init__(self, layers: Sequence[Layer], out: torch.Tensor, turned: Any) -> None:
        self.layers, self.out, self.turned, self.called = layers, out, turned, 1

    def comes_to(self, layer: Layer, x: torch.Tensor, turned: Any) -> bool:
        """Whether it has computed this layer. Raises `Misled` if its input is another."""
        straight = x is self.out and all(a is b for a, b in zip(turned, self.turned, strict=True))
        if self.is_whole:
            self.layers[-1].following = layer if straight else None
            return False
        if not straight or self.layers[self.called] is not layer:
            raise Misled
        self.called += 1
        return True

    @property
    def is_whole(self) -> bool:
        """Whether all its layers were called."""
        return self.called == len(self.layers)

    def forget(self) -> None:
        """Compute these layers one by one the next time."""
        for layer in self.layers:
            layer.following = None


class Misled(Exception):
    """The layers of a run are not called one behind the other any more."""
