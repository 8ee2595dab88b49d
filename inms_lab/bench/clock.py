"""Where the time of many threads goes: a clock of parts, and a lock that knows who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Clock:
    """Seconds by part, of all threads; a part within another one is not counted twice."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self._mine = threading.local()
        self._lock = threading.Lock()

    def _stack(self) -> list[tuple[str, float, list[float]]]:
        if not hasattr(self._mine, "stack"):
            self._mine.stack = []
        return self._mine.stack  # type: ignore[no-any-return]

    def enter(self, name: str) -> None:
        """A part begins on this thread."""
        self._stack().append((name, time.perf_counter(), []))

    def leave(self) -> None:
        """The part that began last ends."""
        stack = self._stack()
        name, started, within = stack.pop()
        took = time.perf_counter() - started
        with self._lock:
            self.seconds[name] += took - sum(within)
        if stack:
            stack[-1][2].append(took)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part as a `with` block."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def reset(self) -> None:
        """From here on."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def shares(self) -> dict[str, float]:
        """Of all the time that was noted."""
        total = sum(self.seconds.values()) or 1.0
        return {name: round(seconds / total, 3) for name, seconds in self.seconds.items()}


class Clocked:
    """A lock whose waits and holds are parts of a clock."""

    def __init__(self, clock: Clock, waiting: str, held: str) -> None:
        self._lock, self._clock, self._depth = threading.RLock(), clock, threading.local()
        self._waiting, self._held = waiting, held

    def __enter__(self) -> None:
        depth = getattr(self._depth, "depth", 0)
        self._depth.depth = depth + 1
        if not depth:
            with self._clock.part(self._waiting):
                self._lock.acquire()
            self._clock.enter(self._held)
        else:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._depth.depth -= 1
        if not self._depth.depth:
            self._clock.leave()
        self._lock.release()
