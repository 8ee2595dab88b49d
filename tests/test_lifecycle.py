"""The state machine of a holder: exactly the written moves, and each of them in a small story."""

from __future__ import annotations

import re

import pytest
from toy import Interrupt, Toy

from inms_lab.books import lifecycle
from inms_lab.books.events import Commanded, Event
from inms_lab.books.lifecycle import (
    DECODING,
    ENDED,
    EXPIRED,
    FAILED,
    FINISHED,
    LIVE,
    MOVES,
    PREFILLING,
    READY,
    RECLAIMED,
    REGISTERED,
    check_move,
    state_of,
)
from inms_lab.decisions.freeing import plan_preempt
from inms_lab.errors import AgentClosed, IllegalMove, PlanInvalid

STATES = (REGISTERED, PREFILLING, READY, DECODING, FINISHED, FAILED, EXPIRED, RECLAIMED)
TEXT = [1, 2, 3, 4, 0, 1]


def test_the_documentation_names_every_state() -> None:
    assert set(MOVES) == set(STATES) == LIVE | ENDED | {RECLAIMED}
    words = set(re.findall(r"[a-z]+", lifecycle.__doc__ or ""))
    assert set(STATES) <= words


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
def test_every_move_is_allowed_or_refused_as_written(old: str, new: str) -> None:
    live = {REGISTERED, PREFILLING, READY, DECODING}
    ended = {FINISHED, FAILED, EXPIRED}
    allowed = old == new or (
        new in live | ended if old in live else old in ended and new == RECLAIMED
    )
    if allowed:
        check_move(old, new)
    else:
        with pytest.raises(IllegalMove, match=f"{old} cannot become {new}"):
            check_move(old, new)


@pytest.mark.parametrize(
    ("num_tokens", "num_computed", "wanted", "to_generate", "state"),
    [
        (0, 0, 0, 0, REGISTERED),
        (9, 0, 9, 0, PREFILLING),
        (9, 8, 9, 0, PREFILLING),
        (9, 9, 9, 0, READY),
        (9, 8, 8, 0, READY),  # the last generated token can wait
        (9, 0, 0, 0, READY),  # idle, and its KV was taken
        (9, 7, 9, 3, PREFILLING),
        (9, 8, 8, 3, DECODING),
        (9, 9, 9, 3, DECODING),
    ],
)
def test_the_state_of_a_live_holder_follows_from_the_counts(
    num_tokens: int, num_computed: int, wanted: int, to_generate: int, state: str
) -> None:
    assert state_of(num_tokens, num_computed, wanted, to_generate) == state


def watched(toy: Toy, seq_id: int) -> list[str]:
    """The states that a holder goes through, as they change."""
    states = [toy.ledger.sequences[seq_id].state]

    def look(event: Event) -> None:
        state = toy.ledger.sequences[seq_id].state
        if state != states[-1]:
            states.append(state)

    toy.on_event.append(look)
    return states


def test_a_whole_life() -> None:
    toy = Toy(budget=4)
    agent = toy.agent("a")
    states = watched(toy, agent)
    toy.do(agent, "append", TEXT)
    toy.do(agent, "write", [2], count=3)
    toy.enter(agent, "close")
    assert states == [REGISTERED, PREFILLING, READY, DECODING, READY, FINISHED, RECLAIMED]


def test_a_turn_that_opens_with_one_token_decodes_at_once() -> None:
    toy = Toy()
    agent = toy.agent("a")
    states = watched(toy, agent)
    toy.do(agent, "write", [2], count=1)
    assert states == [REGISTERED, DECODING, READY]


def test_preempted_work_prefills_again_and_an_idle_holder_waits_until_it_is_asked() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT)
    states = watched(toy, agent)
    for _ in range(2):
        plan = plan_preempt(toy.ledger, len(toy.log), -1, "private")
        assert plan is not None
        toy.cache.commit(plan)
        if len(states) == 1:
            assert not toy.engine.has_work
            toy.ask(agent, "write", [2], count=3)
            toy.step()
            toy.step()
    toy.run()
    assert states == [READY, PREFILLING, DECODING, PREFILLING, DECODING, READY]


def test_a_rollback_to_nothing_is_as_new() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT)
    states = watched(toy, agent)
    toy.enter(agent, "rollback", count=0)
    assert (states[0], states[-1]) == (READY, REGISTERED)


def test_an_interrupted_step_leaves_the_state_as_it_was() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.ask(agent, "append", TEXT)
    toy.model.interrupt = True
    with pytest.raises(Interrupt):
        toy.step()
    assert toy.ledger.sequences[agent].state == PREFILLING


@pytest.mark.parametrize(
    ("verb", "state"), [("close", FINISHED), ("fail", FAILED), ("expire", EXPIRED)]
)
@pytest.mark.parametrize("moment", ["registered", "prefilling", "ready", "decoding"])
def test_a_holder_may_end_at_any_moment(moment: str, verb: str, state: str) -> None:
    toy = Toy(budget=3)
    agent = toy.agent("a")
    if moment != "registered":
        toy.ask(agent, "append", TEXT)
        toy.step()
    if moment in ("ready", "decoding"):
        toy.run()
    if moment == "decoding":
        toy.ask(agent, "write", [2], count=9)
        toy.step()
    assert toy.ledger.sequences[agent].state == moment
    states = watched(toy, agent)
    toy.engine.end(agent, verb, "test")
    blocks = moment != "registered"
    assert states[1:] == ([state, RECLAIMED] if blocks else [RECLAIMED])
    assert toy.held()["private"] == 0


def test_the_dead_do_nothing_more() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT)
    behind = [toy.ask(agent, verb) for verb in ("close", "logits")]
    toy.run()
    assert behind[0].future.result(timeout=0) is None
    assert isinstance(behind[1].future.exception(timeout=0), AgentClosed)
    with pytest.raises(AgentClosed, match="make a new agent"):
        toy.ask(agent, "append", [1])
    number = toy.ledger.sequences[agent].number
    with pytest.raises(PlanInvalid, match="is reclaimed"):
        toy.cache.record(Commanded(agent, number + 1, "logits"))
