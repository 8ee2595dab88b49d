"""Rows of the regions' buffers: who may take one, and when it is free again.

free      nobody has it
live      it is a block's home, or a replica of the newest value
leaving   it was one of these, and is free when the last one who reads it has ended

All methods but `bytes` are called under the lock of whoever owns the blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Slot = tuple[int, int]  # region, row of its buffer


@dataclass(frozen=True, slots=True)
class Region:
    """`budget`: bytes of replicas beside the blocks at home there; `bandwidth`: in any unit, the
    same for all; `device`: torch's name of it."""

    budget: int
    bandwidth: float = 1.0
    device: str = "cpu"


class Slots:
    """A buffer [rows, block_bytes] a region: rows for its homes, one more for a value that is being
    written, and then as many for replicas as its budget has room for."""

    def __init__(
        self,
        regions: Sequence[Region],
        homes: Sequence[int],
        block_bytes: int,
        lock: threading.RLock,
    ) -> None:
        self.freed = threading.Condition(lock)
        own = [homes.count(r) + 1 for r in range(len(regions))]
        most = [region.budget // block_bytes for region in regions]
        self._buffers = [
            torch.empty(mine + more, block_bytes, dtype=torch.uint8, device=region.device)
            for mine, more, region in zip(own, most, regions, strict=True)
        ]
        self._first_replica = own
        self._free_homes = [set(range(mine)) for mine in own]
        self._free = [{mine + n for n in range(m)} for mine, m in zip(own, most, strict=True)]
        self._reading: dict[Slot, int] = {}  # how many do so
        self._leaving: set[Slot] = set()

    def bytes(self, slot: Slot) -> torch.Tensor:
        """The row itself [block_bytes]."""
        return self._buffers[slot[0]][slot[1]]

    def take_home(self, region: int) -> Slot:
        """A free row for a new value; waits until there is one."""
        self.freed.wait_for(lambda: self._free_homes[region])
        return region, self._free_homes[region].pop()

    def take_replica(self, region: int) -> Slot:
        """A free row for a replica, of which there must be one."""
        return region, self._free[region].pop()

    def has_room(self, region: int) -> bool:
        """Whether a row for a replica is free."""
        return bool(self._free[region])

    def begin(self, slot: Slot) -> None:
        """Somebody reads it from now on."""
        self._reading[slot] = self._reading.get(slot, 0) + 1

    def end(self, slot: Slot) -> None:
        """One of its readers has ended."""
        self._reading[slot] -= 1
        if not self._reading[slot]:
            del self._reading[slot]
            if slot in self._leaving:
                self._leaving.remove(slot)
                self.release(slot)

    def leave(self, slot: Slot) -> None:
        """No more readers are sent to it."""
        if slot in self._reading:
            self._leaving.add(slot)
        else:
            self.release(slot)

    def release(self, slot: Slot) -> None:
        """It is free: nobody reads it."""
        region, row = slot
        (self._free_homes if self.is_home(slot) else self._free)[region].add(row)
        self.freed.notify_all()

    def is_home(self, slot: Slot) -> bool:
        """Whether it is not one of the rows for replicas."""
        return slot[1] < self._first_replica[slot[0]]

    def check(self, live: Sequence[Slot]) -> None:
        """Whether each row is one thing, if these are the live ones and nobody is at work."""
        assert not self._reading, "somebody reads, or has never ended"
        assert not self._leaving, "rows were never freed"
        free = [
            (region, row)
            for some in (self._free_homes, self._free)
            for region, rows in enumerate(some)
            for row in rows
        ]
        every = [(r, row) for r, rows in enumerate(self._buffers) for row in range(len(rows))]
        assert sorted([*live, *free]) == every, "a row is two things, or nothing"
