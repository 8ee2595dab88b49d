"""KV in int8: every vector of a token and head is scaled to whole numbers from -127 to 127.

The store quantises on write and holds what is read back, so attention sees just what an int8 cache
would give it. Bytes are those of the layout that this stands for: one byte a channel and a float32
scale a vector; the floats in memory here are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from inms_lab.attention.pages import GivenBack
from inms_lab.attention.store import KVStore
from inms_lab.model.forward import Forward

SCALE_BYTES = 4


def roundtrip(x: torch.Tensor) -> torch.Tensor:
    """Vectors [..., D] to int8 and back: symmetric, a scale for each vector."""
    scale = x.float().abs().amax(dim=-1, keepdim=True) / 127
    codes = (x.float() / scale.clamp_min(torch.finfo(torch.float32).tiny)).round()
    return (codes.to(torch.int8).float() * scale).to(x.dtype)


class Int8Store:
    """A `KVStore` that holds only what int8 can say; the same calls."""

    def __init__(self, inner: KVStore) -> None:
        self.inner = inner
        self.shape, self.dtype, self.device = inner.shape, inner.dtype, inner.device
        self.regions = inner.regions

    @property
    def bytes_per_token(self) -> int:
        """int8 bytes of one token, scales included, all layers."""
        two, layers, heads, dim = self.shape
        return two * layers * heads * (dim + SCALE_BYTES)

    def write(
        self,
        pool_id: str,
        layer: int,
        slots: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Put `key` and `value`, each [K, T, D], into `slots` [T]."""
        self.inner.write(pool_id, layer, slots, roundtrip(key), roundtrip(value))

    def open(self, pool_id: str, num_slots: int) -> None:
        """Reserve a region of `num_slots` slots."""
        self.inner.open(pool_id, num_slots)

    def close(self) -> None:
        """Give every region back."""
        self.inner.close()

    def layer(self, pool_id: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each [K, slots, D]."""
        return self.inner.layer(pool_id, layer)

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        """Zero the slots of these blocks."""
        self.inner.clear(pool_id, blocks, block_size)

    def give_back(self, pool_id: str, blocks: Iterable[int], block_size: int) -> GivenBack:
        """Give whole pages of these blocks back."""
        return self.inner.give_back(pool_id, blocks, block_size)

    def resident(self, pool_id: str) -> int | None:
        """Bytes of a region that are in memory."""
        return self.inner.resident(pool_id)

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        """Copy `num_slots` slots between (pool id, first slot) places."""
        self.inner.copy(source, target, num_slots)


class Int8:
    """A model whose KV lies in int8; everything else is the model's own."""

    def __init__(self, model: Forward) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def new_store(self) -> Any:
        """A store that quantises; of a model without weights one that only counts."""
        store = self._model.new_store()
        return Int8Store(store) if isinstance(store, KVStore) else store
