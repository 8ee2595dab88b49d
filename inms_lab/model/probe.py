"""The apparatus of the admission: small contexts laid by hand into a scratch store, and computed.

Two contexts serve the comparisons. The first has two segments; the second begins with the first
segment of the first (the same tiles, a partial one among them) and goes on by itself. They are
computed packed in three chunks, or each by itself. Not here: any verdict (admission.py, rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from inms_lab.attention.batch import Batch, Span, TileRef
from inms_lab.errors import ModelRefused
from inms_lab.model.runner import Runner

POOL = "probe"
SHARED, OWN, SECOND = 21, 45, 23  # tokens: shared segment, the first's own, the second's own
FIRST_CUT, SECOND_CUT = 30, SHARED + SECOND - 1  # where the chunks end


class Watched(Batch):
    """A batch that keeps the q, k, v that each layer's attention received."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(*(getattr(batch, field.name) for field in fields(batch)))
        self.seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Keep q [T, H, D] and k, v [T, K, D], then attend."""
        _, layers, kv_heads, dim = self.store.shape
        if k.shape[1:] != (kv_heads, dim) or layer >= layers:
            raise ModelRefused(
                f"layer {layer} has {k.shape[1]} KV heads of size {k.shape[2]}, but its "
                f"configuration says {layers} layers with {kv_heads} of size {dim}"
            )
        self.seen.append((q[: self.num_rows], k[: self.num_rows], v[: self.num_rows]))
        return Batch.attend(self, layer, q, k, v, scale)


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens and the tiles that hold their KV, in logical order."""

    tokens: tuple[int, ...]
    tiles: tuple[TileRef, ...]

    def slots(self, start: int, stop: int) -> list[int]:
        """Where the KV of the tokens `start` to `stop` (excluded) lies."""
        every = [tile.slot + i for tile in self.tiles for i in range(tile.length)]
        return every[start:stop]

    def span(self, start: int, stop: int, wants_logits: bool = False) -> Span:
        """These tokens as the engine would ask for them."""
        visible = (tile for tile in self.tiles if tile.first < stop)
        tiles = [
            TileRef(POOL, tile.slot, tile.first, min(tile.length, stop - tile.first))
            for tile in visible
        ]
        slots = [(POOL, slot) for slot in self.slots(start, stop)]
        positions = range(start, stop)
        return Span(start, self.tokens[start:stop], positions, slots, tiles, wants_logits)


class Bench:
    """A scratch store full of noise, and the tiles in it in a scattered order."""

    def __init__(self, runner: Runner, tile: int, seed: int) -> None:
        self.runner, self.tile = runner, tile
        self.store = runner.new_store()
        count = 8 + (SHARED + OWN + SECOND) // tile
        self.store.open(POOL, count * tile)
        generator = torch.Generator().manual_seed(seed)
        region = self.store.regions[POOL]
        # Whatever a mask fails to hide must show, and zeros would hide it.
        region.copy_(torch.randn(region.shape, generator=generator))
        self._free = [int(i) * tile for i in torch.randperm(count, generator=generator)]

    def lay(self, tokens: Sequence[int], lengths: Sequence[int], before: Context | None) -> Context:
        """A context of segments of these lengths, behind the whole of `before`."""
        tiles = list(before.tiles) if before else []
        first = len(before.tokens) if before else 0
        for length in lengths:
            for start in range(0, length, self.tile):
                size = min(self.tile, length - start)
                tiles.append(TileRef(POOL, self._free.pop(), first + start, size))
            first += length
        return Context((*(before.tokens if before else ()), *tokens), tuple(tiles))

    def pair(self) -> tuple[Context, Context]:
        """The two contexts of the comparisons."""
        words = probe_tokens(self.runner, SHARED + OWN + SECOND)
        shared = self.lay(words[:SHARED], (SHARED,), None)
        first = self.lay(words[SHARED : SHARED + OWN], (OWN,), shared)
        return first, self.lay(words[SHARED + OWN :], (SECOND,), shared)

    def compute(self, *spans: Span) -> list[torch.Tensor]:
        """Logits [T, vocab] of every token of each span, in float32."""
        runner = self.runner
        batch = runner.batch(spans, self.store, self.tile)
        batch.logit_rows = torch.arange(batch.input_ids.shape[1], device=runner.device)
        runner.run(batch)
        lengths = [len(span.tokens) for span in spans]
        return list(runner.last_logits[: sum(lengths)].float().split(lengths))

    def watch(self, tokens: Sequence[int], positions: Sequence[int]) -> Watched:
        """Each token a context of its own, at its position: it attends to itself alone."""
        runner = self.runner
        spans = [
            Span(0, [token], [position], [(POOL, slot)], [TileRef(POOL, slot, 0, 1)], True)
            for slot, (token, position) in enumerate(zip(tokens, positions, strict=True))
        ]
        batch = Watched(runner.batch(spans, self.store, self.tile))
        batch.logit_rows = batch.logit_rows[:1]  # fewer than rows, so that it shows who ignores it
        runner.run(batch)
        return batch

    def kv(self, context: Context) -> torch.Tensor:
        """Keys and values of all layers for the context's tokens: [2, layers, K, T, D]."""
        slots = context.slots(0, len(context.tokens))
        return self.store.regions[POOL][:, :, :, torch.tensor(slots, device=self.store.device)]


@dataclass(frozen=True, slots=True)
class Trial:
    """What came out for the two contexts: logits of the computed tokens, KV of all tokens."""

    first: torch.Tensor  # [SHARED + OWN, vocab]
    second: torch.Tensor  # [SECOND, vocab]
    kv: tuple[torch.Tensor, torch.Tensor]

    def equals(self, other: Trial) -> bool:
        """Whether every bit is the same."""
        mine, theirs = ((t.first, t.second, *t.kv) for t in (self, other))
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def packed(runner: Runner, tile: int) -> Trial:
    """Both contexts in three chunks, packed with each other."""
    bench = Bench(runner, tile, seed=1)
    one, two = bench.pair()
    stop, end = len(one.tokens), len(two.tokens)
    (a,) = bench.compute(one.span(0, FIRST_CUT))
    x, b = bench.compute(two.span(SHARED, SECOND_CUT), one.span(FIRST_CUT, FIRST_CUT + 1))
    c, y = bench.compute(one.span(FIRST_CUT + 1, stop), two.span(SECOND_CUT, end))
    return Trial(torch.cat((a, b, c)), torch.cat((x, y)), (bench.kv(one), bench.kv(two)))


def alone(runner: Runner, tile: int) -> Trial:
    """The same elsewhere: the first at once, the second by itself, its last token as a decode."""
    bench = Bench(runner, tile, seed=2)
    one, two = bench.pair()
    end = len(two.tokens)
    (a,) = bench.compute(one.span(0, len(one.tokens)))
    (x,) = bench.compute(two.span(SHARED, SECOND_CUT))
    y = runner.forward([two.span(SECOND_CUT, end, wants_logits=True)], bench.store, tile)
    return Trial(a, torch.cat((x, y)), (bench.kv(one), bench.kv(two)))


def dense(runner: Runner) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the same tokens from stock transformers, one whole context after the other."""
    words = probe_tokens(runner, SHARED + OWN + SECOND)
    first = runner.dense(words[: SHARED + OWN])
    return first, runner.dense([*words[:SHARED], *words[SHARED + OWN :]])[SHARED:]


def probe_tokens(runner: Runner, count: int) -> list[int]:
    """Token ids drawn from the whole vocabulary, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(runner.vocab_size, (count,), generator=generator).tolist()
