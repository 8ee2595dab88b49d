"""Why a decision was what it was: its seven checks with their values, as frozen plain data.

A decision is re-enacted on the books as they were (`log.replay`, moved forward), beside a shadow
index of everything that lay in the pools. What is computed is never changed by this, and nothing
here is asked by serving; but the checks are the functions that serving asks (checks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from inms_lab.checks import check_of, source_of
from inms_lab.errors import BadInput
from inms_lab.events import Allocated, Copied, Event, Evicted, Shared, Stepped
from inms_lab.ledger import Ledger
from inms_lab.log import Log
from inms_lab.outcome import Decided, Decision, NoRoom, Plan, Refused
from inms_lab.plan import hits, plan_extend
from inms_lab.sequence import Sequence
from inms_lab.shadow import Dropped, Shadow, Sifted, sift

__all__ = ["Explainer", "Explanation", "as_json", "explain", "explain_all", "refusals", "source_of"]

YES, NO, NOT_ASKED, NOT_NEEDED = "yes", "no", "not asked", "not needed"
SIGN = {"shared": 1, "copied": -1, "computed": -1}  # saved, spent; of other outcomes nothing


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: `value` counts the blocks that are left after it (check 7: that are taken).

    `shadow`: it refused blocks that serving, which looks up typed keys only, never even found.
    """

    number: int
    key: str  # content, written, namespace, label, position, gate, room
    question: str
    verdict: str  # yes, no, not asked, not needed
    value: int
    why: str
    function: str  # qualified names; `source_of(number)` is their text
    shadow: bool = False
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A run of blocks with one outcome; `checks` are those of its first block.

    `outcome`: shared, copied, computed, deferred, refused or no room. `blocks`: those of the pool
    that its table got. `num_bytes` of KV, `num_prefill` tokens of prefill and `ms` (milliseconds)
    are saved where they are positive and spent where they are negative. `ms` is an estimate:
    tokens times the seconds per token of the step in which the log's median token was computed;
    None where no step was measured.
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
    """A decision (see `outcome.Decided`), whose it was, in which step, and its parts."""

    at: int
    stop: int
    seq_id: int
    budget: int
    outcome: str
    check: int
    reason: str
    name: str
    kind: str
    clearance: tuple[str, ...]
    step: int
    parts: tuple[Part, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A block with the very tokens wanted that a reader may not have (checks 3 and 4), where
    nothing could be shared instead. `decision` is an index into `log.decisions`."""

    decision: int
    at: int
    seq_id: int
    reader: str
    segment: int
    index: int
    pool_id: str
    block: int
    check: int
    why: str


class Explainer:
    """Keeps books and shadow of one log and moves them forward; going back starts again."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._steps: list[tuple[int, int]] = []  # (step, tokens computed) up to `_seen`
        self._seen, self._measured = log.first, -1
        self._pace: float | None = None
        self._restart()

    def _restart(self) -> None:
        self.at = self.log.first
        self.books = Ledger.replay(self.log.snapshot, (), self.log.tokens)
        self.shadow = Shadow(self.books)

    def move(self, at: int) -> None:
        """Books and shadow as they were when `at` events had happened."""
        if not self.log.first <= at <= len(self.log):
            raise BadInput(
                f"the log holds the moments {self.log.first} to {len(self.log)}, not {at}"
            )
        if not self.log.first <= self.at <= at:
            self._restart()
        for event in self.log.events[self.at - self.log.first : at - self.log.first]:
            self.books.apply(event)
            self.shadow.follow(self.books, event)
        self.at = at

    def next(self, decided: Decided) -> Explanation:
        """The explanation of this decision; fastest in the order of the log."""
        self.move(decided.at)
        seq = self.books.sequences[decided.seq_id]
        events = tuple(self.log.since(decided.at)[: decided.stop - decided.at])
        parts = tuple(self._part(seq, part, events) for part in self.parts(decided))
        return Explanation(
            **{f.name: getattr(decided, f.name) for f in fields(decided) if f.name != "parts"},
            name=seq.name,
            kind=seq.kind,
            clearance=tuple(sorted(seq.clearance)),
            step=self.books.num_steps + 1,
            parts=parts,
            events=events,
        )

    def parts(self, decided: Decided) -> tuple[Decision, ...]:
        """What was decided for each run of blocks; books must be where the decision was made."""
        return decided.parts or (at_issue(self.books, decided),)

    def sifted(self, seq: Sequence, number: int, index: int) -> Sifted:
        """The candidates for a block of a segment, after each check, at this moment."""
        return sift(self.books, self.shadow, seq, number, index)

    def _part(self, seq: Sequence, part: Decision, events: tuple[Event, ...]) -> Part:
        segment = seq.segments[part.segment]
        size, start = segment.block_size, part.first * segment.block_size
        event = _event_of(part, events)
        end = min(len(segment.tokens), start + part.num_blocks * size)
        blocks: tuple[int, ...] = ()
        if isinstance(event, (Shared, Allocated)):
            end, blocks = event.length, event.blocks
        elif isinstance(event, Copied):
            end, blocks = start + event.num_slots, (event.dst,)
        num_prefill = SIGN.get(part.outcome, 0) * (end - start) * (part.outcome != "copied")
        per_token, pace = self.log.about.get("bytes_per_token"), self.pace()
        num_bytes = None if per_token is None else per_token * size * part.num_blocks
        return Part(
            part.segment,
            *(segment.tier, segment.label, segment.pool_id),
            *(part.first, part.num_blocks, segment.first_position + start, end - start),
            *(part.outcome, part.reason, blocks),
            self._checks(seq, part, events),
            None if num_bytes is None else SIGN.get(part.outcome, 0) * num_bytes,
            num_prefill,
            None if pace is None else num_prefill * pace * 1e3,
        )

    def pace(self) -> float | None:
        """Seconds per token in the step in which the median computed token of this log was."""
        if self._measured != len(self.log.durations):
            for event in self.log.since(self._seen):
                if isinstance(event, Stepped):
                    self._steps.append((event.step, sum(item[1] for item in event.items)))
            self._seen, self._measured = len(self.log), len(self.log.durations)
            self._pace = _median(self.log.durations, self._steps)
        return self._pace

    def _checks(
        self, seq: Sequence, part: Decision, events: tuple[Event, ...]
    ) -> tuple[CheckResult, ...]:
        if part.outcome == "copied":
            own = "it is the holder's own block"
            results = [_result(n, NOT_NEEDED, 0, own) for n in range(1, 7)]
            results[3] = _result(4, YES, 0, f"a {seq.kind} may write here")
            return (*results, _room(part, events))
        sifted = self.sifted(seq, part.segment, part.first)
        last = 2 if part.outcome == "deferred" else 5
        fails = next((n for n in range(1, 6) if not sifted.left[n]), 6)
        fails = min(fails, 2) if part.outcome == "deferred" else fails
        results = [_sifted(n, sifted, n < fails, n <= min(fails, last)) for n in range(1, 6)]
        if part.outcome == "refused":
            results[3] = _result(4, NO, len(sifted.left[4]), part.reason, results[3].dropped)
        gate = (NOT_NEEDED, len(sifted.left[5]), "a prefix is exact") if fails > 5 else (NOT_ASKED,)
        return (*results, _result(6, *gate), _room(part, events))
