"""Which rows read which tiles: planned once per step, followed by every layer.

The context of a sequence is cut into tiles (each segment from its own start); a row (one token)
reads every tile that begins at or before it, in logical order.

    uniform reads   all rows see the same slots of a tile: rows of *several* sequences that hold the
                    tile read it together, neighbouring tiles with the same rows in one call
    causal reads    the tiles that a chunk itself is being written into, under a causal mask

Folded rows of each read are padded to `row_multiple`, found by a probe, so that a row gets the same
bits whatever it is batched with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from inms_lab.attention.store import KVStore
from inms_lab.attention.turns import Rows, Turns

Key: TypeAlias = tuple[str, tuple[int, ...], int, int]  # pool id, stretches, step, tokens seen
MANY_ROWS = 128  # folded rows from which on subtrees are joined before gathering


@dataclass(frozen=True, slots=True)
class TileRef:
    """A tile: where its slots lie, its first token's index in the context, its number of tokens.

    A tile that is larger than a block is made of stretches of `step` tokens, the first at `slot`,
    the others at `more` (fewer than a whole tile's, if it is a segment's last). `shift`: where the
    reader has the tokens, minus where their keys were rotated for.
    """

    pool_id: str
    slot: int
    first: int
    length: int
    more: tuple[int, ...] = ()
    step: int = 0  # 0: the whole tile is one stretch
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence and everything that they may read.

    `start` is the first token's index in the context, `positions` what the model is told, `slots`
    (pool id, slot) per token to write (empty: none is written), `tiles` all tiles up to the last
    token; `wants_logits` asks for the last token's logits.
    """

    start: int
    tokens: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[tuple[str, int]]
    tiles: Sequence[TileRef]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class Read:
    """`count` neighbouring tiles from `slot` on, read by the folded rows `rows` (padded).

    `gather`: the slots of one tile that does not lie in one piece; it is copied together. `nodes`:
    (first, count) of tiles that are joined at once, each a whole subtree of the merge.
    """

    pool_id: str
    slot: int
    count: int
    rows: torch.Tensor
    mask: torch.Tensor | None
    gather: torch.Tensor | None
    nodes: tuple[tuple[int, int], ...]


class ReadPlanner:
    """Collects what each row reads, groups it into calls, and says where each result will lie."""

    def __init__(
        self, tile: int, groups: int, kv_heads: int, multiple: int, device: torch.device
    ) -> None:
        self.tile, self.groups, self.kv_heads = tile, groups, kv_heads
        self.multiple, self.device = multiple, device
        self.uniform: dict[Key, list[Rows]] = {}
        self.causal: list[tuple[TileRef, Rows, int]] = []
        self.depth = 0
        self.turns = Turns()

    def add(self, span: Span, row: int) -> None:
        """A span whose first token is row `row`."""
        stop = span.start + len(span.tokens)
        for number, tile in enumerate(span.tiles):
            first = max(span.start, tile.first)  # the first token that reads this tile
            rows = Rows(row + first - span.start, row + stop - span.start, number, tile.shift)
            if first >= tile.first + tile.length - 1:
                self.uniform.setdefault(self._key(tile), []).append(rows)
            else:
                self.causal.append((tile, rows, first))
        self.depth = max(self.depth, len(span.tiles))

    def plan(self, store: KVStore, num_rows: int) -> dict[str, Any]:
        """Fields of a `Batch`: the reads; for each logical tile and folded row the place of its
        result; the tiles' numbers."""
        self.reads: list[Read] = []
        self.size = 0
        self.turns.begin(num_rows)
        self.at = np.full((self.depth, num_rows * self.groups), -1, dtype=np.int64)
        self.stride = np.zeros_like(self.at)
        together: dict[tuple[Rows, ...], list[Key]] = {}
        for key, readers in self.uniform.items():
            group = tuple(r._replace(number=0) for r in readers)
            together.setdefault(group, []).append(key)
        for group, keys in together.items():
            rows = np.concatenate([np.arange(r.start, r.stop) for r in group])
            for run in self._runs(keys):
                seen = np.full(len(rows), run[0][3])
                self._read(run, rows, seen, [self.uniform[key] for key in run])
        for tile, r, first in self.causal:
            rows = np.arange(r.start, r.stop)
            seen = np.minimum(np.arange(first, first + len(rows)) - tile.first + 1, tile.length)
            self._read([self._key(tile)], rows, seen, [[r]])
        used = np.flatnonzero((self.at >= 0).any(axis=1))
        at, stride = self.at[used][:, None, :], self.stride[used][:, None, :]
        places = at + np.arange(self.kv_heads)[None, :, None] * stride
        places = np.where(at < 0, self.size, places).reshape(len(used), -1)
        where = torch.from_numpy(places).to(self.device)
        return {"reads": self.reads, "where": where, "numbers": tuple(used.tolist())}

    def _runs(self, keys: list[Key]) -> list[list[Key]]:
        """Tiles that lie one behind the other, in memory and in the context."""
        out: list[list[Key]] = []
        for key in keys:
            last = out[-1][-1] if out else None
            if last is not None and self._follows(last, key):
                out[-1].append(key)
            else:
                out.append([key])
        return out

    def _follows(self, last: Key, key: Key) -> bool:
        numbers = zip(self.uniform[last], self.uniform[key], strict=True)
        return (
            last[0] == key[0]
            and last[3] == key[3] == self.tile
            and key[1][0] == last[1][0] + self.tile
            and self._is_piece(last)
            and self._is_piece(key)
            and all(b.number == a.number + 1 for a, b in numbers)
        )

    def _key(self, tile: TileRef) -> Key:
        return tile.pool_id, (tile.slot, *tile.more), tile.step or self.tile, tile.length

    def _is_piece(self, key: Key) -> bool:
        _, slots, step, _ = key
        return slots == tuple(range(slots[0], slots[0] + self.tile, step))

    def _mask(self, seen: np.ndarray) -> torch.Tensor | None:
        """[folded rows padded, tile], -inf where a row does not see a slot; None: all see all."""
        if (seen == self.tile).all():
            return None
        seen = self._pad(np.repeat(seen, self.groups))
        hidden = np.arange(self.tile)[None, :] >= seen[:, None]
        return torch.from_numpy(np.where(hidden, -np.inf, 0.0).astype(np.float32)).to(self.device)

    def _pad(self, values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[:1], -len(values) % self.multiple)])

    def _gather(self, key: Key) -> torch.Tensor | None:
        """Slots of a tile that is in pieces, or whose last blocks do not exist: a masked slot must
        be this reader's own too, so the missing ones repeat the first."""
        if self._is_piece(key):
            return None
        _, slots, step, _ = key
        missing = self.tile // step - len(slots)
        index = [slot + i for slot in (*slots, *slots[:1] * missing) for i in range(step)]
        return torch.tensor(index, device=self.device)

    def _read(
        self, run: list[Key], rows: np.ndarray, seen: np.ndarray, readers: list[list[Rows]]
    ) -> None:
        """A call for the tiles of `run`; `readers[j]` are the rows of tile j with its numbers."""
        folded = self._fold(rows)
        asking = np.concatenate([self.turns.rows(r) for r in readers[0]])  # turned, where shifted
        padded = self._pad(self._fold(asking))
        nodes = self._nodes(readers, len(padded))
        for j, (first, _) in enumerate(nodes):
            number = np.concatenate([np.full(r.stop - r.start, r.number) for r in readers[first]])
            logical = np.repeat(number, self.groups)
            start = self.size + j * self.kv_heads * len(padded)
            self.at[logical, folded] = start + np.arange(len(folded))
            self.stride[logical, folded] = len(padded)
        self.size += len(nodes) * self.kv_heads * len(padded)
        index = torch.from_numpy(padded).to(self.device)
        gather = self._gather(run[0])
        where = (run[0][0], run[0][1][0], len(run), index)
        self.reads.append(Read(*where, self._mask(seen), gather, nodes))

    def _fold(self, rows: np.ndarray) -> np.ndarray:
        return (rows[:, None] * self.groups + np.arange(self.groups)).reshape(-1)

    def _nodes(self, readers: list[list[Rows]], num_rows: int) -> tuple[tuple[int, int], ...]:
        """Whole subtrees of the merge within a run: joined at once where rows are many, so that
        less has to be gathered; single tiles where they are few. The bits are the same."""
        count, start = len(readers), readers[0][0].number
        if num_rows < MANY_ROWS or any(r.number != start for r in readers[0]):
            return tuple((j, 1) for j in range(count))
        nodes, j = [], 0
        while j < count:
            size = 1
            while (start + j) % (2 * size) == 0 and j + 2 * size <= count:
                size *= 2
            nodes.append((j, size))
            j += size
        return tuple(nodes)
