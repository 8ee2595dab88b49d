"""Pause, step, run and speed of a lab, from any thread: what a dashboard's buttons ask for.

Each call returns at once. A drive that is under way (`lab.run`, `lab.run_to`) looks here before
each step; where none is, `run` and `step` start one on the lab's thread. An interrupt ends a pause.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inms_lab.errors import BadInput, LabClosed

if TYPE_CHECKING:
    from inms_lab.serving.driver import Driver

IDLE, RUNNING, PAUSED, CLOSED = "idle", "running", "paused", "closed"


class Controls:
    """States: idle (nobody drives), running, paused (steps only when asked), closed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._permits = 0  # steps that may be taken while paused
        self._last = 0.0  # when the last step was let through, seconds
        self.paused = False
        self.steps_per_second: float | None = None  # None: as fast as it goes
        self.num_drives = 0
        self.error: Exception | None = None  # what the newest drive failed with

    @property
    def state(self) -> str:
        """What the lab is doing."""
        if self._driver.closed:
            return CLOSED
        if self.paused:
            return PAUSED
        return RUNNING if self.num_drives else IDLE

    def pause(self) -> None:
        """Take no further step; the one under way is finished."""
        self._tell(lambda: setattr(self, "paused", True))

    def resume(self) -> None:
        """Go on, if somebody drives."""
        self._tell(self._resume)

    def run(self) -> None:
        """Go on; if nobody drives, drive until nothing is left to do."""

        def go() -> None:
            self._resume()
            if not self.num_drives:
                self._start(self._driver.drive(lambda: False))

        self._tell(go)

    def step(self) -> None:
        """One step, also while paused."""

        def go() -> None:
            if self.num_drives:
                self._permits += 1
            else:
                self._start(self._driver.drive(lambda: False, 1))

        self._tell(go)

    def speed(self, steps_per_second: float | None) -> None:
        """At most so many steps a second; None: as many as it can."""
        wanted = steps_per_second
        if wanted is not None:
            if isinstance(wanted, bool) or not isinstance(wanted, (int, float)):
                raise BadInput(f"a number of steps a second is wanted, or None, not {wanted!r}")
            if not (math.isfinite(wanted) and wanted > 0):
                raise BadInput(f"steps a second must be more than 0, not {wanted}: pause() stops")
        self._tell(lambda: setattr(self, "steps_per_second", wanted))

    def configure(
        self,
        *,
        token_budget: int | None = None,
        prefill_budget: int | None = None,
        copy_budget: int | None = None,
        debug: bool | None = None,
    ) -> None:
        """Change what can be changed while a lab lives, from the next step on."""
        engine = self._driver.engine
        wanted: dict[str, Any] = {
            "token_budget": token_budget,
            "prefill_budget": prefill_budget,
            "copy_budget": copy_budget,
            "debug": debug,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        config = replace(engine.config, **given)

        def change() -> None:
            engine.config, engine.cache.debug = config, config.debug

        self._tell(change)

    # on the lab's thread --------------------------------------------------------------------

    async def gate(self) -> bool:
        """Whether a drive may step now; waits a little where it may not yet."""
        if self.paused:
            if self._permits:
                self._permits -= 1
                return True
            self._driver.awake.clear()
            await self._driver.awake.wait()
            return False
        if self.steps_per_second is not None:
            wait = self._last + 1 / self.steps_per_second - time.monotonic()
            if wait > 0:
                await asyncio.sleep(min(wait, 0.1))
                return False
        self._last = time.monotonic()
        return True

    def end_pause(self) -> None:
        """For an interrupt: whoever waits for a step goes on, to its end."""
        self._resume()
        self._driver.awake.set()

    def _resume(self) -> None:
        self.paused, self._permits = False, 0

    def _start(self, drive: Coroutine[Any, Any, None]) -> None:
        self._driver.spawn(drive)

    def _tell(self, act: Callable[[], None]) -> None:
        def work() -> None:
            with suppress(LabClosed):  # at the very end there is nothing to control
                act()
            self._driver.awake.set()

        self._driver.post(work)
