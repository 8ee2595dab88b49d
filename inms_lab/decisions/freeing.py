"""Plans that free blocks: rollback, preemption, the end of a holder, an aborted step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import chain

from inms_lab.books.events import Aborted, Event, Evicted, Freed
from inms_lab.books.label import private
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import READ_ONLY, Sequence
from inms_lab.books.table_rules import copies_left
from inms_lab.decisions.outcome import Chunk, Plan


def freed(seq: Sequence, keep: int, cause: str, forget: bool = False) -> tuple[Freed, ...]:
    """Let go of every slot from position `keep` on, last segment first, last block first."""
    out = []
    for number in range(len(seq.segments) - 1, -1, -1):
        segment = seq.segments[number]
        length = max(0, min(segment.length, keep - segment.first_position))
        if length < segment.length:
            blocks = tuple(segment.blocks[-(-length // segment.block_size) :][::-1])
            forgets = forget and segment.tier not in READ_ONLY
            where = (seq.seq_id, number, segment.pool_id)
            out.append(Freed(*where, blocks, length, cause, forgets))
    return tuple(out)


def forgotten(books: Ledger, seq: Sequence) -> tuple[Evicted, ...]:
    """What a principal left behind in the caches, when its last holder ends: nobody may find it."""
    others = (s for s in books.holders() if s.is_live and s.seq_id != seq.seq_id)
    if any((s.tenant, s.name) == (seq.tenant, seq.name) for s in others):
        return ()
    (own,) = private(seq.name)
    left = ((p, tuple(b for b in p.cached if own in p.labels[b])) for p in books.pools.values())
    return tuple(evicted(pool, blocks, "forgotten", ()) for pool, blocks in left if blocks)


def plan_preempt(
    books: Ledger,
    at: int,
    seq_id: int,
    pool_id: str,
    busy: Set[int] = frozenset(),
    force: bool = False,
    floor: int = 0,
    missing: int = 0,
) -> Plan | None:
    """Make somebody give up KV in `pool_id` so that `seq_id` can go on; None: nobody may be asked.

    Order of victims: agents without work, then working agents that registered after `seq_id` (with
    `force` earlier ones too); among equals the one that registered last; never one that is
    `busy` in this step. Nobody is left with fewer than `floor` blocks, and who has fewer may take
    from any that has more. Nobody gives anything where all of them together have less than the
    `missing` blocks: it would help nobody, and they would compute it again and again. Tokens are
    kept and computed again when needed.
    """

    def above(seq: Sequence) -> int:
        return above_floor(seq, pool_id, floor)

    force = force or (floor > 0 and above(books.sequences[seq_id]) < 0)
    victims = [
        seq
        for seq in books.holders()
        if seq.kind == "agent"
        and seq.is_live
        and seq.seq_id != seq_id
        and seq.seq_id not in busy
        and (force or not seq.has_work or seq.seq_id > seq_id)
        and above(seq) > 0
    ]

    def gives(seq: Sequence) -> tuple[Freed, ...]:
        keep = _behind(seq, pool_id, held(seq, pool_id) - above(seq))
        return freed(seq, keep, "preempted")

    if not victims or missing > _gain(books, pool_id, seq_id, map(gives, victims)):
        return None
    return Plan(at, gives(max(victims, key=lambda seq: (not seq.has_work, seq.seq_id))))


def _gain(books: Ledger, pool_id: str, seq_id: int, given: Iterable[tuple[Freed, ...]]) -> int:
    """Blocks of a pool that are had when all of this is given, or that a holder then need not copy
    to go on writing."""
    gone = Counter(b for e in chain(*given) if e.pool_id == pool_id for b in e.blocks)
    refs = books.pools[pool_id].refs
    seq = books.sequences.get(seq_id)
    begun = {block for pool, block in (seq.begun() if seq else ()) if pool == pool_id}
    return sum(refs[block] - count <= (block in begun) for block, count in gone.items())


def _own(seq: Sequence, pool_id: str) -> Iterator[Segment]:
    yield from (
        s for s in seq.segments if s.pool_id == pool_id and s.blocks and s.tier not in READ_ONLY
    )


def above_floor(seq: Sequence, pool_id: str, floor: int) -> int:
    """Blocks that a holder has of its own in a pool above its floor; a fork has no floor."""
    return held(seq, pool_id) - (floor if seq.parent_id < 0 else 0)


def held(seq: Sequence, pool_id: str) -> int:
    """Blocks that a holder has of its own in a pool."""
    return sum(len(segment.blocks) for segment in _own(seq, pool_id))


def _behind(seq: Sequence, pool_id: str, count: int) -> int:
    """The position behind the first `count` blocks that a holder has of its own in a pool."""
    for segment in _own(seq, pool_id):
        if count < len(segment.blocks):
            return segment.first_position + count * segment.block_size
        count -= len(segment.blocks)
    raise ValueError("it has no more than these")


def aborted(books: Ledger, chunks: list[Chunk] | None, cause: str) -> tuple[Event, ...]:
    """A step did not finish: every slot that these chunks were going to write goes back (None: all
    that were allocated and not written, even if no chunk of theirs came about)."""
    out: list[Event] = []
    holders = books.live if chunks is None else [chunk.seq_id for chunk in chunks]
    for seq_id in holders:
        seq = books.sequences[seq_id]
        for number in range(len(seq.segments) - 1, -1, -1):
            segment = seq.segments[number]
            if segment.length > segment.computed:
                blocks = tuple(segment.blocks[-(-segment.computed // segment.block_size) :][::-1])
                where = (seq.seq_id, number, segment.pool_id)
                out.append(Aborted(*where, blocks, segment.computed, cause))
    return tuple(out)


def evicted(pool: Pool, blocks: tuple[int, ...], cause: str, before: Iterable[Event]) -> Evicted:
    """The event that takes these blocks' identity, behind those that the plan holds already."""
    pool_id, keys = pool.spec.pool_id, tuple(map(pool.keys.__getitem__, blocks))
    earlier = (e.keys for e in before if isinstance(e, Evicted) and e.pool_id == pool_id)
    remaining = copies_left(pool, (*keys, *chain(*earlier)))[: len(keys)]
    return Evicted(pool_id, blocks, keys, remaining, cause)
