"""Why was there no room? A holder failed for want of blocks, or had to take them from another.

Asked in this order, at the moment itself:
    a copy-on-write storm    without the copies of the last few steps there would have been room
    idle holders             enough of the pool is held by those who have nothing to do
    partly filled blocks     enough of its slots lie unused in blocks that are held
    isolation                other pools have room, and pools never lend
Where none of these is so, the pool was full of what is needed: that is nobody's fault.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from inms_lab.books.events import Allocated, Commanded, Copied, Event, Freed
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.decisions.outcome import Decided
from inms_lab.hindsight.findings import ROOM, STORM, Finding
from inms_lab.hindsight.growth import Activity
from inms_lab.logs.log import Log

MANY = 4  # copies, then they may be a storm
GAP = 2  # steps between two copies of one storm, at most
WASTE = 1 / 3  # of a pool's held slots unused, then its blocks are too large for its texts
_SAID = re.compile(r"(.+): (\d+) blocks needed, (\d+) available\Z")


@dataclass(frozen=True, slots=True)
class Lack:
    """`name` needed `short` blocks more of `pool_id` than there were, before event `index`."""

    index: int
    name: str
    pool_id: str
    short: int
    failed: bool


class NoRooms:
    """What is remembered of rooms, copies and allocations; `findings` so far, one a cause."""

    def __init__(self, log: Log) -> None:
        self.log, self.findings = log, dict[str, Finding]()
        self.num_failed = self.num_copied = 0
        self._room: dict[str, list[tuple[int, int]]] = defaultdict(list)  # (index, available)
        self._copies: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # index, step, sum
        self._handed: Counter[str] = Counter()  # blocks that a pool has handed out
        self._taken: dict[tuple[str, int], int] = {}  # block -> when it was handed out
        self._decided = 0
        self._last: dict[int, Decided] = {}  # by holder: what planning last answered

    def before(self, books: Ledger, activity: Activity, index: int, event: Event) -> None:
        """An event is about to happen."""
        decisions = self.log.decisions
        while self._decided < len(decisions) and decisions[self._decided].at <= index:
            made = decisions[self._decided]
            self._last[made.seq_id] = made
            self._decided += 1
            if made.at == index and isinstance(event, Freed) and event.cause == "preempted":
                self._judge(books, activity, self._lack(books, made, index, failed=False))
        if isinstance(event, Copied):
            self._saw_copy(books, index, event)
        if isinstance(event, Commanded) and event.verb == "fail" and event.seq_id in self._last:
            lack = self._lack(books, self._last[event.seq_id], index, failed=True)
            self.num_failed += lack is not None
            self._judge(books, activity, lack)

    def saw(self, books: Ledger, index: int, event: Event) -> None:
        """An event that the books have taken in."""
        if isinstance(event, Allocated):
            self._handed[event.pool_id] += len(event.blocks)
            self._taken.update(((event.pool_id, block), index) for block in event.blocks)
        elif isinstance(event, Copied):
            self._handed[event.pool_id] += 1
            self._taken[event.pool_id, event.dst] = index
        pool = books.pools.get(getattr(event, "pool_id", ""))
        if pool is not None:
            self._room[pool.spec.pool_id].append((index, pool.num_available()))

    def _saw_copy(self, books: Ledger, index: int, event: Copied) -> None:
        segment = books.sequences[event.seq_id].segments[event.segment]
        begins = event.index == len(segment.blocks)
        if begins or books.pools[event.src_pool].refs.get(event.src, 0) > 1:  # else it only moved
            self.num_copied += 1
            made = (index, books.num_steps, self._handed[event.pool_id])
            self._copies[event.pool_id].append(made)

    def _lack(self, books: Ledger, made: Decided, index: int, failed: bool) -> Lack | None:
        said = _SAID.match(made.reason) if made.outcome == "no room" else None
        if said is None:
            return None
        pool_id, needed, available = said[1], int(said[2]), int(said[3])
        name = books.sequences[made.seq_id].name
        return Lack(index, name, pool_id, needed - available, failed)

    def _judge(self, books: Ledger, activity: Activity, lack: Lack | None) -> None:
        if lack is None or lack.pool_id not in books.pools:
            return
        found = self._storm(books, lack)
        if found is None and lack.failed:
            pool = books.pools[lack.pool_id]
            found = (
                self._idle(books, activity, lack)
                or self._partly(books, lack, pool)
                or self._isolated(books, lack, pool)
            )
        if found is not None:
            self.findings.setdefault(found.cause, found)

    def _storm(self, books: Ledger, lack: Lack) -> Finding | None:
        copies, now = self._copies[lack.pool_id], books.num_steps
        run: list[tuple[int, int, int]] = []
        for copy in reversed(copies):
            if (run[-1][1] if run else now) - copy[1] > GAP:
                break
            run.append(copy)
        if len(run) < max(MANY, lack.short):
            return None
        first = run[-1]
        handed = self._handed[lack.pool_id] - first[2]
        if 2 * len(run) < handed:  # most of what was taken meanwhile was new text
            return None
        event = self.log.events[first[0] - self.log.first]
        assert isinstance(event, Copied)
        who = books.sequences[event.seq_id].name
        because = (
            f"{len(run)} of the {handed} blocks that {lack.pool_id} handed out from step "
            f"{first[1] + 1} to step {now + 1} were copies on write; then {_lacks(lack)}"
        )
        advice = (
            "a smaller `copy_budget` spreads the copies over steps; close forks before they write"
        )
        what = f"{who} wrote into block {event.src} of {event.src_pool}, which others held"
        place = (event.pool_id, event.dst)
        cause = "copy-on-write storm"
        return Finding(STORM, cause, first[0], what, because, advice, (who,), place)

    def _idle(self, books: Ledger, activity: Activity, lack: Lack) -> Finding | None:
        current = {seq_id for group in books.records.values() for seq_id in group}
        needed: set[int] = set()
        idle: dict[int, set[int]] = {}  # block -> who holds it
        for seq in books.holders():
            works = seq.has_work or seq.kind == "prompt" or seq.seq_id in current
            for segment in seq.segments:
                if segment.pool_id == lack.pool_id:
                    for block in segment.blocks:
                        idle.setdefault(block, set()).add(seq.seq_id)
                    needed.update(segment.blocks if works else ())
        held = {block: who for block, who in idle.items() if block not in needed}
        if len(held) < max(1, lack.short):
            return None
        since = {
            i: activity.replaced.get(i) or activity.active[i] for who in held.values() for i in who
        }
        # a block is kept for nothing from when the last of its holders had nothing more to do
        last = {block: max(who, key=lambda i: since[i].index) for block, who in held.items()}
        block = min(held, key=lambda b: (since[last[b]].index, b))
        seq_id = last[block]
        names = list(dict.fromkeys(books.sequences[i].name for i in sorted(since)))
        because = (
            f"{len(held)} blocks of {lack.pool_id} are held by {', '.join(names[:4])}, with "
            f"nothing to do: {_lacks(lack)}"
        )
        what = f"{books.sequences[seq_id].name} was last at work"
        if seq_id in activity.replaced:
            what = f"{books.sequences[seq_id].name} was superseded, and its readers kept it"
        advice = "close them, or have readers of superseded records attach what replaced those"
        place = (lack.pool_id, block)
        index = since[seq_id].index
        return Finding(ROOM, "idle holders", index, what, because, advice, tuple(names), place)

    def _partly(self, books: Ledger, lack: Lack, pool: Pool) -> Finding | None:
        used: Counter[int] = Counter()  # slots, by block
        for seq in books.holders():
            for segment in seq.segments:
                if segment.pool_id == lack.pool_id:
                    for number, block in enumerate(segment.blocks):
                        there = min(pool.block_size, segment.length - number * pool.block_size)
                        used[block] = max(used[block], there)
        unused = sum(pool.block_size - count for count in used.values())
        slots = pool.block_size * len(used)
        if unused < lack.short * pool.block_size or unused < WASTE * slots:
            return None
        partly = [block for block, count in used.items() if count < pool.block_size]
        block = min(partly, key=lambda b: self._taken.get((lack.pool_id, b), self.log.first))
        index = self._taken.get((lack.pool_id, block), self.log.first)
        held = f"{unused} of the {slots} slots in blocks that {lack.pool_id} holds are unused"
        because = f"{held}: {_lacks(lack)}"
        advice = "smaller blocks (`block_size`), or fewer and longer texts: each ends a block"
        what = f"block {block} was handed out, of which {used[block]} slots are used"
        place = (lack.pool_id, block)
        return Finding(ROOM, "partly filled blocks", index, what, because, advice, (), place)

    def _isolated(self, books: Ledger, lack: Lack, pool: Pool) -> Finding | None:
        free = {
            p: q.num_available() * q.block_size for p, q in books.pools.items() if q is not pool
        }
        free = {pool_id: slots for pool_id, slots in free.items() if slots}
        if sum(free.values()) < lack.short * pool.block_size:
            return None
        rooms, needed = self._room[lack.pool_id], pool.num_available() + lack.short
        late = next((n for n in range(len(rooms) - 1, -1, -1) if rooms[n][1] >= needed), -1)
        index = rooms[min(late + 1, len(rooms) - 1)][0] if rooms else self.log.first
        others = ", ".join(f"{slots} slots of {pool_id}" for pool_id, slots in free.items())
        because = f"{others} can be had, and pools do not lend: {_lacks(lack)}"
        advice = (
            f"give {pool.spec.tier} text a larger region (`{_setting(pool)}`) and the others less"
        )
        what = f"from here on {lack.pool_id} had less room than was needed"
        return Finding(ROOM, "isolation", index, what, because, advice, (lack.name,))


def _lacks(lack: Lack) -> str:
    end = "failed" if lack.failed else "took them from another holder"
    return f"{lack.name} needed {lack.short} more and {end} at event {lack.index}"


def _setting(pool: Pool) -> str:
    return {"global": "global_bytes", "group": "group_bytes"}.get(pool.spec.tier, "private_bytes")
