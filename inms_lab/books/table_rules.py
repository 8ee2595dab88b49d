"""What must hold where a block table changes: blocks come and go at the end of what a holder has.

One function per event, asked by rules.py. Check numbers are those of the table in ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inms_lab.books.checks import clears, is_written, may_write, same_tokens
from inms_lab.books.events import Aborted, Allocated, Copied, Evicted, Freed, Shared
from inms_lab.errors import PlanInvalid

if TYPE_CHECKING:
    from inms_lab.books.ledger import Ledger
    from inms_lab.books.pool import Pool
    from inms_lab.books.segment import Segment
    from inms_lab.books.sequence import Sequence


def require(condition: object, rule: str) -> None:
    """Raise `PlanInvalid(rule)` unless `condition` holds."""
    if not condition:
        raise PlanInvalid(rule)


def shared(books: Ledger, e: Shared) -> None:
    """Mounted blocks are published, cleared, and have this very content and place."""
    seq, segment, pool = _end_of(books, e)
    require(segment.length == segment.computed, "blocks are mounted before the step writes")
    first = len(segment.blocks)
    require(first * segment.block_size == segment.length, "mounted blocks start at a block's start")
    require(segment.length < e.length <= len(segment.tokens), "slots and tokens differ")
    _fits(segment, len(e.blocks), e.length)
    if e.cause != "fork":  # a fork has what its parent has, to the slot
        before = all(s.computed == len(s.tokens) for s in seq.segments[: e.segment])
        require(before, "blocks are mounted when what stands before is computed")
        require(_is_whole(segment, e.length), "what is found is mounted in whole blocks")
    for label, block in {pool.labels.get(b, ()): b for b in reversed(e.blocks)}.items():
        require(clears(seq, label), f"block {block}: label (check 4)")
    if e.cause == "fork":
        donor = books.sequences[seq.parent_id].segments[e.segment]
        stop = first + len(e.blocks)
        there = donor.blocks[first:stop] == [*e.blocks] and e.length <= donor.computed
        chains = (donor.chain(i) == segment.chain(i) for i in range(first, stop))
        same = donor.root == segment.root and all(chains)
        require(there and same, "a fork shares what it has in common with its parent")
        return
    waits = [block for block in e.blocks if not is_written(pool, block)]
    require(not waits or "pending" in seq.off, f"blocks {waits} are not published (check 2)")
    if waits:  # a lesson's: what is written is looked at block by block
        for index, block in enumerate(e.blocks, first):
            if block not in waits:
                _have(pool, (block,), segment, index, seq)
    else:
        _have(pool, e.blocks, segment, first, seq)


def _have(pool: Pool, blocks: tuple[int, ...], segment: Segment, first: int, seq: Sequence) -> None:
    """Published blocks have the tokens and the fingerprints of a segment's blocks from `first`."""
    if not same_tokens(pool, blocks, segment, first, seq):
        one = (
            b for i, b in enumerate(blocks, first) if not same_tokens(pool, (b,), segment, i, seq)
        )
        raise PlanInvalid(f"block {next(one)}: other tokens (check 1)")
    keys = segment.keys_of(first, first + len(blocks))
    each(blocks, pool.keys, keys, "another fingerprint (checks 3 and 5)")


def allocated(books: Ledger, e: Allocated) -> None:
    """New blocks are the head of the free queue, for the next tokens of who may write there."""
    seq, segment, pool = _end_of(books, e)
    require(may_write(seq, pool.spec.tier), f"no {seq.kind} may write to {e.pool_id}")
    require(not segment.is_fragment, "nobody writes into a fragment")
    require(segment.length < e.length <= len(segment.tokens), "slots and tokens differ")
    if segment.length % segment.block_size:
        require(owned(pool, segment.blocks[-1]), "the block before is not the writer's alone")
    require(e.blocks == pool.next_free(len(e.blocks)), "not the head of the free queue")
    first = len(segment.blocks)
    keys = segment.keys_of(first, first + len(e.blocks))
    require(e.keys == keys, "the promised keys are not the content's")
    _fits(segment, len(e.blocks), e.length)


def copied(books: Ledger, e: Copied) -> None:
    """A copy keeps what is written of a block that the writer has, or may begin with."""
    seq, segment, pool = where(books, e)
    source, start = books.pools[e.src_pool], e.index * segment.block_size
    if moves(books, e):
        _moved(segment, pool, e)
        return
    _end_of(books, e)
    require(e.src in source.refs or e.src in source.cached, "the source holds nothing")
    require(source.spec.tenant == seq.tenant, f"{e.src_pool} is another tenant's (check 3)")
    require(clears(seq, source.labels[e.src]), "the source's label (check 4)")
    require(may_write(seq, pool.spec.tier), f"no {seq.kind} may write to {e.pool_id}")
    require(not segment.is_fragment, "nobody writes into a fragment")
    require(pool.next_free(1) == (e.dst,), "not the head of the free queue")
    require(0 < e.num_slots <= segment.block_size, "a copy has slots")
    require(start + e.num_slots <= len(segment.tokens), "slots and tokens differ")
    if e.index == len(segment.blocks):
        require(segment.length == segment.computed == start == 0, "a copy begins a segment")
        same = source.tokens[e.src].startswith(segment.tokens[: e.num_slots].tobytes())
        there = same and seq.begins_as(e.segment, source, e.src)
        require(there, f"block {e.src}: other tokens, or behind other text (checks 1 and 5)")
    else:
        entry = (segment.pool_id, segment.blocks[e.index])
        require(entry == (e.src_pool, e.src), "the source is not the table's entry")
        require(start + e.num_slots == segment.computed, "a copy keeps what is written")


def moves(books: Ledger, e: Copied) -> bool:
    """Whether a copy that is about to happen is a move: its source has no other holder."""
    segment = books.sequences[e.seq_id].segments[e.segment]
    return e.index < len(segment.blocks) and books.pools[e.src_pool].refs.get(e.src) == 1


def _moved(segment: Segment, pool: Pool, e: Copied) -> None:
    """A block that has one holder may lie anywhere: it goes down, whole, to any free block."""
    require((segment.pool_id, segment.blocks[e.index]) == (e.src_pool, e.src), "not the entry")
    require(pool.spec.tier == "private", "blocks that are there to be shared do not move")
    require(e.dst in pool.free and e.dst < e.src, "a move goes to a free block below")
    require(not segment.is_fragment, "nobody writes into a fragment")
    require(segment.length == segment.computed, "nothing moves while a step writes")
    quiet = owned(pool, e.src) and e.src not in pool.promised
    require(quiet, "what moves cannot be found, and nobody waits for it")
    written = segment.computed - e.index * segment.block_size
    require(e.num_slots == min(segment.block_size, written), "a move keeps what is written")


def evicted(books: Ledger, e: Evicted) -> None:
    """Victims are cached, or lose it to their only holder; the copies that remain are told."""
    pool = books.pools[e.pool_id]
    require(len({*e.blocks}) == len(e.blocks), "a block is evicted once")
    left = copies_left(pool, e.keys)
    require(e.remaining == left, f"the copies that remain are {left}")
    cached = pool.cached
    for block in [block for block in e.blocks if block not in cached]:
        alone = e.cause in ("overwritten", "moved") and pool.refs.get(block) == 1
        require(alone, f"block {block} is no victim")
    each(e.blocks, pool.keys, e.keys, "another identity")


def let_go(books: Ledger, e: Freed | Aborted) -> None:
    """Blocks are let go from the end of the table."""
    _, segment, _ = _end_of(books, e)
    tail = segment.blocks[len(segment.blocks) - len(e.blocks) :]
    require(list(e.blocks) == tail[::-1], "blocks are let go from the end of the table")
    require(e.length <= segment.length, "a release adds no slots")
    whole = not segment.is_fragment or _is_whole(segment, e.length)
    require(whole, "a fragment is let go in whole blocks")
    _fits(segment, -len(e.blocks), e.length)


def where(books: Ledger, e: Any) -> tuple[Sequence, Segment, Pool]:
    """The holder, segment and pool that an event names."""
    seq = books.sequences[e.seq_id]
    if not 0 <= e.segment < len(seq.segments):
        raise PlanInvalid(f"holder {e.seq_id} has no such segment")
    segment = seq.segments[e.segment]
    if segment.pool_id != e.pool_id:
        raise PlanInvalid(f"segment {e.segment} is not in {e.pool_id}")
    return seq, segment, books.pools[e.pool_id]


def _end_of(books: Ledger, e: Any) -> tuple[Sequence, Segment, Pool]:
    """Where a table may change: all blocks that stand before are there, none stands behind."""
    seq, segment, pool = where(books, e)
    if len(seq.segments) > 1:
        full = all(len(s.blocks) * s.block_size >= len(s.tokens) for s in seq.segments[: e.segment])
        last = not any(s.blocks for s in seq.segments[e.segment + 1 :])
        require(full and last, "blocks come and go at the end of what a holder has")
    return seq, segment, pool


def each(
    blocks: tuple[int, ...], known: Mapping[int, bytes], keys: tuple[bytes, ...], wrong: str
) -> None:
    """Raise `PlanInvalid` with the first of the blocks that is `known` under another key."""
    if tuple(map(known.get, blocks)) != keys:
        pairs = zip(blocks, keys, strict=True)
        one = next(block for block, key in pairs if known.get(block) != key)
        raise PlanInvalid(f"block {one} has {wrong}")


def copies_left(pool: Pool, keys: tuple[bytes, ...]) -> tuple[int, ...]:
    """For each key, the copies of it in the index that are left without all of these."""
    index = pool.index
    if len({*keys}) == len(keys):
        return tuple([len(index.get(key, ())) - 1 for key in keys])
    gone = Counter(keys)
    return tuple([len(index.get(key, ())) - gone[key] for key in keys])


def owned(pool: Pool, block: int) -> bool:
    """Whether a block has one holder and cannot be found."""
    return pool.refs[block] == 1 and block not in pool.keys


def _is_whole(segment: Segment, length: int) -> bool:
    """Whether `length` slots end where a block does, or the text."""
    return length % segment.block_size == 0 or length == len(segment.tokens)


def _fits(segment: Segment, count: int, length: int) -> None:
    blocks = -(-length // segment.block_size)
    if len(segment.blocks) + count != blocks:
        raise PlanInvalid(f"{length} slots are {blocks} blocks")
