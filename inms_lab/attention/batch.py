"""One forward's batch: packed tokens of several sequences, their KV writes, and their attention.

Query heads that share a KV head are folded into the rows: row r and group g make folded row r*G+g.
Which rows read which tiles is planned once per step (reads.py); every layer follows that plan.
Keys stay rotated as they were written: for tiles of another place the queries are turned to meet
them, once per layer and shift, however many tiles are read at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from threading import Event
from typing import Any

import torch

from inms_lab.attention.compiled import Compiled
from inms_lab.attention.launched import Launched
from inms_lab.attention.layout import Layout, Planner, Reader
from inms_lab.attention.reads import Read, ReadPlanner, Span, TileRef
from inms_lab.attention.rope import Rotation
from inms_lab.attention.store import KVStore
from inms_lab.attention.tiles import merge, read_tiles
from inms_lab.attention.turns import Turned, turned_rows
from inms_lab.errors import StepInterrupted
from inms_lab.kernels.launcher import Launcher
from inms_lab.kernels.native import Native

__all__ = ["Batch", "Span", "TileRef", "build"]


@dataclass(slots=True)
class Batch:
    """What `attend` needs in every layer, and what the model is fed."""

    store: KVStore
    tile: int
    input_ids: torch.Tensor  # [1, T padded]
    position_ids: torch.Tensor  # [1, T padded]
    logit_rows: torch.Tensor  # [R]
    num_rows: int  # T
    turned: Turned | None = None  # queries of tiles at another position; None: there are none
    compiled: Reader | None = None  # the plan, bound to kernels; None: torch's operators do
    # By torch's operators. Writes: pool id, rows, slots.
    writes: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    where: torch.Tensor | None = None  # [M, N] into the results of all reads, last entry: absent
    numbers: tuple[int, ...] = ()  # [M] logical tile numbers
    calls: list[int] = field(default_factory=list)  # layers that asked, for the admission
    run: Any = None  # the last layers that were computed in one go (model/layers.py)
    cancel: Event | None = None  # set from another thread: stop before the next layer

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write this layer's KV, then read: q [T, H, D], k and v [T, K, D] -> out [T, H, D]."""
        self.enter(layer)
        rows = q[: self.num_rows]
        if self.turned is not None:
            rows = torch.cat((rows, self.turned.queries(layer, q)))
        if self.compiled is not None:
            out = self.compiled.attend(layer, rows, k, v, scale)
        else:
            for pool_id, written, slots in self.writes:
                keys, values = k[written].transpose(0, 1), v[written].transpose(0, 1)
                self.store.write(pool_id, layer, slots, keys, values)
            out = self._read(layer, rows, k.shape[1], scale)
        padding = q.shape[0] - self.num_rows
        return torch.cat((out, out.new_zeros(padding, *out.shape[1:]))) if padding else out

    def enter(self, layer: int) -> None:
        """A layer asks for its attention. Raises `StepInterrupted` where the step was stopped."""
        if self.cancel is not None and self.cancel.is_set():
            raise StepInterrupted("the step was stopped; its blocks are back, go on when you like")
        self.calls.append(layer)

    def _read(self, layer: int, q: torch.Tensor, kv_heads: int, scale: float) -> torch.Tensor:
        """Own and turned rows q [T', H, D], by torch's operators -> out [T, H, D]."""
        rows, heads, dim = q.shape
        folded = q.reshape(rows, kv_heads, heads // kv_heads, dim)
        folded = folded.transpose(0, 1).reshape(kv_heads, -1, dim)
        outs, lses = [], []
        for read in self.reads:
            halves = self.store.layer(read.pool_id, layer)
            keys, values = (self._tiles(half, read) for half in halves)
            out, lse = read_tiles(folded[:, read.rows], keys, values, read.mask, scale)
            for first, count in read.nodes:
                part, part_lse = merge(out[first : first + count], lse[first : first + count])
                outs.append(part.reshape(-1, dim))
                lses.append(part_lse.reshape(-1))
        outs.append(torch.zeros(1, dim, device=q.device))
        lses.append(torch.full((1,), -torch.inf, device=q.device))
        merged, _ = merge(torch.cat(outs)[self.where], torch.cat(lses)[self.where], self.numbers)
        merged = merged.to(q.dtype).view(kv_heads, self.num_rows, -1, dim)
        return merged.transpose(0, 1).flatten(1, 2)

    def _tiles(self, half: torch.Tensor, read: Read) -> torch.Tensor:
        """[count, K, tile, D] of keys or values [K, slots, D]: a view, or one gathered tile."""
        if read.gather is not None:
            return half[:, read.gather].unsqueeze(0)
        flat = half[:, read.slot : read.slot + read.count * self.tile]
        return flat.unflatten(1, (read.count, self.tile)).transpose(0, 1)


def build(
    spans: Sequence[Span],
    store: KVStore,
    tile: int,
    num_heads: int,
    row_multiple: int,
    rotations: Sequence[Rotation | None] = (),
    native: Native | Launcher | None = None,
) -> Batch:
    """Pack `spans` into one batch and plan its reads. `rotations`: each layer's, for shifted tiles;
    without them a shift raises `UnsafeShift`. `native`: the kernels that read; None: torch does."""
    device, kv_heads = store.device, store.shape[2]
    tokens = [token for span in spans for token in span.tokens]
    positions = [position for span in spans for position in span.positions]
    padding = [0] * (-len(tokens) % row_multiple)
    ends = list(accumulate(len(span.tokens) for span in spans))
    wanted = [end - 1 for end, span in zip(ends, spans, strict=True) if span.wants_logits]
    wanted += wanted[:1] * (-len(wanted) % row_multiple)
    planner: Planner | ReadPlanner
    if native is not None:
        planner = Planner(tile, native.readers(num_heads // kv_heads), _binding(native))
    else:
        planner = ReadPlanner(tile, num_heads // kv_heads, kv_heads, row_multiple, device)
    for span, end in zip(spans, ends, strict=True):
        planner.add(span, end - len(span.tokens))
    plan = planner.plan(store, len(tokens))
    return Batch(
        store=store,
        tile=tile,
        input_ids=torch.tensor([tokens + padding], device=device),
        position_ids=torch.tensor([positions + padding], device=device),
        logit_rows=torch.tensor(wanted, dtype=torch.long, device=device),
        num_rows=len(tokens),
        turned=turned_rows(planner.turns, rotations, device),
        writes=[] if native is not None else _writes(spans, device),
        **plan,
    )


def _binding(native: Native | Launcher) -> Callable[[KVStore, Layout], Reader]:
    if isinstance(native, Launcher):
        return partial(Launched, native)
    return partial(Compiled, native)


def _writes(
    spans: Sequence[Span], device: torch.device
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """By pool: which rows go into which slots."""
    places = [(r, place) for r, place in enumerate(p for s in spans for p in _slots(s)) if place]
    writes = []
    for pool_id in dict.fromkeys(place[0] for _, place in places):
        rows, slots = zip(*((r, s) for r, (p, s) in places if p == pool_id), strict=True)
        writes.append((pool_id, torch.tensor(rows).to(device), torch.tensor(slots).to(device)))
    return writes


def _slots(span: Span) -> Sequence[tuple[str, int] | None]:
    return span.slots or [None] * len(span.tokens)
