"""The lab's own thread: it alone touches the engine, and agent programs run on its event loop.

A step is taken when every program waits for the engine (or for something outside the lab): so the
same programs give the same log however they are driven, by `run`, by single steps or to an index.
Requests from other threads enter through the loop, in their order of arrival, without waiting for
the step in flight (pending.send); what needs the books to stand still (`call`) waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from inms_lab.decisions.outcome import StepReport
from inms_lab.errors import InmsError, LabClosed, LabReadOnly, LedgerViolation, StepInterrupted
from inms_lab.logs.violation import keep, read_only
from inms_lab.serving.controls import Controls
from inms_lab.serving.engine import Engine
from inms_lab.serving.loop import Loop

T = TypeVar("T")
WAKE = 0.1  # seconds after which a waiting notebook looks around
PATIENCE = 50  # turns of the loop granted to programs that wait for something outside the lab


class Driver(Loop):
    """A thread with an event loop around one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.on_step: list[Callable[[StepReport], None]] = []
        self.parked: dict[asyncio.Task[Any], Future[Any]] = {}  # program -> what it waits for
        self.programs: set[asyncio.Task[Any]] = set()
        self.ending = False
        self.controls = Controls(self)
        engine.cache.on_violation.append(self._stop)
        super().__init__()

    def call(self, function: Callable[[], T]) -> T:
        """`function()` on the lab's thread, between two steps."""
        if self.is_inside:
            self.refuse_closed()
            self.awake.set()  # a program may be what the drive waits for
            return function()
        future: Future[T] = Future()

        def work() -> None:
            try:
                self.refuse_closed()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            self.awake.set()

        self.post(work)
        return self._patiently(future, None)

    def _patiently(self, future: Future[T], timeout: float | None) -> T:
        try:
            return future.result(timeout)
        except KeyboardInterrupt:
            self.interrupt()
            raise

    # waiting --------------------------------------------------------------------------------

    async def wait_for(self, future: Future[Any]) -> Any:
        """The future's result: a program is parked meanwhile, anybody else drives the lab."""
        if not self.is_inside:
            await self.from_outside(self.drive(future.done))
            return future.result()
        task = asyncio.current_task()
        assert task is not None
        self.parked[task] = future
        try:
            return await asyncio.wrap_future(future)
        finally:
            self.parked.pop(task, None)

    async def from_outside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the lab's loop from another loop; a cancel interrupts the step."""
        answer = asyncio.wrap_future(self.spawn(coroutine))
        try:
            while not answer.done():  # a kernel sees that it was interrupted when its loop wakes
                await asyncio.wait([answer], timeout=WAKE)
            return answer.result()
        except asyncio.CancelledError:
            answer.cancel()
            self.interrupt()
            raise

    def drive_sync(self, future: Future[T], timeout: float | None = None) -> T:
        """Drive until the future is done, from a thread that may block."""
        if self.is_inside:
            raise InmsError("inside an agent's program use `await`, not `.result()`")
        self._patiently(self.spawn(self.drive(future.done)), timeout)
        if not future.done():
            raise InmsError("there is nothing left to do, and this was not answered: ask again")
        return future.result()

    def refuse_inside(self, what: str) -> None:
        """Raises for what a program must not ask of the lab that runs it."""
        if self.is_inside:
            raise InmsError(
                f"{what} cannot be called by an agent's program: it would wait for itself"
            )

    def run_sync(self, until: Callable[[], bool]) -> None:
        """Drive until `until()`, from a thread that may block."""
        self._patiently(self.spawn(self.drive(until)), None)

    # driving --------------------------------------------------------------------------------

    async def drive(self, until: Callable[[], bool], limit: int | None = None) -> None:
        """Step until `until()`, until nothing is left to do, or for `limit` steps.

        Without a limit the lab's controls are obeyed: it may be paused or slowed down.
        """
        self.controls.num_drives += 1
        self.controls.error = None
        try:
            while True:
                await self._settle()
                if until() or limit == 0:
                    return
                if self.engine.cache.violation is not None:
                    raise read_only(self.engine.cache.violation)
                if self.engine.has_work:
                    if limit is not None:
                        limit -= self._step()
                    elif await self.controls.gate():
                        self._step()
                elif self.programs:
                    self.awake.clear()
                    waker = asyncio.ensure_future(self.awake.wait())
                    await asyncio.wait([*self.programs, waker], return_when=asyncio.FIRST_COMPLETED)
                    waker.cancel()
                else:
                    return
        except StepInterrupted:
            if self.ending:
                raise LabClosed("this lab was closed meanwhile") from None
            raise
        except Exception as error:
            self.controls.error = error  # for those who watch; the caller gets it too
            raise
        finally:
            self.controls.num_drives -= 1

    def _step(self) -> bool:
        """One step of the engine; whether anything was computed."""
        before, cache = len(self.engine.log), self.engine.cache
        try:
            report = self.engine.step()
            if cache.debug:
                cache.check()
        except LabReadOnly:  # what was broken off could not even be aborted
            report = None
        if cache.violation is not None:
            raise cache.violation
        if report is None and len(self.engine.log) == before and self.engine.has_work:
            raise InmsError("nothing can move: this is a fault of the lab, please report it")
        if report is None:
            return False
        for hook in tuple(self.on_step):
            self._tell(hook, report)
        return True

    def _tell(self, hook: Callable[[StepReport], None], report: StepReport) -> None:
        try:
            hook(report)
        except Exception as error:  # a viewer's fault is not the engine's; `assert_clean` raises it
            self.engine.desk.hook_errors.append(error)

    def _stop(self, error: LedgerViolation) -> None:
        """The books do not balance: the log is saved, and whoever waits is told."""
        keep(self.engine.log, error)
        self.drop_all(read_only(error))

    def drop_all(self, why: Exception) -> None:
        """Whatever is asked for is answered with `why`; the books are not touched."""
        desk = self.engine.desk
        for seq_id in [*desk.queues, *desk.running]:
            desk.drop(seq_id, why)

    async def _settle(self) -> None:
        """Let programs run until each waits for the engine, or for the world outside."""
        for _ in range(PATIENCE):
            await asyncio.sleep(0)
            waiting = (self.parked.get(task) for task in self.programs)
            if all(future is not None and not future.done() for future in waiting):
                return

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A program becomes a task (on the lab's thread only)."""
        task = self.loop.create_task(coroutine)
        self.programs.add(task)
        task.add_done_callback(self.programs.discard)
        return task

    # stopping -------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Stop the step in flight (between two layers) and every program; the lab stays usable."""
        why: InmsError = StepInterrupted("the run was interrupted; the lab is usable")
        if self.ending:
            why = LabClosed("this lab was closed meanwhile")
        cleaned = threading.Event()

        def clean() -> None:
            try:
                for task in list(self.programs):
                    task.cancel()
                if self.engine.cache.violation is None:
                    self.engine.stop_all(why)
                else:
                    self.drop_all(why)
            finally:
                self.engine.cancel.clear()
                self.controls.end_pause()
                cleaned.set()

        with suppress(LabClosed):  # then nothing runs
            self.refuse_closed()
            self.engine.cancel.set()
            self.post(clean)
            if not self.is_inside:
                cleaned.wait(timeout=30)

    def end(self, last: Callable[[], None]) -> None:
        """Stop everything, do `last()` and end the thread; nothing can be driven any more."""
        self.ending = True
        try:
            self.interrupt()
        finally:
            self.close(last)
