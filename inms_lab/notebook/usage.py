"""What the memory of a lab is used for, now and at its peak: functions of the log and the books."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from inms_lab.books.ledger import Ledger
from inms_lab.logs.log import Log

if TYPE_CHECKING:
    from inms_lab.notebook.lab import Lab


@dataclass(frozen=True, slots=True)
class Peak:
    """The most blocks that were held at once, over all pools: bytes, blocks, log index, by pool."""

    num_bytes: int
    num_blocks: int
    index: int
    by_pool: dict[str, int]


def peak(log: Log, bytes_per_token: int) -> Peak:
    """Replay the log and find its fullest moment (bytes are whole blocks)."""
    books = Ledger.replay(log.snapshot, (), log.tokens)
    best = Peak(0, 0, 0, {})
    for index, event in enumerate(log.events, log.first + 1):
        books.apply(event)
        used = held_bytes(books, bytes_per_token)
        if used > best.num_bytes:
            by_pool = {name: pool.num_held for name, pool in books.pools.items()}
            best = Peak(used, sum(by_pool.values()), index, by_pool)
    return best


def held_bytes(books: Ledger, bytes_per_token: int) -> int:
    """KV bytes of the blocks that somebody holds."""
    held = sum(pool.num_held * pool.block_size for pool in books.pools.values())
    return held * bytes_per_token


def distinct_blocks(books: Ledger) -> int:
    """Blocks that the live contexts need, from texts and lengths alone: the same text behind the
    same context counts once, and each segment is rounded up to whole blocks."""
    seen = {
        (segment.pool_id, segment.key_label, segment.chain(index))
        for seq in books.sequences.values()
        for segment in seq.segments
        for index in range(-(-segment.length // segment.block_size))
    }
    return len(seen)


def independent_blocks(books: Ledger) -> int:
    """Blocks that the live agents would need if each kept a context of its own."""
    return sum(
        -(-segment.length // segment.block_size)
        for seq in books.sequences.values()
        if seq.kind == "agent" and seq.is_live
        for segment in seq.segments
    )


def slots_used(books: Ledger) -> dict[tuple[str, int], int]:
    """(pool id, block) -> slots in use, the most over its holders."""
    used: dict[tuple[str, int], int] = {}
    for seq in books.holders():
        for s in seq.segments:
            for i, block in enumerate(s.blocks):
                where, count = (s.pool_id, block), min(s.block_size, s.length - i * s.block_size)
                used[where] = max(used.get(where, 0), count)
    return used


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the bill: what the formula says beside what was measured, in bytes."""

    name: str
    formula: str
    expected: int | None
    measured: int


@dataclass(frozen=True, slots=True)
class Bill:
    """A lab's memory. `saved` is the share of the agents' KV that sharing saves right now."""

    lines: tuple[Line, ...]
    saved: float
    wasted_slots: int

    def __str__(self) -> str:
        rows = [("", "formula", "by formula", "measured")]
        rows += [(x.name, x.formula, _mib(x.expected), _mib(x.measured)) for x in self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        table = "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        )
        return f"{table}\n{self.note}"

    __repr__ = __str__

    @property
    def note(self) -> str:
        """The saving in words."""
        return (
            f"sharing saves {self.saved:.1%} of the agents' KV; "
            f"{self.wasted_slots} slots of last blocks are unused (rounding up to whole blocks)"
        )

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td style='text-align:left'>{escape(x.name)}</td>"
            f"<td style='text-align:left'>{escape(x.formula)}</td>"
            f"<td style='text-align:right'>{_mib(x.expected)}</td>"
            f"<td style='text-align:right'>{_mib(x.measured)}</td></tr>"
            for x in self.lines
        )
        head = "<tr><th></th><th>formula</th><th>by formula</th><th>measured</th></tr>"
        return f"<table>{head}{cells}</table><p>{escape(self.note)}</p>"


def bill(lab: Lab) -> Bill:
    """The lab's memory as it is now."""
    import psutil

    books, log, store = lab.engine.ledger, lab.engine.log, lab.engine.cache.store
    per_token, size = store.bytes_per_token, lab.config.block_size
    held = held_bytes(books, per_token)
    top = peak(log, per_token)
    alone = independent_blocks(books) * size * per_token
    slots = sum(p.num_held * p.block_size for p in books.pools.values())
    weights = lab.model.weights_bytes()
    lines = (
        Line("weights", "parameters x bytes each", weights[0], weights[1]),
        Line(
            "KV held now",
            f"{per_token} B/token x {size} tokens x distinct blocks",
            distinct_blocks(books) * size * per_token,
            held,
        ),
        Line("KV at the peak", f"event {top.index} of {len(log)}", None, top.num_bytes),
        Line("KV without sharing", "the same contexts, each on its own", alone, alone),
        Line("metadata", "log, token table, ledger", None, log.num_bytes() + deep_size(books)),
        Line("process", "resident set, all of it", None, psutil.Process().memory_info().rss),
    )
    return Bill(lines, 1 - held / alone if alone else 0.0, slots - sum(slots_used(books).values()))


def deep_size(thing: Any, seen: set[int] | None = None) -> int:
    """About how many bytes an object and what it holds take; shared objects count once."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, Mapping):
        parts: Iterable[Any] = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        parts = thing
    elif is_dataclass(thing):
        parts = [getattr(thing, f.name) for f in fields(thing)]
    else:
        parts = getattr(thing, "__dict__", {}).values()
    return size + sum(deep_size(part, seen) for part in parts)


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:,.2f} MiB"
