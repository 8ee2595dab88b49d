"""A lab's upkeep: what it tells about itself, how its books are checked, how it ends.

`Lab` (lab.py) builds the parts and makes agents; this is the other half of what a notebook calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inms_lab.decisions.outcome import StepReport
from inms_lab.decisions.sweep import Suspect
from inms_lab.errors import BadInput, LabClosed, LedgerViolation
from inms_lab.hindsight.diagnose import diagnose
from inms_lab.hindsight.findings import Diagnosis
from inms_lab.hindsight.reused import Reused, reused
from inms_lab.logs.journal import Journal
from inms_lab.logs.log import Log
from inms_lab.logs.violation import read_only
from inms_lab.notebook import shelving
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.keeper import Held, Keeper, Table
from inms_lab.notebook.programs import Programs
from inms_lab.notebook.waste import Trimmed, Waste, compact, trim, waste
from inms_lab.publishing import shelf
from inms_lab.publishing.parcel import path_of
from inms_lab.serving.driver import Driver
from inms_lab.serving.engine import Engine

if TYPE_CHECKING:
    from inms_lab.notebook.service import Service
    from inms_lab.notebook.tenants import Tenant

T = TypeVar("T")


class Upkeep:
    """The half of a `Lab` that looks after it."""

    engine: Engine
    driver: Driver
    programs: Programs
    keeper: Keeper
    home: Tenant
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
        self.refuse_closed()
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

    def save_shared(self, path: str | Path, groups: Sequence[str] | None = None) -> Path:
        """Write the sealed prompt and these groups' records (None: all that hold) to one file, with
        their KV, for `load_shared`; gives the path. Nothing private is in it. Raises
        `ShelfRefused`, `UnknownGroup`."""
        self.refuse_closed()
        target, names = path_of(path), shelving.names_of(self.home, groups)
        return shelf.save(self.look(lambda: shelving.pack(self.home, names)), target)

    def load_shared(self, path: str | Path, groups: Sequence[str] | None = None) -> shelf.Shelf:
        """Take in what `save_shared` wrote: nothing of it is computed, results are the same bits.

        For a lab of the same model and sizes, before its first agent, in the place of `preload`; a
        group's records enter only where this lab has the group (`groups`: these alone). Raises
        `ShelfRefused` with the reason, and then nothing has changed. A file that was forged with
        care cannot be told from a real one: who loads it answers for it, as the log's operator."""
        self.refuse_closed()
        found = shelf.load(path_of(path))
        return self.look(lambda: shelving.put(self.home, found, groups))

    def reused(self) -> Reused:
        """What was reused in place, at a shift, or computed, by agent and reason."""
        return self.look(lambda: reused(self.log))

    @property
    def violation(self) -> LedgerViolation | None:
        """What made this lab read-only; None: it is not."""
        return self.engine.cache.violation

    def check(self) -> None:
        """Raises `LedgerViolation` if the books do not balance, or are not what the log makes of
        them. Then the log is saved and the lab is read-only: what would change it raises
        `LabReadOnly`. With `debug=True` this is asked after every step."""
        self.look(self.engine.cache.check)

    def waste(self) -> Waste:
        """Memory that is taken and not used, pool by pool: within blocks and between pools."""
        return self.look(lambda: waste(self.engine.cache))

    def trim(self) -> Trimmed:
        """Give the memory of free blocks back to the system; tells how many bytes came back."""
        self.refuse_closed()
        return self.look(lambda: trim(self.engine.cache))

    def compact(self, most: int | None = None) -> int:
        """Move private blocks together between two steps, at most `most` in each pool; gives how
        many moved. No result changes; then `trim` gives back what lies behind them."""
        self.refuse_closed()
        return self.look(lambda: compact(self.engine.cache, most))

    def suspects(self, after: int | None = None) -> list[Suspect]:
        """Private blocks that idle agents have kept for `after` steps or more (None: the lab's
        `suspect_after`): what a sweep makes weak. Looking changes nothing."""
        steps = self.engine.config.suspect_after if after is None else after
        if steps < 1:
            raise BadInput(f"after how many steps is a block suspect? At least 1, not {steps}")
        return self.look(lambda: self.engine.planner.suspects(steps))

    def diagnose(self, idle_after: int | None = None) -> Diagnosis:
        """Why quality dropped, memory ran out or grows: the causes that the log shows, each with
        its first event. `idle_after`: steps without work, then a holder is idle."""
        return self.look(lambda: diagnose(self.log, self.engine.ledger, idle_after))

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

    def lease(self, agent: Agent, owner: Any = None) -> Held:
        """A lease for an agent and its forks: while `owner` lives (a thread, an asyncio task, or a
        function that says so; the task or thread that asks, in a notebook the kernel) it is
        renewed; three heartbeat intervals later they are ended. As a `with` block it ends them when
        the block is left. Raises `AgentClosed`."""
        self.refuse_closed()
        return self.keeper.lease(agent, owner)

    @property
    def leases(self) -> Table:
        """Who has a lease, when it was last renewed, and whether it is live, overdue or ended."""
        return self.keeper.table()

    def recover(self) -> list[str]:
        """End every agent whose lease has run out, which a lab with `auto_recovery=False` leaves
        to you; gives their names."""
        self.refuse_closed()
        return self.keeper.recover()

    def serve(self, *, tcp: bool = False) -> Service:
        """Let agents of other processes in: `inms_lab.connect(service.address)` there. `tcp`: by a
        port of this machine, as where there are no sockets in the file system."""
        self.refuse_closed()
        return self.keeper.serve(tcp)

    def look(self, function: Callable[[], T]) -> T:
        """What `function` gives on the lab's thread, between two steps."""
        return function() if self.closed else self.driver.call(function)

    def refuse_closed(self) -> None:
        """Raises `LabClosed`, or `LabReadOnly`, where nothing can be changed any more."""
        if self.closed:
            raise LabClosed("this lab is closed: make a new one")
        if self.violation is not None:
            raise read_only(self.violation)

    def close(self) -> None:
        """End every holder, give all blocks back, stop the thread. The log stays readable. (Of a
        lab that is read-only no holder ends in the log: the blocks go back with the store.)"""
        if self.closed:
            return
        self.driver.refuse_inside("close")
        self.closed = True  # first: nothing enters from now on, and viewers keep their last picture
        try:
            self.driver.end(self._end_all)
        finally:
            self.keeper.close()
            self.engine.cache.store.close()
            if self.journal is not None:
                self.journal.close()

    def _end_all(self) -> None:
        if self.violation is not None:  # the blocks go back with the whole store
            self.driver.drop_all(LabClosed("this lab was closed meanwhile"))
            return
        for seq in reversed(self.engine.ledger.holders()):
            why = LabClosed("this lab was closed meanwhile")
            self.engine.end(seq.seq_id, "close", "lab closed", why)
