"""Query rows that meet keys of another place: which there are, and how they are turned.

A tile that a reader has at a shift of D positions is asked by the reader's query turned by -D. Each
(row, shift) of a batch is a further row behind the batch's own, made once a layer however many
tiles are read with it; so readers at several shifts read a tile together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from inms_lab.attention.rope import Rotation, factors
from inms_lab.errors import UnsafeShift


class Rows(NamedTuple):
    """Rows `[start, stop)` for which a tile has the logical number `number`, at this shift."""

    start: int
    stop: int
    number: int
    shift: int = 0


class Turns:
    """Collects the further rows of a batch while its reads are planned."""

    def __init__(self) -> None:
        self.shifts: list[int] = []  # the distinct ones
        self.source: list[np.ndarray] = []  # rows that are turned, piece by piece
        self.which: list[np.ndarray] = []  # the number of the shift of each

    def begin(self, num_rows: int) -> None:
        """The batch has this many rows of its own."""
        self.num_rows = self.size = num_rows
        self._at: dict[int, np.ndarray] = {}

    def rows(self, r: Rows) -> np.ndarray:
        """The numbers of the rows `r` as they read a tile at its shift."""
        rows = np.arange(r.start, r.stop)
        if not r.shift:
            return rows
        if r.shift not in self._at:
            self._at[r.shift] = np.full(self.num_rows, -1)
            self.shifts.append(r.shift)
        at = self._at[r.shift]
        new = rows[at[rows] < 0]
        if len(new):
            at[new] = np.arange(self.size, self.size + len(new))
            self.size += len(new)
            self.source.append(new)
            self.which.append(np.full(len(new), self.shifts.index(r.shift)))
        return at[rows]


@dataclass(slots=True)
class Turned:
    """Further query rows: `rows` [M] of the batch, each turned by minus the shift `which` [M]."""

    rows: torch.Tensor
    which: torch.Tensor
    shifts: tuple[int, ...]
    rotations: Sequence[Rotation | None]  # by layer; None: the layer has no positions
    known: dict[Rotation, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def queries(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """The further rows [M, H, D] of q [T, H, D], turned in float32."""
        rotation, rows = self.rotations[layer], q[self.rows]
        if rotation is None:
            return rows
        if rotation not in self.known:
            both = zip(*(factors(rotation, -shift) for shift in self.shifts), strict=True)
            cos, sin = (torch.stack(x).to(q.device)[self.which].unsqueeze(1) for x in both)
            self.known[rotation] = cos, sin
        return rotation.apply(rows, *self.known[rotation]).to(q.dtype)


def turned_rows(
    turns: Turns, rotations: Sequence[Rotation | None], device: torch.device
) -> Turned | None:
    """The further rows of `turns`; None if there are none."""
    if not turns.shifts:
        return None
    if not rotations:
        raise UnsafeShift("this model's keys cannot be used at another position: see its report()")
    rows, which = (torch.from_numpy(np.concatenate(x)) for x in (turns.source, turns.which))
    return Turned(rows.to(device), which.to(device), tuple(turns.shifts), rotations)
