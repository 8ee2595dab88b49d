"""Attention over tiles by the compiled kernels, on the CPU: a layout bound to them, layer by layer.

A layer adds nothing to the plan of its step but where its tensors are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inms_lab.attention.layout import Layout
from inms_lab.attention.store import KVStore
from inms_lab.errors import ModelRefused
from inms_lab.kernels.native import Native, Pointer


class _Plan(ctypes.Structure):
    """The twin of `Plan` in kernels/tiles.h."""

    COUNTS = ("heads", "kv_heads", "dim", "num_rows", "num_writes", "num_work")
    ARRAYS = (
        *("tile_pool", "tile_step", "tile_stretch", "stretches", "work"),
        *("reader_row", "reader_seen", "row_state", "states", "numbers"),
        *("write_row", "write_pool", "write_slot", "pool_slots"),
    )
    _fields_ = (
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, Pointer) for name in (*ARRAYS, "out", "lse")),
    )


_Strides = ctypes.c_int64 * 8


class _Layer(ctypes.Structure):
    """The twin of `Layer` in kernels/tiles.h."""

    _fields_ = (
        *((name, Pointer) for name in ("q", "k", "v", "y")),
        ("at", _Strides),
        ("keys", Pointer),
        ("values", Pointer),
        ("scale", ctypes.c_float),
    )


class Compiled:
    """The reads and writes of a step, for `attend` in every layer."""

    def __init__(self, native: Native, store: KVStore, layout: Layout) -> None:
        self.native, self.arrays, self.num_rows = native, layout.arrays, layout.num_rows
        _, layers, self.kv_heads, self.dim = store.shape
        halves = [[store.layer(pool, i) for pool in layout.pools] for i in range(layers)]
        # Where each layer's keys and values of each pool begin.
        at = [[[pair[i].data_ptr() for pair in pairs] for i in (0, 1)] for pairs in halves]
        self.regions = np.array(at, np.int64).reshape(layers, 2, len(layout.pools))
        self._plan: _Plan | None = None

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write k and v [T, K, D], then read q [T', H, D], own rows first -> out [T, H, D]."""
        if not q.dtype == k.dtype == v.dtype == torch.float32:
            raise ModelRefused(f"compiled kernels read float32, and the model computes {q.dtype}")
        if k.shape[1:] != (self.kv_heads, self.dim) or q.shape[2] != self.dim:
            raise ModelRefused(
                f"layer {layer} has {k.shape[1]} KV heads of size {k.shape[2]}, the KV store is "
                f"for {self.kv_heads} of size {self.dim}"
            )
        plan = self._bound(q.shape[1])
        q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
        out = q.new_empty(self.num_rows, q.shape[1], self.dim)
        strides = [s for x in (q, k, v, out) for s in x.stride()[:2]]
        tensors = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        self.native.attend(plan, _Layer(*tensors, _Strides(*strides), *self._halves(layer), scale))
        return out

    def blocks(
        self, heads: int, layers: Sequence[int], scales: Sequence[float], blocks: ctypes.Array[Any]
    ) -> None:
        """Whole decoder layers, whose attentions write and read as `attend` does."""
        nothing = None, None, None, None, _Strides()
        made = (
            _Layer(*nothing, *self._halves(layer), scale)
            for layer, scale in zip(layers, scales, strict=True)
        )
        self.native.blocks(self._bound(heads), (_Layer * len(layers))(*made), blocks)

    def _halves(self, layer: int) -> tuple[int, int]:
        """Where the layer's keys and its values are listed, pool by pool."""
        keys = self.regions[layer].ctypes.data
        return keys, keys + self.regions.strides[1]

    def _bound(self, heads: int) -> _Plan:
        """The plan with the places of its arrays, made once."""
        if self._plan is not None:
            if self._plan.heads != heads:
                raise ModelRefused(f"its layers have {self._plan.heads} and {heads} query heads")
            return self._plan
        num = self.arrays["reader_row"].size * heads
        self._room = self.native.scratch(num * (self.dim + 1))  # kept: another plan may take more
        room = self._room.data_ptr()
        self._plan = _Plan(
            *(heads, self.kv_heads, self.dim, self.num_rows),
            *(self.arrays["write_row"].size, len(self.arrays["work"])),
            *(self.arrays[name].ctypes.data for name in _Plan.ARRAYS),
            *(room, room + 4 * num * self.dim),
        )
        return self._plan
