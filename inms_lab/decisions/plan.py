"""Plans: tuples of events that have not happened yet, made by pure functions of the books.

`plan_extend` is the sharing decision: block by block it asks checks 1 to 5 of checks.py (is there a
published block of these tokens that this reader may hold) and 7 (is there room). It answers with a
`Plan`, or with what stands against one. Fragments were settled when the text entered (reuse.py).
"""

from __future__ import annotations

from collections import Counter

from inms_lab.books.checks import blocks_to_take, is_being_written, may_write
from inms_lab.books.events import Allocated, Copied, Event, Shared
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.decisions import outcome as said
from inms_lab.decisions.copies import MANY, NEW, READ, STORM
from inms_lab.decisions.freeing import evicted
from inms_lab.decisions.lookup import hits, record_of, stretch
from inms_lab.decisions.outcome import Chunk, Decision, Deferred, NoRoom, Outcome, Plan, Refused


def plan_extend(books: Ledger, at: int, seq_id: int, budget: int, copies: int = MANY) -> Outcome:
    """The next chunk of a sequence, at most `budget` tokens and `copies` blocks copied on write."""
    draft = _Draft(books, seq_id, budget, copies)
    seq = draft.seq
    for number, segment in enumerate(seq.segments):
        if segment.computed < len(segment.tokens):
            answer = draft.extend(number, segment)
            if answer is False:
                break
            if answer is not True:
                return answer
    chunk = Chunk(seq_id, draft.start, draft.stop) if draft.stop > draft.start else None
    if chunk is None and seq.is_asked and draft.stop == seq.num_tokens:
        chunk = Chunk(seq_id, draft.stop - 1, draft.stop, recompute=True)
    return Plan(at, tuple(draft.events), chunk, tuple(draft.decisions))


class _Draft:
    """A plan in the making: tokens `[start, stop)` are to be computed, behind what is mounted."""

    def __init__(self, books: Ledger, seq_id: int, budget: int, copies: int) -> None:
        self.books, self.seq = books, books.sequences[seq_id]
        self.budget, self.copies = budget, copies
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.spared: set[tuple[str, int]] = set()  # cached blocks that this plan mounts
        self.taken: Counter[str] = Counter()  # blocks that this plan takes, by pool
        self.start = self.stop = self.seq.num_computed

    def extend(self, number: int, segment: Segment) -> Outcome | bool:
        """Take a segment on; False: the plan ends in it, True: the next segment may follow."""
        here = self._share(number, segment)
        if here == len(segment.tokens):
            return True
        seq, pool, size = self.seq, self.books.pools[segment.pool_id], segment.block_size
        fresh = not self.events and self.start == self.stop
        index = here // size
        if here % size == 0 and is_being_written(pool, segment, index):
            why = f"block {index} of segment {number} is being written"
            return Deferred(seq.seq_id, why) if fresh else False
        record = record_of(self.books, segment)
        if record is not None and record.is_live and record.num_computed < record.num_tokens:
            return Deferred(seq.seq_id, f"{record.name} is being encoded") if fresh else False
        lost = record is not None and not record.is_live and not may_write(seq, segment.tier)
        if segment.is_fragment or lost:  # only mounted, behind what is computed; never written
            return said.Gone(seq.seq_id, number) if fresh else False
        if not may_write(seq, segment.tier):  # the door asks it whatever is switched off
            return Refused(seq.seq_id, 4, f"no {seq.kind} may write {segment.tier} text")
        return self._compute(number, segment, here)

    def _share(self, number: int, segment: Segment) -> int:
        """Mount what is found at the segment's end; gives the slots that have KV then."""
        size, here = segment.block_size, segment.computed
        if here % size or self.stop != self.start:
            return here
        first, pool = here // size, self.books.pools[segment.pool_id]
        found = hits(pool, segment, first, self.seq)
        if found:
            here = min(here + len(found) * size, len(segment.tokens))
            self.events.append(Shared(self.seq.seq_id, number, segment.pool_id, found, here))
            outcome, reason = "shared", "same fingerprint"
            if segment.is_fragment:
                outcome, reason = "shared at a shift", f"a fragment, shift {segment.shift:+d}"
            self.decisions.append(Decision(number, first, len(found), outcome, reason))
            self.spared.update((segment.pool_id, block) for block in found)
            self.start = self.stop = segment.first_position + here
        return here

    def _compute(self, number: int, segment: Segment, here: int) -> Outcome | bool:
        seq, pool, size = self.seq, self.books.pools[segment.pool_id], segment.block_size
        count, why = len(segment.tokens), segment.why or NEW
        limit = min(count, here + self.budget - (self.stop - self.start))
        if limit <= here:
            return False
        end = stretch(pool, segment, here, limit, seq)
        first = -(-here // size)
        keys = segment.keys_of(first, -(-end // size))
        partial = segment.blocks[here // size] if here % size and end > here else None
        copies = partial is not None and pool.refs[partial] > 1
        if copies > self.copies:
            return False if self.events else Deferred(seq.seq_id, STORM, 7)
        need = len(keys) + copies
        blocks, victims = blocks_to_take(pool, self.taken, self.spared, need)
        if len(blocks) < need:
            no = NoRoom(seq.seq_id, segment.pool_id, need, len(blocks))
            return no if self.stop == self.start else False  # the segments before have theirs
        if victims:
            self.events.append(evicted(pool, victims, "room", self.events))
        if partial is not None and copies:
            index, where = here // size, (segment.pool_id, partial, segment.pool_id, blocks[0])
            self.events.append(Copied(seq.seq_id, number, index, *where, here % size))
            self.decisions.append(Decision(number, index, 1, "copied", READ))
        elif partial is not None and partial in pool.keys:
            self.events.append(evicted(pool, (partial,), "overwritten", self.events))
        if keys:
            place = (seq.seq_id, number, segment.pool_id)
            self.events.append(Allocated(*place, blocks[copies:], keys, end))
            self.decisions.append(Decision(number, first, len(keys), "computed", why))
        self.stop += end - here
        return end == count
