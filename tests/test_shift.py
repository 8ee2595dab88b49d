"""Tiles at a shift: queries that are turned meet keys that stay as they were written."""

from __future__ import annotations

import pytest
import torch

from inms_lab.attention.batch import Span, TileRef, build
from inms_lab.errors import UnsafeShift
from inms_lab.rope import Rotation
from inms_lab.store import KVStore

TILE, HEADS, KV_HEADS, DIM = 16, 6, 2, 32
SCALE = DIM**-0.5
SHIFTS = (-4096, -4095, -513, -1, 0, 1, 7, 500, 4096)
LAYOUTS = [(False, DIM), (True, DIM), (False, 20), (True, 8)]


def rotation(interleaved: bool = False, rotated: int = DIM) -> Rotation:
    return Rotation(1e4 ** -(torch.arange(0, rotated, 2) / rotated), interleaved, DIM)


class World:
    """A fragment of 40 tokens encoded at its own place, and readers that hold it elsewhere."""

    def __init__(self, rope: Rotation | None, seed: int = 0, dtype: torch.dtype = torch.float32):
        self.rope, self.dtype = rope, dtype
        self.random = torch.Generator().manual_seed(seed)
        self.store = KVStore(1, KV_HEADS, DIM, dtype)
        self.store.open("group", 4 * TILE)
        self.store.open("private", 40 * TILE)
        self.at, self.length, self.used = 5000, 40, 0
        self.k, self.v = self.draw(self.length, KV_HEADS), self.draw(self.length, KV_HEADS)
        slots = torch.arange(self.length)
        self.store.write(
            "group", 0, slots, self.turn(self.k, self.at).transpose(0, 1), self.v.transpose(0, 1)
        )

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, DIM, generator=self.random).to(self.dtype)

    def turn(self, x: torch.Tensor, first: int) -> torch.Tensor:
        if self.rope is None:
            return x
        places = torch.arange(first, first + len(x)).unsqueeze(-1)
        return self.rope.turn(x, places).to(self.dtype)

    def reader(
        self, shift: int, count: int
    ) -> tuple[Span, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The fragment, then `count` tokens of its own: their q, k, v, unrotated."""
        own = [TileRef("private", self.used + i, self.length + i, min(TILE, count - i))
               for i in range(0, count, TILE)]  # fmt: skip
        slots = [("private", self.used + i) for i in range(count)]
        self.used += -(-count // TILE) * TILE
        tiles = [TileRef("group", i, i, min(TILE, self.length - i), shift=shift)
                 for i in range(0, self.length, TILE)]  # fmt: skip
        first = self.at + shift + self.length
        span = Span(
            self.length, [0] * count, range(first, first + count), slots, [*tiles, *own], False
        )
        return span, self.draw(count, HEADS), self.draw(count, KV_HEADS), self.draw(count, KV_HEADS)


def attend(world: World, shifts: tuple[int, ...], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All readers in one batch: what they get, and what dense attention over moved keys gives."""
    readers = [world.reader(shift, count) for shift in shifts]
    spans = [reader[0] for reader in readers]
    batch = build(spans, world.store, TILE, HEADS, 16, [world.rope])
    places = [world.at + shift + world.length for shift in shifts]
    q, k = (
        torch.cat([world.turn(r[i], p) for r, p in zip(readers, places, strict=True)])
        for i in (1, 2)
    )
    v = torch.cat([r[3] for r in readers])
    pad = batch.input_ids.shape[1] - len(q)
    q, k, v = (torch.cat((x, x.new_zeros(pad, *x.shape[1:]))) for x in (q, k, v))
    got = batch.attend(0, q, k, v, SCALE)[: len(shifts) * count]
    truth = []
    for i, shift in enumerate(shifts):
        mine = slice(i * count, (i + 1) * count)
        keys = world.store.layer("group", 0)[0][:, : world.length].transpose(0, 1)
        moved = keys if world.rope is None else world.rope.turn(keys, shift)
        keys = torch.cat((moved.float(), k[mine].float()))
        values = torch.cat((world.v.float(), v[mine].float()))
        keys, values = (
            x.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for x in (keys, values)
        )
        mask = torch.ones(count, world.length + count).tril(world.length).bool()
        query = q[mine].float().transpose(0, 1)
        truth.append(
            torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, mask, scale=SCALE
            ).transpose(0, 1)
        )
    return got.float(), torch.cat(truth)


@pytest.mark.parametrize(("interleaved", "rotated"), LAYOUTS)
def test_many_readers_at_many_shifts_in_one_batch(interleaved: bool, rotated: int) -> None:
    world = World(rotation(interleaved, rotated))
    got, truth = attend(world, SHIFTS, 5)
    assert (got - truth).abs().max() <= 2e-5 * world.v.abs().max()


def test_a_layer_without_positions_needs_no_turn() -> None:
    world = World(None)
    got, truth = attend(world, SHIFTS, 5)
    assert (got - truth).abs().max() <= 2e-5 * world.v.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    world = World(rotation(), dtype=dtype)
    got, truth = attend(world, SHIFTS, 5)
    assert (got - truth).abs().max() <= 8 * torch.finfo(dtype).eps * world.v.abs().max()


def test_without_known_rotations_a_shift_is_refused() -> None:
    world = World(rotation())
    span = world.reader(3, 2)[0]
    with pytest.raises(UnsafeShift, match="another position"):
        build([span], world.store, TILE, HEADS, 16)
