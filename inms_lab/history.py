"""What happened to one block, and to all: the history of a block, a table of events, a logger.

All three are folds over the events alone, without the rules: fast, and right for every log that
replays. A step's number covers the events from its boundary (inputs, plans) to what it published.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inms_lab.errors import BadInput
from inms_lab.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.log import Log

if TYPE_CHECKING:
    from inms_lab.ledger import Ledger

FREE, PENDING, HELD, CACHED = "free", "pending", "held", "cached"
DEBUG = logging.DEBUG
REFCOUNT = logging.getLogger("inms_lab.refcount")


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a block's life. `before`, `after`: its refcount.

    `state` after it: free, pending (its KV is being written), held, cached (nobody holds it, it can
    be found). `holders`: who holds it then, oldest first, once for each table entry.
    `generation`: how many times it had been allocated before this life (in this log; what lives
    when the log begins counts as allocated once).
    """

    index: int
    step: int
    event: str
    cause: str
    seq_id: int  # of the holder whose event it is; -1: the pool's own
    holder: str
    before: int
    after: int
    state: str
    generation: int
    holders: tuple[str, ...]


def block_history(log: Log, pool_id: str, block: int) -> list[Change]:
    """Everything that happened to `block` of pool `pool_id`, in order."""
    life = _Life(log, pool_id, block)
    step, out = _first_step(log), []
    for index, event in enumerate(log.events, log.first):
        step += isinstance(event, Stepped)
        change = life.follow(event, index, _step_of(event, step))
        if change is not None:
            out.append(change)
    return out


def pools_with(log: Log, block: int) -> list[str]:
    """Ids of the pools in which something happened to block number `block`."""
    size = {p.pool_id: p.num_blocks for p in _pools(log)}
    return [p for p in size if block in range(size[p]) and block_history(log, p, block)]


class _Life:
    """One block's holders and state, event by event."""

    def __init__(self, log: Log, pool_id: str, block: int) -> None:
        sizes = {spec.pool_id: spec.num_blocks for spec in _pools(log)}
        if pool_id not in sizes:
            raise BadInput(f"no pool is called {pool_id!r}; there are: {', '.join(sizes)}")
        if block not in range(sizes[pool_id]):
            raise BadInput(f"{pool_id} has blocks 0 to {sizes[pool_id] - 1}, there is no {block}")
        self.pool_id, self.block = pool_id, block
        self.names: dict[int, str] = {}
        self.tables: list[int] = []  # holders by id, once for each table entry
        self.writer = -1  # whose step will write it, while it is pending
        self.is_published, self.num_lives = False, 0
        snapshot = log.snapshot
        if snapshot is not None:
            self._begin(snapshot)

    @property
    def state(self) -> str:
        """free, pending, held or cached."""
        if not self.tables:
            return CACHED if self.is_published else FREE
        return PENDING if self.writer >= 0 else HELD

    def follow(self, e: Event, index: int, step: int) -> Change | None:
        """Take `e` in; gives what it changed here."""
        if isinstance(e, Registered):
            self.names[e.seq_id] = e.name
        before, state = len(self.tables), self.state
        if not self._takes_part(e):
            return None
        if isinstance(e, Stepped) and state == self.state:
            return None
        seq_id = self._seq_of(e)
        names = tuple(self.names[holder] for holder in self.tables)
        lives = max(0, self.num_lives - 1)
        what = (type(e).__name__, getattr(e, "cause", ""), seq_id, self.names.get(seq_id, ""))
        return Change(index, step, *what, before, len(self.tables), self.state, lives, names)

    def _seq_of(self, e: Event) -> int:
        if isinstance(e, Stepped):
            return self.tables[0]
        return getattr(e, "seq_id", -1)

    def _takes_part(self, e: Event) -> bool:
        """Change what `e` changes; whether it has to do with the block."""
        if isinstance(e, Stepped):
            here = any(item[0] == self.writer and item[1] for item in e.items)
            self.writer = -1 if here else self.writer
            return here
        if isinstance(e, Copied):
            return self._copied(e)
        mine = getattr(e, "pool_id", "") == self.pool_id
        times = getattr(e, "blocks", ()).count(self.block) if mine else 0
        if not times:
            return False
        if isinstance(e, Allocated):
            self._allocate(e.seq_id, writer=e.seq_id)
        elif isinstance(e, Shared):
            self.tables += [e.seq_id] * times
        elif isinstance(e, Freed | Aborted):
            self._let_go(e.seq_id, times, isinstance(e, Freed) and e.forget)
        elif isinstance(e, Published | Evicted):
            self.is_published = isinstance(e, Published)
        return True

    def _copied(self, e: Copied) -> bool:
        target = (e.pool_id, e.dst) == (self.pool_id, self.block)
        source = (e.src_pool, e.src) == (self.pool_id, self.block)
        if target:
            self._allocate(e.seq_id, writer=-1)
        elif source and e.index and e.seq_id in self.tables:
            self._let_go(e.seq_id, 1, forget=False)
        return target or source

    def _allocate(self, seq_id: int, writer: int) -> None:
        self.tables, self.writer, self.is_published = [seq_id], writer, False
        self.num_lives += 1

    def _let_go(self, seq_id: int, times: int, forget: bool) -> None:
        for _ in range(times):
            self.tables.remove(seq_id)
        if not self.tables:
            self.writer = -1
            self.is_published = self.is_published and not forget

    def _begin(self, snapshot: dict[str, Any]) -> None:
        for seq_id, seq in snapshot["sequences"].items():
            self.names[seq_id] = seq["name"]
            for s in seq["segments"] if seq["segments"] else ():
                if s["pool_id"] != self.pool_id or self.block not in s["blocks"]:
                    continue
                self.tables += [seq_id] * s["blocks"].count(self.block)
                if s["blocks"].index(self.block) * s["block_size"] >= s["computed"]:
                    self.writer = seq_id
        pool = snapshot["pools"].get(self.pool_id)
        self.is_published = pool is not None and self.block in dict(pool["keys"])
        self.num_lives = int(bool(self.tables) or self.is_published)
