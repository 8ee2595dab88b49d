"""A thread with an event loop: how other threads' calls enter it, and how it ends.

What came before the end is run, and what still waits at the end is told so: nobody waits for a
thread that is no more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, TypeVar

from inms_lab.errors import LabClosed

T = TypeVar("T")
LAST_TURNS = 10  # granted at the end to tasks that do not want to be cancelled
LAST_WAIT = 0.1  # seconds each


class Loop:
    """An event loop on a thread of its own, until `close()`."""

    def __init__(self) -> None:
        self.closed = False
        self._door = threading.RLock()  # so that nothing is posted behind the end
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._main, name="inms-lab", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.awake = asyncio.Event()
        try:
            self.loop.run_forever()
        finally:
            with self._door:
                self.closed = True
            self.loop.run_until_complete(self._leave())
            self.loop.close()

    async def _leave(self) -> None:
        """Cancel what still runs; `spawn` tells those who wait for it."""
        await asyncio.sleep(0)  # what was posted last begins
        for _ in range(LAST_TURNS):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                return
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=LAST_WAIT)

    @property
    def is_inside(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self.thread

    def refuse_closed(self) -> None:
        """Raises `LabClosed` from the end on."""
        if self.closed:
            raise LabClosed("this lab is closed: make a new one")

    def post(self, act: Callable[[], object], context: Context | None = None) -> None:
        """`act()` on the thread, soon: it is run for sure. Raises `LabClosed` from the end on."""
        with self._door:
            self.refuse_closed()
            self.loop.call_soon_threadsafe(act, context=context)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """A coroutine on the loop, in the caller's context (its prints find their cell)."""
        future: Future[T] = Future()
        context = copy_context()

        async def main() -> None:
            try:
                result = await coroutine
            except BaseException as error:
                late = self.closed and isinstance(error, asyncio.CancelledError)
                told = LabClosed("this lab was closed meanwhile") if late else error
                if future.set_running_or_notify_cancel():
                    future.set_exception(told)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(result)

        def start() -> None:
            task = self.loop.create_task(main(), context=context)
            future.add_done_callback(lambda f: self._cancel(task) if f.cancelled() else None)

        try:
            self.post(start, context)
        except LabClosed:
            coroutine.close()
            raise
        return future

    def _cancel(self, task: asyncio.Task[None]) -> None:
        with suppress(LabClosed):
            self.post(task.cancel)

    def close(self, last: Callable[[], None] | None = None) -> None:
        """The end: `last()` on the thread, and nothing after it."""
        ended: Future[None] = Future()

        def finish() -> None:
            try:
                ended.set_result(last() if last is not None else None)
            except BaseException as error:
                ended.set_exception(error)
            self.loop.stop()

        with self._door:
            first = not self.closed
            if first:
                self.closed = True
                self.loop.call_soon_threadsafe(finish)
        if not self.is_inside:
            try:
                if first:
                    ended.result()
            finally:
                self.thread.join(timeout=30)
