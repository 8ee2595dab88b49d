"""Blocks that are read much stand in several regions, and no reader ever gets an old one.

A region is a memory with a bandwidth of its own: a device, a NUMA node; on one node it is a buffer
with a bandwidth that the caller gives. Each block has its home in one region. Reads are counted,
with decay; a block that gets much of them gets replicas in further regions, and each read goes to
the least loaded region that has the block (load: decayed bytes by bandwidth).

A write fills a free row of the home region, and then, in one moment, lets all replicas of the old
value go and sends readers to the new one. So who begins to read after a write has ended gets its
value or a later one, no reader waits for a writer, and nobody sees half a block. A writer waits for
readers only where all free rows of the region are still read. On a CUDA device all copies go
through its default stream, which keeps their order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from inms_lab.errors import BadInput
from inms_lab.parameters.slots import Region, Slot, Slots

MOST_MADE = 8  # replicas that are made at once: whoever reads just then makes them
KEPT = 0.25  # of `hot`: a replica whose block falls below goes
BETTER = 2.0  # as hot must a block be as that whose replica it takes the place of


class Read(NamedTuple):
    """A copy of a block's bytes [block_bytes], how often it had been written, and from where."""

    value: torch.Tensor
    version: int
    region: int


@dataclass
class _Block:
    home: Slot
    replicas: dict[int, Slot] = field(default_factory=dict)  # by region
    version: int = 0
    score: float = 0.0  # reads, decayed as of `at`
    at: int = 0

    def copies(self) -> list[Slot]:
        return [self.home, *self.replicas.values()]


class Replicas:
    """`blocks` [n, block_bytes] of uint8 are copied into the regions. `homes`: a region each, by
    turns unless given.

    `hot`: share of all reads, per copy, above which a block gets one more. `half_life`: reads after
    which a read counts half. `every`: reads between two looks at what is hot (0: only `tend`).
    Raises `BadInput`. Any thread may use it.
    """

    def __init__(
        self,
        blocks: torch.Tensor,
        regions: Sequence[Region],
        homes: Sequence[int] | None = None,
        *,
        hot: float = 0.01,
        half_life: int = 2000,
        every: int = 100,
    ) -> None:
        if blocks.dim() != 2 or blocks.dtype != torch.uint8 or not blocks.numel():
            raise BadInput("blocks are bytes [n, block_bytes], at least one")
        if any(r.budget < 0 or not 0 < r.bandwidth < math.inf for r in regions) or not regions:
            raise BadInput("regions, at least one, have a budget of 0 or more and a bandwidth > 0")
        if not 0 < hot <= 1 or half_life < 1 or every < 0:
            raise BadInput("hot is a share above 0, half_life at least 1 read, every 0 or more")
        homes = [n % len(regions) for n in range(len(blocks))] if homes is None else list(homes)
        if len(homes) != len(blocks) or not set(homes) <= set(range(len(regions))):
            raise BadInput(f"homes are {len(blocks)} numbers of regions, 0 to {len(regions) - 1}")
        self.regions, self.block_bytes = tuple(regions), int(blocks.shape[1])
        self.hot, self.half_life, self.every = hot, half_life, every
        self.reads = [0] * len(regions)  # by region
        self.made = self.dropped = self.invalidated = 0
        self._clock, self._total, self._load = 0, 0.0, [0.0] * len(regions)
        self._books, self._tending = threading.RLock(), threading.Lock()
        self._slots = Slots(regions, homes, self.block_bytes, self._books)
        self._blocks = []
        for value, region in zip(blocks, homes, strict=True):
            home = self._slots.take_home(region)
            self._slots.bytes(home).copy_(value)
            self._blocks.append(_Block(home))

    def read(self, number: int) -> Read:
        """A block's newest value. Raises `BadInput` for one that there is not."""
        with self._books:
            block = self._block(number)
            self._count(block)
            slot = min(block.copies(), key=lambda one: self._load[one[0]])
            version, region = block.version, slot[0]
            self._load[region] += self.block_bytes / self.regions[region].bandwidth
            self.reads[region] += 1
            look = self.every and self._clock % self.every == 0
            self._slots.begin(slot)
        try:
            value = self._slots.bytes(slot).clone()
        finally:
            with self._books:
                self._slots.end(slot)
        if look:
            self.tend()
        return Read(value, version, region)

    def write(self, number: int, value: torch.Tensor) -> int:
        """Replace a block's bytes; gives how often it has been written by now. Whoever begins to
        read it when this has ended gets these bytes or later ones. Raises `BadInput`."""
        if value.dtype != torch.uint8 or value.shape != (self.block_bytes,):
            raise BadInput(f"a block is {self.block_bytes} values of uint8, not {value.shape}")
        with self._books:
            block = self._block(number)
            slot = self._slots.take_home(block.home[0])
        try:
            self._slots.bytes(slot).copy_(value)
        except BaseException:
            with self._books:
                self._slots.release(slot)
            raise
        with self._books:
            self.invalidated += len(block.replicas)
            old, block.home = block.copies(), slot
            block.replicas.clear()
            block.version += 1
            for gone in old:
                self._slots.leave(gone)
            return block.version

    def tend(self) -> int:
        """Drop the replicas of what is cold, and make some of what is hot; gives how many were
        made. One thread at a time does so: another gets 0 at once."""
        if not self._tending.acquire(blocking=False):
            return 0
        try:
            with self._books:
                self._drop_cold()
                numbers = self._hottest()
            return sum(self._replicate(self._blocks[number]) for number in numbers)
        finally:
            self._tending.release()

    def copies(self, number: int) -> list[int]:
        """The regions that have a block's newest value, its home first."""
        with self._books:
            return [region for region, _ in self._block(number).copies()]

    def loads(self) -> list[float]:
        """The decayed load of each region: bytes by bandwidth."""
        with self._books:
            return list(self._load)

    def check(self) -> None:
        """Whether the books balance and all copies of a block are equal. To be asked while nobody
        reads or writes."""
        with self._books:
            self._slots.check([slot for block in self._blocks for slot in block.copies()])
            for number, block in enumerate(self._blocks):
                home = self._slots.bytes(block.home)
                for region, slot in block.replicas.items():
                    assert slot[0] == region != block.home[0], f"block {number} lies elsewhere"
                    assert not self._slots.is_home(slot), f"block {number} is beyond the budget"
                    equal = torch.equal(self._slots.bytes(slot).to(home.device), home)
                    assert equal, f"block {number} is old in region {region}"

    def _drop_cold(self) -> None:
        for block in self._blocks:
            if block.replicas and self._share(block) < KEPT * self.hot:
                for region in list(block.replicas):
                    self._drop(block, region)

    def _hottest(self) -> list[int]:
        """Blocks that get too many reads a copy, those with most first."""
        shares = {
            number: self._share(block) / (1 + len(block.replicas))
            for number, block in enumerate(self._blocks)
            if 1 + len(block.replicas) < len(self.regions)
        }
        found = [number for number, share in shares.items() if share >= self.hot]
        return sorted(found, key=lambda number: -shares[number])[:MOST_MADE]

    def _replicate(self, block: _Block) -> bool:
        """One more copy, if any region has room; False also if it was written meanwhile."""
        with self._books:
            region = self._where(block)
            if region is None:
                return False
            target, source = self._slots.take_replica(region), block.home
            version, copied = block.version, False
            self._slots.begin(source)
        try:
            self._slots.bytes(target).copy_(self._slots.bytes(source))
            copied = True
        finally:
            with self._books:
                self._slots.end(source)
                if stands := copied and block.version == version:
                    block.replicas[region] = target
                    self.made += 1
                else:
                    self._slots.release(target)
        return stands

    def _where(self, block: _Block) -> int | None:
        """The least loaded region that lacks a block and has room, or had something much colder."""
        have = {region for region, _ in block.copies()}
        lack = [region for region in range(len(self.regions)) if region not in have]
        for region in sorted(lack, key=self._load.__getitem__):
            if not self._slots.has_room(region):
                there = [other for other in self._blocks if region in other.replicas]
                coldest = min(there, key=self._share, default=None)
                if coldest is not None and self._share(block) >= BETTER * self._share(coldest):
                    self._drop(coldest, region)
            if self._slots.has_room(region):  # not yet, if somebody still reads what goes
                return region
        return None

    def _drop(self, block: _Block, region: int) -> None:
        self.dropped += 1
        self._slots.leave(block.replicas.pop(region))

    def _count(self, block: _Block) -> None:
        """One read more (this and what follows: under the lock)."""
        self._clock += 1
        fade = 0.5 ** (1 / self.half_life)
        self._total = self._total * fade + 1
        self._load = [load * fade for load in self._load]
        block.score = self._score(block) + 1
        block.at = self._clock

    def _score(self, block: _Block) -> float:
        return float(block.score * 0.5 ** ((self._clock - block.at) / self.half_life))

    def _share(self, block: _Block) -> float:
        """Of all reads, decayed."""
        return self._score(block) / self._total if self._total else 0.0

    def _block(self, number: int) -> _Block:
        if not isinstance(number, int) or not 0 <= number < len(self._blocks):
            raise BadInput(f"blocks are 0 to {len(self._blocks) - 1}, not {number!r}")
        return self._blocks[number]
