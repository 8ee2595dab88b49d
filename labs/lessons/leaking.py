"""Runs in which somebody forgets two forks, among holders that are all well: material of lab 11.

A run is a function of its seed. What is known of a held block at a moment is a `Held`; nobody says
there whether it leaks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from inms_lab.books.events import Aborted, Allocated, Copied, Event, Freed, Shared, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.hindsight.growth import Activity
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent

from .leak_table import rows_of, table
from .small_labs import word_lab
from .told import names_of

STEPS = 150  # of a run
EVERY = 10  # steps between two moments that are looked at
AWAY = (10, 24)  # steps that who waits for a tool stays away, at least and at most
SEEDS = (1, 2, 3)  # of the runs that a check looks at
PROMPT = "you work in one shop and answer in one short sentence"
RULE = "every customer pays once and gets one parcel by post"
SPARE = "in case of fire leave the shop by the back door"
TALK = "we ask the bank in may about a loan for the new shop at the old harbour of this town"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a block in its table. `kind`: prompt, record or agent; `has_work`: whether it is
    computing or about to; `idle`: steps since it last was at work."""

    name: str
    kind: str
    has_work: bool
    idle: int


@dataclass(frozen=True, slots=True)
class Held:
    """What is known of a held block. `unmoved`: steps since its refcount last changed."""

    pool: str
    block: int
    tier: str
    refcount: int
    unmoved: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of a run, the log index then, and every block that is held."""

    step: int
    index: int
    blocks: tuple[Held, ...]


class Run:
    """A run with a leak. `moments`: what was known every few steps; `leaked`: names of the
    forgotten holders; `forgotten`: the step in which they were last at work."""

    def __init__(self, seed: int, suspect_after: int = 0) -> None:
        self.seed, self.suspect_after = seed, suspect_after
        self.log, self._leaked = _play(seed, suspect_after)
        self.names = names_of(self.log)
        self.moments, self.forgotten = _looked_at(self)

    @property
    def leaked(self) -> list[str]:
        """The names of the holders that nobody closes, as pictures tell them."""
        return [self.names[seq_id] for seq_id in self._leaked]

    def leaks(self, moment: Moment, held: Held) -> bool:
        """Whether nobody will ever use this block again (known to who wrote the run)."""
        mine = {holder.name for holder in held.holders} <= set(self.leaked)
        return mine and moment.step >= self.forgotten

    @property
    def num_held(self) -> int:
        """Private blocks that are held in the end."""
        return sum(held.pool == "private" for held in self.moments[-1].blocks)

    @property
    def num_leaking(self) -> int:
        """Blocks that nobody will use again and that are still held in the end."""
        last = self.moments[-1]
        return sum(self.leaks(last, held) for held in last.blocks)

    @property
    def num_computed(self) -> int:
        """Tokens that were computed, those that were lost and computed again once more."""
        steps = (event for event in self.log.events if isinstance(event, Stepped))
        return sum(item[1] for event in steps for item in event.items)

    def at(self, step: int) -> Moment:
        """The last moment that is not after `step`."""
        return [moment for moment in self.moments if moment.step <= step][-1]

    def table(self, step: int) -> Any:
        """What is known then, as a pandas DataFrame: blocks with the same holders in one row. Of
        several ages the least and the greatest are told."""
        return table(self.at(step).blocks)

    def leaking_rows(self, step: int) -> list[int]:
        """The numbers of that table's rows whose blocks nobody will use again."""
        moment = self.at(step)
        rows = enumerate(rows_of(moment.blocks))
        return [number for number, row in rows if self.leaks(moment, row[0])]


def state(holder: Holder) -> str:
    """What it does, in words."""
    return "at work" if holder.has_work else f"idle for {holder.idle}"


@cache
def run(seed: int, suspect_after: int = 0) -> Run:
    """The run with this seed. `suspect_after`: the setting of its lab; 0: nothing is swept."""
    return Run(seed, suspect_after)


# the run itself ---------------------------------------------------------------------------------


def _play(seed: int, suspect_after: int) -> tuple[Log, list[int]]:
    """The log, and the ids of those that are forgotten."""
    rng = random.Random(seed)
    lab = word_lab(num_blocks=160, suspect_after=suspect_after)
    lab.preload(PROMPT, progress=False)
    team = lab.group("shop")
    clerk, writer, planner, *callers = team.agents("clerk", "writer", "planner", "ann", "bob")
    team.publish(RULE, by=clerk)
    team.publish(SPARE, by=clerk, behind="prompt")  # which nobody attaches in this run
    leaked: list[int] = []
    at = lab.engine.ledger.num_steps
    writer.attach(team.records[0]).result()
    writer.read(_words(rng, 14)).result()
    writing = writer.write(STEPS + 20, stop=False)
    actors = [(0, _caller(caller, team, rng)) for caller in callers]
    actors.append((rng.randint(2, 6), _planner(planner, rng, leaked)))
    for step in range(STEPS):
        lab.driver.run_sync(lambda want=at + step: lab.engine.ledger.num_steps >= want)  # type: ignore[misc]
        due, actors = [a for a in actors if a[0] <= step], [a for a in actors if a[0] > step]
        actors += [(step + wait, actor) for _, actor in due if (wait := next(actor, 0))]
    assert not writing.done(), "there is always somebody at work"
    log = lab.log.copy()
    lab.assert_clean()
    return log, leaked


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(TALK.split()) for _ in range(count))


def _caller(me: Agent, team: Any, rng: random.Random) -> Iterator[int]:
    """Asks a tool, waits for it, goes on: for ever."""
    me.attach(team.records[0])
    while True:
        me.read(_words(rng, rng.randint(5, 9)))
        me.write(2, stop=False)
        yield 4 + rng.randint(*AWAY)


def _planner(me: Agent, rng: random.Random, leaked: list[int]) -> Iterator[int]:
    """Tries drafts in forks of itself. One is closed; of the other two nobody thinks again."""
    me.read(_words(rng, rng.randint(7, 12)))
    yield 3
    good = me.fork()
    yield 2
    draft = good.result()
    draft.read(_words(rng, 9))
    draft.write(3, stop=False)
    yield rng.randint(8, 16)
    draft.close()
    yield 2
    first = me.fork()
    yield 2
    bad = first.result()
    bad.read(_words(rng, rng.randint(10, 15)))
    bad.write(2, stop=False)
    yield 6
    second = bad.fork()
    yield 2
    worse = second.result()
    worse.read(_words(rng, rng.randint(6, 9)))
    leaked += [bad.seq_id, worse.seq_id]
    yield 4
    while True:
        me.read(_words(rng, rng.randint(2, 4)))
        yield rng.randint(5, 12)


# what is known ----------------------------------------------------------------------------------


def _looked_at(run: Run) -> tuple[list[Moment], int]:
    """The moments of a run, and the step in which those that leak were last at work."""
    log = run.log
    books = Ledger.replay(log.snapshot, (), log.tokens)
    activity, moved = Activity(books, log.first), dict[tuple[str, int], int]()
    moments: list[Moment] = []
    for index, event in enumerate(log.events, log.first):
        _moves(moved, books.num_steps, event)
        before = books.num_steps
        books.reduce(event)
        activity.saw(books, index, event)
        if books.num_steps > before and books.num_steps % EVERY == 0:
            blocks = tuple(_held(run, books, activity, moved))
            moments.append(Moment(books.num_steps, index + 1, blocks))
    return moments, max(activity.active[seq_id].step for seq_id in run._leaked)


def _moves(moved: dict[tuple[str, int], int], step: int, event: Event) -> None:
    """Remember whose refcount an event moves."""
    if isinstance(event, (Shared, Allocated, Freed, Aborted)):
        moved.update(((event.pool_id, block), step) for block in event.blocks)
    elif isinstance(event, Copied):
        moved[event.pool_id, event.dst] = moved[event.src_pool, event.src] = step


def _held(
    run: Run, books: Ledger, activity: Activity, moved: dict[tuple[str, int], int]
) -> Iterator[Held]:
    tables: dict[tuple[str, int], list[Holder]] = {}
    for seq in books.holders():
        idle = books.num_steps - activity.active[seq.seq_id].step
        holder = Holder(run.names[seq.seq_id], seq.kind, seq.has_work, idle)
        for segment in seq.segments:
            for block in segment.blocks:
                tables.setdefault((segment.pool_id, block), []).append(holder)
    for (pool_id, block), holders in sorted(tables.items()):
        pool = books.pools[pool_id]
        unmoved = books.num_steps - moved[pool_id, block]
        where = (pool_id, block, pool.spec.tier)
        yield Held(*where, pool.refs[block], unmoved, tuple(holders))
