"""Lab 15: blocks that are read much, in regions that each serve so many reads.

A model in whole numbers, and the engine's `Replicas` on the same reads. In both, a block's home is
a region by turns, and each read goes to the least busy region that has the block.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from inms_lab.parameters.replicas import Replicas
from inms_lab.parameters.slots import Region

BYTES = 64  # of a block that is really read
Copies = list[list[int]]  # block -> the regions that have it, its home first


def trace(blocks: int, calls: int, skew: float = 1.1, seed: int = 0) -> list[int]:
    """Block numbers in the order in which they are read: the first is the hottest, and block k is
    read 1 / (k + 1) ** skew as often (Zipf)."""
    weights = [1 / (k + 1) ** skew for k in range(blocks)]
    return random.Random(seed).choices(range(blocks), weights, k=calls)


def counted(numbers: Sequence[int], blocks: int) -> tuple[int, ...]:
    """The reads of each block."""
    counts = Counter(numbers)
    return tuple(counts[number] for number in range(blocks))


def uneven(loads: Sequence[float]) -> float:
    """How much more the busiest region serves than the mean: max/mean, 1 at best."""
    return max(loads) / (sum(loads) / len(loads))


def homes(blocks: int, regions: int) -> Copies:
    """Each block once."""
    return [[number % regions] for number in range(blocks)]


def served(reads: Sequence[int], copies: Copies, regions: int) -> list[int]:
    """The reads that each region serves: blocks that lie in one region first, for they have no
    choice, then the others, read by read."""
    loads = [0] * regions
    for block in sorted(range(len(reads)), key=lambda number: (len(copies[number]), number)):
        for _ in range(reads[block] if len(copies[block]) > 1 else 1):
            region = min(copies[block], key=lambda at: (loads[at], at))
            loads[region] += 1 if len(copies[block]) > 1 else reads[block]
    return loads


def replicated(reads: Sequence[int], regions: int, replicas: int) -> Copies:
    """So many replicas, one after the other: of the block with the most reads a copy, in the least
    busy region that lacks it. Fewer, once every region has every block."""
    copies = homes(len(reads), regions)
    for _ in range(replicas):
        if not _one_more(reads, copies, regions):
            break
    return copies


def _one_more(reads: Sequence[int], copies: Copies, regions: int) -> bool:
    """Whether there was a place for it."""
    lacking = [number for number, have in enumerate(copies) if len(have) < regions]
    if not lacking:
        return False
    block = max(lacking, key=lambda number: (reads[number] / len(copies[number]), -number))
    loads = served(reads, copies, regions)
    free = [region for region in range(regions) if region not in copies[block]]
    copies[block].append(min(free, key=lambda at: (loads[at], at)))
    return True


def busiest(reads: tuple[int, ...], regions: int, replicas: int) -> int:
    """The reads of the busiest region."""
    known = _busiest_by_replicas(reads, regions)
    return known[min(replicas, len(known) - 1)]


@lru_cache(maxsize=64)
def _busiest_by_replicas(reads: tuple[int, ...], regions: int) -> list[int]:
    copies = homes(len(reads), regions)
    found = [max(served(reads, copies, regions))]
    while _one_more(reads, copies, regions):
        found.append(max(served(reads, copies, regions)))
    return found


# --- the engine -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """`reads` of each region; `stale`: reads that did not give the newest value; replicas `made`
    and `invalidated` by writes."""

    reads: tuple[int, ...]
    stale: int
    made: int
    invalidated: int


def blocks_of(count: int, regions: int, budget: int) -> Replicas:
    """Blocks of zeros, and room for `budget` replicas in each region."""
    blocks = torch.zeros(count, BYTES, dtype=torch.uint8)
    return Replicas(blocks, [Region(budget * BYTES) for _ in range(regions)])


def play(numbers: Sequence[int], blocks: int, regions: int, budget: int, writes: int = 0) -> Served:
    """These reads, in their order; with `writes`, every so many reads the block just read gets a
    new value. What a read should give is kept beside."""
    replicas, newest, stale = blocks_of(blocks, regions, budget), [0] * blocks, 0
    for at, number in enumerate(numbers, 1):
        got = replicas.read(number)
        stale += not bool((got.value == newest[number]).all())
        if writes and at % writes == 0:
            newest[number] = (newest[number] + 1) % 251
            replicas.write(number, torch.full((BYTES,), newest[number], dtype=torch.uint8))
    replicas.check()
    return Served(tuple(replicas.reads), stale, replicas.made, replicas.invalidated)
