"""Leases: who holds something, and until when it is believed to live. No tensor and no ledger.

A lease has a state and an epoch. Epochs only go up, over all holders: a message of an old epoch is
known by its number.

    live      its last beat is younger than `beats` heartbeat intervals
    overdue   it ran out; nothing revives it, whoever keeps the leases decides what to do about it
    ended     released, replaced by a newer lease of the same holder, or ended by the keeper

A lease may have an owner: a thread, an asyncio task, or a function that says whether it lives.
While the owner lives `due` beats for it; when it is gone nobody does.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from inms_lab.errors import BadInput, LeaseExpired

LIVE, OVERDUE, ENDED = "live", "overdue", "ended"
BEATS = 3  # heartbeat intervals without a beat, then a lease has run out
REMEMBERED = 100  # ended leases that the table still shows

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's lease. `epoch` is its number, greater than that of every earlier lease."""

    holder: Hashable
    epoch: int


@dataclass(frozen=True, slots=True)
class Row:
    """What the table says of a lease. `age`: seconds since its last beat, until its end; `owned`:
    it has an owner, who is asked whether it lives."""

    holder: Hashable
    epoch: int
    age: float
    state: str
    cause: str
    owned: bool = False


class _Entry:
    def __init__(self, lease: Lease, alive: Callable[[], bool] | None, now: float) -> None:
        self.lease, self.alive, self.beaten = lease, alive, now
        self.state, self.cause, self.ended = LIVE, "", 0.0


class Leases:
    """The leases of any holders; all methods may be called by any thread.

    `heartbeat_interval` is in seconds of `clock`; a lease lasts `beats` of them.
    """

    def __init__(
        self, heartbeat_interval: float, beats: int = BEATS, clock: Clock = time.monotonic
    ) -> None:
        if not (math.isfinite(heartbeat_interval) and heartbeat_interval > 0):
            raise BadInput(f"a heartbeat interval is more than 0 s, not {heartbeat_interval!r}")
        if not isinstance(beats, int) or beats < 1:
            raise BadInput(f"a lease lasts a whole number of beats from 1 on, not {beats!r}")
        self.length = heartbeat_interval * beats  # seconds
        self.clock = clock
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self._past: deque[_Entry] = deque(maxlen=REMEMBERED)
        self._epoch = 0

    def grant(self, holder: Hashable, owner: Any = None) -> Lease:
        """A new lease; an earlier one of the same holder has ended. `owner`: see the module."""
        alive = None if owner is None else probe(owner)
        now = self.clock()
        with self._lock:
            self._epoch += 1
            lease = Lease(holder, self._epoch)
            self._finish(self._entries.pop(holder, None), "replaced by a newer lease", now)
            self._entries[holder] = _Entry(lease, alive, now)
            return lease

    def beat(self, holder: Hashable, epoch: int) -> bool:
        """A sign of life; False, and without effect, if this epoch's lease is no longer live."""
        now = self.clock()
        with self._lock:
            entry = self._live(holder, epoch, now)
            if entry is not None:
                entry.beaten = max(now, entry.beaten)
            return entry is not None

    def require(self, holder: Hashable, epoch: int) -> None:
        """Raises `LeaseExpired` unless this epoch's lease is live."""
        now = self.clock()
        with self._lock:
            if self._live(holder, epoch, now) is not None:
                return
            known = self._entries.get(holder)
            newest = "" if known is None else f" (epoch {known.lease.epoch} is {known.state})"
        raise LeaseExpired(
            f"the lease with epoch {epoch} is not live{newest}: what it held may be gone; "
            "make a new agent"
        )

    def lapse(self, holder: Hashable, epoch: int, cause: str) -> bool:
        """It has run out now: its owner is known to be gone. False if it was not live any more."""
        now = self.clock()
        with self._lock:
            entry = self._live(holder, epoch, now)
            if entry is not None:
                entry.state, entry.cause = OVERDUE, cause
            return entry is not None

    def due(self) -> list[tuple[Lease, str]]:
        """The leases that have run out and are not ended yet, oldest first, each with its cause;
        those whose owner lives are renewed first."""
        self.renew()
        now = self.clock()
        with self._lock:
            entries = sorted(self._entries.values(), key=lambda e: e.lease.epoch)
            for entry in entries:
                self._age(entry, now)
            return [(e.lease, e.cause) for e in entries if e.state == OVERDUE]

    def renew(self) -> None:
        """Beat for every live lease whose owner lives. Owners are asked here and now, so one that
        lives is renewed however late the question comes."""
        with self._lock:
            asked = [(e, e.alive) for e in self._entries.values() if e.alive and e.state == LIVE]
        alive = [entry for entry, question in asked if _answer(question)]  # asked without the lock
        now = self.clock()
        with self._lock:
            for entry in alive:
                if entry.state == LIVE:
                    entry.beaten = max(now, entry.beaten)

    def release(self, holder: Hashable, epoch: int, cause: str = "released") -> bool:
        """End a lease, live or overdue; False if this epoch's lease has ended already."""
        now = self.clock()
        with self._lock:
            entry = self._entries.get(holder)
            if entry is None or entry.lease.epoch != epoch:
                return False
            self._finish(self._entries.pop(holder), cause, now)
            return True

    def excuse(self, seconds: float) -> None:
        """Nobody could be heard for so long: every live lease lasts so much longer."""
        with self._lock:
            for entry in self._entries.values():
                entry.beaten += seconds if entry.state == LIVE else 0

    @property
    def num_live(self) -> int:
        """Leases that were live when somebody last looked."""
        with self._lock:
            return sum(entry.state == LIVE for entry in self._entries.values())

    def rows(self) -> list[Row]:
        """All leases by epoch, with the newest of those that have ended."""
        now = self.clock()
        with self._lock:
            for entry in self._entries.values():
                if entry.alive is None:  # an owner's fate is asked by `due`
                    self._age(entry, now)
            entries = sorted(
                (*self._past, *self._entries.values()), key=lambda entry: entry.lease.epoch
            )
            return [
                Row(
                    *(e.lease.holder, e.lease.epoch),
                    max(0.0, (e.ended if e.state == ENDED else now) - e.beaten),
                    e.state,
                    e.cause,
                    e.alive is not None,
                )
                for e in entries
            ]

    # under the lock -------------------------------------------------------------------------

    def _live(self, holder: Hashable, epoch: int, now: float) -> _Entry | None:
        entry = self._entries.get(holder)
        if entry is None or entry.lease.epoch != epoch:
            return None
        if entry.alive is None:
            self._age(entry, now)
        return entry if entry.state == LIVE else None

    def _age(self, entry: _Entry, now: float) -> None:
        if entry.state == LIVE and now - entry.beaten >= self.length:
            entry.state, entry.cause = OVERDUE, "its lease ran out"

    def _finish(self, entry: _Entry | None, cause: str, now: float) -> None:
        if entry is not None:
            entry.state, entry.ended, entry.alive = ENDED, now, None
            entry.cause = entry.cause or cause
            self._past.append(entry)


def probe(owner: Any) -> Callable[[], bool]:
    """The question whether `owner` lives: a thread or process, a task or future, or a function."""
    if callable(getattr(owner, "is_alive", None)):
        return owner.is_alive  # type: ignore[no-any-return]
    if callable(getattr(owner, "done", None)):
        return lambda: not owner.done()
    if callable(owner):
        return owner  # type: ignore[no-any-return]
    raise BadInput(
        f"an owner is a thread, an asyncio task, or a function that says whether it lives, "
        f"not {owner!r}"
    )


def _answer(question: Callable[[], bool]) -> bool:
    """A question that raises has nobody behind it who could answer."""
    try:
        return bool(question())
    except Exception:
        return False
