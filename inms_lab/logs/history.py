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

from inms_lab.books.events import (
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
from inms_lab.errors import BadInput
from inms_lab.logs.log import Log

if TYPE_CHECKING:
    from inms_lab.books.ledger import Ledger

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
    snapshot = log.snapshot or _NOTHING
    sizes = {spec.pool_id: spec.num_blocks for spec in _pools(log, snapshot)}
    if pool_id not in sizes:
        raise BadInput(f"no pool is called {pool_id!r}; there are: {', '.join(sizes)}")
    if block not in range(sizes[pool_id]):
        raise BadInput(f"{pool_id} has blocks 0 to {sizes[pool_id] - 1}, there is no {block}")
    life = _Life(snapshot, pool_id, block)
    changes = (life.follow(*numbered) for numbered in _numbered(log, snapshot))
    return [change for change in changes if change is not None]


def pools_with(log: Log, block: int) -> list[str]:
    """Ids of the pools in which something happened to block number `block`."""
    sizes = {spec.pool_id: spec.num_blocks for spec in _pools(log, log.snapshot or _NOTHING)}
    return [p for p, size in sizes.items() if block in range(size) and block_history(log, p, block)]


def to_pandas(log: Log) -> Any:
    """One row per event, as a pandas DataFrame.

    Columns: index, step, event, seq_id and holder (missing for events of a pool or a step),
    pool, num_blocks, blocks (a tuple), tokens (that entered a context, were released, copied or
    computed), cause, duration (seconds of the whole step; missing if it did not finish).
    """
    import pandas as pd

    snapshot = log.snapshot or _NOTHING
    names = {seq_id: seq["name"] for seq_id, seq in snapshot["sequences"].items()}
    names |= {e.seq_id: e.name for e in log.events if isinstance(e, Registered)}
    rows = [_row(log, names, *numbered) for numbered in _numbered(log, snapshot)]
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.astype(_COLUMNS)


def log_refcounts(books: Ledger, e: Event) -> None:
    """One line for every refcount that `e`, which the books have taken in, changed."""
    for where in _refcounts(books, e):
        name = books.sequences[getattr(e, "seq_id", -1)].name
        what = f"{type(e).__name__} {getattr(e, 'cause', '')}".strip()
        REFCOUNT.debug("%s block %d: refcount %d -> %d, %s, %s", *where, what, name)


def _refcounts(books: Ledger, e: Event) -> Iterator[tuple[str, int, int, int]]:
    """(pool, block, old, new) of each change, from the books after it."""
    if isinstance(e, Copied):
        yield e.pool_id, e.dst, 0, 1
        if e.src_pool == e.pool_id:  # it was replaced; an edit of sealed text copies across pools
            now = books.pools[e.src_pool].refs.get(e.src, 0)
            yield e.src_pool, e.src, now + 1, now
        return
    if isinstance(e, Shared | Allocated | Freed | Aborted):
        sign = _SIGNS[type(e)]
        refs, left = books.pools[e.pool_id].refs, Counter(e.blocks)
        for block in e.blocks:
            left[block] -= 1
            new = refs.get(block, 0) - sign * left[block]
            yield e.pool_id, block, new - sign, new


def _numbered(log: Log, snapshot: dict[str, Any]) -> Iterator[tuple[int, int, Event]]:
    """(index, step, event) of every event."""
    done = snapshot["num_steps"]
    for index, event in enumerate(log.events, log.first):
        done = event.step if isinstance(event, Stepped) else done
        yield index, done + (not isinstance(event, Stepped | Published)), event


def _pools(log: Log, snapshot: dict[str, Any]) -> list[PoolOpened]:
    opened = [pool["spec"] for pool in snapshot["pools"].values()]
    return opened + [e for e in log.events if isinstance(e, PoolOpened)]


def _row(log: Log, names: dict[int, str], index: int, step: int, e: Event) -> tuple[Any, ...]:
    seq_id = getattr(e, "seq_id", None)
    blocks = (e.src, e.dst) if isinstance(e, Copied) else getattr(e, "blocks", ())
    who = (seq_id, None if seq_id is None else names[seq_id], getattr(e, "pool_id", None) or None)
    what = (len(blocks), blocks, _num_tokens(e), getattr(e, "cause", ""))
    return (index, step, type(e).__name__, *who, *what, log.durations.get(step))


def _num_tokens(e: Event) -> int:
    if isinstance(e, Commanded | Released):
        return e.length
    if isinstance(e, Stepped):
        return sum(item[1] for item in e.items)
    return e.num_slots if isinstance(e, Copied) else 0


_NOTHING: dict[str, Any] = {"pools": {}, "sequences": {}, "records": {}, "num_steps": 0}
_SIGNS: dict[type, int] = {Shared: 1, Allocated: 1, Freed: -1, Aborted: -1}
_NAMES = "index step event seq_id holder pool num_blocks blocks tokens cause duration"
_TYPES = "int64 int64 category Int64 string string int64 object int64 string float64"
_COLUMNS = dict(zip(_NAMES.split(), _TYPES.split(), strict=True))


class _Life:
    """One block's holders and state, event by event."""

    def __init__(self, snapshot: dict[str, Any], pool_id: str, block: int) -> None:
        self.pool_id, self.block = pool_id, block
        self.names: dict[int, str] = {}
        self.lengths: Counter[tuple[int, int]] = Counter()  # (holder, segment) -> table entries
        self.tables: list[int] = []  # holders by id, once for each table entry
        self.writer = -1  # whose step will write it, while it is pending
        self.is_published, self.num_lives = False, 0
        self._begin(snapshot)

    @property
    def state(self) -> str:
        """free, pending, held or cached."""
        idle, held = (FREE, CACHED)[self.is_published], (HELD, PENDING)[self.writer >= 0]
        return held if self.tables else idle

    def follow(self, index: int, step: int, e: Event) -> Change | None:
        """Take `e` in; gives what it changed here."""
        if isinstance(e, Registered):
            self.names[e.seq_id] = e.name
        before, state = len(self.tables), self.state
        if not self._takes_part(e) or (isinstance(e, Stepped) and state == self.state):
            return None
        seq_id = self.tables[0] if isinstance(e, Stepped) else getattr(e, "seq_id", -1)
        names, lives = tuple(self.names[h] for h in self.tables), max(0, self.num_lives - 1)
        what = (type(e).__name__, getattr(e, "cause", ""), seq_id, self.names.get(seq_id, ""))
        return Change(index, step, *what, before, len(self.tables), self.state, lives, names)

    def _takes_part(self, e: Event) -> bool:
        """Change what `e` changes; whether it has to do with the block."""
        if isinstance(e, Stepped):
            wrote = any(item[0] == self.writer and item[1] for item in e.items)
            self.writer = -1 if wrote else self.writer
            return wrote
        if isinstance(e, Copied):
            return self._copied(e)
        blocks = getattr(e, "blocks", ())
        if isinstance(e, Shared | Allocated | Freed | Aborted):
            self.lengths[e.seq_id, e.segment] += _SIGNS[type(e)] * len(blocks)
        mine = getattr(e, "pool_id", "") == self.pool_id
        times = blocks.count(self.block) if mine else 0
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
        me = (self.pool_id, self.block)
        target, source = (e.pool_id, e.dst) == me, (e.src_pool, e.src) == me
        begins = e.index == self.lengths[e.seq_id, e.segment]  # a segment: nothing is replaced
        self.lengths[e.seq_id, e.segment] += begins
        if target:
            self._allocate(e.seq_id, writer=-1)
        elif source and not begins:
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
            for number, s in enumerate(seq["segments"]):
                self.lengths[seq_id, number] = len(s["blocks"])
                if s["pool_id"] != self.pool_id or self.block not in s["blocks"]:
                    continue
                self.tables += [seq_id] * s["blocks"].count(self.block)
                if s["blocks"].index(self.block) * s["block_size"] >= s["computed"]:
                    self.writer = seq_id
        pool = snapshot["pools"].get(self.pool_id, {"keys": ()})
        self.is_published = self.block in dict(pool["keys"])
        self.num_lives = int(bool(self.tables) or self.is_published)
