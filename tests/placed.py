"""Fragments that are encoded alone at a chosen position, and readers that have them at others.

place = Place(runner)
home = place.encode(tokens, 4200)                    # a Fragment, the first token at 4200
reader = place.reader([(home, 700)], own, 740)       # reads it at 700, its own text from 740 on
reading = place.read(place.span(reader))             # one forward: logits, and every layer's q, k,
                                                     # v and attention
A fragment that is encoded alone has the same KV at every position, up to the rotation: so the same
tokens, encoded afresh where a reader has them, say what the reader must get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from inms_lab.attention.batch import Span, TileRef
from inms_lab.model import Runner
from inms_lab.model.probe import Watched

TILE = 16
GROUP, OWN = "group", "own"  # pools: of fragments, of what readers write


@dataclass(frozen=True, slots=True)
class Fragment:
    """Tokens whose KV lies from `slot` on, encoded with the first of them at position `at`."""

    tokens: tuple[int, ...]
    slot: int
    at: int

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Reader:
    """Fragments, each with the position where the reader has it; then text of its own, at `at`."""

    mounts: tuple[tuple[Fragment, int], ...]
    tokens: tuple[int, ...]
    at: int
    slot: int

    @property
    def before(self) -> int:
        """Tokens of all fragments."""
        return sum(len(fragment) for fragment, _ in self.mounts)

    def moved(self, by: int) -> Reader:
        """The same reader, everything that it has `by` positions further."""
        mounts = tuple((fragment, at + by) for fragment, at in self.mounts)
        return replace(self, mounts=mounts, at=self.at + by)


class Reading(Watched):
    """A forward that keeps each layer's q, k, v (`seen`) and result (`outs`), and all logits."""

    logits: torch.Tensor  # [T, vocab]
    scale: float

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """As usual, and kept."""
        out = super().attend(layer, q, k, v, scale)
        self.scale = scale
        self.outs = [*getattr(self, "outs", ()), out[: self.num_rows]]
        return out


class Place:
    """A store full of noise, and what is laid into it."""

    def __init__(self, runner: Runner, num_slots: int = 128 * TILE) -> None:
        self.runner, self.store = runner, runner.new_store()
        self.used = {GROUP: 0, OWN: 0}
        for pool in self.used:
            self.store.open(pool, num_slots)
            self.store.regions[pool].uniform_(-9, 9)  # what a mask fails to hide must show

    def encode(self, tokens: Sequence[int], *places: int) -> list[Fragment]:
        """The same tokens at each of these positions, each time as a context of its own."""
        made = [Fragment(tuple(tokens), self._take(GROUP, len(tokens)), at) for at in places]
        spans = []
        for f in made:
            slots = [(GROUP, f.slot + i) for i in range(len(f))]
            positions = range(f.at, f.at + len(f))
            read = tiles(GROUP, f.slot, 0, len(f))
            spans.append(Span(0, f.tokens, positions, slots, read, False))
        self.read(*spans)
        return made

    def reader(
        self, mounts: Sequence[tuple[Fragment, int]], tokens: Sequence[int], at: int
    ) -> Reader:
        """A reader; its KV gets slots of its own."""
        return Reader(tuple(mounts), tuple(tokens), at, self._take(OWN, len(tokens)))

    def span(self, reader: Reader, start: int = 0, stop: int | None = None) -> Span:
        """The reader's own tokens [start, stop) as the engine would ask for them."""
        before = reader.before
        stop = len(reader.tokens) if stop is None else stop
        return Span(
            start=before + start,
            tokens=reader.tokens[start:stop],
            positions=range(reader.at + start, reader.at + stop),
            slots=[(OWN, reader.slot + i) for i in range(start, stop)],
            tiles=[*mounted(reader.mounts), *tiles(OWN, reader.slot, before, stop)],
            wants_logits=True,
        )

    @torch.inference_mode()
    def read(self, *spans: Span) -> Reading:
        """One forward."""
        runner = self.runner
        planned = runner.batch(spans, self.store, TILE)
        reading = Reading(planned)
        reading.logit_rows = torch.arange(reading.input_ids.shape[1])
        runner.run(reading)
        reading.logits = runner.last_logits[: reading.num_rows].float()
        return reading

    def kv(self, layer: int, fragment: Fragment) -> tuple[torch.Tensor, torch.Tensor]:
        """The fragment's keys and values [T, K, D] as they lie, in float32."""
        slots = slice(fragment.slot, fragment.slot + len(fragment))
        keys, values = (x[:, slots].transpose(0, 1) for x in self.store.layer(GROUP, layer))
        return keys.float(), values.float()

    def own_kv(self, reader: Reader) -> torch.Tensor:
        """Keys and values of the reader's own tokens, all layers."""
        return self.store.regions[OWN][:, :, :, reader.slot : reader.slot + len(reader.tokens)]

    def dense(
        self, reading: Reading, layer: int, rows: slice, fragment: Fragment, shift: int
    ) -> torch.Tensor:
        """Dense attention [T, H, D] of these rows, the only own text of a reader of this one
        fragment, over its keys turned by `shift` and the reader's own; in float64."""
        (keys, values), rotation = self.kv(layer, fragment), self.runner.rotations[layer]
        if rotation is not None and shift:
            keys = rotation.turn(keys, shift)
        q, k, v = (x[rows].float() for x in reading.seen[layer])
        return dense(q, torch.cat((keys, k)), torch.cat((values, v)), reading.scale)

    def _take(self, pool: str, count: int) -> int:
        slot = self.used[pool]
        self.used[pool] += -(-count // TILE) * TILE
        return slot


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention [T, H, D] in float64: q [T, H, D] are the last of the tokens of k and v
    [S, K, D]."""
    repeat, hidden = q.shape[1] // k.shape[1], k.shape[0] - q.shape[0]
    k, v = (x.repeat_interleave(repeat, 1) for x in (k, v))
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    mask = torch.ones(q.shape[1], k.shape[1]).tril(hidden).bool()
    return scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(0, 1)


def mounted(mounts: Sequence[tuple[Fragment, int]]) -> list[TileRef]:
    """The tiles of fragments that stand behind one another, each at its position."""
    out: list[TileRef] = []
    for fragment, at in mounts:
        first = sum(tile.length for tile in out)
        out += tiles(GROUP, fragment.slot, first, len(fragment), at - fragment.at)
    return out


def tiles(pool: str, slot: int, first: int, length: int, shift: int = 0) -> list[TileRef]:
    """Tiles of `length` tokens from `slot` on; the first token has the index `first`."""
    return [
        TileRef(pool, slot + i, first + i, min(TILE, length - i), shift=shift)
        for i in range(0, length, TILE)
    ]
