"""The keeper of a lab's leases: it looks at them now and then, and ends whoever ran out.

A tick is a turn of the lab's own loop, between two steps: so what a dead holder had comes back
within one lease plus one tick, and its end is an input of the log like any other (`expire`, with a
cause). There are no ticks while nobody has a lease. No clock enters a decision: it only asks for an
end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import TimerHandle
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from inms_lab.errors import AgentClosed, BadInput, LabClosed, LabReadOnly
from inms_lab.leases import LIVE, OVERDUE, Lease, Leases, Row
from inms_lab.notebook.agent import Agent
from inms_lab.shell import shell

if TYPE_CHECKING:
    from inms_lab.books.ledger import Ledger
    from inms_lab.notebook.lab import Lab
    from inms_lab.notebook.service import Service


class Keeper:
    """Leases of one lab's agents, by sequence id. A lease covers the agent's forks too."""

    def __init__(self, lab: Lab, clock: Callable[[], float]) -> None:
        self.lab = lab
        self.interval = lab.config.heartbeat_interval
        self.leases = Leases(self.interval, clock=clock)
        self.names: dict[int, str] = {}  # titles of those who have a lease, or had one
        self.service: Service | None = None
        self._timer: TimerHandle | None = None
        self._failed: set[int] = set()  # epochs whose end failed
        self._serving = threading.Lock()
        self._seen = 0.0  # when somebody last looked, seconds of the real clock

    # any thread -----------------------------------------------------------------------------

    def lease(self, agent: Agent, owner: Any) -> Held:
        """See `Upkeep.lease`."""
        if not isinstance(agent, Agent) or agent.lab is not self.lab:
            raise BadInput(f"{agent!r} is no agent of this lab")
        owner = self._caller() if owner is None else owner
        return Held(self, agent, self.lab.driver.call(lambda: self.grant(agent, owner)))

    def tick(self) -> list[str]:
        """Look at all leases now; gives the names of the agents that were ended."""
        return self.lab.driver.call(lambda: self._tick(self.lab.config.auto_recovery))

    def recover(self) -> list[str]:
        """End every agent whose lease has run out, whatever `auto_recovery` says."""
        return self.lab.driver.call(lambda: self._tick(True))

    def table(self) -> Table:
        """All leases by epoch, the newest of those that have ended too."""
        return Table([(self.names.get(r.holder, "?"), r) for r in self.leases.rows()])  # type: ignore[call-overload]

    def end(self, lease: Lease, verb: str, cause: str) -> None:
        """End an agent and its forks now, if this is still its lease. Where nobody can be ended (a
        lab that is read-only), the lease has run out, and a later tick ends them."""

        def act() -> None:
            self.leases.lapse(lease.holder, lease.epoch, cause)
            if any(due.epoch == lease.epoch for due, _ in self.leases.due()):
                self._end(lease, verb, cause)
                self.leases.release(lease.holder, lease.epoch, cause)

        with suppress(LabClosed, LabReadOnly):  # then everybody has ended, or nobody can
            self.lab.driver.call(act)

    def notice(self) -> None:
        """Somebody listens. Where nobody did for long (the process was stopped), those whose beats
        could not be heard are excused, before anything is made of their silence."""
        now = time.monotonic()
        silence, self._seen = now - self._seen, now
        if silence > 2 * self.interval:
            self.leases.excuse(silence)

    def serve(self, tcp: bool) -> Service:
        """The service of this lab: the one that is open, or a new one."""
        from inms_lab.notebook.service import Service

        self.lab.driver.refuse_inside("serve")
        with self._serving:
            if self.service is None or self.service.closed:
                self._seen = time.monotonic()
                self.service = Service(self.lab, tcp)
            return self.service

    def close(self) -> None:
        """Stop serving; what clients still ask is answered with `LabClosed`."""
        if self.service is not None:
            self.service.close()

    # the lab's thread -----------------------------------------------------------------------

    def grant(self, agent: Agent, owner: Any = None) -> Lease:
        """A lease for an agent that lives. Raises `AgentClosed`."""
        seq_id = agent.seq_id
        if not self.lab.engine.ledger.sequences[seq_id].is_live:
            raise AgentClosed(f"{agent.name} is {agent.state}: make a new agent")
        lease = self.leases.grant(seq_id, owner)
        self.names[seq_id] = agent.title
        if self._timer is None:  # nobody has listened meanwhile
            self._seen = time.monotonic()
            self._arm()
        return lease

    def _tick(self, ends: bool) -> list[str]:
        if self.service is not None:
            self.notice()
        self._forget()
        ends = ends and self.lab.violation is None  # else nobody ends any more
        ended = []
        for lease, cause in self.leases.due() if ends else self._mark():
            try:
                self._end(lease, "expire", cause)
            except Exception as error:  # the next tick tries again; `assert_clean` tells, once
                if lease.epoch not in self._failed:
                    self.lab.engine.desk.hook_errors.append(error)
                self._failed.add(lease.epoch)
                continue
            self.leases.release(lease.holder, lease.epoch, cause)
            ended.append(self._name(lease))
        return ended

    def _mark(self) -> list[tuple[Lease, str]]:
        self.leases.due()
        return []

    def _name(self, lease: Lease) -> str:
        return self.names.get(lease.holder, "?")  # type: ignore[call-overload, no-any-return]

    def _end(self, lease: Lease, verb: str, cause: str) -> None:
        engine = self.lab.engine
        for seq_id in family(engine.ledger, lease.holder):  # type: ignore[arg-type]
            engine.end(seq_id, verb, cause)
        self.lab.driver.awake.set()  # somebody may have waited for these blocks

    def _forget(self) -> None:
        """Leases of those who have ended otherwise, and for whom nobody else will say so."""
        rows = self.leases.rows()
        for row in rows:
            if row.owned and not family(self.lab.engine.ledger, row.holder):  # type: ignore[arg-type]
                self.leases.release(row.holder, row.epoch, "the agent had ended")
        self.names = {r.holder: self.names[r.holder] for r in rows if r.holder in self.names}  # type: ignore[index, misc]

    def _arm(self) -> None:
        """One tick ahead, while there is a lease to look at."""
        if not self.lab.driver.closed:
            self._timer = self.lab.driver.loop.call_later(self.interval, self._ring)

    def _ring(self) -> None:
        self._timer = None
        try:
            self._tick(self.lab.config.auto_recovery)
        finally:
            awaited = (LIVE, OVERDUE) if self.lab.config.auto_recovery else (LIVE,)
            if self._timer is None and any(row.state in awaited for row in self.leases.rows()):
                self._arm()

    def _caller(self) -> Any:
        """The task or thread that asks. A cell's own task ends with the cell, and the thread of a
        notebook's cells lives as long as the kernel: there it is the thread."""
        in_cell = shell() is not None and threading.current_thread() is threading.main_thread()
        try:
            task = None if in_cell else asyncio.current_task()
        except RuntimeError:  # no loop runs here
            task = None
        return task or threading.current_thread()


def family(books: Ledger, seq_id: int) -> list[int]:
    """The live ones of a holder, its forks and their forks, newest first."""

    def descends(holder: int) -> bool:
        while holder > seq_id:  # a fork's id is greater than its parent's
            holder = books.sequences[holder].parent_id
        return holder == seq_id

    return [s.seq_id for s in reversed(books.holders()) if s.is_live and descends(s.seq_id)]


class Held:
    """A lease that this process holds. Leaving its `with` block ends the agent and its forks."""

    def __init__(self, keeper: Keeper, agent: Agent, lease: Lease) -> None:
        self._keeper, self.agent, self.lease = keeper, agent, lease

    @property
    def epoch(self) -> int:
        """The lease's number."""
        return self.lease.epoch

    def beat(self) -> bool:
        """A sign of life by hand; False if the lease has run out or ended."""
        return self._keeper.leases.beat(self.lease.holder, self.lease.epoch)

    def release(self) -> bool:
        """Give up the lease; the agent stays. False if it has run out or ended already."""
        live = self.beat()
        return self._keeper.leases.release(self.lease.holder, self.lease.epoch) and live

    def __enter__(self) -> Agent:
        return self.agent

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._keeper.end(self.lease, "close", "its block was left")
        else:
            self._keeper.end(self.lease, "fail", f"its block was left by {kind.__name__}")

    def __repr__(self) -> str:
        return f"<lease {self.lease.epoch} of {self.agent.title}>"


class Table(list[tuple[str, Row]]):
    """Leases with the names of their holders, to be read."""

    def __repr__(self) -> str:
        lines = [f"{'holder':<16} {'epoch':>5} {'last beat':>10} state"]
        for name, row in self:
            why = f" ({row.cause})" if row.cause else ""
            lines.append(f"{name:<16} {row.epoch:>5} {row.age:>8.1f} s {row.state}{why}")
        return "\n".join(lines) if self else "no leases"
