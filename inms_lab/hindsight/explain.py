"""Why a decision was what it was: its seven checks with their values, as frozen plain data.

A decision is looked at on the books as they were (a replay that moves forward), beside a shadow
index of everything that lay in the pools. Nothing here is asked by serving; but the checks are the
very functions that serving asks (checks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from inms_lab.books.checks import NO, NOT_ASKED, NOT_NEEDED, YES, CheckResult, Dropped, result
from inms_lab.books.checks import source_of as source_of  # beside what it explains
from inms_lab.books.events import EVENT_TYPES, Allocated, Copied, Event, Evicted, Shared
from inms_lab.books.ledger import Ledger
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.copies import STORM
from inms_lab.decisions.outcome import Decided, Decision
from inms_lab.decisions.reuse import Terms
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain_reuse import fails_at, passed, settled
from inms_lab.hindsight.pace import MANY, seconds_per_token
from inms_lab.hindsight.shadow import Shadow, sift
from inms_lab.hindsight.whatif import parts_of
from inms_lab.logs.log import Log

TABLE = (Shared, Copied, Allocated)
OUTCOME: dict[type, str] = dict(zip(TABLE, ("shared", "copied", "computed"), strict=True))
SIGN = {
    "shared": 1,
    "shared at a shift": 1,
    "copied": -1,
    "computed": -1,
}  # saved, spent; other outcomes do neither


@dataclass(frozen=True, slots=True)
class Part:
    """A run of blocks with one outcome; `checks` are those of its first block.

    `outcome`: shared, shared at a shift, copied, computed, deferred, refused or no room. `blocks`:
    those of the pool that the table gets. `num_bytes` of KV, `num_prefill` tokens of prefill and
    `ms` (milliseconds) are saved where they are positive, spent where they are negative. `ms` is an
    estimate: tokens times `seconds_per_token` of the log; None where nothing was measured.
    """

    segment: int
    tier: str
    label: tuple[str, ...]
    pool_id: str
    first_block: int
    num_blocks: int
    first_position: int
    num_tokens: int
    outcome: str
    reason: str
    blocks: tuple[int, ...]
    checks: tuple[CheckResult, ...]
    num_bytes: int | None
    num_prefill: int
    ms: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision as the log has it, whose it was, in which step, its parts and the plan's events
    (none where the answer was no plan)."""

    decided: Decided
    name: str
    kind: str
    clearance: tuple[str, ...]
    step: int
    parts: tuple[Part, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A block with the tokens wanted that a reader may not have (checks 3 and 4), where nothing
    could be shared instead. `decision` is its number in the log; `segment` and `index` are the
    reader's."""

    decision: int
    seq_id: int
    reader: str
    segment: int
    index: int
    block: Dropped


class Explainer:
    """Keeps books and shadow of one log and moves them forward; going back starts again."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.terms = Terms.of(log.about)
        self._num_measured, self._pace = 0, seconds_per_token(log)
        self._restart()

    def _restart(self) -> None:
        self.at, books = self.log.beginning()
        self.books = Ledger(self.log.tokens) if books is None else books
        self.shadow = Shadow(self.books)

    def move(self, at: int) -> None:
        """Books and shadow as they were when `at` events had happened."""
        if not self.log.first <= self.at <= at:
            self._restart()
        start, events = self.log.stretch(self.at, max(0, at - self.at))
        if start + len(events) != at:
            raise BadInput(
                f"the log holds the moments {self.log.first} to {len(self.log)}, not {at}"
            )
        for event in events:
            self.books.apply(event)
            self.shadow.follow(self.books, event)
        self.at = at

    def next(self, decided: Decided) -> Explanation:
        """The explanation of this decision; fastest in the order of the log."""
        self.move(decided.at)
        if len(self.log.durations) > 1.1 * self._num_measured:  # a tenth more was measured
            self._num_measured, self._pace = len(self.log.durations), seconds_per_token(self.log)
        seq = self.books.sequences[decided.seq_id]
        events = tuple(self.log.stretch(decided.at, decided.stop - decided.at)[1])
        parts = tuple(self._part(seq, part, events) for part in parts_of(self.books, decided))
        who = (seq.name, seq.kind, tuple(sorted(seq.clearance)), self.books.num_steps + 1)
        return Explanation(decided, *who, parts, events)

    def _part(self, seq: Sequence, part: Decision, events: tuple[Event, ...]) -> Part:
        segment, sign = seq.segments[part.segment], SIGN.get(part.outcome, 0)
        start, end = part.first * segment.block_size, (part.first + part.num_blocks)
        end = min(len(segment.tokens), end * segment.block_size)
        own = (e for e in events if isinstance(e, TABLE) and e.segment == part.segment)
        event = next((e for e in own if part.outcome.startswith(OUTCOME[type(e)])), None)
        blocks: tuple[int, ...] = ()
        if isinstance(event, (Shared, Allocated)):
            end, blocks = event.length, event.blocks
        elif isinstance(event, Copied):
            end, blocks = start + event.num_slots, (event.dst,)
        tokens = 0 if part.outcome == "copied" else sign * (end - start)
        per_token = self.log.about.get("bytes_per_token")
        num_bytes = per_token and sign * part.num_blocks * segment.block_size * per_token
        return Part(
            *(part.segment, segment.tier, segment.label, segment.pool_id),
            *(part.first, part.num_blocks, segment.first_position + start, end - start),
            *(part.outcome, part.reason, blocks),
            checks=(*self._asked(seq, part), _room(part, blocks, segment.pool_id, events)),
            num_bytes=num_bytes,
            num_prefill=tokens,
            ms=None if self._pace is None else tokens * self._pace[abs(tokens) < MANY] * 1e3,
        )

    def _asked(self, seq: Sequence, part: Decision) -> tuple[CheckResult, ...]:
        """Checks 1 to 6."""
        if part.outcome == "copied" or part.reason == STORM:
            own = [result(n, NOT_NEEDED, 0, "it is the holder's own block") for n in range(1, 7)]
            segment = seq.segments[part.segment]
            own[3] = result(4, YES, 0, f"{seq.kind}s may write {segment.tier} text")
            return tuple(own)
        segment = seq.segments[part.segment]
        if part.outcome == "computed" and segment.source >= 0 and fails_at(segment.why):
            return settled(self.books, segment, self.terms)
        sifted = sift(self.books, self.shadow, seq, part.segment, part.first)
        fails = next((n for n in range(1, 6) if not sifted.left[n]), 6)
        fails = 2 if part.outcome == "deferred" else fails
        out = [sifted.answer(n, fails) for n in range(1, 6)]
        if fails == 6 and not part.outcome.startswith(
            "shared"
        ):  # nothing is mounted behind what is in flight
            fails, out[4] = 5, result(5, NO, out[4].value, "what stands before it has no KV yet")
        if part.outcome == "refused":
            out[3] = result(4, NO, out[3].value, part.reason, out[3].dropped)
        if segment.is_fragment and fails == 6:
            out[4] = result(5, YES, out[4].value, f"at a shift of {segment.shift:+d}")
        last = passed(segment, self.terms, not segment.is_fragment)
        return (*out, last if fails == 6 else result(6, NOT_ASKED))


def explain(log: Log, which: int | Decided) -> Explanation:
    """The explanation of a decision, given itself or by its number (its place in the log's
    decisions, from its birth on)."""
    return Explainer(log).next(log.decision(which) if isinstance(which, int) else which)


def explain_all(log: Log, decisions: Iterable[Decided] | None = None) -> Iterator[Explanation]:
    """The explanations of these decisions (None: all of the log's), in one pass."""
    return map(Explainer(log).next, log.decisions if decisions is None else decisions)


def refusals(log: Log) -> list[Refusal]:
    """Every shadow refusal of the log, in order: checks 3 and 4, block by block."""
    explainer, out = Explainer(log), []
    for number, decided in log.decisions_since(0):
        explainer.move(decided.at)
        books, shadow = explainer.books, explainer.shadow
        seq = books.sequences[decided.seq_id]
        for part in parts_of(books, decided):
            wanted = part.outcome in ("computed", "refused", "no room")
            for index in range(part.first, part.first + part.num_blocks) if wanted else ():
                dropped = sift(books, shadow, seq, part.segment, index).dropped
                where = (number, seq.seq_id, seq.name, part.segment, index)
                out += [Refusal(*where, block) for block in dropped if block.refused]
    return out


def as_json(value: Any) -> Any:
    """An explanation (or a part of it) as dicts and lists: bytes as hex, events with their type."""
    if is_dataclass(value):
        named = {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__name__, **named} if type(value) in EVENT_TYPES else named
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _room(
    part: Decision, blocks: tuple[int, ...], pool_id: str, events: tuple[Event, ...]
) -> CheckResult:
    if part.outcome.startswith("shared"):
        return result(7, YES, 0, "a shared block takes no room")
    if part.outcome == "no room":
        return result(7, NO, part.num_blocks, part.reason)
    if part.outcome in ("deferred", "refused"):
        return result(7, NO, 0, STORM) if part.reason == STORM else result(7, NOT_ASKED)
    gone = (e.blocks for e in events if isinstance(e, Evicted) and e.pool_id == pool_id)
    count = len({block for victims in gone for block in victims} & {*blocks})
    return result(7, YES, len(blocks), f"{len(blocks)} blocks, {count} by eviction")
