"""Agents' programs: started as tasks on the lab's loop, driven together, failing one by one."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from inms_lab.errors import BadInput, LabReadOnly
from inms_lab.notebook.agent import Agent
from inms_lab.serving.driver import Driver

Program: TypeAlias = Callable[[Agent], Awaitable[Any]]


class Results(dict[str, Any]):
    """What the programs returned, by agent; a failed one's value is its exception."""

    def __repr__(self) -> str:
        rows = (
            f"{name}: failed with {value!r}" if isinstance(value, BaseException) else
            f"{name}: {value!r}"
            for name, value in self.items()
        )  # fmt: skip
        return "\n".join(rows) or "no programs"


class Programs:
    """The programs of one lab."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tasks: dict[str, asyncio.Task[Any]] = {}  # by the agent's title, the newest batch
        self.failures: dict[str, BaseException] = {}

    def start(self, programs: Mapping[Agent, Program]) -> dict[str, asyncio.Task[Any]]:
        """Make tasks of them; results of an earlier batch that has ended are forgotten."""
        self.driver.refuse_inside("run or start")
        if not isinstance(programs, Mapping):
            raise BadInput("pass a dict: lab.run({agent: program, ...})")
        for agent, program in programs.items():
            if not isinstance(agent, Agent) or not callable(program):
                raise BadInput(f"{agent!r}: {program!r} is not an agent with a function to run")
            if agent.lab.driver is not self.driver:
                raise BadInput(f"{agent!r} belongs to another lab")

        def begin() -> dict[str, asyncio.Task[Any]]:
            if not self.driver.programs:
                self.tasks = {}
            running = [a.title for a in programs if not self.tasks.get(a.title, _ENDED).done()]
            if running:
                raise BadInput(f"{running[0]} runs a program already: wait for its end")
            batch = {a.title: self.driver.start(self._run(a, p)) for a, p in programs.items()}
            self.tasks |= batch
            return batch

        return self.driver.call(begin)

    async def _run(self, agent: Agent, program: Program) -> Any:
        try:
            awaitable = program(agent)
            if not inspect.isawaitable(awaitable):
                raise BadInput(f"the program of {agent.title} is no `async def`: make it one")
            return await awaitable
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # this agent fails (a tool may even exit), the others go on
            agent.error = self.failures[agent.title] = error
            cause = traceback.format_exception_only(error)[-1].strip()
            told = "".join(traceback.format_exception(error))
            self.driver.engine.log.errors[agent.seq_id] = told
            with suppress(LabReadOnly):  # then nobody ends any more
                self.driver.engine.end(agent.seq_id, "fail", cause)
            return error

    async def run(self, programs: Mapping[Agent, Program]) -> Results:
        """Drive until these programs have ended (none given: all that were started), and everything
        that was asked for is done; gives their results."""
        started = self.start(programs)
        batch = started or self.tasks

        def ended() -> bool:
            return bool(started) and all(task.done() for task in batch.values()) and not (
                self.driver.engine.has_work and not self.driver.programs
            )  # fmt: skip

        await self.driver.from_outside(self.driver.drive(ended))
        return _results(batch)

    def run_to(self, index: int | None) -> Results:
        """Drive to log index `index`, or until nothing is left to do, without `await`."""
        self.driver.refuse_inside("run_to")

        def reached() -> bool:
            return index is not None and len(self.driver.engine.log) >= index

        self.driver.run_sync(reached)
        return self.results()

    async def step(self, count: int) -> None:
        """Take `count` engine steps."""
        self.driver.refuse_inside("step")
        await self.driver.from_outside(self.driver.drive(lambda: False, count))

    def results(self) -> Results:
        """What the programs that have ended returned."""
        return _results(self.tasks)


class _Ended:
    def done(self) -> bool:
        return True


_ENDED = _Ended()


def _results(tasks: Mapping[str, asyncio.Task[Any]]) -> Results:
    ended = {title: task for title, task in tasks.items() if task.done() and not task.cancelled()}
    return Results({title: task.result() for title, task in ended.items()})
