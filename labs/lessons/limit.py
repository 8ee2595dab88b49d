"""Code of a student's, for so many seconds and no longer, and not all of what it prints."""

from __future__ import annotations

import contextlib
import ctypes
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
AGAIN = 0.05  # seconds until code that went on regardless is interrupted once more
MOST_PRINTED = 4000  # characters that are passed on


class TookTooLong(BaseException):
    """The time was over before the code was. The code's own `except Exception` does not hold it."""


class Stopped(KeyboardInterrupt):
    """The user pressed stop; any other KeyboardInterrupt is the code's own."""


def limited(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, interrupted after `seconds`, again and again until it ends: `TookTooLong`.

    Only a long call into code that is not Python's own holds it up. `Stopped` when the user
    interrupts it. Any thread may ask.
    """
    alarm = _Alarm(seconds)
    try:
        with alarm:
            result = alarm.run(function, *args)
    except TookTooLong:
        raise TookTooLong(f"stopped after {seconds:g} seconds") from None
    if alarm.late:  # it was told to stop, went on, and ended in its own way
        raise TookTooLong(f"stopped after {seconds:g} seconds")
    return result


class _Alarm:
    """Interrupts what runs in it when its time is over, until that has ended. In the main thread by
    a signal, which wakes what sleeps; the signal's owner gets it back.

    An interrupt does something only while `run` is on the stack: one that comes when the code has
    ended already, on a busy machine for one, must not break off the tidying up.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.thread, self.late = seconds, threading.get_ident(), False
        self.is_main = self.thread == threading.main_thread().ident
        self.left = threading.Event()
        self.ringing = threading.Thread(target=self._ring, name="inms-limit", daemon=True)

    def __enter__(self) -> None:
        if self.is_main:
            self.trace = sys.gettrace()
            self.before = signal.signal(signal.SIGINT, self._told)
        self.ringing.start()

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`"""
        return function(*args)

    def __exit__(self, *_: object) -> None:
        self.left.set()
        self.ringing.join()
        if self.is_main:
            sys.settrace(self.trace)
            signal.signal(signal.SIGINT, self.before)
        else:
            self._throw(None)

    def _is_running(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code is _Alarm.run.__code__ and frame.f_locals["self"] is self:
                return True
            frame = frame.f_back
        return False

    def _ring(self) -> None:
        wait = self.seconds
        while not self.left.wait(wait):
            self.late, wait = True, AGAIN
            if not self.is_main:
                if self._is_running(sys._current_frames().get(self.thread)):
                    self._throw(ctypes.py_object(TookTooLong))
            elif hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self.thread, signal.SIGINT)
            else:
                signal.raise_signal(signal.SIGINT)

    def _throw(self, error: Any) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), error)

    def _told(self, _: int, frame: FrameType | None) -> None:
        """What the signal does."""
        if frame is None or not self._is_running(frame):
            return
        if not self.late:
            raise Stopped
        frame.f_trace = self._next_line  # and again on the next line: it may be an `except: pass`
        sys.settrace(self._next_line)
        raise TookTooLong

    def _next_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and self._is_running(frame):
            raise TookTooLong
        return self._next_line


class _Few(io.TextIOBase):
    """Passes on the first few thousand characters."""

    def __init__(self, out: Any) -> None:
        self.out, self.left, self.dropped = out, MOST_PRINTED, 0

    def write(self, text: str) -> int:
        """See `io`."""
        passed = text[: self.left]
        self.left -= len(passed)
        self.dropped += len(text) - len(passed)
        if passed:
            self.out.write(passed)
        return len(text)

    def flush(self) -> None:
        """See `io`."""
        self.out.flush()


@contextlib.contextmanager
def few_words() -> Iterator[None]:
    """What is printed inside is cut off after `MOST_PRINTED` characters, and that is said."""
    few = _Few(sys.stdout)
    try:
        with contextlib.redirect_stdout(few), contextlib.redirect_stderr(few):  # type: ignore[type-var]
            yield
    finally:
        if few.dropped:
            print(f"\n... {few.dropped:,} more characters were printed")
