"""What can be found for the blocks of a segment: checks 1 to 5, for a run of blocks at once where
all of it is there, else block by block. Pure."""

from __future__ import annotations

from inms_lab.books.checks import candidates, clears, is_being_written, same_tokens
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence

RUN = 64  # blocks that are looked up together: keys are made no further than that


def find(pool: Pool, segment: Segment, index: int, seq: Sequence) -> int | None:
    """The block to share for block `index` of a segment: checks 1 to 5; None means compute."""
    key = segment.key(index)
    for block in candidates(pool, key):
        there = (block,)
        if same_tokens(pool, there, segment, index, seq) and clears(seq, pool.labels[block]):
            return block
    return pool.pending.get(key) if "pending" in seq.off else None


def hits(pool: Pool, segment: Segment, index: int, seq: Sequence) -> tuple[int, ...]:
    """The blocks to share from block `index` on, as far as each is found."""
    if find(pool, segment, index, seq) is None:
        return ()
    found: list[int] = []
    count = -(-len(segment.tokens) // segment.block_size)
    for start in range(index, count, RUN):
        stop = min(count, start + RUN)
        found += _run(pool, segment, start, stop, seq)
        while index + len(found) < stop:
            block = find(pool, segment, index + len(found), seq)
            if block is None:
                return tuple(found)
            found.append(block)
    return tuple(found)


def _run(pool: Pool, segment: Segment, first: int, stop: int, seq: Sequence) -> list[int]:
    """The oldest block with each fingerprint, as far as there is one; none at all if one of them is
    not to be shared: then they are to be asked for one by one."""
    run = []
    for key in segment.keys_of(first, stop):
        copies = candidates(pool, key)
        if not copies:
            break
        run.append(copies[0])
    if not run:
        return run
    labels = {pool.labels[block] for block in run}
    cleared = all(clears(seq, label) for label in labels)
    return run if cleared and same_tokens(pool, run, segment, first, seq) else []


def stretch(pool: Pool, segment: Segment, here: int, end: int, seq: Sequence) -> int:
    """How far from `here` towards `end` there is nothing to share or to wait for."""
    first, stop = here // segment.block_size + 1, -(-end // segment.block_size)
    keys = segment.keys_of(first, stop)
    if pool.index.keys().isdisjoint(keys) and pool.pending.keys().isdisjoint(keys):
        return end
    for index in range(first, stop):
        if is_being_written(pool, segment, index) or find(pool, segment, index, seq) is not None:
            return index * segment.block_size
    return end


def record_of(books: Ledger, segment: Segment) -> Sequence | None:
    """The holder of the record whose text this is in somebody else's context."""
    source = books.sequences.get(segment.source)
    return source if source is not None and source.kind == "record" else None
