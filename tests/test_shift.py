"""Tiles at a shift: queries that are turned meet keys that stay as they were written."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from placed import GROUP, OWN, TILE, dense, tiles

from inms_lab.attention.batch import Batch, Span, build
from inms_lab.attention.rope import Rotation
from inms_lab.attention.store import KVStore
from inms_lab.errors import UnsafeShift

HEADS, KV_HEADS, DIM = 6, 2, 32
SCALE = DIM**-0.5
HOME, LENGTH = 5000, 40  # where the fragment was encoded, and its number of tokens
SHIFTS = (-4096, -4095, -513, -1, 0, 1, 7, 500, 4096)
LAYOUTS = [(False, DIM), (True, DIM), (False, 20), (True, 8)]


def rotation(interleaved: bool = False, rotated: int = DIM) -> Rotation:
    return Rotation(1e4 ** -(torch.arange(0, rotated, 2) / rotated), interleaved, DIM)


@dataclass(frozen=True)
class Reader:
    """The fragment at a shift, then tokens of its own; their q, k, v as attention gets them."""

    span: Span
    shift: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class World:
    """A fragment whose keys are rotated for `HOME`, and readers that have it elsewhere."""

    def __init__(self, rope: Rotation | None, dtype: torch.dtype = torch.float32) -> None:
        self.rope, self.dtype, self.used = rope, dtype, 0
        self.random = torch.Generator().manual_seed(0)
        self.store = KVStore(1, KV_HEADS, DIM, dtype)
        self.store.open(GROUP, 4 * TILE)
        self.store.open(OWN, 40 * TILE)
        self.k, self.v = self._rotated(KV_HEADS, LENGTH, HOME), self._draw(KV_HEADS, LENGTH)
        slots = torch.arange(LENGTH)
        self.store.write(GROUP, 0, slots, self.k.transpose(0, 1), self.v.transpose(0, 1))

    def reader(self, shift: int, count: int) -> Reader:
        """A reader with `count` tokens of its own behind the fragment."""
        first, slot = HOME + shift + LENGTH, self.used
        self.used += -(-count // TILE) * TILE
        span = Span(
            start=LENGTH,
            tokens=[0] * count,
            positions=range(first, first + count),
            slots=[(OWN, slot + i) for i in range(count)],
            tiles=[*tiles(GROUP, 0, 0, LENGTH, shift), *tiles(OWN, slot, LENGTH, count)],
            wants_logits=False,
        )
        q, k = (self._rotated(heads, count, first) for heads in (HEADS, KV_HEADS))
        return Reader(span, shift, q, k, self._draw(KV_HEADS, count))

    def plan(self, readers: list[Reader]) -> Batch:
        """All readers in one batch."""
        spans = [reader.span for reader in readers]
        return build(spans, self.store, TILE, HEADS, 16, [self.rope])

    def attend(self, readers: list[Reader]) -> torch.Tensor:
        """What they get [T, H, D], in their order."""
        batch = self.plan(readers)
        padding = batch.input_ids.shape[1] - batch.num_rows
        rows = (torch.cat([getattr(r, part) for r in readers]) for part in "qkv")
        q, k, v = (torch.cat((x, x.new_zeros(padding, *x.shape[1:]))) for x in rows)
        return batch.attend(0, q, k, v, SCALE)[: batch.num_rows].float()

    def truth(self, reader: Reader) -> torch.Tensor:
        """Dense attention [T, H, D] over the fragment's keys, turned to where the reader has it."""
        keys = self.rope.turn(self.k, reader.shift) if self.rope else self.k
        own = reader.k, reader.v
        k, v = (torch.cat((x.float(), y)) for x, y in zip((keys, self.v), own, strict=True))
        return dense(reader.q, k, v, SCALE)

    def off(self, readers: list[Reader]) -> float:
        """Largest distance from the truth, in units of max|v|."""
        truth = torch.cat([self.truth(reader) for reader in readers])
        return float((self.attend(readers) - truth).abs().max() / self.v.abs().max())

    def _draw(self, heads: int, count: int) -> torch.Tensor:
        return torch.randn(count, heads, DIM, generator=self.random).to(self.dtype)

    def _rotated(self, heads: int, count: int, first: int) -> torch.Tensor:
        x, places = self._draw(heads, count), torch.arange(first, first + count).unsqueeze(-1)
        return self.rope.turn(x, places).to(self.dtype) if self.rope else x


@pytest.mark.parametrize(("interleaved", "rotated"), LAYOUTS)
def test_many_readers_at_many_shifts_in_one_batch(interleaved: bool, rotated: int) -> None:
    world = World(rotation(interleaved, rotated))
    assert world.off([world.reader(shift, 5) for shift in SHIFTS]) <= 2e-5


def test_a_layer_without_positions_needs_no_turn() -> None:
    world = World(None)
    assert world.off([world.reader(shift, 5) for shift in SHIFTS]) <= 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """The results are rounded to the type, and so is a turned query (measured: 0.2 eps)."""
    world = World(rotation(), dtype)
    limit = torch.finfo(dtype).eps
    assert world.off([world.reader(shift, 5) for shift in SHIFTS]) <= limit


def test_a_row_is_turned_once_for_all_tiles_of_a_shift() -> None:
    world = World(rotation())
    readers = [world.reader(shift, count) for shift, count in ((7, 5), (0, 3), (7, 1), (-9, 4))]
    turned = world.plan(readers).turned
    assert turned is not None
    shifts = [turned.shifts[i] for i in turned.which.tolist()]
    rows = {7: [*range(5), 8], -9: range(9, 13)}  # three tiles each; rows 5 to 7 are at no shift
    expected = [(row, shift) for shift in rows for row in rows[shift]]
    assert sorted(zip(turned.rows.tolist(), shifts, strict=True)) == sorted(expected)
    assert world.plan([world.reader(0, 4)]).turned is None


def test_without_known_rotations_a_shift_is_refused() -> None:
    world = World(rotation())
    with pytest.raises(UnsafeShift, match="another position"):
        build([world.reader(3, 2).span], world.store, TILE, HEADS, 16)
