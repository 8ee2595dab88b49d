"""Turning by positions is what the papers say it is, in every layout."""

from __future__ import annotations

import pytest
import torch

from inms_lab.attention.rope import Rotation

DIM = 12
LAYOUTS = [(False, DIM), (True, DIM), (False, 8), (True, 8)]


def rotation(interleaved: bool, rotated: int) -> Rotation:
    inv_freq = 1.0 / 100.0 ** (torch.arange(0, rotated, 2) / rotated)
    return Rotation(inv_freq, interleaved, DIM)


def channel_pairs(interleaved: bool, rotated: int) -> list[tuple[int, int]]:
    half = rotated // 2
    return [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]


def vectors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("interleaved", "rotated"), LAYOUTS)
def test_each_pair_is_multiplied_by_a_complex_number(interleaved: bool, rotated: int) -> None:
    rope, x, shift = rotation(interleaved, rotated), vectors(5, 3), 7
    turned = rope.turn(x, shift)
    for i, (a, b) in enumerate(channel_pairs(interleaved, rotated)):
        factor = torch.polar(torch.tensor(1.0), shift * rope.inv_freq[i])
        expected = torch.complex(x[..., a], x[..., b]) * factor
        torch.testing.assert_close(torch.complex(turned[..., a], turned[..., b]), expected)
    assert torch.equal(turned[..., rotated:], x[..., rotated:])  # channels that stay


@pytest.mark.parametrize(("interleaved", "rotated"), LAYOUTS)
def test_turns_add_up_and_can_be_undone(interleaved: bool, rotated: int) -> None:
    rope, x = rotation(interleaved, rotated), vectors(4)
    assert torch.equal(rope.turn(x, 0), x)
    torch.testing.assert_close(rope.turn(rope.turn(x, 30), -25), rope.turn(x, 5))
    torch.testing.assert_close(rope.turn(rope.turn(x, 30), -30), x)


@pytest.mark.parametrize(("interleaved", "rotated"), LAYOUTS)
def test_a_query_meets_a_key_that_was_rotated_elsewhere(interleaved: bool, rotated: int) -> None:
    """(R(t)q).(R(s+D)k) = (R(t-D)q).(R(s)k), t = 90, s = 11, D = 40."""
    rope, (q, k) = rotation(interleaved, rotated), vectors(2, 6)
    moved_key = (rope.turn(q, 90) * rope.turn(k, 51)).sum(-1)
    moved_query = (rope.turn(q, 50) * rope.turn(k, 11)).sum(-1)
    torch.testing.assert_close(moved_key, moved_query)


def test_each_vector_may_have_its_own_shift() -> None:
    rope, x = rotation(True, 8), vectors(3, 2)
    shifts = torch.tensor([[0], [4], [-9]])
    turned = rope.turn(x, shifts)
    for i, shift in enumerate((0, 4, -9)):
        torch.testing.assert_close(turned[i], rope.turn(x[i], shift))


def test_half_precision_is_turned_in_float32() -> None:
    rope, x = rotation(False, DIM), vectors(3).bfloat16()
    turned = rope.turn(x, 3)
    assert turned.dtype == torch.float32
    assert torch.equal(turned, rope.turn(x.float(), 3))


def test_names_tell_the_layout() -> None:
    names = [rotation(*layout).name for layout in LAYOUTS]
    assert names == [
        *("half-split", "interleaved"),
        *("half-split, partial 8/12", "interleaved, partial 8/12"),
    ]
