"""Plans: tuples of events that have not happened yet, made by pure functions of the books.

`plan_extend` is the sharing decision. Block by block it asks the checks of checks.py: 1 to 5 (is
there a published block with this fingerprint and these tokens, may this reader hold it) and 7 (is
there room). It answers with a `Plan` or with a value that says why not. Nothing moves here;
`cache.commit` is the door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from inms_lab.checks import (
    blocks_to_take,
    candidates,
    clears,
    is_being_written,
    may_write,
    same_tokens,
)
from inms_lab.events import Allocated, Copied, Event, Evicted, Shared
from inms_lab.ledger import Ledger
from inms_lab.outcome import Chunk, Decision, Deferred, NoRoom, Outcome, Plan, Refused
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


def plan_extend(books: Ledger, at: int, seq_id: int, budget: int) -> Outcome:
    """The next chunk of a sequence, at most `budget` tokens: what to share, copy and allocate."""
    seq = books.sequences[seq_id]
    events: list[Event] = []
    decisions: list[Decision] = []
    spared: set[tuple[str, int]] = set()  # cached blocks that this plan mounts
    taken: Counter[str] = Counter()  # blocks that this plan takes, by pool
    start = stop = seq.num_computed
    for number, segment in enumerate(seq.segments):
        pool, size, count = books.pools[segment.pool_id], segment.block_size, len(segment.tokens)
        here = segment.computed
        if here == count:
            continue
        if here % size == 0 and stop == start:
            found = tuple(hits(pool, segment, here // size, seq))
            if found:
                first, here = here // size, min(here + len(found) * size, count)
                events.append(Shared(seq_id, number, segment.pool_id, found, here))
                decisions.append(Decision(number, first, len(found), "shared", "same fingerprint"))
                spared.update((segment.pool_id, block) for block in found)
                start = stop = segment.first_position + here
        if here == count:
            continue
        if here % size == 0 and is_being_written(pool, segment, here // size):
            if not events and start == stop:
                return Deferred(
                    seq_id, f"block {here // size} of segment {number} is being written"
                )
            break
        if not may_write(seq, segment.tier) and "label" not in seq.off:
            return Refused(seq_id, 4, f"no {seq.kind} may write {segment.tier} text")
        end = _stretch(pool, segment, here, min(count, here + budget - (stop - start)), seq)
        first = -(-here // size)
        keys = tuple(segment.key(index) for index in range(first, -(-end // size)))
        partial = segment.blocks[here // size] if here % size and end > here else None
        copies = partial is not None and pool.refs[partial] > 1
        blocks, victims = blocks_to_take(pool, taken, spared, len(keys) + copies)
        if len(blocks) < len(keys) + copies:
            return NoRoom(seq_id, segment.pool_id, len(keys) + copies, len(blocks))
        if victims:
            events.append(evicted(pool, victims, "room", events))
        if partial is not None and copies:
            index, slots = here // size, here % size
            where = (segment.pool_id, partial, segment.pool_id, blocks[0], slots)
            events.append(Copied(seq_id, number, index, *where))
            decisions.append(
                Decision(number, index, 1, "copied", "another holder reads this block")
            )
        elif partial is not None and partial in pool.keys:
            events.append(evicted(pool, (partial,), "overwritten", events))
        if keys:
            fresh = blocks[copies:]
            events.append(Allocated(seq_id, number, segment.pool_id, fresh, keys, end))
            decisions.append(
                Decision(number, first, len(keys), "computed", "no block with this fingerprint")
            )
        stop += end - here
        if end < count:
            break
    chunk = Chunk(seq_id, start, stop) if stop > start else None
    wanted = seq.to_generate > 0 or seq.wants_logits
    if chunk is None and wanted and stop == seq.num_tokens:
        chunk = Chunk(seq_id, stop - 1, stop, recompute=True)
    return Plan(at, tuple(events), chunk, tuple(decisions))


def hits(pool: Pool, segment: Segment, index: int, seq: Sequence) -> Iterator[int]:
    """The blocks to share from block `index` on, as far as each is found."""
    while (block := find(pool, segment, index, seq)) is not None:
        yield block
        index += 1


def _stretch(pool: Pool, segment: Segment, here: int, end: int, seq: Sequence) -> int:
    """How far from `here` towards `end` there is nothing to share or to wait for."""
    for index in range(here // segment.block_size + 1, -(-end // segment.block_size)):
        if is_being_written(pool, segment, index) or find(pool, segment, index, seq) is not None:
            return index * segment.block_size
    return end


def evicted(pool: Pool, blocks: tuple[int, ...], cause: str, before: Iterable[Event]) -> Evicted:
    """The event that takes these blocks' identity, behind those that the plan holds already."""
    pool_id, keys = pool.spec.pool_id, tuple(pool.keys[block] for block in blocks)
    earlier = (e.keys for e in before if isinstance(e, Evicted) and e.pool_id == pool_id)
    gone = Counter(chain(keys, *earlier))
    remaining = tuple(len(pool.index[key]) - gone[key] for key in keys)
    return Evicted(pool_id, blocks, keys, remaining, cause)
