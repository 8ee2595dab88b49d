"""A lab's upkeep: what it tells about itself, how its books are checked, how it ends.

`Lab` (lab.py) builds the parts and makes agents; this is the other half of what a notebook calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from inms_lab.driver import Driver
from inms_lab.engine import Engine
from inms_lab.errors import LabClosed, LedgerViolation
from inms_lab.journal import Journal
from inms_lab.log import Log
from inms_lab.outcome import StepReport
from inms_lab.programs import Programs
from inms_lab.reused import Reused, reused

T = TypeVar("T")


class Upkeep:
    """The half of a `Lab` that looks after it."""

    engine: Engine
    driver: Driver
    programs: Programs
    closed: bool
    journal: Journal | None = None  # `journal.problem` says why it ended, if it did

    @contextmanager
    def watching(self, hook: Callable[[StepReport], None]) -> Iterator[None]:
        """A `with` block in which `hook` is called after each step, on the lab's thread."""
        self.driver.on_step.append(hook)
        try:
            yield
        finally:
            self.driver.on_step.remove(hook)

    @property
    def log(self) -> Log:
        """Everything that happened."""
        return self.engine.log

    def keep_journal(self, path: str | Path, fsync: bool = False) -> Journal:
        """Write the log through to a new file from now on, what is in it already too; after a crash
        `Log.load(path)` or `View(path)` opens it at its last moment. It holds every text. `fsync`
        waits for the disk at each step. Raises `JournalInUse`, `JournalNotWritable`, `BadInput`."""
        self._open()
        soon = self.driver.loop.call_soon
        self.journal = self.look(lambda: Journal(self.log, path, fsync=fsync, soon=soon))
        if self.journal.earlier is not None:
            print(f"the journal of an earlier run was kept as {self.journal.earlier.name}")
        return self.journal

    def _begin_journal(self, path: str | Path) -> None:
        try:
            self.keep_journal(path)
        except BaseException:
            self.close()
            raise

    def reused(self) -> Reused:
        """What was reused in place, at a shift, or computed, by agent and reason."""
        return self.look(lambda: reused(self.log))

    def check(self) -> None:
        """Raises `LedgerViolation` if the books do not balance."""
        self.look(self.engine.cache.check)

    def assert_clean(self) -> None:
        """Raise what a program or viewer raised, balance the books, close; nothing may be held."""
        try:
            for error in [*self.programs.failures.values(), *self.engine.desk.hook_errors]:
                raise error
            self.check()
        finally:
            self.close()
        held = {name: pool.num_held for name, pool in self.engine.ledger.pools.items()}
        if any(held.values()):
            raise LedgerViolation(f"blocks are held after everything ended: {held}")

    def look(self, function: Callable[[], T]) -> T:
        """What `function` gives on the lab's thread, between two steps."""
        return function() if self.closed else self.driver.call(function)

    def _open(self) -> None:
        if self.closed:
            raise LabClosed("this lab is closed: make a new one")

    def close(self) -> None:
        """End every holder, give all blocks back, stop the thread. The log stays readable."""
        if self.closed:
            return
        self.driver.refuse_inside("close")
        self.closed = True  # first: nothing enters from now on, and viewers keep their last picture
        try:
            self.driver.end(self._end_all)
        finally:
            self.engine.cache.store.close()
            if self.journal is not None:
                self.journal.close()

    def _end_all(self) -> None:
        for seq in reversed(self.engine.ledger.holders()):
            why = LabClosed("this lab was closed meanwhile")
            self.engine.end(seq.seq_id, "close", "lab closed", why)
