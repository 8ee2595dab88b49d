"""Copies that are being made while no lock is held, and who must wait for them."""

from __future__ import annotations

from collections import Counter
from threading import Condition

from inms_lab.books.events import Allocated, Copied, Event


class Copying:
    """Blocks that are being copied from: whoever held them may let go meanwhile, and the next
    holder waits with its first byte. A wait is for copies that began earlier, so none is for ever.
    """

    def __init__(self) -> None:
        self.readers = Counter[tuple[str, int]]()
        self._changed = Condition()

    def begin(self, events: tuple[Event, ...]) -> None:
        """Within the critical section that decided to copy."""
        with self._changed:
            self.readers.update(_sources(events))

    def wait_for_readers(self, events: tuple[Event, ...]) -> None:
        """Until nobody copies from the blocks that these events are going to write."""
        targets = {
            (e.pool_id, block)
            for e in events
            if isinstance(e, (Allocated, Copied))
            for block in (e.blocks if isinstance(e, Allocated) else (e.dst,))
        }
        with self._changed:
            self._changed.wait_for(lambda: self.readers.keys().isdisjoint(targets))

    def end(self, events: tuple[Event, ...]) -> None:
        """The copies are made, or failed."""
        with self._changed:
            self.readers -= Counter(_sources(events))
            self._changed.notify_all()


def _sources(events: tuple[Event, ...]) -> list[tuple[str, int]]:
    return [(e.src_pool, e.src) for e in events if isinstance(e, Copied)]
