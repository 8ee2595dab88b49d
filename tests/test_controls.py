"""Pause, step, run and speed, from other threads, while programs run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from toy import ToyModel

from inms_lab.config import Config
from inms_lab.errors import BadInput, LabClosed
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    config = Config(4, 4, 16, 1000, 400, 400, 400)
    with Lab(ToyModel(), config=config) as lab:
        yield lab


async def program(me: Agent) -> int:
    me.read([1, 2, 3, 4, 1])
    return len((await me.write(30, role=None, stop=False)).tokens)


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def steps(lab: Lab) -> int:
    return lab.engine.ledger.num_steps


def settled(lab: Lab) -> int:
    """The number of steps once it stands still."""
    before = steps(lab)
    time.sleep(0.05)
    assert steps(lab) == before
    return before


def test_a_paused_lab_steps_only_when_asked_and_then_goes_on(lab: Lab) -> None:
    lab.controls.pause()
    lab.start({lab.agent("a"): program})
    lab.controls.speed(20)  # else all may be done before this thread's next line has its turn
    lab.controls.run()
    lab.controls.pause()
    wait_for(lambda: lab.controls.state == "paused" and lab.controls.num_drives == 1)
    lab.controls.speed(None)
    here = settled(lab)
    for number in range(1, 4):
        lab.controls.step()
        wait_for(lambda want=here + number: steps(lab) == want)  # type: ignore[misc]
        assert settled(lab) == here + number
    lab.controls.resume()
    wait_for(lambda: lab.controls.state == "idle")
    assert lab.results() == {"a": 30}


def test_run_and_step_drive_a_lab_that_nobody_drives(lab: Lab) -> None:
    lab.start({lab.agent("a"): program})
    lab.controls.step()
    wait_for(lambda: steps(lab) == 1)
    assert settled(lab) == 1
    lab.controls.run()
    wait_for(lambda: bool(lab.results()))


def test_speed_is_an_upper_bound(lab: Lab) -> None:
    lab.start({lab.agent("a"): program})
    lab.controls.speed(50)
    started = time.monotonic()
    lab.run_to(None)
    assert time.monotonic() - started >= (steps(lab) - 1) / 50
    assert lab.results() == {"a": 30}
    for wrong in (0, -1, float("nan"), float("inf"), "fast", True):
        with pytest.raises(BadInput):
            lab.controls.speed(wrong)  # type: ignore[arg-type]


def test_an_explicit_step_of_a_notebook_is_taken_while_paused(lab: Lab) -> None:
    import asyncio

    lab.controls.pause()
    lab.start({lab.agent("a"): program})
    asyncio.run(lab.step(2))
    assert steps(lab) == 2


def test_an_interrupt_ends_a_pause(lab: Lab) -> None:
    lab.controls.pause()
    lab.start({lab.agent("a"): program})
    driven = threading.Thread(target=lambda: lab.run_to(None))
    driven.start()
    wait_for(lambda: lab.controls.num_drives == 1)
    lab.driver.interrupt()
    driven.join(5)
    assert not driven.is_alive()
    assert lab.controls.state == "idle"


def test_the_log_does_not_depend_on_who_presses_what(lab: Lab) -> None:
    """jupyterlab#19719: a handler races the running cell. Commands hammered from a second thread:
    the same log, and balanced books."""
    quiet = Lab(ToyModel(), config=lab.config)
    logs = []
    for one in (quiet, lab):
        agents = [one.agent(name) for name in "abc"]
        one.start(dict.fromkeys(agents, program))
        stop = threading.Event()

        def hammer(one: Lab = one, stop: threading.Event = stop) -> None:
            buttons = one.controls
            while not stop.is_set():
                for press in (buttons.pause, buttons.step, buttons.resume, buttons.run):
                    press()
                    time.sleep(0.0005)

        presser = threading.Thread(target=hammer)
        if one is lab:
            presser.start()
        one.run_to(None)
        wait_for(lambda one=one: len(one.results()) == 3)  # type: ignore[misc]
        stop.set()
        if one is lab:
            presser.join()
        logs.append(list(map(repr, one.log.events)))
        one.assert_clean()
    assert logs[0] == logs[1]


def test_a_closed_lab_says_so(lab: Lab) -> None:
    lab.controls.pause()
    lab.close()
    assert lab.controls.state == "closed"
    for press in (lab.controls.pause, lab.controls.run, lab.controls.step):
        with pytest.raises(LabClosed):
            press()
