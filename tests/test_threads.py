"""Calls from many threads at once: one group for a name, one agent, and an answer when it ends."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inms_lab.config import Config
from inms_lab.errors import AgentClosed, BadInput, InmsError, LabClosed
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.serving.loop import Loop

WATCHDOG = 20  # seconds after which a thread is taken to wait for ever


def made(**options: Any) -> Lab:
    """Room for whatever a test asks for in its time."""
    room = 4 * 10**5
    return Lab(DryModel(5, 10**5, 1), config=Config(4, 4, 64, 10**5, room, room, room), **options)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with made() as lab:
        yield lab


def outcome(function: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return function()
    except Exception as error:
        return error


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """What these calls give, begun at the same time on threads of their own."""
    start = threading.Barrier(len(functions))
    found: list[Any] = [None] * len(functions)

    def work(number: int) -> None:
        start.wait()
        found[number] = outcome(functions[number])

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True)
        for number in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
        assert not thread.is_alive(), "a call waits for ever"
    return found


# one name, one thing -----------------------------------------------------------------------------


def test_one_group_for_a_name(lab: Lab) -> None:
    for number in range(30):
        name = f"g{number}"
        groups = together([lambda name=name: lab.group(name)] * 8)  # type: ignore[misc]
        assert {id(group) for group in groups} == {id(lab.groups[name])}
    assert len([e for e in lab.engine.ledger.pools if e.startswith("group:")]) == 30


def test_one_agent_for_a_name(lab: Lab) -> None:
    lab.preload([1, 2, 3, 4], progress=False)
    for number in range(30):
        name = f"a{number}"
        found = together([lambda name=name: lab.agent(name)] * 8)  # type: ignore[misc]
        agents = [agent for agent in found if isinstance(agent, Agent)]
        assert agents == [lab.agents[name]]
        errors = [error for error in found if not isinstance(error, Agent)]
        assert all(isinstance(error, BadInput) and "exists" in str(error) for error in errors)
    assert sum(seq.kind == "agent" for seq in lab.engine.ledger.sequences.values()) == 30


def test_a_program_makes_groups_and_agents(lab: Lab) -> None:
    async def program(me: Agent) -> list[int]:
        team = lab.group("made inside")
        assert lab.group("made inside") is team
        (other,) = team.agents("other")
        with pytest.raises(BadInput, match="exists"):
            lab.agent("other")
        await other.read([3, 4])
        return other.tokens

    assert lab.run_to() == {}
    lab.start({lab.agent("a"): program})
    assert lab.run_to() == {"a": [3, 4]}


def test_a_tenant_is_looked_at_while_it_grows(lab: Lab) -> None:
    """Its agents and groups are those of one moment, whatever another thread makes meanwhile."""
    acme, grown = lab.tenant("acme"), threading.Event()

    def grow() -> None:
        for number in range(100):
            acme.agent(f"a{number}")
            acme.group(f"g{number}")
        grown.set()

    def look() -> list[int]:
        counts = []
        while not grown.is_set():
            counts.append(len(acme.agents) + len(acme.groups))
        return counts

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        _, *counts = together([grow, look, look])
    finally:
        sys.setswitchinterval(before)
    assert all(isinstance(found, list) and found == sorted(found) for found in counts), counts
    assert (len(acme.agents), len(acme.groups)) == (100, 100)


def test_groups_that_are_a_word_are_bad_input(lab: Lab) -> None:
    lab.group("t")
    with pytest.raises(BadInput, match="a list of names"):
        lab.agent("a", groups="team")


# the end -----------------------------------------------------------------------------------------


def told(found: list[Any]) -> None:
    """Every outcome of a race with `close` is the error of a closed lab, or of its agents."""
    assert all(isinstance(x, (LabClosed, AgentClosed)) for x in found), found


def again_and_again(function: Callable[[int], Any]) -> Callable[[], Any]:
    """Calls `function` until it raises."""

    def work() -> None:
        for number in range(100_000):
            function(number)

    return work


def test_calls_that_race_with_close_are_answered() -> None:
    for delay in range(10):
        lab = made()
        team = lab.group("t")
        ada, ben = team.agents("ada", "ben")

        def close(lab: Lab = lab, delay: int = delay) -> None:
            time.sleep(0.002 * (delay % 8))
            lab.close()

        found = together(
            [
                again_and_again(lambda k, t=team, a=ada: t.publish([k % 4 + 1] * 3, by=a)),  # type: ignore[misc]
                again_and_again(lambda k, b=ben, t=team: b.attach(t).result()),  # type: ignore[misc]
                again_and_again(lambda k, it=lab: it.agent(f"x{k}").read([1]).result()),  # type: ignore[misc]
                again_and_again(lambda k, it=lab: it.group(f"g{k}")),  # type: ignore[misc]
                again_and_again(lambda k, it=lab: it.controls.speed(None)),  # type: ignore[misc]
                again_and_again(lambda k, it=lab: it.controls.run()),  # type: ignore[misc]
                close,
                close,
            ]
        )
        told(found[:6])
        assert found[6:] == [None, None]
        assert not any(pool.num_held for pool in lab.engine.ledger.pools.values())


def test_a_call_whose_turn_comes_after_the_end_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race itself, made to happen: the thread ends just after a call has looked."""
    lab = made()
    agent = lab.agent("a")
    monkeypatch.setattr(lab, "refuse_closed", lambda: None)
    lab.close()
    for call in (
        lambda: agent.read([1]),
        lambda: lab.agent("b"),
        lambda: lab.group("g"),
        lambda: lab.run_to(),
        lab.controls.pause,
        lambda: asyncio.run(lab.step()),
    ):
        with pytest.raises(LabClosed):
            call()  # type: ignore[no-untyped-call]


def test_a_wait_that_the_end_cuts_short() -> None:
    """Somebody waits for a program that waits for the world outside."""
    lab = made()
    waits = threading.Event()

    async def program(me: Agent) -> None:
        waits.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)  # an interrupt is not enough for it

    lab.start({lab.agent("a"): program})
    agent = lab.agent("b")

    def close() -> None:
        assert waits.wait(WATCHDOG)
        agent.read([1])
        lab.close()

    def awaited() -> Any:
        return asyncio.run(lab.run())

    first, second, closed = together([lab.run_to, awaited, close])
    assert isinstance(first, LabClosed)
    assert isinstance(second, LabClosed)
    assert closed is None


def test_a_request_in_flight_is_told_that_the_lab_was_closed() -> None:
    lab = made()
    lab.controls.pause()
    pending = lab.agent("a").read([1] * 50)

    def close() -> None:
        time.sleep(0.1)
        lab.close()

    found, closed = together([pending.result, close])
    assert isinstance(found, LabClosed)
    assert isinstance(pending.future.exception(), LabClosed)
    assert closed is None


def test_what_was_let_in_before_the_end_is_run() -> None:
    for _ in range(50):
        loop, done = Loop(), []
        ran = [0, 0, 0]

        def post(number: int, loop: Loop = loop, ran: list[int] = ran) -> int:
            count = 0
            try:
                while True:
                    loop.post(lambda: ran.__setitem__(number, ran[number] + 1))
                    count += 1
            except LabClosed:
                return count

        def close(loop: Loop = loop) -> None:
            time.sleep(0.005)
            loop.close(lambda: done.append(True))  # noqa: B023

        *counts, closed = together([*(lambda n=n: post(n) for n in range(3)), close])  # type: ignore[misc]
        assert closed is None
        assert done == [True]
        assert ran == counts


def test_an_error_at_the_end_is_the_closers() -> None:
    loop = Loop()

    def fails() -> None:
        raise InmsError("not so")

    with pytest.raises(InmsError, match="not so"):
        loop.close(fails)
    loop.close()
    assert not loop.thread.is_alive()
