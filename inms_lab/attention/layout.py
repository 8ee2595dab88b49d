"""Who reads which tile of a step, as plain arrays of numbers: what the kernels of a device follow.

Every tile is a piece of work of its own, read once for all rows that hold it, wherever its blocks
lie (a piece for each few of them, where they are many). The plan is made once a step. Not here:
the kernels (compiled.py on the CPU, launched.py on CUDA), and torch's operators (reads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from inms_lab.attention.reads import Span, TileRef
from inms_lab.attention.store import KVStore
from inms_lab.attention.turns import Rows, Turns


class Reader(Protocol):
    """A step's plan, bound to kernels and to a store."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write k and v [T, K, D], then read q [T', H, D], own rows first -> out [T, H, D]."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A step's plan. Readers are (row, tile) pairs, those of one tile one behind the other.

    tile_pool, tile_step, tile_stretch [tiles]   pool; tokens of a stretch; its first stretch
    stretches                                    the first slot of each stretch
    work [pieces, 3]                             tile, its readers [first, last)
    reader_row, reader_seen [readers]            row of q; how many tokens of the tile it sees
    row_state [rows + 1]                         where each row's own readers begin in `states`
    states, numbers                              readers in the logical order of each row's tiles,
                                                 and the logical numbers of these tiles
    write_row, write_pool, write_slot [writes]   which row's key and value go where
    pool_slots [pools]                           slots of each pool
    """

    pools: list[str]
    arrays: dict[str, np.ndarray]

    @property
    def num_rows(self) -> int:
        """Rows of the batch's own, without turned ones."""
        return self.arrays["row_state"].size - 1


class Planner:
    """Collects who reads which tile of a step."""

    def __init__(self, tile: int, readers: int, bind: Callable[[KVStore, Layout], Reader]) -> None:
        """`readers`: rows that read a tile in one piece of work, at most."""
        self.tile, self.readers, self.bind, self.turns = tile, readers, bind, Turns()
        self.spans: list[tuple[Span, int]] = []

    def add(self, span: Span, row: int) -> None:
        """A span whose first token is row `row`."""
        self.spans.append((span, row))

    def plan(self, store: KVStore, num_rows: int) -> dict[str, Any]:
        """A field of a `Batch`: the plan of `num_rows` rows, bound to kernels."""
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
        return {"compiled": self.bind(store, self._laid_out(store, num_rows, tiles))}

    def _turned(self, own: range, number: int, tile: TileRef) -> Sequence[int]:
        rows = self.turns.rows(Rows(own.start, own.stop, number, tile.shift))
        return list(map(int, rows))

    def _laid_out(self, store: KVStore, num_rows: int, tiles: dict[Any, Any]) -> Layout:
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
            stops = range(begin, len(row), self.readers)
            work += [(at, i, min(i + self.readers, len(row))) for i in stops]
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
        return Layout(
            pools, {name: np.ascontiguousarray(x, np.int64) for name, x in arrays.items()}
        )
