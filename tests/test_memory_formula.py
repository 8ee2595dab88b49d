"""Memory by formula: held blocks = what the lengths of distinct segments say + copies on write.

At every log index and for every pool: held blocks = sum over distinct live segments of
ceil(length / block size), plus one for each live block that was copied on write.

Everything on the right is folded here from the events alone. What a *distinct segment* is: a run of
blocks, identified by the log index of the `Allocated` that began it. A run begins when a holder is
given blocks for a segment of its own, or behind blocks that another run gave it (a mounted prefix,
a fork's inheritance, a copy); later `Allocated` behind its own blocks prolong it. Whoever mounts
blocks of a run holds the same segment, not another one. Its live length is the most slots of it
that any table keeps. A copied block belongs to no run; it is live while any table has it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from toy import Interrupt, Toy, ToyModel

from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Freed,
    PoolOpened,
    Registered,
    Shared,
    Stepped,
)
from inms_lab.errors import InmsError

Place = tuple[str, int]


@dataclass
class Table:
    """One segment of one holder: its blocks, the slots they have, the tokens there are."""

    pool_id: str
    label: tuple[str, ...]
    tier: str
    open: bool
    num_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    slots: int = 0


class Lengths:
    """A fold of the log: lengths and runs, no refcounts, no queues."""

    def __init__(self) -> None:
        self.size: dict[str, int] = {}
        self.tables: dict[int, list[Table]] = {}
        self.turns: dict[int, bool] = {}  # whether a holder is generating
        self.run_of: dict[Place, tuple[int, int]] = {}  # place -> (run, slots of it before)
        self.copies: set[Place] = set()
        self.index = 0

    def apply(self, event: Event) -> None:
        """One event more."""
        if isinstance(event, PoolOpened):
            self.size[event.pool_id] = event.block_size
        elif isinstance(event, Registered):
            parent = self.tables.get(event.parent_id, [])
            fresh = (Table(t.pool_id, t.label, t.tier, t.open, t.num_tokens) for t in parent)
            self.tables[event.seq_id] = list(fresh)
        elif isinstance(event, Commanded):
            self._command(event, self.tables[event.seq_id])
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Shared | Allocated | Copied | Freed | Aborted):
            self._move(event, self.tables[event.seq_id][event.segment])
        if isinstance(event, Commanded | Freed | Aborted) and not self.turns.get(event.seq_id):
            tables = self.tables[event.seq_id]
            while tables and not tables[-1].num_tokens and not tables[-1].blocks:
                tables.pop()
        self.index += 1

    def _command(self, e: Commanded, tables: list[Table]) -> None:
        if e.verb in ("append", "write"):
            where = (e.pool_id, e.label, e.tier)
            last = tables[-1] if tables else None
            packed = last is not None and last.open and not (e.fresh or e.seal)
            if not packed or where != (last.pool_id, last.label, last.tier):
                if last is not None:
                    last.open = False
                tables.append(Table(*where, open=True))
            tables[-1].num_tokens += e.length
            tables[-1].open = not e.seal
        if e.verb == "rollback":
            left = e.count
            for table in tables:
                kept = min(left, table.num_tokens)
                left -= kept
                if kept < table.num_tokens:
                    table.num_tokens, table.open = kept, table.tier not in ("global", "group")
        if e.verb not in ("append", "logits"):
            self.turns[e.seq_id] = e.verb == "write"

    def _step(self, e: Stepped) -> None:
        for seq_id, num_computed, num_sampled, over in e.items:
            tables = self.tables[seq_id]
            for table in tables:  # tokens that found room in a block that was there already
                room = len(table.blocks) * self.size[table.pool_id]
                if num_computed:
                    table.slots = max(table.slots, min(room, table.num_tokens))
            tables[-1].num_tokens += num_sampled
            if num_sampled and over:
                self.turns[seq_id] = False

    def _move(self, e: Shared | Allocated | Copied | Freed | Aborted, table: Table) -> None:
        size = self.size[table.pool_id]
        if isinstance(e, Shared):
            table.blocks += e.blocks
            table.slots = e.length
        elif isinstance(e, Allocated):
            last = (table.pool_id, table.blocks[-1]) if table.blocks else None
            run, before = self.run_of.get(last, (-1, 0)) if last else (-1, 0)
            if last is None or last in self.copies or not self._is_end(run, before):
                run, before = self.index, -size
            for n, block in enumerate(e.blocks, 1):
                self.run_of[table.pool_id, block] = run, before + n * size
                self.copies.discard((table.pool_id, block))
            table.blocks += e.blocks
            table.slots = e.length
        elif isinstance(e, Copied):
            self.copies.add((e.pool_id, e.dst))
            if e.index == len(table.blocks):
                table.blocks.append(e.dst)
                table.slots = e.index * size + e.num_slots
            else:
                table.blocks[e.index] = e.dst
        else:
            del table.blocks[len(table.blocks) - len(e.blocks) :]
            table.slots = e.length

    def _is_end(self, run: int, before: int) -> bool:
        """Whether nobody holds more of this run: then a table that goes on prolongs it."""
        return before == max((b for r, b, *_ in self._pieces() if r == run), default=-1)

    def _pieces(self) -> Iterator[tuple[int, int, int, str]]:
        """(run, slots of the run before this block, slots in this block, pool) of live blocks."""
        for tables in self.tables.values():
            for table in tables:
                size = self.size[table.pool_id]
                for n, block in enumerate(table.blocks):
                    place = (table.pool_id, block)
                    if place not in self.copies:
                        run, before = self.run_of[place]
                        yield run, before, min(size, table.slots - n * size), table.pool_id

    def held(self, pool_id: str) -> int:
        """The formula."""
        size, lengths = self.size[pool_id], dict[int, int]()
        for run, before, slots, pool in self._pieces():
            if pool == pool_id:
                lengths[run] = max(lengths.get(run, 0), before + slots)
        copied = {
            (t.pool_id, block)
            for tables in self.tables.values()
            for t in tables
            for block in t.blocks
            if t.pool_id == pool_id and (t.pool_id, block) in self.copies
        }
        return sum(-(-length // size) for length in lengths.values()) + len(copied)


def checked(toy: Toy) -> Lengths:
    """From now on the formula is compared with the pools at every log index."""
    lengths = Lengths()

    def compare(event: Event) -> None:
        lengths.apply(event)
        for pool_id, pool in toy.ledger.pools.items():
            assert lengths.held(pool_id) == pool.num_held, (pool_id, event)

    for event in toy.log.events:  # the pools were opened
        lengths.apply(event)
    toy.on_event.append(compare)
    return lengths


def unlike(name: int, part: int, length: int) -> list[int]:
    """A text that shares no prefix with any other (name, part)."""
    return [name, part, *random.Random(f"{name}/{part}").choices(range(64), k=length - 2)]


# --- lengths in, blocks out -------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("mode", ["inms", "global", "independent"])
def test_three_agents_hold_what_their_lengths_say(mode: str, size: int) -> None:
    """Nothing but lengths on the right: system, decisions, and each agent's own text and output."""
    system, decisions, own, output = 37, 21, (18, 33, 5), 9
    model = ToyModel(vocab_size=64)
    toy = Toy(mode, size=size, tile=size, blocks=(64, 64, 500), budget=23, model=model)
    checked(toy)
    shares = mode != "independent"
    texts = unlike(0, 0, system), unlike(0, 1, decisions)
    if shares:
        toy.prompt(texts[0])
        record = toy.record("team", texts[1], behind=texts[:1])
    agents = [toy.agent(name) for name in ("architect", "backend", "frontend")]
    for agent, length in zip(agents, own, strict=True):
        toy.ask(agent, "append", texts[0], tier="global", seal=True)
        where = {"tier": "group", "group": "team", "record": record} if shares else {}
        toy.ask(agent, "append", texts[1], seal=True, **where)
        toy.ask(agent, "write", unlike(agent + 1, 2, length), count=output)
    toy.run()

    def blocks(length: int) -> int:
        return -(-length // size)

    private = sum(blocks(length + output - 1) for length in own)  # the last token is not computed
    once = blocks(system) + blocks(decisions)
    total = once + private if shares else len(own) * once + private
    assert sum(toy.held().values()) == total
    if mode == "inms":
        assert toy.held() == {
            "global": blocks(system),
            "group:team": blocks(decisions),
            "private": private,
        }


# --- random runs ------------------------------------------------------------------------------


def play(toy: Toy, rng: random.Random, count: int) -> set[str]:
    """Agents with texts of their own: growing, forking, cutting, editing, ending, being stopped."""
    prompt, texts = None, [unlike(0, n, 11 + n) for n in range(2)]
    agents: list[int] = []
    waiting = []
    done: set[str] = set()
    if toy.engine.policy.encodes_prompts:
        prompt = toy.prompt(*texts)
    for number in range(1, count + 1):
        if len(agents) < 3 or rng.random() < 0.1:
            agents.append(toy.agent(f"agent {number}"))
            for text in texts if prompt is not None else ():
                toy.ask(agents[-1], "append", text, tier="global", seal=True)
            toy.ask(agents[-1], "append", unlike(number % 63 + 1, number // 63, 9))
        agent = rng.choice(agents)
        num_tokens = toy.ledger.sequences[agent].num_tokens
        verb = rng.choice(("append", "write", "write", "fork", "rollback", "rewrite", "close"))
        if verb == "append":
            seal = rng.random() < 0.3
            toy.ask(agent, verb, unlike(number % 63 + 1, number // 63, 5), seal=seal)
        elif verb == "write":
            toy.ask(agent, verb, [rng.randrange(64)], count=rng.randint(1, 7))
        elif verb == "fork" and len(agents) < 8:
            waiting.append(toy.ask(agent, verb))
        elif verb == "rollback" and num_tokens:
            toy.ask(agent, verb, count=rng.randint(num_tokens // 2, num_tokens))
        elif verb == "rewrite" and num_tokens:
            start = rng.randrange(num_tokens)
            toy.ask(agent, verb, unlike(number % 63 + 1, number // 63, 3), start=start, count=2)
        elif verb == "close" and rng.random() < 0.6:
            toy.ask(agent, verb)
        for _ in range(rng.randint(0, 3)):
            toy.model.interrupt = rng.random() < 0.05
            try:
                toy.step(budget=rng.choice((1, 3, 8, 40)))
            except Interrupt:
                done.add("interrupted")
            toy.model.interrupt = False
        for fork in [f for f in waiting if f.future.done()]:
            waiting.remove(fork)
            error = fork.future.exception()
            assert error is None or isinstance(error, InmsError)
            if error is None:
                agents.append(fork.future.result())
        agents = [a for a in agents if toy.ledger.sequences[a].is_live]
    for event in toy.log.events:
        done.add(type(event).__name__)
        done.add(getattr(event, "cause", ""))
    return done


@pytest.mark.parametrize("mode", ["inms", "global", "independent"])
@pytest.mark.parametrize("seed", range(3))
def test_held_blocks_are_the_formula_at_every_log_index_of_a_random_run(
    mode: str, seed: int
) -> None:
    model = ToyModel(vocab_size=64)
    toy = Toy(mode, size=4, blocks=(10, 1, 24 if mode == "inms" else 34), model=model)
    checked(toy)
    done = play(toy, random.Random(seed), 120)
    assert {"Copied", "Freed", "Allocated", "Shared", "preempted", "rolled back"} <= done
    assert {"rewritten", "fork", "close"} <= done


def test_the_formula_notices_a_block_too_many() -> None:
    toy = Toy()
    lengths = checked(toy)
    agent = toy.agent("a")
    toy.do(agent, "append", [1, 2, 3, 4, 0])
    assert lengths.held("private") == 2
    toy.ledger.pools["private"].share((0,))  # the count alone: still two blocks
    assert lengths.held("private") == toy.ledger.pools["private"].num_held
    toy.ledger.pools["private"].allocate((2,), ())
    assert lengths.held("private") != toy.ledger.pools["private"].num_held
