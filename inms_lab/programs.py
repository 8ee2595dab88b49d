"""Agents' programs: started as tasks on the lab's loop, driven together, failing one by one."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from inms_lab.agent import Agent
from inms_lab.driver import Driver

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
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.failures: dict[str, BaseException] = {}

    def start(self, programs: Mapping[Agent, Program]) -> None:
        """Make tasks of them; results of an earlier batch that has ended are forgotten."""

        def begin() -> None:
            if not self.driver.programs:
                self.tasks = {}
            for agent, program in programs.items():
                self.tasks[agent.name] = self.driver.start(self._run(agent, program))

        self.driver.call(begin)

    async def _run(self, agent: Agent, program: Program) -> Any:
        try:
            return await program(agent)
        except Exception as error:  # this agent fails, the others go on
            agent.error = self.failures[agent.name] = error
            cause = traceback.format_exception_only(error)[-1].strip()
            self.driver.engine.end(agent.seq_id, "fail", cause)
            return error

    async def run(self) -> Results:
        """Drive until every program has ended and everything asked for is done."""
        await self.driver.from_outside(self.driver.drive(lambda: False))
        return self.results()

    def run_to(self, index: int | None) -> Results:
        """Drive to log index `index`, or until nothing is left to do, without `await`."""

        def reached() -> bool:
            return index is not None and len(self.driver.engine.log) >= index

        self.driver.run_sync(reached)
        return self.results()

    async def step(self, count: int) -> None:
        """Take `count` engine steps."""
        await self.driver.from_outside(self.driver.drive(lambda: False, count))

    def results(self) -> Results:
        """What the programs that have ended returned."""
        ended = {name: task for name, task in self.tasks.items() if task.done()}
        return Results({n: task.result() for n, task in ended.items() if not task.cancelled()})
