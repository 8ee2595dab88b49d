"""The verbs of the books one by one: what a pool, a holder's commands and a plan do and refuse.

Whole runs are compared with independent books elsewhere (test_ledger.py, test_random_driver.py);
here is what such a comparison cannot see, found by changing the code (MUTANTS.md).
"""

from __future__ import annotations

import pytest
from toy import Toy

from inms_lab.books.events import Commanded, PoolOpened, Shared
from inms_lab.books.gate import OPEN
from inms_lab.books.pool import Pool
from inms_lab.decisions.copies import STORM
from inms_lab.decisions.freeing import aborted
from inms_lab.decisions.outcome import Deferred, Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.errors import PlanInvalid

KEYS, TEXTS = (b"a", b"b"), (b"one", b"two")


def pool() -> Pool:
    """Six blocks: 0 and 1 are held and published, 2 is held."""
    made = Pool(PoolOpened("p", "private", "default", 4, 6, ()))
    made.allocate((0, 1, 2), ())
    made.publish((0, 1), KEYS, TEXTS)
    return made


def test_what_can_be_had_is_what_is_free_or_cached() -> None:
    it = pool()
    assert it.num_available() == 3
    it.release((0, 2))
    assert ([*it.free], [*it.cached]) == ([3, 4, 5, 2], [0])
    assert it.num_available() == 5


def test_a_release_keeps_an_identity_unless_it_is_to_be_forgotten() -> None:
    it = pool()
    it.release((0,))
    it.release((1,), forget=True)
    assert it.index == {b"a": (0,)}
    assert [*it.cached] == [0]


def test_a_pool_names_the_block_that_it_refuses() -> None:
    it = pool()
    with pytest.raises(PlanInvalid, match="block 4 of p holds nothing to share"):
        it.share((4,))
    with pytest.raises(PlanInvalid, match="block 4 of p has no holder to let go"):
        it.release((4,))
    for block in (0, 4):  # found already, or nobody's
        with pytest.raises(PlanInvalid, match=f"block {block} of p cannot be published"):
            it.publish((block,), KEYS[:1], TEXTS[:1])
    with pytest.raises(PlanInvalid, match="blocks of p that are not free"):
        it.allocate((0,), ())


def test_every_published_block_has_a_key_and_a_text() -> None:
    for keys, texts in ((KEYS, TEXTS[:1]), (KEYS[:1], TEXTS), ((*KEYS, b"c"), TEXTS)):
        it = Pool(PoolOpened("p", "private", "default", 4, 6, ()))
        it.allocate((0, 1), ())
        with pytest.raises(ValueError, match="zip"):
            it.publish((0, 1), keys, texts)


def test_whoever_ends_wants_nothing_any_more() -> None:
    toy = Toy()
    writer, asker = toy.agent("a"), toy.agent("b")
    toy.enter(writer, "write", [1, 2], count=5)
    toy.do(asker, "append", [1, 2])
    toy.enter(writer, "append", [3])
    toy.enter(asker, "logits")
    for seq_id in (writer, asker):
        toy.engine.end(seq_id, "close", "test")
        seq = toy.ledger.sequences[seq_id]
        assert (seq.to_generate, seq.wants_logits) == (0, False)


@pytest.mark.parametrize("verb", ["rollback", "stop"])
@pytest.mark.parametrize("asked", ["write", "logits"])
def test_after_a_cut_or_a_stop_nothing_is_wanted(verb: str, asked: str) -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", [1, 2, 3])
    toy.enter(agent, asked, count=4)
    seq = toy.ledger.sequences[agent]
    assert seq.is_asked
    count = {"count": 2} if verb == "rollback" else {}
    if verb == "rollback":
        toy.engine.plan()  # no rollback within a step: what was planned is given up first
        for event in aborted(toy.ledger, None, "test"):
            toy.cache.record(event)
    toy.cache.record(Commanded(agent, seq.number + 1, verb, **count))
    assert (seq.to_generate, seq.wants_logits) == (0, False)
    assert not seq.is_asked


def test_a_stop_token_ends_a_turn_and_logits_are_asked_for_once() -> None:
    toy = Toy()
    agent = toy.agent("a")
    everything = frozenset(range(toy.model.vocab_size))
    assert len(toy.do(agent, "write", [1, 2], count=5, stop_tokens=everything)) == 1
    seq = toy.ledger.sequences[agent]
    assert seq.to_generate == 0
    assert not toy.engine.has_work
    toy.do(agent, "logits")
    assert seq.wants_logits is False
    assert not toy.engine.has_work


def test_a_plan_keeps_to_its_budget_over_several_segments() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.ask(agent, "append", [1, 2, 3], seal=True)
    toy.enter(agent, "append", [1] * 5)
    plan = plan_extend(toy.ledger, len(toy.log), agent, 4)
    assert isinstance(plan, Plan)
    assert plan.chunk is not None
    assert (plan.chunk.start, plan.chunk.stop) == (0, 4)


def test_a_budget_that_is_used_up_ends_a_plan_whatever_comes_next() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.ask(agent, "append", [1, 2, 3], seal=True)
    toy.ask(agent, "append", [1] * 5, seal=True)
    toy.enter(agent, "append", [4] * 3, tier="global", seal=True)  # which nobody preloaded
    plan = plan_extend(toy.ledger, len(toy.log), agent, 3)
    assert isinstance(plan, Plan)
    assert plan.chunk is not None
    assert plan.chunk.stop == 3


def test_what_stands_before_a_record_is_mounted_while_the_record_is_being_encoded() -> None:
    toy = Toy()
    prompt, news = [1, 2, 3, 4], [4, 4, 4, 4, 1, 1, 1, 1]
    toy.prompt(prompt)
    record = toy.engine.register("record", "team/0", frozenset({"group:team"}))
    toy.ask(record, "append", prompt, tier="global", seal=True)
    toy.ask(record, "append", news, tier="group", group="team", seal=True)
    reader = toy.agent("a")
    toy.ask(reader, "append", prompt, tier="global", seal=True)
    where = {"tier": "group", "group": "team", "seal": True, "record": record}
    toy.enter(reader, "append", news, **where)
    plan = plan_extend(toy.ledger, len(toy.log), reader, 100)
    assert isinstance(plan, Plan)
    assert [type(event) for event in plan.events] == [Shared]
    toy.cache.commit(plan)
    outcome = plan_extend(toy.ledger, len(toy.log), reader, 100)
    assert outcome == Deferred(reader, "team/0 is being encoded")


def test_a_decision_says_that_a_text_is_shared_at_a_shift() -> None:
    toy = Toy(gate=OPEN)
    news = [4, 4, 4, 4, 1, 1, 1, 1]
    record = toy.record("team", news)
    reader = toy.agent("a")
    toy.do(reader, "append", [1, 2, 3])
    toy.enter(reader, "append", news, tier="group", group="team", seal=True, record=record)
    plan = plan_extend(toy.ledger, len(toy.log), reader, 100)
    assert isinstance(plan, Plan)
    (decision,) = plan.decisions
    assert (decision.outcome, decision.reason) == ("shared at a shift", "a fragment, shift +3")


def test_what_finds_no_room_ends_a_plan_that_has_something_already() -> None:
    toy = Toy(blocks=(8, 8, 4))
    toy.do(toy.agent("b"), "append", [1] * 5)
    agent = toy.agent("a")
    for count in (4, 8, 2):  # one block, two that are not there, and one that would be
        toy.enter(agent, "append", [1] * count, seal=True)
    plan = plan_extend(toy.ledger, len(toy.log), agent, 100)
    assert isinstance(plan, Plan)
    assert plan.chunk is not None
    assert (plan.chunk.start, plan.chunk.stop) == (0, 4)


def test_who_may_not_copy_is_deferred_under_its_own_number() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", [1, 2])
    fork = toy.do(agent, "fork")
    toy.enter(fork, "append", [3])
    assert plan_extend(toy.ledger, len(toy.log), fork, 100, 0) == Deferred(fork, STORM, 7)


def test_who_stops_within_a_block_promises_it_to_nobody() -> None:
    toy = Toy(budget=6)
    agent = toy.agent("a")
    toy.enter(agent, "append", [1, 2, 3, 4, 1, 2, 3, 4])
    toy.engine.step()
    pool = toy.ledger.pools["private"]
    assert len(pool.pending) == 1  # its second block has two of four tokens
    toy.enter(agent, "stop")
    assert pool.pending == {}
    assert pool.promised == {}
