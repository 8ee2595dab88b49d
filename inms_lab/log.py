"""The log: events in order, the token table beside them, and how long things took.

The log index is the lab's time. A log begins with a snapshot of the books (None: empty, at birth),
so a log that was cut off at the front still replays. Durations are kept apart: they are no facts
about the books, and two equal runs have equal logs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from inms_lab.events import Event
from inms_lab.ledger import Ledger


class Log:
    """Append-only; `len(log)` is the index of the next event."""

    def __init__(self, snapshot: dict[str, Any] | None = None) -> None:
        self.snapshot = snapshot
        self.events: list[Event] = []
        self.tokens: array[int] = array("i")  # int32 token ids, each text once
        self.durations: dict[int, float] = {}  # step -> seconds

    def __len__(self) -> int:
        return len(self.events)

    def append(self, event: Event) -> None:
        """The next event."""
        self.events.append(event)

    def add_tokens(self, tokens: Iterable[int]) -> tuple[int, int]:
        """Put token ids into the table; gives their (offset, length)."""
        offset = len(self.tokens)
        self.tokens.extend(tokens)
        return offset, len(self.tokens) - offset

    def replay(self, index: int | None = None) -> Ledger:
        """The books as they were when `index` events had happened (None: now)."""
        return Ledger.replay(self.snapshot, self.events[:index], self.tokens)

    def num_bytes(self) -> int:
        """About how much memory the log takes: events with their tuples, and the token table."""
        from sys import getsizeof

        def size(value: Any) -> int:
            nested = sum(map(size, value)) if isinstance(value, tuple) else 0
            shared = isinstance(value, (int, bool, str)) and not isinstance(value, bytes)
            return (0 if shared else getsizeof(value)) + nested

        fields = (getattr(e, name) for e in self.events for name in type(e).__slots__)
        own = sum(getsizeof(event) for event in self.events)
        return own + sum(map(size, fields)) + self.tokens.itemsize * len(self.tokens)
