"""Where each tensor lies in the shared bytes. No torch, no memory.

Every tensor begins on a page of its own, so that a page belongs to one name and a write to one
tensor never copies a page of another. Names that mean the same tensor (tied weights) lie there
once. Tensors lie in the order of their names, numbers by value: layer 2 before layer 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from inms_lab.errors import BadInput
from inms_lab.parameters.region import pages_of


@dataclass(frozen=True, slots=True)
class Spot:
    """One tensor: its element type by its torch name ("float32"), shape, first byte, bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    @property
    def stop(self) -> int:
        """The byte behind its last page."""
        return self.start + pages_of(self.num_bytes)


@dataclass(frozen=True, slots=True)
class Layout:
    """The spots by name, in the order in which they lie, and `same`: further name -> name."""

    spots: dict[str, Spot]
    same: dict[str, str]

    @property
    def num_bytes(self) -> int:
        """All bytes, in whole pages."""
        return max((spot.stop for spot in self.spots.values()), default=0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tensors alone, each once."""
        return sum(spot.num_bytes for spot in self.spots.values())

    def name_at(self, byte: int) -> str:
        """Whose page it is. Raises `BadInput` outside of the layout."""
        for name, spot in self.spots.items():
            if spot.start <= byte < spot.stop:
                return name
        raise BadInput(f"byte {byte} belongs to no tensor")


def lay_out(
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]], same: Mapping[str, str] | None = None
) -> Layout:
    """The layout of tensors given as name -> (element type, shape, bytes of one element)."""
    spots: dict[str, Spot] = {}
    at = 0
    for name in in_order(tensors):
        dtype, shape, size = tensors[name]
        spots[name] = Spot(dtype, tuple(shape), at, prod(shape) * size)
        at = spots[name].stop
    return Layout(spots, dict(same or {}))


def in_order(names: Iterable[str]) -> list[str]:
    """Names with their numbers in the order of numbers."""
    return sorted(names, key=lambda name: [_part(part) for part in re.split(r"(\d+)", name)])


def _part(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdecimal() else (1, 0, part)
