"""Random layouts of tiles and blocks, and dense attention over them: for the tests of kernels."""

from __future__ import annotations

import random

import torch

from inms_lab.attention.batch import Batch, Span, TileRef, build
from inms_lab.attention.store import KVStore
from inms_lab.kernels.launcher import Launcher
from inms_lab.kernels.native import Native


class Layout:
    """Agents with random contexts in blocks that lie anywhere; some tiles are shared.

    `agents`: how many; `longest`: tokens that each computes at most; `heads`: kv heads, query heads
    of each, and their size.
    """

    def __init__(
        self,
        seed: int,
        *,
        agents: int | None = None,
        longest: int | None = None,
        heads: tuple[int, int, int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        self.kv_heads, self.groups = rng.choice([(1, 1), (1, 3), (2, 4), (3, 3)])
        self.dim, self.block = rng.choice([16, 32, 64, 80, 128]), rng.choice([4, 16, 32])
        self.tile = self.block * rng.choice([1, 2, 4])
        self.longest = longest
        if heads is not None:
            self.kv_heads, self.groups, self.dim = heads
        self.store = KVStore(2, self.kv_heads, self.dim, dtype, device)
        self.size = 4096
        for pool in ("global", "private"):
            self.store.open(pool, self.size)
            self.store.regions[pool].normal_()
        blocks = range(self.size // self.block)
        self.free = {pool: rng.sample(blocks, len(blocks)) for pool in self.store.regions}
        shared = self.tiles("global", rng.randint(1, 3 * self.tile), 0)
        self.spans = [self.span(shared) for _ in range(agents or rng.randint(1, 6))]

    def tiles(self, pool: str, length: int, first: int) -> list[TileRef]:
        """A segment of `length` tokens in fresh blocks."""
        blocks = [self.free[pool].pop() for _ in range(-(-length // self.block))]
        out = []
        for start in range(0, length, self.tile):
            mine = blocks[start // self.block : (start + self.tile) // self.block]
            slots = [b * self.block for b in mine]
            seen = min(self.tile, length - start)
            step = min(self.tile, self.block)
            out.append(TileRef(pool, slots[0], first + start, seen, tuple(slots[1:]), step))
        return out

    def span(self, shared: list[TileRef]) -> Span:
        """The last tokens of a context behind the shared text, written now."""
        rng = self.rng
        begin = shared[-1].first + shared[-1].length
        length = rng.randint(1, 2 * self.tile)
        own = self.tiles("private", length, begin)
        new = rng.randint(1, min(length, self.longest or length))
        at = [(t.pool_id, s + i) for t in own for s in (t.slot, *t.more) for i in range(self.block)]
        slots = at[length - new : length]
        stop = begin + length
        return Span(
            start=stop - new,
            tokens=[1] * new,
            positions=range(stop - new, stop),
            slots=slots,
            tiles=[*shared, *own],
            wants_logits=True,
        )

    def context(self, span: Span) -> list[tuple[str, int]]:
        """Every slot of a span's context, in order."""
        out = []
        for tile in span.tiles:
            slots = [s + i for s in (tile.slot, *tile.more) for i in range(tile.step)]
            out += [(tile.pool_id, slot) for slot in slots[: tile.length]]
        return out

    def batch(self, spans: list[Span], native: Native | Launcher | None) -> Batch:
        heads = self.kv_heads * self.groups
        return build(spans, self.store, self.tile, heads, 1, (), native)

    def new(self, spans: list[Span]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v of all new tokens; the same for the same span."""
        parts = []
        for span in spans:
            make = torch.Generator().manual_seed(span.slots[0][1])
            for heads in (self.kv_heads * self.groups, self.kv_heads, self.kv_heads):
                parts.append(torch.randn(len(span.tokens), heads, self.dim, generator=make))
        like = self.store.device, self.store.dtype
        return tuple(torch.cat(parts[i::3]).to(*like) for i in range(3))  # type: ignore[return-value]

    def dense(self, span: Span, q: torch.Tensor, layer: int) -> torch.Tensor:
        """The truth in float64, after the writes: [T, H, D]."""
        places = self.context(span)
        halves = [
            torch.stack([self.store.layer(pool, layer)[i][:, slot] for pool, slot in places], 1)
            for i in (0, 1)
        ]
        keys, values = (x.double().repeat_interleave(self.groups, 0) for x in halves)
        out = []
        for i, row in enumerate(q.double()):
            seen = span.start + i + 1
            scores = torch.einsum("hd,hsd->hs", row, keys[:, :seen]) * 0.25
            out.append(torch.einsum("hs,hsd->hd", scores.softmax(-1), values[:, :seen]))
        return torch.stack(out)

    def error(self, out: torch.Tensor, q: torch.Tensor, layer: int) -> float:
        """The largest deviation of all spans' results from dense attention."""
        worst, at = 0.0, 0
        for span in self.spans:
            rows = slice(at, at + len(span.tokens))
            worst = max(worst, (out[rows] - self.dense(span, q[rows], layer)).abs().max().item())
            at = rows.stop
        return worst
