"""The door: the one place where a plan becomes fact, in the books, the log and the tensors.

    commit   a plan made at this very log index, tried as a whole on an overlay first
    record   one input or completion
Both apply the same events to the ledger, move tensors accordingly, and append to the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from inms_lab import audit, history, rules
from inms_lab.errors import LedgerViolation
from inms_lab.events import Allocated, Copied, Event, PoolOpened
from inms_lab.ledger import Ledger
from inms_lab.log import Log
from inms_lab.outcome import Plan, Stale

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class KVCache:
    """The ledger, its log and the tensors, kept in step."""

    def __init__(self, store: Tensors, debug: bool = False, limit: int | None = None) -> None:
        self.log = Log(limit=limit)
        self.ledger = Ledger(self.log.tokens)
        self.store = store
        self.debug = debug

    def commit(self, plan: Plan) -> Stale | None:
        """All of the plan's events, or none: `Stale` if the books moved, `PlanInvalid` if edited
        against a rule."""
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
        """One event enters the books, the tensors and the log."""
        self.ledger.apply(event)
        self._enter(event)

    def _enter(self, event: Event) -> None:
        """What the books have taken in enters the log and the tensors."""
        self.log.append(event)
        if history.REFCOUNT.isEnabledFor(history.DEBUG):
            history.log_refcounts(self.ledger, event)
        if isinstance(event, Allocated):
            self.store.clear(event.pool_id, event.blocks, self._size(event.pool_id))
        elif isinstance(event, Copied):
            size = self._size(event.pool_id)
            self.store.clear(event.pool_id, (event.dst,), size)
            source = (event.src_pool, event.src * self._size(event.src_pool))
            self.store.copy(source, (event.pool_id, event.dst * size), event.num_slots)
        elif isinstance(event, PoolOpened):
            self.store.open(event.pool_id, event.num_blocks * event.block_size)
        if self.debug:
            self.check()

    def check(self) -> None:
        """Raises `LedgerViolation` with the last events if the books do not balance."""
        faults = audit.faults(self.ledger)
        if faults:
            last = "\n  ".join(map(repr, self.log.events[-5:]))
            raise LedgerViolation("; ".join(faults) + f"\nthe last events were\n  {last}")

    def _size(self, pool_id: str) -> int:
        return self.ledger.pools[pool_id].block_size
