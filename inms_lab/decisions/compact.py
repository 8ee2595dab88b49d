"""Compaction of a private pool: blocks move down, so that what is held lies together at its front.

A plan like any other, made between two steps: `Evicted` (cause "moved": findable blocks lose their
identity), one `Copied` for each block, `Published` (they have it again, at the new place). Nothing
that anybody reads changes but the place. Not moved: what has several holders, is a fragment, is
being written or was promised to somebody who waits, and what a cut left of a findable block; nor
anything in global and group pools, which are there to be shared.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from inms_lab.books.events import Copied, Event, Published
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.decisions.freeing import evicted
from inms_lab.decisions.outcome import Plan
from inms_lab.errors import BadInput

PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Move:
    """Block `src`, entry `index` of a segment of a holder, goes to the free block `dst`."""

    seq_id: int
    segment: int
    index: int
    src: int
    dst: int = -1


def plan_compact(books: Ledger, at: int, pool_id: str, most: int | None = None) -> Plan:
    """The moves that leave as few free blocks as possible below held ones; at most `most` of them,
    the highest blocks first. A plan without events if there is nothing to gain."""
    pool = books.pools.get(pool_id)
    if pool is None or pool.spec.tier != PRIVATE:
        tier = f"a {pool.spec.tier} pool" if pool else "no pool of this lab"
        raise BadInput(f"{pool_id} is {tier}: compaction is for private pools")
    if most is not None and most < 1:
        raise BadInput(f"at most {most} moves: give at least 1, or None for all")
    moves = moves_in(books, pool)[:most]
    findable = tuple(m.src for m in moves if m.src in pool.keys)
    events: list[Event] = [evicted(pool, findable, "moved", ())] if findable else []
    places = sorted(moves, key=lambda m: (m.seq_id, m.segment, m.index))
    targets = sorted(move.dst for move in moves)
    again: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for move, dst in zip(places, targets, strict=True):  # neighbours in a table stay neighbours
        segment = books.sequences[move.seq_id].segments[move.segment]
        slots = min(segment.block_size, segment.computed - move.index * segment.block_size)
        where = (pool_id, move.src, pool_id, dst, slots)
        events.append(Copied(move.seq_id, move.segment, move.index, *where))
        if move.src in pool.keys:
            again[move.seq_id, move.segment].append((move.index, dst))
    for (seq_id, number), entries in again.items():
        segment = books.sequences[seq_id].segments[number]
        for first, blocks in _stretches(entries):
            keys = segment.keys_of(first, first + len(blocks))
            events.append(Published(seq_id, number, pool_id, first, blocks, keys))
    return Plan(at, tuple(events))


def moves_in(books: Ledger, pool: Pool) -> list[Move]:
    """The highest blocks that can move, each with a free block below all of them."""
    can = sorted(_movable(books, pool), key=lambda move: -move.src)
    pairs = zip(can, sorted(pool.free), strict=False)
    return [
        Move(move.seq_id, move.segment, move.index, move.src, dst)
        for move, dst in pairs
        if dst < move.src
    ]


def _movable(books: Ledger, pool: Pool) -> list[Move]:
    out = []
    for seq in books.holders():
        for number, segment in enumerate(seq.segments if seq.is_live else ()):
            if segment.pool_id != pool.spec.pool_id or segment.is_fragment:
                continue
            if segment.length == segment.computed:
                blocks = enumerate(segment.blocks)
                out += [
                    Move(seq.seq_id, number, i, b)
                    for i, b in blocks
                    if is_movable(pool, segment, i, b)
                ]
    return out


def is_movable(pool: Pool, segment: Segment, index: int, block: int) -> bool:
    """Whether a block has one holder, nobody waits for it, and it can be published as it is."""
    if pool.refs[block] != 1 or block in pool.promised:
        return False
    end = min((index + 1) * segment.block_size, len(segment.tokens))  # after a cut, perhaps beyond
    written = pool.keys.get(block) == segment.key(index) and end <= segment.computed
    return block not in pool.keys or written


def is_move(books: Ledger, event: Event) -> bool:
    """Whether a copy was a move: `books` are those right after it, and its source is free."""
    return isinstance(event, Copied) and event.src in books.pools[event.src_pool].free


def _stretches(entries: list[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]]:
    """(index, block) pairs in order as (first index, blocks that follow each other)."""
    out: list[tuple[int, tuple[int, ...]]] = []
    for index, block in entries:
        if out and out[-1][0] + len(out[-1][1]) == index:
            out[-1] = (out[-1][0], (*out[-1][1], block))
        else:
            out.append((index, (block,)))
    return out
