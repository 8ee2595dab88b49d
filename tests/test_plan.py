"""Small stories with whole orders as literals: what is planned, what is handed out, who gives way.

Blocks have four slots. Nothing is computed by a real model; decisions and books are all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from toy import Interrupt, Toy, plain

from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    Published,
    Registered,
    Shared,
    Stepped,
)
from inms_lab.decisions.freeing import aborted, plan_preempt
from inms_lab.decisions.outcome import (
    Chunk,
    Decision,
    Deferred,
    NoRoom,
    Outcome,
    Plan,
    Refused,
    Stale,
)
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.errors import BadInput, EmptyText, PlanInvalid, PoolExhausted, SealedTier
from inms_lab.logs import audit

SYSTEM = [1, 2, 3, 4, 0, 1]  # one full block and a sealed one of two tokens
HELLO = [4, 4, 3, 3, 2, 2, 1, 1, 0]  # two full blocks and a token


def planned(toy: Toy, seq_id: int, budget: int = 1000) -> Outcome:
    """What would happen next to a sequence, made twice and without a trace."""
    before = plain(toy.ledger)
    outcome = plan_extend(toy.ledger, len(toy.log), seq_id, budget)
    assert outcome == plan_extend(toy.ledger, len(toy.log), seq_id, budget)
    assert plain(toy.ledger) == before
    return outcome


def key(toy: Toy, seq_id: int, index: int, segment: int = 0) -> bytes:
    return toy.ledger.sequences[seq_id].segments[segment].key(index)


def order(toy: Toy, pool_id: str = "private") -> tuple[list[int], list[int]]:
    """The whole free queue and the whole eviction order."""
    pool = toy.ledger.pools[pool_id]
    return list(pool.free), list(pool.cached)


def tail(toy: Toy, count: int) -> list[Event]:
    return toy.log.events[len(toy.log) - count :]


# --- hits ------------------------------------------------------------------------------------


def test_a_preloaded_prompt_is_mounted_whole_with_its_sealed_last_block() -> None:
    toy = Toy()
    prompt = toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.enter(agent, "append", SYSTEM, tier="global", seal=True)
    assert planned(toy, agent) == Plan(
        at=len(toy.log),
        events=(Shared(agent, 0, "global", (0, 1), 6, "hit"),),
        chunk=None,
        decisions=(Decision(0, 0, 2, "shared", "same fingerprint"),),
    )
    toy.run()
    assert toy.table(prompt) == toy.table(agent) == [("global", [0, 1])]
    assert dict(toy.ledger.pools["global"].refs) == {0: 2, 1: 2}


def test_what_follows_a_prompt_is_computed_in_the_readers_own_pool() -> None:
    toy = Toy()
    toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.enter(agent, "append", SYSTEM, tier="global", seal=True)
    toy.enter(agent, "append", HELLO)
    plan = planned(toy, agent)
    assert isinstance(plan, Plan)
    keys = (key(toy, agent, 0, 1), key(toy, agent, 1, 1), b"")
    assert all(keys[:2])
    assert plan.events == (
        Shared(agent, 0, "global", (0, 1), 6, "hit"),
        Allocated(agent, 1, "private", (0, 1, 2), keys, 9),
    )
    assert plan.chunk == Chunk(agent, 6, 15)
    assert plan.decisions == (
        Decision(0, 0, 2, "shared", "same fingerprint"),
        Decision(1, 0, 3, "computed", "no block with this fingerprint"),
    )


def test_the_first_miss_ends_the_hits() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    toy.enter(second, "append", [1, 1, 1, 1, 0, 2, 2, 2, 3, 3, 3, 3])
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (
        Shared(second, 0, "private", (0,), 4, "hit"),
        Allocated(second, 0, "private", (3, 4), (key(toy, second, 1), key(toy, second, 2)), 12),
    )
    assert plan.chunk == Chunk(second, 4, 12)


def test_an_open_last_block_is_not_found_before_it_is_full() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", SYSTEM)
    toy.enter(second, "append", SYSTEM)
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (
        Shared(second, 0, "private", (0,), 4, "hit"),
        Allocated(second, 0, "private", (2,), (b"",), 6),
    )


def test_a_block_found_behind_one_that_was_not_is_shared_in_the_next_chunk() -> None:
    toy = Toy("global", blocks=(1, 1, 6))
    first, filler, second = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.do(first, "append", [1, 1, 1, 1, 2, 2, 2, 2])
    toy.ask(first, "rollback", count=4)
    toy.do(first, "append", [3, 3, 3, 3])
    toy.enter(first, "close")  # cached, next victims first: the tail that was rolled back
    assert order(toy, "common") == ([3, 4, 5], [1, 2, 0])
    toy.do(filler, "append", [0] * 12)
    toy.do(second, "append", [1, 1, 1, 1])
    assert order(toy, "common") == ([], [1, 2])
    toy.enter(second, "append", [2, 2, 2, 2])
    assert planned(toy, second) == Plan(
        len(toy.log),
        (Shared(second, 0, "common", (1,), 8, "hit"),),
        None,
        (Decision(0, 1, 1, "shared", "same fingerprint"),),
    )


def test_a_chunk_ends_where_a_later_block_can_be_found() -> None:
    toy = Toy("global", blocks=(1, 1, 6))
    first, second = toy.agent("a"), toy.agent("b")
    text = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    toy.do(first, "append", text)
    toy.enter(first, "close")
    gone = toy.ledger.pools["common"].keys[0]
    toy.cache.commit(Plan(len(toy.log), (Evicted("common", (0,), (gone,), (0,)),)))
    toy.enter(second, "append", text)
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (Allocated(second, 0, "common", (3,), (gone,), 4),)
    assert plan.chunk == Chunk(second, 0, 4)
    toy.step()
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (Shared(second, 0, "common", (1, 2), 12, "hit"),)


def test_a_chunk_ends_where_a_later_block_is_being_written() -> None:
    toy = Toy(tile=8)  # an edit copies a whole block, and a copy is not published
    text = [*HELLO[:8], 3, 3, 0, 0, 1, 1, 1]
    toy.prompt(text)
    first, second = toy.agent("a"), toy.agent("a")
    for agent in (first, second):
        toy.do(agent, "append", text, tier="global", seal=True)
    toy.enter(first, "rewrite", [2, 2, 2], start=13, count=2)
    toy.engine.plan()
    assert list(toy.ledger.pools["private"].promised) == [1]
    toy.enter(second, "rollback", count=8)
    toy.enter(second, "append", [3, 3, 0, 0, 1, 2, 2, 2])
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.chunk == Chunk(second, 8, 12)
    assert plan.events == (Allocated(second, 1, "private", (2,), (key(toy, second, 0, 1),), 4),)


@pytest.mark.parametrize(
    ("reader", "text", "found"),
    [("a", [1, 1, 1, 1], True), ("a", [2, 2, 2, 2], False), ("b", [1, 1, 1, 1], False)],
)
def test_a_hit_compares_tokens_and_labels_even_if_all_digests_collide(
    reader: str, text: list[int], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inms_lab.books.segment.block_keys", lambda *_: [b"one for all"])
    toy = Toy(compare=False)
    toy.do(toy.agent("a"), "append", [1, 1, 1, 1])
    agent = toy.agent(reader)
    toy.enter(agent, "append", text)
    plan = planned(toy, agent)
    assert isinstance(plan, Plan)
    assert isinstance(plan.events[0], Shared) == found


def test_a_full_hit_recomputes_the_last_token_without_writing() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", HELLO[:8])
    toy.enter(second, "append", HELLO[:8])
    toy.enter(second, "logits")
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (Shared(second, 0, "private", (0, 1), 8, "hit"),)
    assert plan.chunk == Chunk(second, 7, 8, recompute=True)
    assert plan.chunk.num_written == 0
    toy.run()
    assert tail(toy, 1) == [Stepped(2, len(toy.log.tokens), ((second, 0, 0, True),))]


def test_private_text_is_found_by_its_own_principal_only() -> None:
    for mode, found in (("inms", False), ("global", True), ("independent", False)):
        toy = Toy(mode)
        writer, reader = toy.agent("a"), toy.agent("b")
        toy.do(writer, "append", HELLO)
        toy.enter(reader, "append", HELLO)
        plan = planned(toy, reader)
        assert isinstance(plan, Plan)
        assert isinstance(plan.events[0], Shared) == found, mode


def test_equal_text_at_another_place_is_not_found() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1, 1, 1, 1])
    toy.enter(second, "append", [2, 2, 2, 2, 1, 1, 1, 1])
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert [type(e) for e in plan.events] == [Allocated]


def test_a_segment_cut_is_part_of_what_stands_before() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1, 1, 1, 1, 2, 2, 2, 2])
    toy.do(second, "append", [1, 1, 1, 1], seal=True)
    toy.do(second, "append", [2, 2, 2, 2])
    assert toy.table(first) == [("private", [0, 1])]
    assert toy.table(second) == [("private", [0]), ("private", [2])]


@pytest.mark.parametrize("ended", [False, True])
def test_a_record_whose_holder_ended_is_computed_again_and_costs_nobody_the_life(
    ended: bool,
) -> None:
    toy = Toy(blocks=(2, 3, 8))
    record = toy.record("team", HELLO)
    if ended:
        toy.enter(record, "close")
        toy.record("team", [1] * 12)  # its blocks are taken
    agent = toy.agent("a")
    where = {"tier": "group", "group": "team", "seal": True, "record": record}
    assert toy.do(agent, "append", HELLO, **where) == 9
    (place,) = toy.table(agent)
    assert place[0] == ("private" if ended else "group:team")


# --- waiting ---------------------------------------------------------------------------------


def test_a_block_that_is_being_written_is_waited_for_and_then_hit() -> None:
    toy = Toy(budget=4)
    first, second = toy.agent("a"), toy.agent("a")
    for agent in (first, second):
        toy.enter(agent, "append", HELLO)
    chunks = toy.engine.plan()
    assert chunks == [Chunk(first, 0, 4)]
    assert planned(toy, second) == Deferred(second, "block 0 of segment 0 is being written")
    sampled = toy.engine.sample(chunks, toy.engine.forward(chunks))
    toy.engine.complete(sampled)
    assert tail(toy, 2) == [
        Stepped(1, len(toy.log.tokens), ((first, 4, 0, False),)),
        Published(first, 0, "private", 0, (0,), (key(toy, first, 0),)),
    ]
    assert toy.engine.plan() == [Chunk(first, 4, 8)]
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (Shared(second, 0, "private", (0,), 4, "hit"),)
    assert plan.chunk is None  # and the next block is waited for again


def test_a_wait_ends_when_the_writer_goes_back() -> None:
    toy = Toy(budget=2)
    writer, reader = toy.agent("a"), toy.agent("a")
    toy.ask(writer, "append", HELLO[:8])
    toy.step()
    assert toy.ledger.pools["private"].pending == {key(toy, writer, 0): 0}
    toy.enter(writer, "rollback", count=2)  # exactly what is computed: the promise is off
    assert not toy.ledger.pools["private"].pending
    assert toy.do(reader, "append", HELLO[:8]) == 8


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_nobody_waits_for_a_text_that_was_cut(count: int) -> None:
    toy = Toy(budget=3)
    writer, reader = toy.agent("a"), toy.agent("a")
    toy.ask(writer, "append", HELLO[:8])
    toy.step()
    toy.enter(writer, "rollback", count=count)
    assert toy.do(reader, "append", HELLO[:8]) == 8


# --- room ------------------------------------------------------------------------------------


def test_eviction_takes_the_least_recently_released_and_of_those_the_tail_first() -> None:
    toy = Toy("global", blocks=(1, 1, 8))
    old, new, big = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.do(old, "append", [1] * 12)
    toy.do(new, "append", [2] * 8)
    assert order(toy, "common") == ([5, 6, 7], [])
    toy.enter(old, "close")
    toy.enter(new, "close")
    assert order(toy, "common") == ([5, 6, 7], [2, 1, 0, 4, 3])
    keys = toy.ledger.pools["common"].keys
    toy.enter(big, "append", [3] * 20)
    plan = planned(toy, big)
    assert isinstance(plan, Plan)
    assert plan.events[0] == Evicted("common", (2, 1), (keys[2], keys[1]), (0, 0), "room")
    assert isinstance(plan.events[1], Allocated)
    assert plan.events[1].blocks == (5, 6, 7, 2, 1)
    toy.run()
    assert order(toy, "common") == ([], [0, 4, 3])
    toy.enter(big, "close")
    assert order(toy, "common") == ([], [0, 4, 3, 1, 2, 7, 6, 5])


def test_a_hit_makes_its_block_the_most_recent() -> None:
    toy = Toy("global", blocks=(1, 1, 8))
    old, new, reader = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.do(old, "append", [1] * 8)
    toy.do(new, "append", [2] * 8)
    toy.enter(old, "close")
    toy.enter(new, "close")
    assert order(toy, "common") == ([4, 5, 6, 7], [1, 0, 3, 2])
    toy.do(reader, "append", [1] * 4)
    assert order(toy, "common") == ([4, 5, 6, 7], [1, 3, 2])
    toy.enter(reader, "close")
    assert order(toy, "common") == ([4, 5, 6, 7], [1, 3, 2, 0])


def test_a_cached_block_that_the_plan_mounts_is_no_victim_of_it() -> None:
    toy = Toy("global", blocks=(1, 1, 3))
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", [1] * 8)
    toy.enter(first, "close")
    assert order(toy, "common") == ([2], [1, 0])
    toy.enter(second, "append", [1] * 4 + [2] * 8)
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    shared, evicted, allocated = plan.events
    assert isinstance(shared, Shared)
    assert isinstance(evicted, Evicted)
    assert isinstance(allocated, Allocated)
    assert (shared.blocks, evicted.blocks, allocated.blocks) == ((0,), (1,), (2, 1))


def two_copies(toy: Toy) -> tuple[int, int]:
    """Two sequences with a block of one content each: it was full in the second one too late."""
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(second, "append", [1, 1, 1])
    toy.do(first, "append", [1, 1, 1, 1])
    toy.do(second, "append", [1])
    assert toy.ledger.pools["common"].index == {key(toy, first, 0): (1, 0)}
    return first, second


def test_an_eviction_says_how_many_copies_remain_also_over_several_in_one_plan() -> None:
    toy = Toy("global", blocks=(1, 1, 2))
    first, second = two_copies(toy)
    toy.enter(first, "close")
    toy.enter(second, "close")
    assert order(toy, "common") == ([], [1, 0])
    (copied,) = set(toy.ledger.pools["common"].keys.values())
    third = toy.agent("c")
    toy.enter(third, "append", [2, 2, 2], seal=True)
    toy.enter(third, "append", [3, 3, 3])
    plan = planned(toy, third)
    assert isinstance(plan, Plan)
    assert [e for e in plan.events if isinstance(e, Evicted)] == [
        Evicted("common", (1,), (copied,), (1,), "room"),
        Evicted("common", (0,), (copied,), (0,), "room"),
    ]
    toy.run()


def test_one_eviction_of_both_copies_leaves_none() -> None:
    toy = Toy("global", blocks=(1, 1, 2))
    for agent in two_copies(toy):
        toy.enter(agent, "close")
    (copied,) = set(toy.ledger.pools["common"].keys.values())
    third = toy.agent("c")
    toy.enter(third, "append", [2] * 8)
    plan = planned(toy, third)
    assert isinstance(plan, Plan)
    assert plan.events[0] == Evicted("common", (1, 0), (copied, copied), (0, 0), "room")


def test_private_text_loses_its_identity_when_its_owner_ends() -> None:
    toy = Toy()
    first, other = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", HELLO)
    toy.do(other, "append", [1, 1, 1, 1])
    toy.enter(first, "close")
    assert tail(toy, 1) == [Freed(first, 0, "private", (2, 1, 0), 0, "close", True)]
    assert order(toy) == ([*range(4, 16), 2, 1, 0], [])


def test_nothing_of_a_principal_stays_findable_after_its_last_holder_ended() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1] * 8)
    toy.do(second, "append", [2] * 8)
    toy.enter(first, "rollback", count=4)  # block 1 goes to the cache
    kept = toy.ledger.pools["private"].keys[1]
    toy.enter(first, "close")
    assert order(toy) == ([*range(4, 16), 0], [1])  # the second may still find it
    toy.enter(second, "close")
    assert tail(toy, 2) == [
        Evicted("private", (1,), (kept,), (0,), "forgotten"),
        Freed(second, 0, "private", (3, 2), 0, "close", True),
    ]
    assert order(toy) == ([*range(4, 16), 0, 1, 3, 2], [])
    assert not toy.ledger.pools["private"].index


def test_sealed_text_stays_findable_when_its_last_reader_ends() -> None:
    toy = Toy()
    prompt = toy.prompt(SYSTEM)
    agent, late = toy.agent("a"), toy.agent("b")
    toy.do(agent, "append", SYSTEM, tier="global", seal=True)
    toy.enter(prompt, "close")
    toy.enter(agent, "close")
    assert order(toy, "global") == ([2, 3, 4, 5, 6, 7], [1, 0])
    toy.do(late, "append", SYSTEM, tier="global", seal=True)
    assert toy.table(late) == [("global", [0, 1])]


def test_a_plan_without_room_is_a_value_and_nothing_moves() -> None:
    toy = Toy(blocks=(1, 1, 3))
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", [1] * 8)
    toy.enter(second, "append", [2] * 8)
    assert planned(toy, second) == NoRoom(second, "private", needed=2, available=1)


def test_a_fork_without_room_for_its_copy_changes_no_count() -> None:
    toy = Toy(blocks=(1, 1, 2))
    parent = toy.agent("a")
    toy.do(parent, "append", SYSTEM)
    child = toy.do(parent, "fork")
    toy.enter(child, "append", [3, 3])
    before = dict(toy.ledger.pools["private"].refs)
    assert before == {0: 2, 1: 2}
    assert planned(toy, child) == NoRoom(child, "private", needed=1, available=0)
    assert dict(toy.ledger.pools["private"].refs) == before


def test_victims_are_the_idle_last_registered_first_then_later_workers() -> None:
    toy = Toy(blocks=(1, 1, 8))
    agents = [toy.agent(name) for name in "abcde"]
    for agent in (0, 1, 3, 4):
        toy.do(agents[agent], "append", [agent] * 4)
    for agent in (1, 4):
        toy.enter(agents[agent], "append", [0])  # these have work
    victims = []
    while (plan := plan_preempt(toy.ledger, len(toy.log), agents[2], "private")) is not None:
        victims += [(e.seq_id, e.blocks, e.cause) for e in plan.events if isinstance(e, Freed)]
        toy.cache.commit(plan)
    cause = "preempted"
    assert victims == [(3, (2,), cause), (0, (0,), cause), (4, (3,), cause)]
    busy = frozenset((agents[1],))
    assert plan_preempt(toy.ledger, len(toy.log), agents[0], "private", busy) is None
    assert toy.held()["private"] == 1


def test_preempted_private_text_is_found_again_and_costs_nothing() -> None:
    toy = Toy(blocks=(1, 1, 4))
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", HELLO[:8])
    toy.do(second, "append", [1] * 8)
    plan = plan_preempt(toy.ledger, len(toy.log), second, "private")
    assert plan is not None
    assert plan.events == (Freed(first, 0, "private", (1, 0), 0, "preempted"),)
    toy.cache.commit(plan)
    toy.enter(first, "logits")
    plan = planned(toy, first)
    assert isinstance(plan, Plan)
    assert plan.events == (Shared(first, 0, "private", (0, 1), 8, "hit"),)


def test_two_idle_agents_do_not_push_each_other_out_for_ever() -> None:
    toy = Toy(blocks=(1, 1, 4))
    first, second = toy.agent("a"), toy.agent("b")
    both = [toy.ask(first, "append", [1] * 12), toy.ask(second, "append", [2] * 12)]
    toy.run(limit=20)
    assert [request.future.result(timeout=0) for request in both] == [12, 12]
    assert toy.do(first, "write", [3], count=2) == toy.model.generate([1] * 12 + [3], 2)


def test_a_holder_that_nobody_can_help_fails_and_the_others_go_on() -> None:
    toy = Toy(blocks=(1, 2, 4))
    toy.record("team", [1] * 8)
    agent = toy.agent("a")
    record = toy.engine.register("record", "too much", frozenset({"group:team"}))
    turn = toy.ask(agent, "write", HELLO, count=3)
    text = toy.ask(record, "append", [2] * 4, tier="group", group="team", seal=True)
    toy.run()
    assert isinstance(text.future.exception(timeout=0), PoolExhausted)
    assert turn.future.result(timeout=0) == toy.model.generate(HELLO, 3)
    assert toy.ledger.sequences[record].state == "reclaimed"


def test_workers_that_want_more_than_there_is_are_served_one_after_the_other() -> None:
    toy = Toy(blocks=(1, 1, 4))
    agents = [toy.agent(name) for name in "abc"]
    turns = [toy.ask(agent, "write", [agent] * 8, count=8) for agent in agents]
    toy.run()
    for agent, turn in zip(agents, turns, strict=True):
        assert turn.future.result(timeout=0) == toy.model.generate([agent] * 8, 8)


# --- copy on write ---------------------------------------------------------------------------


def test_a_fork_copies_only_the_block_that_it_writes_into() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO[:6])
    child = toy.do(parent, "fork")
    name = toy.ledger.sequences[parent]
    assert tail(toy, 2) == [
        Registered(
            child, "agent", "a", "default", tuple(sorted(name.clearance)), name.namespace, parent
        ),
        Shared(child, 0, "private", (0, 1), 6, "fork"),
    ]
    toy.enter(child, "append", [0, 0, 0, 0])
    plan = planned(toy, child)
    assert isinstance(plan, Plan)
    assert plan.events == (
        Copied(child, 0, 1, "private", 1, "private", 2, 2),
        Allocated(child, 0, "private", (3,), (b"",), 10),
    )
    assert plan.decisions[0] == Decision(0, 1, 1, "copied", "another holder reads this block")
    toy.run()
    assert toy.table(parent) == [("private", [0, 1])]
    assert toy.table(child) == [("private", [0, 2, 3])]
    toy.enter(parent, "append", [1])
    plan = planned(toy, parent)
    assert isinstance(plan, Plan)
    assert plan.events == ()  # its last block is its own again


def test_the_parent_copies_too_if_it_is_the_first_to_write() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO[:6])
    child = toy.do(parent, "fork")
    assert toy.do(parent, "write", [1], count=1) == toy.model.generate([*HELLO[:6], 1], 1)
    assert toy.table(parent) == [("private", [0, 2])]
    assert toy.table(child) == [("private", [0, 1])]
    assert toy.states(child) == toy.model.run(HELLO[:6])


def test_a_rollback_into_a_shared_block_copies_what_is_kept_of_it() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [*HELLO[:8], 3])
    toy.do(second, "append", [*HELLO[:8], 3])
    assert toy.table(second) == [("private", [0, 1, 3])]
    toy.enter(second, "rollback", count=5)
    assert tail(toy, 1) == [Freed(second, 0, "private", (3,), 5, "rolled back")]
    toy.enter(second, "append", [0])
    plan = planned(toy, second)
    assert isinstance(plan, Plan)
    assert plan.events == (Copied(second, 0, 1, "private", 1, "private", 4, 1),)
    assert plan.chunk == Chunk(second, 5, 6)
    toy.run()
    assert toy.table(first) == [("private", [0, 1, 2])]
    assert toy.table(second) == [("private", [0, 4])]
    assert toy.states(first) == toy.model.run([*HELLO[:8], 3])


def test_an_edit_of_a_sealed_prompt_copies_up_to_the_edit_into_the_readers_pool() -> None:
    toy = Toy()
    prompt = toy.prompt([*SYSTEM, 2, 2, 4, 4])
    agent = toy.agent("a")
    toy.do(agent, "append", [*SYSTEM, 2, 2, 4, 4], tier="global", seal=True)
    offset = len(toy.log.tokens)
    toy.enter(agent, "rewrite", [3], start=6, count=2)
    label = ("agent:a",)
    place = {"tier": "private", "label": label, "pool_id": "private"}
    assert tail(toy, 4) == [
        Commanded(agent, 2, "rollback", count=4),
        Freed(agent, 0, "global", (2, 1), 4, "rewritten"),
        Commanded(agent, 3, "append", offset=offset, length=5, **place),
        Copied(agent, 1, 0, "global", 1, "private", 0, 2),
    ]
    assert list(toy.log.tokens[offset:]) == [0, 1, 3, 4, 4]
    toy.run()
    assert toy.table(agent) == [("global", [0]), ("private", [0, 1])]
    assert toy.table(prompt) == [("global", [0, 1, 2])]
    assert toy.states(prompt) == toy.model.run([*SYSTEM, 2, 2, 4, 4])
    assert toy.cache.store.num_copied == 2


@pytest.mark.parametrize("first", [SYSTEM[:3], SYSTEM[:4], SYSTEM])
def test_an_edit_in_the_second_of_two_sealed_texts_copies_too(first: list[int]) -> None:
    toy = Toy()
    toy.prompt(first, HELLO)
    agent = toy.agent("a")
    for text in (first, HELLO):
        toy.do(agent, "append", text, tier="global", seal=True)
    toy.do(agent, "rewrite", [3], start=len(first) + 2, count=1)
    assert toy.cache.store.num_copied == 2
    assert [pool_id for pool_id, _ in toy.table(agent)] == ["global", "private"]
    assert toy.states(agent) == toy.model.run([*first, *HELLO[:2], 3, *HELLO[3:]])


def test_an_edit_begins_its_segment_with_a_tile_where_tiles_are_larger_than_blocks() -> None:
    toy = Toy(tile=8)
    toy.prompt([*SYSTEM, 2, 2, 4, 4, 3, 3, 0, 0])
    agent = toy.agent("a")
    text = [*SYSTEM, 2, 2, 4, 4, 3, 3, 0, 0]
    toy.do(agent, "append", text, tier="global", seal=True)
    toy.do(agent, "rewrite", [1], start=13, count=1)
    assert toy.table(agent) == [("global", [0, 1]), ("private", [0, 1])]
    assert toy.cache.store.num_copied == 4  # the tile's first block; the rest is computed again
    assert toy.states(agent) == toy.model.run([*text[:13], 1])


def test_an_edit_at_a_blocks_start_copies_nothing() -> None:
    toy = Toy()
    toy.prompt([*SYSTEM, 2, 2])
    agent = toy.agent("a")
    toy.do(agent, "append", [*SYSTEM, 2, 2], tier="global", seal=True)
    toy.do(agent, "rewrite", [3], start=4, count=1)
    assert toy.cache.store.num_copied == 0
    assert toy.table(agent) == [("global", [0]), ("private", [0])]


def test_a_reader_may_go_on_in_its_own_text_after_a_rollback_but_not_in_sealed_text() -> None:
    toy = Toy()
    toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.do(agent, "append", SYSTEM, tier="global", seal=True)
    toy.do(agent, "append", HELLO[:6])
    toy.do(agent, "append", [1], fresh=True)
    toy.enter(agent, "rollback", count=10)
    assert [s.open for s in toy.ledger.sequences[agent].segments] == [False, True]
    toy.do(agent, "append", [0])
    assert toy.table(agent) == [("global", [0, 1]), ("private", [0, 3])]
    toy.enter(agent, "rollback", count=5)
    assert [s.open for s in toy.ledger.sequences[agent].segments] == [False]
    toy.do(agent, "append", [0])
    assert toy.table(agent) == [("global", [0, 1]), ("private", [4])]


def test_the_only_holder_overwrites_and_the_old_identity_goes_first() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO[:8])
    old = key(toy, agent, 1)
    toy.enter(agent, "rollback", count=6)
    assert toy.ledger.pools["private"].index[old] == (1,)  # findable until it is written into
    toy.enter(agent, "append", [4, 4])
    plan = planned(toy, agent)
    assert isinstance(plan, Plan)
    assert plan.events == (Evicted("private", (1,), (old,), (0,), "overwritten"),)
    toy.run()
    pool = toy.ledger.pools["private"]
    assert old not in pool.index
    assert pool.keys == {0: key(toy, agent, 0), 1: key(toy, agent, 1)}


# --- steps that do not finish -----------------------------------------------------------------


def test_an_aborted_step_gives_its_blocks_back_to_the_end_of_the_queue() -> None:
    toy = Toy(blocks=(1, 1, 6))
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO[:6])
    toy.enter(agent, "append", HELLO)
    chunks = toy.engine.plan()
    assert chunks == [Chunk(agent, 6, 15)]
    events = aborted(toy.ledger, chunks, "test")
    assert events == (Aborted(agent, 0, "private", (3, 2), 6, "test"),)
    for event in events:
        toy.cache.record(event)
    assert order(toy) == ([4, 5, 3, 2], [])
    assert not toy.ledger.pools["private"].pending
    assert toy.do(agent, "logits").argmax() == toy.model.generate([*HELLO[:6], *HELLO], 1)[0]


def test_a_turn_without_opening_survives_an_aborted_step() -> None:
    toy = Toy(budget=2)
    agent = toy.agent("a")
    toy.ask(agent, "append", [1, 2, 3, 4], seal=True)
    turn = toy.ask(agent, "write", count=3)  # its segment is empty until the first token
    toy.model.interrupt = True
    with pytest.raises(Interrupt):
        toy.step()
    toy.run()
    assert turn.future.result(timeout=0) == toy.model.generate([1, 2, 3, 4], 3)


def test_a_turn_without_opening_survives_a_preemption() -> None:
    toy = Toy(blocks=(1, 1, 4), budget=8)
    agent = toy.agent("a")
    toy.ask(agent, "append", [1] * 12, seal=True)
    turn = toy.ask(agent, "write", count=3)
    toy.step()
    plan = plan_preempt(toy.ledger, len(toy.log), -1, "private")
    assert plan is not None
    toy.cache.commit(plan)
    toy.run()
    assert turn.future.result(timeout=0) == toy.model.generate([1] * 12, 3)


def test_a_cut_ends_the_turn_and_takes_its_empty_segment_away() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", [1, 2, 3, 4, 0], seal=True)
    toy.enter(agent, "write", count=3)
    sequence = toy.ledger.sequences[agent]
    assert len(sequence.segments) == 2
    for event in (
        Commanded(agent, 3, "rollback", count=4),
        Freed(agent, 0, "private", (1,), 4, "cut"),
    ):
        toy.cache.record(event)
    assert (len(sequence.segments), sequence.to_generate) == (1, 0)
    assert toy.table(agent) == [("private", [0])]


def test_a_text_that_is_cut_while_it_is_computed_is_answered() -> None:
    toy = Toy(budget=2)
    agent = toy.agent("a")
    text = toy.ask(agent, "append", HELLO)
    toy.step()
    toy.do(agent, "rollback", count=1)
    assert text.future.done()


def test_a_preempted_agent_can_be_forked() -> None:
    toy = Toy(blocks=(1, 1, 4))
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO)
    plan = plan_preempt(toy.ledger, len(toy.log), -1, "private")
    assert plan is not None
    toy.cache.commit(plan)
    child = toy.do(agent, "fork")
    assert toy.do(child, "write", [1], count=2) == toy.model.generate([*HELLO, 1], 2)


# --- refusals --------------------------------------------------------------------------------


def test_a_global_text_that_nobody_preloaded_is_refused() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.enter(agent, "append", SYSTEM, tier="global", seal=True)
    assert planned(toy, agent) == Refused(agent, 4, "no agent may write global text")


def test_bad_requests_have_named_answers_and_leave_the_agent_usable() -> None:
    toy = Toy()
    agent = toy.agent("a")
    prompt = toy.prompt(SYSTEM)
    for verb, options, error in (
        ("append", {"tokens": []}, EmptyText),
        ("write", {"tokens": [1], "count": 0}, BadInput),
        ("append", {"tokens": [5]}, BadInput),
    ):
        with pytest.raises(error):
            toy.ask(agent, verb, **options)
    for seq_id, verb, options, error in (
        (agent, "write", {"count": 2}, EmptyText),
        (agent, "logits", {}, EmptyText),
        (agent, "rewrite", {"tokens": [1], "start": 0, "count": 1}, BadInput),
        (agent, "rollback", {"count": 1}, BadInput),
        (agent, "rollback", {"count": -1}, BadInput),
        (agent, "append", {"tokens": [1] * 65}, BadInput),
        (prompt, "rewrite", {"tokens": [1], "start": 0, "count": 1}, SealedTier),
    ):
        request = toy.ask(seq_id, verb, **options)
        toy.run()
        assert isinstance(request.future.exception(timeout=0), error), verb
    assert toy.do(agent, "append", [1] * 64) == 64
    assert toy.do(agent, "rewrite", [1, 2], start=60, count=2) is None


# --- the door --------------------------------------------------------------------------------


def story() -> tuple[Toy, int, Plan]:
    """A reader about to mount the prompt, evict, and compute a text of its own."""
    toy = Toy(blocks=(2, 2, 5))
    toy.prompt(SYSTEM)
    toy.record("team", [3, 3, 3, 3])
    other = toy.agent("b")
    toy.do(other, "append", [2] * 12)
    toy.enter(other, "rollback", count=4)  # blocks 2 and 1 are cached
    agent = toy.agent("a")
    toy.enter(agent, "append", SYSTEM, tier="global", seal=True)
    toy.enter(agent, "append", HELLO)
    plan = planned(toy, agent)
    assert isinstance(plan, Plan)
    assert [type(e) for e in plan.events] == [Shared, Evicted, Allocated]
    return toy, agent, plan


def edit(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def edited(plan: Plan) -> Plan:
        events = list(plan.events)
        events[index] = replace(events[index], **changes)
        return replace(plan, events=tuple(events))

    return edited


def insert(index: int, *events: Event) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, events=(*plan.events[:index], *events, *plan.events[index:]))


def drop(index: int) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, events=plan.events[:index] + plan.events[index + 1 :])


AGENT = 3  # of the story
EDITS: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "another block": ("head of the free queue", edit(2, blocks=(3, 4, 0))),
    "a held block": ("head of the free queue", edit(2, blocks=(0, 3, 4))),
    "the blocks in another order": ("head of the free queue", edit(2, blocks=(4, 3, 2))),
    "a block twice": ("head of the free queue", edit(2, blocks=(3, 3, 4))),
    "fewer blocks": ("promised keys", edit(2, blocks=(3, 4))),
    "another key": ("promised keys", edit(2, keys=(b"0" * 16, b"1" * 16, b""))),
    "a key for an open block": ("promised keys", edit(2, keys=(b"0" * 16,) * 3)),
    "more slots than tokens": ("slots and tokens differ", edit(2, length=12)),
    "the prompt's blocks in another order": ("other tokens", edit(0, blocks=(1, 0))),
    "one block of two": ("6 slots are 2 blocks", edit(0, blocks=(0,))),
    "fewer slots": ("4 slots are 1 blocks", edit(0, length=4)),
    "an unpublished block": ("not published", edit(0, blocks=(0, 7))),
    "another's private block": (
        r"label \(check 4\)",
        insert(1, Shared(AGENT, 1, "private", (0,), 4, "hit")),
    ),
    "another's private block, as if a fork's": (
        r"label \(check 4\)",
        insert(1, Shared(AGENT, 1, "private", (0,), 4, "fork")),
    ),
    "a private copy of another's block": (
        "source's label",
        insert(1, Copied(AGENT, 1, 0, "private", 0, "private", 3, 4)),
    ),
    "a copy of other tokens": (
        "other tokens",
        insert(1, Copied(AGENT, 1, 0, "global", 0, "private", 3, 4)),
    ),
    "a copy of nothing": (
        "holds nothing",
        insert(1, Copied(AGENT, 1, 0, "private", 4, "private", 3, 4)),
    ),
    "a copy into the sealed tier": (
        "may write to global",
        insert(1, Copied(AGENT, 0, 0, "global", 0, "global", 3, 4)),
    ),
    "the sealed tier for private text": (
        "segment 1 is not in global",
        edit(2, pool_id="global", blocks=(), keys=()),
    ),
    "a write into the sealed prompt": (
        "may write to global",
        insert(0, Allocated(AGENT, 0, "global", (0, 1), (b"", b""), 6)),
    ),
    "no mounting of what stands before": ("at the end of what a holder has", drop(0)),
    "no eviction": ("head of the free queue", drop(1)),
    "an eviction of a held block": ("is no victim", edit(1, blocks=(0,))),
    "an eviction under another key": ("copies that remain", edit(1, keys=(b"0" * 16,))),
    "another number of remaining copies": ("copies that remain", edit(1, remaining=(3,))),
    "an unknown holder": ("does not exist", edit(0, seq_id=99)),
    "an unknown segment": ("no such segment", edit(0, segment=7)),
    "an unknown pool": ("does not exist", edit(1, pool_id="nowhere")),
    "a publication of what is not written": (
        "not written to its end",
        lambda plan: replace(plan, events=(*plan.events, published_early(plan))),
    ),
    "a text with a foreign label": (
        "may not hold",
        insert(
            0, Commanded(AGENT, 3, "append", "private", ("agent:a", "agent:b"), "private", 0, 4)
        ),
    ),
    "a text with a label below its context's": (
        "a label joins",
        insert(0, Commanded(AGENT, 3, "append", "private", (), "private", 0, 4)),
    ),
    "a secret in a public pool": (
        "label too high",
        insert(0, Commanded(AGENT, 3, "append", "global", ("agent:a",), "global", 0, 4)),
    ),
    "a text of another tier than its pool": (
        "not of tier",
        insert(0, Commanded(AGENT, 3, "append", "global", ("agent:a",), "private", 0, 4)),
    ),
    "tokens that nobody has": (
        "outside the token table",
        insert(0, Commanded(AGENT, 3, "append", "private", ("agent:a",), "private", 10**6, 4)),
    ),
    "a command out of order": ("out of order", insert(0, Commanded(AGENT, 7, "logits"))),
    "an unknown command": ("no command is called", insert(0, Commanded(AGENT, 3, "guess"))),
    "a command to the dead": (
        "is reclaimed",
        insert(0, Commanded(AGENT, 3, "close"), Commanded(AGENT, 4, "logits")),
    ),
    "a fork with another clearance": (
        "one principal",
        insert(0, Registered(9, "agent", "a", "default", ("agent:b",), b"", AGENT)),
    ),
    "a second holder of one number": (
        "registered already",
        insert(0, Registered(AGENT, "agent", "a", "default", (), b"")),
    ),
    "a step that nobody took": (
        "does not follow",
        insert(3, Stepped(9, 0, ((AGENT, 9, 0, False),))),
    ),
    "a step without slots": (
        "without slots",
        insert(0, Stepped(4, 0, ((AGENT, 9, 0, False),))),
    ),
}


def published_early(plan: Plan) -> Published:
    allocated = plan.events[2]
    assert isinstance(allocated, Allocated)
    return Published(AGENT, 1, "private", 0, allocated.blocks[:1], allocated.keys[:1])


def test_the_plan_of_the_story_is_accepted_as_it_is() -> None:
    toy, agent, plan = story()
    assert toy.cache.commit(plan) is None
    assert toy.table(agent) == [("global", [0, 1]), ("private", [3, 4, 2])]


@pytest.mark.parametrize(("words", "change"), EDITS.values(), ids=EDITS)
def test_an_edited_plan_is_refused_and_nothing_of_it_is_applied(
    words: str, change: Callable[[Plan], Plan]
) -> None:
    toy, _, plan = story()
    before, index, slots = plain(toy.ledger), len(toy.log), repr(toy.cache.store.slots)
    edited = change(plan)
    assert edited != plan
    with pytest.raises(PlanInvalid, match=words):
        toy.cache.commit(edited)
    assert plain(toy.ledger) == before
    assert (len(toy.log), repr(toy.cache.store.slots)) == (index, slots)
    assert not audit.faults(toy.ledger)
    assert toy.cache.commit(plan) is None


def test_a_single_event_is_refused_whole_too() -> None:
    toy, _, plan = story()
    evicted = plan.events[1]
    assert isinstance(evicted, Evicted)
    twice = replace(evicted, blocks=evicted.blocks * 2, keys=evicted.keys * 2, remaining=(-1, -1))
    uneven = replace(evicted, keys=())
    before = plain(toy.ledger)
    for event in (twice, uneven):
        with pytest.raises(PlanInvalid):
            toy.cache.commit(Plan(len(toy.log), (event,)))
    assert plain(toy.ledger) == before


@pytest.mark.parametrize(("tier", "pool_id"), [("private", "private"), ("group", "group:team")])
def test_a_text_cannot_be_labelled_as_if_it_were_public(tier: str, pool_id: str) -> None:
    toy = Toy()
    agent = toy.agent("a")
    text = Commanded(agent, 1, "append", tier, (), pool_id, *toy.log.add_tokens(HELLO))
    with pytest.raises(PlanInvalid, match="a label joins"):
        toy.cache.commit(Plan(len(toy.log), (text,)))
    own = ("agent:a",) if tier == "private" else ("group:team",)
    assert toy.cache.commit(Plan(len(toy.log), (replace(text, label=own),))) is None


def test_nobody_but_the_prompts_holder_is_given_a_block_of_the_global_pool() -> None:
    toy = Toy()
    for kind, allowed in (("agent", False), ("record", False), ("prompt", True)):
        holder = toy.engine.register(kind, kind, frozenset({"agent:agent", "group:team"}))
        toy.enter(holder, "append", SYSTEM, tier="global", seal=True)
        keys = key(toy, holder, 0), key(toy, holder, 1)
        plan = Plan(len(toy.log), (Allocated(holder, 0, "global", (0, 1), keys, 6),))
        if allowed:
            assert toy.cache.commit(plan) is None
        else:
            with pytest.raises(PlanInvalid, match="may write to global"):
                toy.cache.commit(plan)


def test_a_hit_is_checked_against_the_readers_own_text_and_place() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1, 1, 1, 1, 2, 2, 2, 2])
    toy.enter(second, "append", [2, 2, 2, 2])
    for block, words in ((0, "other tokens"), (1, "another fingerprint")):
        shared = Shared(second, 0, "private", (block,), 4, "hit")
        with pytest.raises(PlanInvalid, match=words):
            toy.cache.commit(Plan(len(toy.log), (shared,)))


def test_a_fork_that_went_its_own_way_cannot_be_given_its_parents_blocks() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO)
    child = toy.do(parent, "fork")
    toy.enter(child, "rollback", count=0)
    toy.enter(child, "append", [0, *HELLO[1:]])
    shared = Shared(child, 0, "private", (0, 1, 2), 9, "fork")
    with pytest.raises(PlanInvalid, match="in common with its parent"):
        toy.cache.commit(Plan(len(toy.log), (shared,)))
    orphan = Shared(parent, 0, "private", (0,), 4, "fork")
    with pytest.raises(PlanInvalid):
        toy.cache.commit(Plan(len(toy.log), (orphan,)))


def test_a_release_in_the_middle_of_a_context_is_refused() -> None:
    toy = Toy()
    toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.do(agent, "append", SYSTEM, tier="global", seal=True)
    toy.do(agent, "append", HELLO)
    freed = Freed(agent, 0, "global", (1, 0), 0, "edited")
    with pytest.raises(PlanInvalid):
        toy.cache.commit(Plan(len(toy.log), (freed,)))


def test_a_shared_block_cannot_be_written_past_without_its_copy() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO[:6])
    child = toy.do(parent, "fork")
    toy.enter(child, "append", [0] * 6)
    plan = planned(toy, child)
    assert isinstance(plan, Plan)
    assert [type(e) for e in plan.events] == [Copied, Allocated]
    allocated = replace(plan.events[1], blocks=(2,))  # type: ignore[call-arg]
    with pytest.raises(PlanInvalid):
        toy.cache.commit(replace(plan, events=(allocated,)))


def test_a_copy_keeps_every_slot_that_is_written() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO[:7])
    child = toy.do(parent, "fork")
    toy.enter(child, "append", [0])
    plan = planned(toy, child)
    assert isinstance(plan, Plan)
    for num_slots in (0, 2, 4, 5):
        with pytest.raises(PlanInvalid):
            toy.cache.commit(edit(0, num_slots=num_slots)(plan))
    assert toy.cache.commit(plan) is None


def test_a_prompts_edit_cannot_copy_a_block_that_was_computed_elsewhere() -> None:
    toy = Toy(blocks=(8, 8, 8))
    toy.prompt([0, 0, 0, 0, 3, 3, 3, 3])
    toy.prompt([1, 1, 1, 1, 3, 3, 3, 3])
    agent = toy.agent("a")
    toy.do(agent, "append", [0, 0, 0, 0, 3, 3, 3, 3], tier="global", seal=True)
    request = toy.ask(agent, "rewrite", [2], start=6, count=1)
    toy.engine.enter()
    assert request.future.exception(timeout=0) is None
    copied = toy.log.events[-1]
    assert isinstance(copied, Copied)
    replayed = toy.log.replay(len(toy.log) - 1)
    for foreign in (3, 2, 0):  # equal tokens behind other text; other tokens, twice
        with pytest.raises(PlanInvalid):
            replayed.apply(replace(copied, src=foreign))
    replayed.apply(copied)


def test_a_plan_of_yesterday_is_stale_and_a_new_one_is_not() -> None:
    toy, agent, plan = story()
    toy.enter(toy.agent("c"), "append", [1])
    before = plain(toy.ledger)
    assert toy.cache.commit(plan) == Stale(at=plan.at, now=plan.at + 2)
    assert plain(toy.ledger) == before
    again = planned(toy, agent)
    assert isinstance(again, Plan)
    assert again.events == plan.events
    assert toy.cache.commit(again) is None


def test_a_snapshot_does_not_move_with_the_books() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO)
    snapshot = toy.ledger.snapshot()
    kept = plain(toy.ledger)
    toy.do(agent, "write", [1], count=3)
    toy.do(agent, "rollback", count=3)
    assert snapshot == kept


# --- lessons ---------------------------------------------------------------------------------


def test_without_the_label_check_a_reader_is_given_anothers_private_block() -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    for policy, found in ((inms, False), (inms.without("label"), True)):
        toy = Toy(policy, compare=False)
        writer, reader = toy.agent("a"), toy.agent("b")
        toy.do(writer, "append", HELLO)
        toy.enter(reader, "append", HELLO)
        plan = planned(toy, reader)
        assert isinstance(plan, Plan)
        assert isinstance(plan.events[0], Shared) == found


def test_without_waiting_a_reader_is_given_a_block_that_is_not_written() -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    toy = Toy(inms.without("pending"), compare=False, budget=2)
    writer, reader = toy.agent("a"), toy.agent("a")
    toy.enter(writer, "append", HELLO[:8])
    toy.step()
    toy.enter(reader, "append", HELLO[:8])
    plan = planned(toy, reader)
    assert isinstance(plan, Plan)
    assert plan.events[0] == Shared(reader, 0, "private", (0,), 4, "hit")
