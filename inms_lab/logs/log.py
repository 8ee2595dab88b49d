"""The log: events in order, the token table beside them, and what is no fact about the books.

The log index is the lab's time. A log begins with a snapshot of the books (None: empty, at birth),
so a log that was cut off at the front still replays. With a `limit`, the oldest events are folded
into that snapshot and forgotten, a few thousand at a time: `first` is the index of the oldest one
that is left. Beside the events lie tables that no replay needs:
    decisions   what planning answered, those answers too that left no event
    durations   step -> seconds; two equal runs have equal logs and other durations
    errors      holder -> the traceback that ended its program
    about       what the lab was built with, for readers of a saved log
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from inms_lab.books.events import Event
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.outcome import Decided, Outcome, decided
from inms_lab.errors import BadInput

CHUNK = 4096  # events that are forgotten together


class Log:
    """Append-only; `len(log)` is the index of the next event."""

    def __init__(
        self, snapshot: dict[str, Any] | None = None, *, first: int = 0, limit: int | None = None
    ) -> None:
        if limit is not None and limit < 1:
            raise BadInput(f"a log keeps at least one event, not {limit}")
        self.first, self.limit = first, limit
        self.events: list[Event] = []  # event `first` and those after it
        self.tokens: array[int] = array("i")  # int32 token ids, each text once
        self.decisions: list[Decided] = []
        self.durations: dict[int, float] = {}
        self.errors: dict[int, str] = {}
        self.about: dict[str, Any] = {}
        self.piece: Callable[[int], bytes] | None = None  # the bytes that a token id stands for
        self.first_decision = 0  # the number of the oldest decision that is left
        self.note = ""  # what whoever opens it must be told: where a journal was cut
        self.on_change: Callable[[], None] | None = None  # called when something was logged
        self._lock = threading.Lock()  # forgetting, against readers on other threads
        self._snapshot = snapshot
        self._tail: Ledger | None = None  # the books at `first`, once something was forgotten

    def __len__(self) -> int:
        return self.first + len(self.events)

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The books at `first`; None: empty."""
        return self._snapshot if self._tail is None else self._tail.snapshot()

    def append(self, event: Event) -> None:
        """The next event."""
        self.events.append(event)
        if self.on_change is not None:
            self.on_change()  # before anything is forgotten
        if self.limit is not None and len(self.events) >= self.limit + CHUNK:
            self.forget(len(self) - self.limit)

    def decide(self, seq_id: int, budget: int, outcome: Outcome) -> None:
        """What planning answers now, unless it is what it answered this holder just before."""
        made = decided(len(self), seq_id, budget, outcome)
        if made is not None and not (self.decisions and made.repeats(self.decisions[-1])):
            self.decisions.append(made)
            if self.on_change is not None:
                self.on_change()

    def forget(self, before: int) -> None:
        """Keep the events from index `before` on; the books there become the snapshot."""
        count = min(before, len(self)) - self.first
        if count <= 0:
            return
        with self._lock:
            if self._tail is None:
                self._tail = Ledger.replay(self._snapshot, (), self.tokens)
            for event in self.events[:count]:
                self._tail.apply(event)
            del self.events[:count]
            self.first += count
            kept = [d for d in self.decisions if d.at >= self.first]
            self.first_decision += len(self.decisions) - len(kept)
            self.decisions = kept

    def beginning(self) -> tuple[int, Ledger | None]:
        """The oldest index and the books there (None: empty). Any thread may ask."""
        with self._lock:
            snapshot = self.snapshot
            books = Ledger.replay(snapshot, (), self.tokens) if snapshot is not None else None
            return self.first, books

    def stretch(self, index: int, count: int | None = None) -> tuple[int, list[Event]]:
        """At most `count` events from `index` on (from `first` on, where those were forgotten) and
        the index of the first of them. Any thread may ask."""
        with self._lock:
            start = max(0, index - self.first)
            stop = None if count is None else start + count
            return self.first + start, self.events[start:stop]

    def since(self, index: int) -> list[Event]:
        """Events from `index` on (from `first` on, where those were forgotten)."""
        return self.stretch(index)[1]

    def decisions_since(self, number: int, count: int | None = None) -> list[tuple[int, Decided]]:
        """At most `count` decisions from `number` on, with their numbers. Any thread may ask."""
        with self._lock:
            start = max(0, number - self.first_decision)
            found = self.decisions[start : None if count is None else start + count]
            return list(enumerate(found, self.first_decision + start))

    def decision(self, number: int) -> Decided:
        """The decision with this number; raises `BadInput` if it is not (or no longer) there."""
        found = self.decisions_since(number, 1) if isinstance(number, int) else []
        if not found or found[0][0] != number:
            last = self.first_decision + len(self.decisions) - 1
            have = f"the decisions {self.first_decision} to {last}" if self.decisions else "none"
            raise BadInput(f"there is no decision {number}: the log has {have}")
        return found[0][1]

    def until(self, index: int | None) -> Iterator[Event]:
        """Events from `first` to before `index` (None: all)."""
        stop = len(self) if index is None else index
        if not self.first <= stop <= len(self):
            raise BadInput(
                f"the log holds the moments {self.first} to {len(self)}, there is no {stop} in it"
            )
        return iter(self.events[: stop - self.first])

    def add_tokens(self, tokens: Iterable[int]) -> tuple[int, int]:
        """Put token ids into the table; gives their (offset, length)."""
        offset = len(self.tokens)
        self.tokens.extend(tokens)
        return offset, len(self.tokens) - offset

    def replay(self, index: int | None = None) -> Ledger:
        """The books as they were when `index` events had happened (None: now)."""
        return Ledger.replay(self.snapshot, self.until(index), self.tokens)

    def copy(self) -> Log:
        """The log as it is now, cut loose from the one that goes on. Any thread may ask."""
        with self._lock:
            out = Log(self.snapshot, first=self.first)
            out.events, out.first_decision = self.events[:], self.first_decision
            out.decisions = [d for d in self.decisions if d.stop <= len(out)]
        out.tokens.extend(self.tokens[:])  # what these events name is in the table already
        out.durations, out.errors = self.durations.copy(), self.errors.copy()
        out.about, out.piece, out.note = self.about, self.piece, self.note
        return out

    def save(self, path: str | Path, redact: str = "nothing") -> None:
        """Write the log to a file. `redact`: "private" masks all text but the sealed prompt and
        what was published to a group, "all" masks every text; the books stay the same."""
        from inms_lab.logs.logfile import save

        save(self, path, redact)

    @classmethod
    def load(cls, path: str | Path) -> Log:
        """The log in a file that `save` wrote, or in a journal; `note` says what it lacks."""
        from inms_lab.logs.journal import is_journal
        from inms_lab.logs.journal_read import read_journal
        from inms_lab.logs.logfile import load

        return read_journal(path) if is_journal(path) else load(path)

    def to_pandas(self) -> Any:
        """A table with one row per event (history.py describes the columns)."""
        from inms_lab.logs.history import to_pandas

        return to_pandas(self)

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
