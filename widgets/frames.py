"""Every picture as plain data: pure functions of a log and a cursor (a number of events).

No widget library is imported here, and nothing draws. The books come from the one reducer
(`log.replay`), so each frame equals what the live engine would have shown at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inms_lab.books.events import Aborted, Commanded, Copied, Event, Evicted, Freed, Shared
from inms_lab.books.ledger import ENDS, Ledger
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.compact import is_move
from inms_lab.hindsight.explain import Explanation, explain
from inms_lab.logs.log import Log
from inms_lab.logs.logfile import MASKED
from inms_lab.notebook.pieces import text_of

from .measures import Measures, at_a_shift, follow, measure
from .snapshot import Snapshot, blocks_in_use, names_of, snapshot_of

if TYPE_CHECKING:
    from inms_lab.notebook.lab import Lab

MASK = MASKED.decode()  # stands for a token whose text is not in the log
JUMPS: dict[type, str] = {
    Copied: "copy",
    Evicted: "evict",
    Shared: "share",
    Freed: "free",
    Aborted: "abort",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Slots of one block in a context: token positions `[start, stop)`, their text, their block.

    `block` is -1 and `refs` 0 where no block holds them; `written`: how many of them have their KV.
    `shift`: of a fragment, `start` minus the position that its first key is rotated for; else None.
    """

    start: int
    stop: int
    tier: str
    label: tuple[str, ...]
    pool_id: str
    block: int
    refs: int
    written: int
    text: str
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """One holder's context; `error` tells what ended it, where something did."""

    seq_id: int
    name: str
    kind: str
    state: str
    spans: tuple[Span, ...]
    error: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole context."""
        return sum(span.stop - span.start for span in self.spans)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that a timeline marks: the event's index, its kind, whose it is (-1: nobody's)."""

    index: int
    kind: str  # copy, move, evict, share, shift (shared at one), free, abort, fail, refuse
    seq_id: int


def snapshot_at(log: Log, index: int | None = None) -> Snapshot:
    """The block map, the agents' block counts and the memory bars."""
    in_use = blocks_in_use(log.until(index), _in_use(log.replay(log.first)))
    return snapshot_of(log.replay(index), log.about.get("bytes_per_token", 0), in_use)


def snapshot_now(lab: Lab) -> Snapshot:
    """The same of a live lab, from its own books; on the lab's thread only."""
    log = lab.log
    in_use = blocks_in_use(log.events, _in_use(lab.engine.ledger))
    return snapshot_of(lab.engine.ledger, log.about.get("bytes_per_token", 0), in_use)


def measures_at(log: Log, index: int | None = None) -> Measures:
    """The numbers of the timeline's charts."""
    books = log.replay(log.first)
    in_use, counts = follow(books, log.until(index), _in_use(books), {})
    return measure(books, len(log) if index is None else index, in_use, counts)


def series(log: Log, every: int | None = None) -> list[Measures]:
    """The same after every `every` events (None: so many that there are about a thousand rows),
    and at the end."""
    every = every or 1 + len(log.events) // 1000
    books = log.replay(log.first)
    in_use, counts = follow(books, (), _in_use(books), {})
    out = []
    for at in range(0, len(log.events), every):
        events = log.events[at : at + every]
        in_use, counts = follow(books, events, in_use, counts)
        out.append(measure(books, log.first + at + len(events), in_use, counts))
    return out


def contexts_at(log: Log, index: int | None = None) -> tuple[Context, ...]:
    """Each holder's context as spans over its text, one span a block."""
    books = log.replay(index)
    everybody = list(books.sequences.values())
    named = zip(everybody, names_of(everybody), strict=True)
    return tuple(_context(log, books, seq, name) for seq, name in named)


def marks(log: Log, index: int | None = None) -> list[Mark]:
    """What happened up to the cursor that is worth a jump."""
    stop = len(log) if index is None else index
    books, out = log.replay(log.first), []
    for number, event in enumerate(log.until(index), log.first):
        books.apply(event)
        if kind := _kind(books, event):
            out.append(Mark(number, kind, getattr(event, "seq_id", -1)))
    no = ("refused", "no room")
    out += [
        Mark(d.at, "refuse", d.seq_id) for d in log.decisions if d.outcome in no and d.at < stop
    ]
    return sorted(out, key=lambda mark: mark.index)


def decision_at(log: Log, number: int) -> Explanation:
    """A decision with its seven checks (explain.py)."""
    return explain(log, number)


def _kind(books: Ledger, event: Event) -> str:
    if isinstance(event, Commanded) and ENDS.get(event.verb) == "failed":
        return "fail"
    if isinstance(event, Shared) and at_a_shift(books, event):
        return "shift"
    if is_move(books, event) or (isinstance(event, Evicted) and event.cause == "moved"):
        return "move"
    return JUMPS.get(type(event), "")


def _context(log: Log, books: Ledger, seq: Sequence, name: str) -> Context:
    spans = tuple(span for s in seq.segments for span in _spans(log, books, s))
    failed = log.errors.get(seq.seq_id, "") if not seq.is_live else ""
    return Context(seq.seq_id, name, seq.kind, seq.state, spans, failed)


def _spans(log: Log, books: Ledger, s: Segment) -> Iterator[Span]:
    for number, start in enumerate(range(0, len(s.tokens), s.block_size)):
        tokens = s.tokens[start : start + s.block_size]
        block = s.blocks[number] if number < len(s.blocks) else -1
        yield Span(
            start=s.first_position + start,
            stop=s.first_position + start + len(tokens),
            tier=s.tier,
            label=tuple(sorted(s.label)),
            pool_id=s.pool_id,
            block=block,
            refs=books.pools[s.pool_id].refs.get(block, 0),
            written=max(0, min(len(tokens), s.computed - start)),
            text=_text(log, list(tokens)),
            shift=s.shift if s.is_fragment else None,
        )


def _text(log: Log, tokens: list[int]) -> str:
    piece = log.piece or (lambda token: b"%d " % token)
    return text_of([MASKED if token < 0 else piece(token) for token in tokens])


def _in_use(books: Ledger) -> dict[str, int]:
    """Blocks of each pool up to the highest that holds something."""
    return {name: 1 + max([-1, *p.refs, *p.cached]) for name, p in books.pools.items()}
