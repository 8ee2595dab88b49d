"""One forward's batch: packed tokens of several sequences, and which rows read which tiles.

The context of a sequence is cut into tiles (each segment from its own start); a row (one token)
reads every tile that begins at or before it, in logical order. Planned once per step:

    uniform reads   all rows see the same slots of a tile: rows of *several* sequences that hold the
                    tile read it together, neighbouring tiles with the same rows in one call
    causal reads    the tiles that a chunk itself is being written into, under a causal mask

Query heads that share a KV head are folded into the rows: row r and group g make folded row r*G+g.
Folded rows of each read are padded to `row_multiple`, found by a probe, so that a row gets the same
bits whatever it is batched with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import numpy as np
import torch

from inms_lab.attention.tiles import merge, read_tiles
from inms_lab.errors import StepInterrupted
from inms_lab.store import KVStore


@dataclass(frozen=True, slots=True)
class TileRef:
    """A tile in a pool: its first slot, its first token's index in the context, its tokens."""

    pool_id: str
    slot: int
    first: int
    length: int


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
    """`count` neighbouring tiles from `slot` on, read by the folded rows `rows` (padded)."""

    pool_id: str
    slot: int
    count: int
    rows: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class Batch:
    """What `attend` needs in every layer, and what the model is fed."""

    store: KVStore
    tile: int
    input_ids: torch.Tensor  # [1, T padded]
    position_ids: torch.Tensor  # [1, T padded]
    logit_rows: torch.Tensor  # [R]
    num_rows: int  # T
    writes: list[tuple[str, torch.Tensor, torch.Tensor]]  # pool id, rows, slots
    reads: list[Read]
    where: torch.Tensor  # [M, N] into the results of all reads, last entry: absent
    calls: list[int] = field(default_factory=list)  # layers that asked, for the admission
    cancel: Event | None = None  # set from another thread: stop before the next layer

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write this layer's KV, then read: q [T, H, D], k and v [T, K, D] -> out [T, H, D]."""
        if self.cancel is not None and self.cancel.is_set():
            raise StepInterrupted("the step was stopped; its blocks are back, go on when you like")
        self.calls.append(layer)
        for pool_id, rows, slots in self.writes:
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
            self.store.write(pool_id, layer, slots, keys, values)
        num_rows, heads, dim = self.num_rows, q.shape[1], q.shape[2]
        kv_heads = k.shape[1]
        folded = q[:num_rows].view(num_rows, kv_heads, heads // kv_heads, dim)
        folded = folded.transpose(0, 1).reshape(kv_heads, -1, dim)
        outs, lses = [], []
        for read in self.reads:
            keys, values = (
                half[:, read.slot : read.slot + read.count * self.tile]
                .unflatten(1, (read.count, self.tile))
                .transpose(0, 1)
                for half in self.store.layer(read.pool_id, layer)
            )
            out, lse = read_tiles(folded[:, read.rows], keys, values, read.mask, scale)
            outs.append(out.reshape(-1, dim))
            lses.append(lse.reshape(-1))
        outs.append(q.new_zeros(1, dim))
        lses.append(lses[0].new_full((1,), -torch.inf) if lses else q.new_full((1,), -torch.inf))
        merged = merge(torch.cat(outs)[self.where], torch.cat(lses)[self.where]).to(q.dtype)
        result = q.new_zeros(q.shape)
        result[:num_rows] = merged.view(kv_heads, num_rows, -1, dim).transpose(0, 1).flatten(1, 2)
        return result


def build(
    spans: Sequence[Span], store: KVStore, tile: int, num_heads: int, row_multiple: int
) -> Batch:
    """Pack `spans` into one batch and plan its reads."""
    device, kv_heads = store.device, store.shape[2]
    tokens = [token for span in spans for token in span.tokens]
    positions = [position for span in spans for position in span.positions]
    padding = [0] * (-len(tokens) % row_multiple)
    ends = np.cumsum([len(span.tokens) for span in spans])
    wanted = [int(end) - 1 for end, span in zip(ends, spans, strict=True) if span.wants_logits]
    wanted += wanted[:1] * (-len(wanted) % row_multiple)
    places = [(r, place) for r, place in enumerate(p for s in spans for p in _slots(s)) if place]
    writes = []
    for pool_id in dict.fromkeys(place[0] for _, place in places):
        rows, slots = zip(*((r, s) for r, (p, s) in places if p == pool_id), strict=True)
        writes.append((pool_id, torch.tensor(rows).to(device), torch.tensor(slots).to(device)))
    planner = _Reads(tile, num_heads // kv_heads, kv_heads, row_multiple, device)
    for span, end in zip(spans, ends, strict=True):
        planner.add(span, int(end) - len(span.tokens))
    reads, where = planner.finish(len(tokens))
    return Batch(
        store=store,
        tile=tile,
        input_ids=torch.tensor([tokens + padding], device=device),
        position_ids=torch.tensor([positions + padding], device=device),
        logit_rows=torch.tensor(wanted, dtype=torch.long, device=device),
        num_rows=len(tokens),
        writes=writes,
        reads=reads,
        where=where,
    )


def _slots(span: Span) -> Sequence[tuple[str, int] | None]:
    return span.slots or [None] * len(span.tokens)


class _Reads:
    """Collects what each row reads, groups it into calls, and says where each result will lie."""

    def __init__(
        self, tile: int, groups: int, kv_heads: int, multiple: int, device: torch.device
    ) -> None:
        self.tile, self.groups, self.kv_heads = tile, groups, kv_heads
        self.multiple, self.device = multiple, device
        self.uniform: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
        self.causal: list[tuple[TileRef, int, int, int, int]] = []
        self.depth = 0

    def add(self, span: Span, row: int) -> None:
        """A span whose first token is row `row`."""
        stop = span.start + len(span.tokens)
        for number, tile in enumerate(span.tiles):
            first = max(span.start, tile.first)  # the first token that reads this tile
            rows = (row + first - span.start, row + stop - span.start)
            if first >= tile.first + tile.length - 1:
                key = (tile.pool_id, tile.slot, tile.length)
                self.uniform.setdefault(key, []).append((*rows, number))
            else:
                self.causal.append((tile, *rows, number, first))
        self.depth = max(self.depth, len(span.tiles))

    def finish(self, num_rows: int) -> tuple[list[Read], torch.Tensor]:
        """The reads, and for each logical tile and folded row the place of its result."""
        self.reads: list[Read] = []
        self.size = 0
        count = num_rows * self.groups
        self.at = np.full((self.depth, count), -1, dtype=np.int64)
        self.stride = np.zeros((self.depth, count), dtype=np.int64)
        together: dict[tuple[tuple[int, int], ...], list[tuple[str, int, int]]] = {}
        for key, readers in self.uniform.items():
            together.setdefault(tuple((a, b) for a, b, _ in readers), []).append(key)
        for readers_rows, keys in together.items():
            rows = np.concatenate([np.arange(a, b) for a, b in readers_rows])
            for run in self._runs(sorted(keys)):
                length = run[0][2]
                mask = None
                if length < self.tile:
                    mask = self._mask(np.full(len(rows), length))
                numbers = [
                    np.concatenate([np.full(b - a, n) for a, b, n in self.uniform[key]])
                    for key in run
                ]
                self._read(run[0][0], run[0][1], rows, mask, numbers)
        for tile, a, b, number, first in self.causal:
            seen = np.minimum(np.arange(first, first + b - a) - tile.first + 1, tile.length)
            rows = np.arange(a, b)
            self._read(
                tile.pool_id, tile.slot, rows, self._mask(seen), [np.full(len(rows), number)]
            )
        heads = np.arange(self.kv_heads)[None, :, None]
        places = self.at[:, None, :] + heads * self.stride[:, None, :]
        places = np.where(self.at[:, None, :] < 0, self.size, places)
        return self.reads, torch.from_numpy(places.reshape(self.depth, -1)).to(self.device)

    def _runs(self, keys: list[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
        out: list[list[tuple[str, int, int]]] = []
        for key in keys:
            pool_id, slot, length = key
            last = out[-1][-1] if out else None
            if last == (pool_id, slot - self.tile, length) and length == self.tile:
                out[-1].append(key)
            else:
                out.append([key])
        return out

    def _mask(self, seen: np.ndarray) -> torch.Tensor:
        """[folded rows padded, tile], -inf where a row does not see a slot."""
        seen = self._pad(np.repeat(seen, self.groups))
        hidden = np.arange(self.tile)[None, :] >= seen[:, None]
        return torch.from_numpy(np.where(hidden, -np.inf, 0.0).astype(np.float32)).to(self.device)

    def _pad(self, values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[:1], -len(values) % self.multiple)])

    def _read(
        self,
        pool_id: str,
        slot: int,
        rows: np.ndarray,
        mask: torch.Tensor | None,
        numbers: list[np.ndarray],
    ) -> None:
        """A call for `len(numbers)` tiles; `numbers[j]` is tile j's logical number for each row."""
        folded = (rows[:, None] * self.groups + np.arange(self.groups)).reshape(-1)
        padded = self._pad(folded)
        for j, number in enumerate(numbers):
            logical = np.repeat(number, self.groups)
            first = self.size + j * self.kv_heads * len(padded)
            self.at[logical, folded] = first + np.arange(len(folded))
            self.stride[logical, folded] = len(padded)
        self.size += len(numbers) * self.kv_heads * len(padded)
        index = torch.from_numpy(padded).to(self.device)
        self.reads.append(Read(pool_id, slot, len(numbers), index, mask))
