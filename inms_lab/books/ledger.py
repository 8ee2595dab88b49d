"""The books: every pool and every holder, changed by `apply(event)` and by nothing else.

The live ledger and a replayed one are this same class fed the same events. `apply` asks the rules
(rules.py) before it changes anything; `overlay()` gives books on which a whole plan can be tried.
Not here: any decision (plan.py), any tensor (cache.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

from inms_lab.books import lifecycle, rules
from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.overlay import Touched
from inms_lab.books.pool import Pool
from inms_lab.books.sequence import Sequence

ENDS = {"close": lifecycle.FINISHED, "fail": lifecycle.FAILED, "expire": lifecycle.EXPIRED}


class Ledger:
    """Pools by id, holders by id, records by group; `tokens` is the token table beside the log."""

    def __init__(self, tokens: array[int]) -> None:
        self.tokens = tokens
        self.pools: dict[str, Pool] = {}
        self.sequences: dict[int, Sequence] = {}  # ids count from 0; ended holders stay
        self.live: dict[int, None] = {}  # ids of those that are not reclaimed, oldest first
        self.records: dict[str, tuple[int, ...]] = {}
        self.num_steps = 0

    def holders(self) -> list[Sequence]:
        """Those that are not reclaimed, oldest first."""
        return [self.sequences[seq_id] for seq_id in self.live]

    def overlay(self) -> Ledger:
        """Books over these; what is applied to them stays in them."""
        over = Ledger(self.tokens)
        over.pools, over.sequences = Touched(self.pools), Touched(self.sequences)
        over.live, over.records, over.num_steps = {**self.live}, {**self.records}, self.num_steps
        return over

    def apply(self, event: Event) -> None:
        """Change the books by one event, or raise `PlanInvalid` and change nothing."""
        rules.check(self, event)
        self.reduce(event)

    def reduce(self, event: Event) -> None:
        """Change the books by an event that was tried on an overlay of just these (cache.py)."""
        _REDUCE[type(event)](self, event)

    # inputs ---------------------------------------------------------------------------------

    def _pool_opened(self, e: PoolOpened) -> None:
        self.pools[e.pool_id] = Pool(e)

    def _registered(self, e: Registered) -> None:
        seq = Sequence(e)
        if e.parent_id >= 0:
            seq.take_text(self.sequences[e.parent_id])
        self.sequences[e.seq_id] = seq
        self.live[e.seq_id] = None

    def _commanded(self, e: Commanded) -> None:
        seq = self.sequences[e.seq_id]
        seq.number = e.number
        if e.verb in ENDS:
            seq.to_generate, seq.wants_logits = 0, False
            seq.move(ENDS[e.verb])
            self._reclaim(seq)
            return
        if e.verb in ("append", "write"):
            donor = self.sequences[e.source].segments[e.piece] if e.piece >= 0 else None
            size = self.pools[e.pool_id].block_size
            seq.append(e, self.tokens[e.offset : e.offset + e.length], size, donor)
        elif e.verb == "detach":
            seq.detach(e, self.pools[e.pool_id].block_size)
        elif e.verb in ("rollback", "stop"):
            for pool_id, block in seq.rollback(e.count) if e.verb == "rollback" else seq.begun():
                self.pools[pool_id].withdraw(block)
        if e.verb in ("write", "rollback", "stop"):
            seq.to_generate = e.count if e.verb == "write" else 0
            seq.wants_logits = False
            seq.trim()
        elif e.verb == "logits":
            seq.wants_logits = True
        seq.move()

    def _released(self, e: Released) -> None:
        """A new version takes the place of the one that it replaces."""
        now = self.records.get(e.group, ())
        new = tuple(e.seq_id if r == e.replaces else r for r in now)
        self.records[e.group] = new if e.replaces in now else (*now, e.seq_id)

    # from a plan ----------------------------------------------------------------------------

    def _shared(self, e: Shared) -> None:
        seq, pool = self.sequences[e.seq_id], self.pools[e.pool_id]
        pool.share(e.blocks)
        seq.segments[e.segment].mount(e.blocks, e.length, written=True)
        seq.move()

    def _allocated(self, e: Allocated) -> None:
        segment, pool = self.sequences[e.seq_id].segments[e.segment], self.pools[e.pool_id]
        pool.allocate(e.blocks, segment.label, e.keys)
        segment.mount(e.blocks, e.length, written=False)

    def _copied(self, e: Copied) -> None:
        seq, pool = self.sequences[e.seq_id], self.pools[e.pool_id]
        segment = seq.segments[e.segment]
        pool.allocate((e.dst,), segment.label)
        if e.index == len(segment.blocks):
            segment.mount((e.dst,), e.index * segment.block_size + e.num_slots, written=True)
        else:
            self.pools[e.src_pool].release((e.src,))
            segment.blocks[e.index] = e.dst
        seq.move()

    def _evicted(self, e: Evicted) -> None:
        self.pools[e.pool_id].evict(e.blocks)

    def _let_go(self, e: Freed | Aborted) -> None:
        seq, pool = self.sequences[e.seq_id], self.pools[e.pool_id]
        idle = not seq.has_work
        pool.release(e.blocks, forget=isinstance(e, Freed) and e.forget)
        seq.segments[e.segment].unmount(len(e.blocks), e.length)
        if seq.is_live:
            if idle:  # what an idle holder loses is computed again when it is next asked
                seq.wanted = min(seq.wanted, seq.num_computed)
            seq.trim()
            seq.move()
        else:
            self._reclaim(seq)

    def _reclaim(self, seq: Sequence) -> None:
        if not any(segment.blocks for segment in seq.segments):
            seq.move(lifecycle.RECLAIMED)
            for segment in seq.segments:
                segment.keys.clear()  # its text can still be read; nobody needs its fingerprints
            del self.live[seq.seq_id]

    # completions ----------------------------------------------------------------------------

    def _stepped(self, e: Stepped) -> None:
        offset = e.offset
        for seq_id, num_computed, num_sampled, done in e.items:
            seq = self.sequences[seq_id]
            seq.wrote(num_computed)
            if num_sampled:
                seq.segments[-1].tokens.extend(self.tokens[offset : offset + num_sampled])
                seq.to_generate = 0 if done else seq.to_generate - num_sampled
                offset += num_sampled
            elif done:
                seq.wants_logits = False
            seq.move()
        self.num_steps = e.step

    def _published(self, e: Published) -> None:
        segment, pool = self.sequences[e.seq_id].segments[e.segment], self.pools[e.pool_id]
        pool.publish(e.blocks, e.keys, segment.texts(e.first, len(e.blocks)))

    # ----------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain data (the token table apart); equal books have equal ones."""
        return {
            "pools": {key: pool.snapshot() for key, pool in self.pools.items()},
            "sequences": {key: seq.snapshot() for key, seq in self.sequences.items()},
            "records": dict(self.records),
            "num_steps": self.num_steps,
        }

    @classmethod
    def replay(
        cls, snapshot: dict[str, Any] | None, events: Iterable[Event], tokens: array[int]
    ) -> Ledger:
        """The books with this `snapshot()` (None: at birth) after these events."""
        ledger = cls(tokens)
        if snapshot:
            ledger.pools = {k: Pool.of(state) for k, state in snapshot["pools"].items()}
            ledger.sequences = {k: Sequence.of(s) for k, s in snapshot["sequences"].items()}
            kept = (k for k, s in ledger.sequences.items() if s.state != lifecycle.RECLAIMED)
            ledger.live = dict.fromkeys(kept)
            ledger.records, ledger.num_steps = dict(snapshot["records"]), snapshot["num_steps"]
        for event in events:
            ledger.apply(event)
        return ledger


_REDUCE: dict[type, Callable[[Ledger, Any], None]] = {
    PoolOpened: Ledger._pool_opened,
    Registered: Ledger._registered,
    Commanded: Ledger._commanded,
    Released: Ledger._released,
    Shared: Ledger._shared,
    Allocated: Ledger._allocated,
    Copied: Ledger._copied,
    Evicted: Ledger._evicted,
    Freed: Ledger._let_go,
    Aborted: Ledger._let_go,
    Stepped: Ledger._stepped,
    Published: Ledger._published,
}
