"""The sweep: private blocks that an idle agent has kept for long become weak. Pure.

A block's age is the number of its tenant's steps since its refcount last moved: a fold over the log
(`Ages`). A block is *suspect* when it is old and its holder has had nothing to do for as long. The
holder gives it up and keeps the text; the block stays findable as a cached one, and who needs room
takes it. When the holder is asked again, its text is looked up like any other: found again, or
computed. So a wrong suspicion costs time and never a result; it is the mechanism of preemption.

Text of the shared tiers is not swept: whether a record is mounted or computed must not depend on
time (reuse.py), and who reads a superseded record is told so instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Freed,
    Registered,
    Shared,
    Stepped,
)
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.sequence import READ_ONLY, Sequence
from inms_lab.decisions.freeing import freed
from inms_lab.decisions.outcome import Plan

WEAK = "weak"  # the cause of the release


@dataclass(frozen=True, slots=True)
class Suspect:
    """Blocks of an idle agent whose refcounts have not moved for long. `age`: steps for which
    neither did any of them nor the agent anything; `keep`: the tokens that stand before them."""

    seq_id: int
    name: str
    pool_id: str
    blocks: tuple[int, ...]
    age: int
    keep: int

    def __repr__(self) -> str:
        what = f"{len(self.blocks)} blocks of {self.pool_id}"
        return f"<suspect {self.name}: {what}, not moved for {self.age} steps>"


class Ages:
    """When the refcount of each block last moved, and when each holder was last asked or at work.
    The time is each tenant's own: the steps that it had a part in, of the log that was read so
    far."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self._steps: Counter[str] = Counter()  # that each tenant had a part in
        self._moved: dict[tuple[str, int], int] = {}
        self._worked: dict[int, int] = {}

    def follow(self, books: Ledger, events: Iterable[Event]) -> None:
        """The next events of the log; `books` know the holders and pools that they name."""
        steps, sequences = self._steps, books.sequences
        for event in events:
            self.at += 1
            if isinstance(event, Stepped):
                worked = [item[0] for item in event.items]
                steps.update({sequences[seq_id].tenant for seq_id in worked})
                self._worked.update((i, steps[sequences[i].tenant]) for i in worked)
            elif isinstance(event, (Registered, Commanded)):
                self._worked[event.seq_id] = steps[sequences[event.seq_id].tenant]
            elif isinstance(event, Copied):
                source, target = (event.src_pool, event.src), (event.pool_id, event.dst)
                self._moved[target] = self._moved.get(source, 0)  # a compaction is no use
                self._moved[source] = steps[books.pools[event.src_pool].spec.tenant]
            elif isinstance(event, (Shared, Allocated, Freed, Aborted)):
                pool_id = event.pool_id
                now = steps[books.pools[pool_id].spec.tenant]
                self._moved.update({(pool_id, block): now for block in event.blocks})

    def idle(self, seq: Sequence) -> int:
        """Steps since the holder was asked for something or at work."""
        return self._steps[seq.tenant] - self._worked.get(seq.seq_id, 0)

    def of(self, pool: Pool, block: int) -> int:
        """Steps since the block's refcount moved (or since the log that is left begins)."""
        return self._steps[pool.spec.tenant] - self._moved.get((pool.spec.pool_id, block), 0)


def suspects(books: Ledger, ages: Ages, after: int) -> list[Suspect]:
    """Who keeps what for `after` steps or more and has nothing to do, oldest holder first."""
    rest = (s for s in books.holders() if s.kind == "agent" and s.is_live and not s.has_work)
    idle = [seq for seq in rest if ages.idle(seq) >= after]
    return [suspect for seq in idle for suspect in _of(books, seq, ages, after)]


def _of(books: Ledger, seq: Sequence, ages: Ages, after: int) -> Iterator[Suspect]:
    """The suspect blocks at the end of a context: what stands behind a block goes with it."""
    blocks: list[int] = []
    pool_id, keep, age = "", 0, ages.idle(seq)
    for segment in reversed(seq.segments):
        if not segment.blocks:
            continue
        if segment.tier in READ_ONLY or segment.length > segment.computed:
            break
        for index in range(len(segment.blocks) - 1, -1, -1):
            old = ages.of(books.pools[segment.pool_id], segment.blocks[index])
            if old < after:
                break
            blocks.append(segment.blocks[index])
            age = min(age, old)
            pool_id, keep = segment.pool_id, segment.first_position + index * segment.block_size
        else:
            continue
        break
    if blocks:
        yield Suspect(seq.seq_id, seq.name, pool_id, tuple(reversed(blocks)), age, keep)


def plan_weak(books: Ledger, at: int, suspect: Suspect) -> Plan:
    """Make a suspect's blocks weak: its table gives them up, its text stays."""
    return Plan(at, freed(books.sequences[suspect.seq_id], suspect.keep, WEAK))
