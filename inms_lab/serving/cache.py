"""The door: the one place where a plan becomes fact, in the books, the log and the tensors.

    commit   a plan made at this very log index, tried as a whole on an overlay first
    record   one input or completion
Both apply the same events to the ledger, append to the log, and move tensors accordingly: the first
two under `lock`, in one short critical section; tensors outside it. Once the books were found not
to balance, both refuse: nothing changes until a check finds them right.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from inms_lab.books import rules
from inms_lab.books.events import Allocated, Copied, Event, PoolOpened
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.freeing import freed
from inms_lab.decisions.outcome import Plan, Stale
from inms_lab.errors import LedgerViolation
from inms_lab.logs import audit, history, violation
from inms_lab.logs.audit import Fault
from inms_lab.logs.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inms_lab.attention.pages import GivenBack


class Tensors(Protocol):
    """What the door asks of the store (a dry run has one that does nothing)."""

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""

    def open(self, pool_id: str, num_slots: int) -> None:
        """Reserve a region of `num_slots` slots."""

    def close(self) -> None:
        """Give every region back."""

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        """Zero the slots of these blocks: nothing of an earlier holder is ever read."""

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        """Copy slots between (pool id, first slot) places."""

    def give_back(self, pool_id: str, blocks: Iterable[int], block_size: int) -> GivenBack:
        """Give the system what memory lies in these blocks only."""

    def resident(self, pool_id: str) -> int | None:
        """Bytes of a region that are in memory; None where nobody can tell."""


class KVCache:
    """The ledger, its log and the tensors, kept in step."""

    def __init__(self, store: Tensors, debug: bool = False, limit: int | None = None) -> None:
        self.log = Log(limit=limit)
        self.ledger = Ledger(self.log.tokens)
        self.store = store
        self.debug = debug
        self.violation: LedgerViolation | None = None  # what closed the door
        self.on_violation: list[Callable[[LedgerViolation], None]] = []
        self._told: tuple[int, Ledger] | None = None  # the log's books, and up to when
        self.lock = RLock()  # held while the books change, and by who reads several values of them

    def commit(self, plan: Plan) -> Stale | None:
        """All of the plan's events, or none: `Stale` if the books moved, `PlanInvalid` if edited
        against a rule, `LabReadOnly` once the books do not balance."""
        stale = self.book(plan)
        if stale is None:
            self.move(plan.events)
        return stale

    def book(self, plan: Plan) -> Stale | None:
        """`commit` without the tensors: the caller moves them, before anybody needs them."""
        with self.lock:
            self._open()
            if plan.at != len(self.log):
                return Stale(plan.at, len(self.log))
            self._try(plan.events)
            for event in plan.events:
                self.ledger.reduce(event)
                self._enter(event)
        return None

    def _try(self, events: tuple[Event, ...]) -> None:
        """Ask the rules about each event, on books in which those before it have happened."""
        trial = self.ledger
        for number, event in enumerate(events):
            rules.check(trial, event)
            if number + 1 < len(events):
                trial = self.ledger.overlay() if number == 0 else trial
                trial.reduce(event)

    def record(self, event: Event) -> None:
        """One event enters the books, the log and the tensors."""
        with self.lock:
            self._open()
            if isinstance(event, PoolOpened):  # first: without its region there is no pool
                rules.check(self.ledger, event)
                self.store.open(event.pool_id, event.num_blocks * event.block_size)
            self.ledger.apply(event)
            self._enter(event)
        self.move((event,))

    def _enter(self, event: Event) -> None:
        """What the books have taken in enters the log."""
        self.log.append(event)
        if history.REFCOUNT.isEnabledFor(history.DEBUG):
            history.log_refcounts(self.ledger, event)
        if self.debug:  # all that one event can break; whether the log agrees is asked once a step
            self._judge(audit.faults(self.ledger))

    def move(self, events: Sequence[Event]) -> None:
        """What events that the books have taken in do to the tensors. Where that fails, copies that
        were not made are taken back, with what lies behind them: it is computed again."""
        for number, event in enumerate(events):
            try:
                self._move(event)
            except BaseException:
                left = [e for e in events[number:] if isinstance(e, Copied)]
                for seq_id in sorted({e.seq_id for e in left}):
                    self._take_back([e for e in left if e.seq_id == seq_id])
                raise

    def _move(self, event: Event) -> None:
        if isinstance(event, Allocated):
            self.store.clear(event.pool_id, event.blocks, self._size(event.pool_id))
        elif isinstance(event, Copied):
            size = self._size(event.pool_id)
            self.store.clear(event.pool_id, (event.dst,), size)
            source = (event.src_pool, event.src * self._size(event.src_pool))
            self.store.copy(source, (event.pool_id, event.dst * size), event.num_slots)

    def _take_back(self, copies: list[Copied]) -> None:
        """One holder's copies that hold nothing: whoever would find them would find nothing too."""
        with self.lock:
            seq = self.ledger.sequences[copies[0].seq_id]
            parts = [(seq.segments[copy.segment], copy.index) for copy in copies]
            keep = min(part.first_position + index * part.block_size for part, index in parts)
            for event in freed(seq, keep, "the copy failed", forget=True):
                self.record(event)

    def _open(self) -> None:
        """Raises `LabReadOnly` while the books are known not to balance."""
        if self.violation is not None:
            raise violation.read_only(self.violation)

    def check(self) -> None:
        """Raises `LedgerViolation` if the books do not balance, or are not what the log makes of
        them; the door is closed then, until a check finds nothing."""
        with self.lock:
            self._judge(
                audit.faults(self.ledger) or audit.against(self.log, self.ledger, self._by_log())
            )

    def _judge(self, faults: list[Fault]) -> None:
        if not faults:
            self.violation = None
            return
        if self.violation is None:
            self.violation = violation.violation(self.log, self.ledger, faults)
            for hook in self.on_violation:
                hook(self.violation)
        raise self.violation

    def _by_log(self) -> Ledger | None:
        """In debug mode the books of the log alone, kept up to date from check to check."""
        if not self.debug:
            self._told = None
            return None
        try:
            at, told = self._told or (len(self.log), self.log.replay())
            if at < self.log.first:
                at, told = len(self.log), self.log.replay()
            for event in self.log.since(at):
                told.apply(event)
        except audit.IMPOSSIBLE:
            return None
        self._told = (len(self.log), told)
        return told

    def _size(self, pool_id: str) -> int:
        return self.ledger.pools[pool_id].block_size
