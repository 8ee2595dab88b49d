"""Attention over tiles by the compiled kernels: the plan of a step, and a layer of it.

Every tile is a piece of work of its own, read once for all rows that hold it, wherever its blocks
lie. The plan is made once a step; a layer adds nothing but where its tensors are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inms_lab.attention.reads import Span, TileRef
from inms_lab.attention.turns import Rows, Turns
from inms_lab.kernels.native import Native, Pointer
from inms_lab.store import KVStore

READERS = 32  # rows that read a tile in one piece of work


class _Plan(ctypes.Structure):
    """The twin of `Plan` in kernels/attend.cpp."""

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
    """The twin of `Layer` in kernels/attend.cpp."""

    _fields_ = (
        *((name, Pointer) for name in ("q", "k", "v", "y")),
        ("at", _Strides),
        ("keys", Pointer),
        ("values", Pointer),
        ("scale", ctypes.c_float),
    )


class Compiled:
    """The reads and writes of a step, for `attend` in every layer."""

    def __init__(
        self, native: Native, store: KVStore, pools: list[str], arrays: dict[str, np.ndarray]
    ) -> None:
        """`pools` are numbered as the plan's arrays do."""
        self.native, self.arrays = native, arrays
        self.num_rows = arrays["row_state"].size - 1
        _, layers, self.kv_heads, self.dim = store.shape
        halves = [[store.layer(pool, i) for pool in pools] for i in range(layers)]
        # Where each layer's keys and values of each pool begin.
        at = [[[pair[i].data_ptr() for pair in pairs] for i in (0, 1)] for pairs in halves]
        self.regions = np.array(at, np.int64).reshape(layers, 2, len(pools))
        self._plan: _Plan | None = None

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write k and v [T, K, D], then read q [T', H, D], own rows first -> out [T, H, D]."""
        heads = q.shape[1]
        if self._plan is None:
            self._plan = self._bound(heads)
        q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
        out = q.new_empty(self.num_rows, heads, self.dim)
        strides = [s for x in (q, k, v, out) for s in x.stride()[:2]]
        tensors = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        keys = self.regions[layer].ctypes.data
        values = keys + self.regions.strides[1]
        self.native.attend(self._plan, _Layer(*tensors, _Strides(*strides), keys, values, scale))
        return out

    def _bound(self, heads: int) -> _Plan:
        """The plan with the places of its arrays."""
        num = self.arrays["reader_row"].size * heads
        room = self.native.scratch(num * (self.dim + 1)).data_ptr()
        return _Plan(
            *(heads, self.kv_heads, self.dim, self.num_rows),
            *(self.arrays["write_row"].size, len(self.arrays["work"])),
            *(self.arrays[name].ctypes.data for name in _Plan.ARRAYS),
            *(room, room + 4 * num * self.dim),
        )


class Planner:
    """Collects who reads which tile of a step."""

    def __init__(self, tile: int, native: Native) -> None:
        self.tile, self.native, self.turns = tile, native, Turns()
        self.spans: list[tuple[Span, int]] = []

    def add(self, span: Span, row: int) -> None:
        """A span whose first token is row `row`."""
        self.spans.append((span, row))

    def plan(self, store: KVStore, num_rows: int) -> dict[str, Any]:
        """A field of a `Batch`: the plan of `num_rows` rows."""
        self.turns.begin(num_rows)
        tiles: dict[Any, list[tuple[list[int], list[int], list[int], int]]] = {}
        for span, row in self.spans:
            stop = span.start + len(span.tokens)
            for number, tile in enumerate(span.tiles):
                first = max(span.start, tile.first)  # the first token that reads this tile
                own = range(row + first - span.start, row + stop - span.start)
                asking = own if not tile.shift else self._turned(own, number, tile)
                seen = [min(i - tile.first + 1, tile.length) for i in range(first, stop)]
                where = (tile.pool_id, tile.slot, tile.more, tile.step or self.tile)
                tiles.setdefault(where, []).append((list(own), list(asking), seen, number))
        return {"compiled": self._laid_out(store, num_rows, tiles)}

    def _turned(self, own: range, number: int, tile: TileRef) -> Sequence[int]:
        rows = self.turns.rows(Rows(own.start, own.stop, number, tile.shift))
        return list(map(int, rows))

    def _laid_out(self, store: KVStore, num_rows: int, tiles: dict[Any, Any]) -> Compiled:
        own: list[int] = []
        row: list[int] = []
        seen: list[int] = []
        numbers: list[int] = []
        work: list[tuple[int, int, int]] = []
        for at, parts in enumerate(tiles.values()):
            begin = len(row)
            for mine, asking, sees, number in parts:
                own += mine
                row += asking
                seen += sees
                numbers += [number] * len(mine)
            work += [(at, i, min(i + READERS, len(row))) for i in range(begin, len(row), READERS)]
        writes = [(r + i, *place) for span, r in self.spans for i, place in enumerate(span.slots)]
        pools = list(dict.fromkeys([w[0] for w in tiles] + [w[1] for w in writes]))
        number_of = {pool: i for i, pool in enumerate(pools)}
        stretches = [(slot, *more) for _, slot, more, _ in tiles]
        owner, logical = np.array(own, np.int64), np.array(numbers, np.int64)
        order = np.lexsort((logical, owner))
        ends = np.cumsum([0] + [len(s) for s in stretches])
        arrays: dict[str, Any] = {
            "tile_pool": [number_of[w[0]] for w in tiles],
            "tile_step": [w[3] for w in tiles],
            "tile_stretch": ends[:-1],
            "stretches": [slot for s in stretches for slot in s],
            "work": np.array(work, np.int64).reshape(-1, 3),
            "reader_row": row,
            "reader_seen": seen,
            "row_state": np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=num_rows)))),
            "states": order,
            "numbers": logical[order],
            "write_row": [w[0] for w in writes],
            "write_pool": [number_of[w[1]] for w in writes],
            "write_slot": [w[2] for w in writes],
            "pool_slots": [store.layer(pool, 0)[0].shape[1] for pool in pools],
        }
        plain = {name: np.ascontiguousarray(x, np.int64) for name, x in arrays.items()}
        return Compiled(self.native, store, pools, plain)
