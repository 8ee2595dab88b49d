"""What can be found for the blocks of a segment: checks 1 to 5, block by block. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from inms_lab.checks import candidates, clears, is_being_written, same_tokens
from inms_lab.pool import Pool
from inms_lab.segment import Segment
from inms_lab.sequence import Sequence


def find(pool: Pool, segment: Segment, index: int, seq: Sequence) -> int | None:
    """The block to share for block `index` of a segment: checks 1 to 5; None means compute."""
    key = segment.key(index)
    for block in candidates(pool, key):
        if same_tokens(pool, block, segment, index, seq) and clears(seq, pool.labels[block]):
            return block
    return pool.pending.get(key) if "pending" in seq.off else None


def hits(pool: Pool, segment: Segment, index: int, seq: Sequence) -> Iterator[int]:
    """The blocks to share from block `index` on, as far as each is found."""
    while (block := find(pool, segment, index, seq)) is not None:
        yield block
        index += 1


def stretch(pool: Pool, segment: Segment, here: int, end: int, seq: Sequence) -> int:
    """How far from `here` towards `end` there is nothing to share or to wait for."""
    for index in range(here // segment.block_size + 1, -(-end // segment.block_size)):
        if is_being_written(pool, segment, index) or find(pool, segment, index, seq) is not None:
            return index * segment.block_size
    return end
