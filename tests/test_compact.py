"""Compaction: blocks of private pools move down between two steps, and nothing else changes.

The witnesses: the toy model reads its own states through the tables, the independent books follow
every event, the browser's fold and everybody who looks back take the log, and a tiny real model
gives the same bits whether blocks move or not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from harness import Bench, Op, Program, differences, one_thread, shifting
from test_fold import compare, expected, fold, messages
from test_ledger import Player
from toy import Toy

from inms_lab.books.events import Copied, Event, Evicted, Published
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.compact import is_move, moves_in, plan_compact
from inms_lab.decisions.outcome import Plan, Stale, StepReport
from inms_lab.errors import BadInput, LabClosed, PlanInvalid
from inms_lab.hindsight.explain import explain_all
from inms_lab.hindsight.reused import reused
from inms_lab.hindsight.whatif import what_if
from inms_lab.logs import audit
from inms_lab.logs.history import block_history
from inms_lab.logs.log import Log
from inms_lab.logs.redact import redacted
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.waste import compact, waste
from inms_lessons.told import told
from inms_widgets.frames import marks

__all__ = ["one_thread"]  # a fixture


def scattered() -> tuple[Toy, int, int]:
    """Three agents; the middle one is gone: its blocks are free below the last one's."""
    toy = Toy(blocks=(4, 4, 16))
    first, middle, last = (toy.agent(name) for name in ("first", "middle", "last"))
    for agent, count in ((first, 6), (middle, 12), (last, 10)):
        toy.do(agent, "append", [agent % 5] * count)
    toy.do(middle, "close")
    return toy, first, last


def moved(log: Log) -> list[int]:
    """Numbers of the copies that were moves."""
    books, out = Ledger.replay(log.snapshot, (), log.tokens), []
    for number, event in enumerate(log.events):
        books.apply(event)
        if is_move(books, event):
            out.append(number)
    return out


def test_blocks_move_down_whole_and_findable_ones_keep_their_identity() -> None:
    toy, first, last = scattered()
    pool = toy.ledger.pools["private"]
    assert (toy.table(first), toy.table(last)) == ([("private", [0, 1])], [("private", [5, 6, 7])])
    keys = [pool.keys[5], pool.keys[6]]
    plan = plan_compact(toy.ledger, len(toy.log), "private")
    assert plan.events == (
        Evicted("private", (7, 6, 5)[1:], (keys[1], keys[0]), (0, 0), "moved"),
        Copied(last, 0, 0, "private", 5, "private", 2, 4),
        Copied(last, 0, 1, "private", 6, "private", 3, 4),
        Copied(last, 0, 2, "private", 7, "private", 4, 2),
        Published(last, 0, "private", 0, (2, 3), tuple(keys)),
    )
    assert toy.cache.commit(plan) is None
    assert toy.table(last) == [("private", [2, 3, 4])]
    assert [pool.keys[b] for b in (2, 3)] == keys
    assert (pool.index[keys[0]], 5 in pool.free, 5 in pool.labels) == ((2,), True, False)
    assert plan_compact(toy.ledger, len(toy.log), "private").events == ()
    assert toy.states(last) == toy.model.run([last % 5] * 10)
    toy.do(last, "write", [1], count=5)  # goes on in the block that was half full
    assert isinstance(toy.cache.commit(plan), Stale)


def test_at_most_as_many_blocks_move_as_were_asked_for() -> None:
    toy, _, last = scattered()
    assert compact(toy.cache, 1) == 1
    assert toy.table(last) == [("private", [5, 6, 2])]
    assert (compact(toy.cache, 2), compact(toy.cache)) == (2, 0)
    for most in (0, -1):
        with pytest.raises(BadInput, match="give at least 1"):
            plan_compact(toy.ledger, len(toy.log), "private", most)


def test_neighbours_in_a_table_become_neighbours_in_the_pool() -> None:
    toy = Toy(blocks=(4, 4, 32))
    agents = [toy.agent(name) for name in "abcd"]
    for _ in range(4):  # their blocks alternate
        for agent in agents:
            toy.do(agent, "append", [agent % 5] * 4)
    for agent in agents[:2]:
        toy.do(agent, "close")
    assert compact(toy.cache) == 8 - 4
    tables = [toy.table(agent)[0][1] for agent in agents[2:]]
    assert sorted(tables[0] + tables[1]) == [*range(8)]
    gaps = sum(b - a != 1 for table in tables for a, b in pairwise(table))
    assert gaps < 6, "they lay four apart, each of them"


@pytest.mark.parametrize("pool_id", ["global", "group:team", "nowhere"])
def test_shared_pools_are_left_alone(pool_id: str) -> None:
    toy = Toy()
    with pytest.raises(BadInput, match="compaction is for private pools"):
        plan_compact(toy.ledger, 0, pool_id)
    one = Toy("global")
    assert compact(one.cache) == 0, "a common pool is everybody's"


def test_what_several_hold_does_not_move() -> None:
    toy, _, last = scattered()
    child = toy.do(last, "fork")
    pool = toy.ledger.pools["private"]
    assert moves_in(toy.ledger, pool) == []
    toy.do(child, "append", [1])  # copy-on-write: one block of each is its own now
    mine = {move.src for move in moves_in(toy.ledger, pool)}
    assert all(pool.refs[block] == 1 for block in mine)
    toy.do(last, "close")
    toy.do(child, "append", [2] * 3)
    assert compact(toy.cache) > 0
    assert toy.states(child) == toy.model.run([last % 5] * 10 + [1, 2, 2, 2])


def test_what_is_promised_or_in_flight_does_not_move() -> None:
    toy, _, last = scattered()
    request = toy.ask(last, "append", [last % 5] * 8)
    toy.step(budget=3)  # the new block's key is known, and it is not full
    pool = toy.ledger.pools["private"]
    waited = set(pool.promised)
    assert waited
    assert waited.isdisjoint(move.src for move in moves_in(toy.ledger, pool))
    compact(toy.cache)
    toy.step(budget=1000)
    toy.run()
    assert request.future.done()
    assert toy.states(last) == toy.model.run([last % 5] * 18)


@pytest.mark.parametrize("number", range(3))
def test_a_move_that_fails_costs_time_and_no_result(number: int) -> None:
    toy, first, last = scattered()
    store, copy, left = toy.cache.store, toy.cache.store.copy, [number]

    def fails(*where: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no memory")
        copy(*where)

    store.copy = fails
    with pytest.raises(OSError, match="no memory"):
        compact(toy.cache)
    store.copy = copy
    assert not audit.faults(toy.ledger)
    for agent, count in ((first, 6), (last, 10)):
        answer = toy.do(agent, "write", [1], count=3)
        assert answer == toy.model.generate([agent % 5] * count + [1], 3)
    compact(toy.cache)
    other = toy.agent("other")
    toy.do(other, "append", [last % 5] * 10)
    assert toy.states(other) == toy.model.run([last % 5] * 10)


def edits() -> dict[str, tuple[str, Callable[[list[Event]], None]]]:
    def change(number: int, **fields: object) -> Callable[[list[Event]], None]:
        def edit(events: list[Event]) -> None:
            events[number] = replace(events[number], **fields)

        return edit

    def drop(number: int) -> Callable[[list[Event]], None]:
        return lambda events: events.pop(number) and None

    def swap(events: list[Event]) -> None:
        events[0] = replace(events[0], cause="room")

    return {
        "up": ("a move goes to a free block below", change(1, dst=9)),
        "to a held block": ("a move goes to a free block below", change(1, dst=0)),
        "to itself": ("a move goes to a free block below", change(1, dst=5)),
        "less than is written": ("a move keeps what is written", change(1, num_slots=3)),
        "more than is written": ("a move keeps what is written", change(3, num_slots=4)),
        "another's block": ("not the entry", change(1, src=1)),
        "a findable one": ("cannot be found", drop(0)),
        "under another cause": ("is no victim", swap),
        "under another key": ("the keys are not", change(4, keys=(b"x", b"y"))),
    }


@pytest.mark.parametrize("name", edits())
def test_the_door_refuses_every_other_move(name: str) -> None:
    toy, _, _ = scattered()
    said, edit = edits()[name]
    events = list(plan_compact(toy.ledger, len(toy.log), "private").events)
    edit(events)
    before = toy.ledger.snapshot()
    with pytest.raises(PlanInvalid, match=said):
        toy.cache.commit(Plan(len(toy.log), tuple(events)))
    assert toy.ledger.snapshot() == before


def test_a_copy_of_what_others_hold_still_takes_the_head_of_the_free_queue() -> None:
    toy, _, last = scattered()
    toy.do(last, "fork")
    src = toy.table(last)[0][1][2]
    with pytest.raises(PlanInvalid, match="head of the free queue"):
        toy.cache.record(Copied(last, 0, 2, "private", src, "private", 2, 2))


# random runs ----------------------------------------------------------------------------------


def play(mode: str, seed: int, count: int) -> Player:
    """Random operations with compactions between them; the books are compared at every event."""
    player, draw = Player(mode, seed), random.Random(seed)
    player.last_cut = defaultdict(lambda: "none: it moved")
    for _ in player.play(count):
        if draw.random() < 0.15:
            compact(player.toy.cache, draw.choice((None, 1, 3)))
            assert not audit.faults(player.toy.ledger)
    return player


@pytest.fixture(scope="module")
def played() -> list[Player]:
    return [play("inms", seed, 250) for seed in range(4)]


def test_the_independent_books_follow_every_move(played: list[Player]) -> None:
    """They were compared after every event; here: that there was something to compare."""
    for player in played:
        log = player.toy.log
        assert len(moved(log)) > 5
        causes = {e.cause for e in log.events if isinstance(e, Evicted)}
        assert "moved" in causes


def test_the_browsers_fold_follows_every_move(played: list[Player]) -> None:
    log = played[0].toy.log
    at = sorted({*range(0, len(log), 9), *(n + 1 for n in moved(log)), len(log)})
    (got,) = fold([{"messages": messages(log, []), "at": at}])
    compare(got, expected(log, at))
    parts = {n for n, e in enumerate(log.events) if isinstance(e, Evicted) and e.cause == "moved"}
    assert got["moves"] == sorted({*moved(log)} | parts)
    assert [m.index for m in marks(log) if m.kind == "move"] == got["moves"]


def test_those_who_look_back_take_the_log(played: list[Player]) -> None:
    for player in played[:2]:
        log = player.toy.log
        assert audit.impossible(log) is None
        hidden = redacted(log)
        assert audit.impossible(hidden) is None
        assert moved(hidden) == moved(log)
        assert len(list(explain_all(log))) == len(log.decisions)
        for made in log.decisions[:: len(log.decisions) // 7]:
            what_if(log, made)
            what_if(log, made, block_size=2)
            what_if(log, made, mode="independent")
        told(log, moved(log)[0])


def test_a_move_is_told_as_one_and_counted_as_no_copy() -> None:
    toy, _, _ = scattered()
    before = str(reused(toy.log))
    compact(toy.cache)
    assert str(reused(toy.log)) == before, "nothing was decided"
    (first, *_) = moved(toy.log)
    line = "last has block 2 of private in place of 5: it moved"
    assert told(toy.log, first) == f"event {first}, Copied: {line}"
    old = block_history(toy.log, "private", 5)
    assert [(c.event, c.after, c.state) for c in old[-2:]] == [
        ("Evicted", 1, "held"),
        ("Copied", 0, "free"),
    ]


# to the bit -----------------------------------------------------------------------------------


class Moving(Bench):
    """A bench whose private blocks move between any two steps."""

    num_moved = 0
    mid_text = 0  # moves while their holder had a text to go on with

    def step(self) -> StepReport | None:
        report = super().step()
        cache = self.engine.cache
        at = len(cache.log)
        self.num_moved += compact(cache)
        events = (e for e in cache.log.events[at:] if isinstance(e, Copied))
        self.mid_text += sum(cache.ledger.sequences[e.seq_id].has_work for e in events)
        return report


def programs() -> list[Program]:
    """Short ones leave holes while the long ones read and write."""
    read = tuple(range(7, 60))
    fork = Op("fork", ops=(Op("read", (4, 4, 4)), Op("write", (6,), count=6)))
    return [
        Program("short", (Op("read", (5, 6, 7) * 5), Op("write", (1,), count=3), Op("close"))),
        Program("long", (Op("read", read), Op("write", (3,), count=30))),
        Program("gone", (Op("read", (8, 9) * 12), Op("close"))),
        Program("late", (Op("read", read[::-1]), Op("rollback", count=21), Op("write", (9,), 9))),
        Program("more", (Op("read", (9, 1) * 9), Op("write", (2,), count=4), Op("close")), "g", 6),
        Program("last", (Op("read", read[3:30]), fork, Op("write", (2,), count=15)), "g", 4),
    ]


def test_results_are_the_same_to_the_bit_mid_generation() -> None:
    assert shifting().bitwise
    sizes = {"block_size": 8, "private": 60, "budget": 24}
    still = Bench(shifting(), **sizes).run(*programs())
    mixed = Moving(shifting(), **sizes).run(*programs())
    assert mixed.num_moved > 10
    assert mixed.mid_text > 5
    for program in programs():
        assert not differences(mixed, still, program.name)
        assert len(mixed.capture.of(program.name)) > 20


# a lab ----------------------------------------------------------------------------------------


def test_a_lab_moves_trims_and_tells_its_waste() -> None:
    dry = DryModel(64, 256, 1024)
    lab = Lab(dry, block_size=4, pool_bytes=16 * 4 * 1024, gate=None, debug=True)
    with lab:
        agents = [lab.agent(name) for name in ("one", "two", "three")]
        for agent in agents:
            agent.read([1] * 10).result()
        agents[0].close()
        lab.run_to()
        (held,) = (p for p in lab.waste().pools if p.pool_id == "private")
        assert (held.num_blocks, held.held, held.cached, held.free) == (16, 6, 0, 10)
        assert (held.unused, held.holes, held.used) == (2 * 2 * 1024, 3, 6 * 4 * 1024)
        assert lab.waste().stranded == 0
        assert lab.compact() == 3
        (held,) = (p for p in lab.waste().pools if p.pool_id == "private")
        assert held.holes == 0
        assert lab.trim().why == "a dry run keeps no KV"
        agents[1].read([1] * 40).result()
        told = waste(lab.engine.cache)
        assert told.full == ("private",)
        free = sum(p.free for p in told.pools if p.pool_id != "private")
        assert told.stranded == free > 0
        assert f"private: no room left, and {free} blocks are free elsewhere" in repr(told)
        lab.check()
    with pytest.raises(LabClosed):
        lab.compact()


def test_a_text_that_was_cut_and_comes_again_is_not_moved_before_it_is_written() -> None:
    """Its block has the key of the text that is asked for again, and slots that are not its own."""
    with Lab(DryModel(100, 256, 1024), block_size=8, pool_bytes="1MiB", debug=True) as lab:
        gone, agent = lab.agent("gone"), lab.agent("a")
        gone.read([2] * 20).result()
        agent.read([1] * 16).result()
        gone.close().result()
        agent.rollback(3).result()
        again = agent.read([1] * 3)
        lab.look(lambda: lab.engine.enter())
        assert lab.compact() == 1  # the whole one
        again.result()
        assert agent.tokens == [1] * 16
        lab.check()
