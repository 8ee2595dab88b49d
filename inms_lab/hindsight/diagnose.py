"""Why did it go wrong? The four classic complaints, each with its cause and its first event.

A fold over a log: nothing is asked of an engine, and nothing depends on time but steps. What is
ordinary is not accused: growth of those who work, a pool that is full of what is needed, forks that
are closed, a fragment within the gate. `no_room.py` judges a lack of room, `growth.py` what stays.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

from inms_lab.books.checks import can_shift
from inms_lab.books.events import Event, Published, Shared
from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.books.label import may_hold
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.reuse import Terms
from inms_lab.hindsight.findings import QUALITY, Diagnosis, Finding
from inms_lab.hindsight.growth import IDLE, Activity, growth
from inms_lab.hindsight.no_room import NoRooms
from inms_lab.logs import audit
from inms_lab.logs.log import Log

BALANCE = "the books do not balance"
ADVICE = {
    "gate": "leave the gate on, or measure this model first (`inms-lab calibrate`)",
    "loose": "use the default gate, or attach with `recompute=` what deviates most",
    "shift": "leave fragments off for this model (`gate=None`)",
    "check": "leave the check on: `without({0!r})` is for lessons only",
}


def diagnose(log: Log, books: Ledger | None = None, idle_after: int | None = None) -> Diagnosis:
    """The causes that a log shows. `books`: those of the lab, audited too; `idle_after`: steps
    without work, then a holder is idle (None: the lab's `suspect_after`, else 64)."""
    after = idle_after or log.about.get("suspect_after") or IDLE
    now = Ledger.replay(log.snapshot, (), log.tokens)
    activity, rooms, quality = Activity(now, log.first), NoRooms(log), _Quality(log)
    for index, event in enumerate(log.events, log.first):
        quality.before(now, index, event)
        rooms.before(now, activity, index, event)
        now.reduce(event)
        activity.saw(now, index, event)
        rooms.saw(now, index, event)
    found = [*quality.findings.values(), *rooms.findings.values(), *growth(now, activity, after)]
    faults = [] if books is None else audit.faults(books)
    looked = {
        "events": len(log.events),
        "steps": now.num_steps,
        **quality.counts,
        "blocks copied on write": rooms.num_copied,
        "holders that failed for want of room": rooms.num_failed,
        "live holders": len(now.live),
        "blocks held": sum(pool.num_held for pool in now.pools.values()),
    }
    if faults:
        told = "; ".join(map(str, faults[:3]))
        advice = "`lab.check()` tells the history of the block; make a new lab"
        what = "found now"
        found.insert(0, Finding(BALANCE, "bookkeeping", len(log), what, told, advice))
    return Diagnosis(tuple(found), looked)


class _Quality:
    """KV that was used where it does not belong: the first event for each cause."""

    def __init__(self, log: Log) -> None:
        self.findings: dict[str, Finding] = {}
        names = ("hits in place", "fragments shared at a shift or behind other text")
        self.counts = Counter(dict.fromkeys(names, 0))
        self.terms = Terms.of(log.about)
        self.excess = _excess(self.terms.gate)
        self._contexts: dict[tuple[str, int], bytes] = {}  # of published blocks, in lessons

    def before(self, books: Ledger, index: int, event: Event) -> None:
        """An event is about to happen."""
        if isinstance(event, Published):
            seq = books.sequences[event.seq_id]
            if "position" in seq.off:
                for number, block in enumerate(event.blocks, event.first):
                    context = _context(seq, event.segment, number)
                    self._contexts[event.pool_id, block] = context
        if not isinstance(event, Shared) or event.cause == "fork":
            return
        seq = books.sequences[event.seq_id]
        segment = seq.segments[event.segment]
        self.counts[list(self.counts)[segment.is_fragment]] += 1
        for cause, because, advice, block in self._wrong(books, seq, segment, event):
            what = f"{seq.name} was given block {block} of {event.pool_id}"
            if segment.is_fragment:
                what += f" at a shift of {segment.shift:+d}"
            place = (event.pool_id, block)
            made = Finding(QUALITY, cause, index, what, because, advice, (seq.name,), place)
            self.findings.setdefault(cause, made)

    def _wrong(
        self, books: Ledger, seq: Sequence, segment: Segment, event: Shared
    ) -> Iterator[tuple[str, str, str, int]]:
        """(cause, because, advice, block) of each fault of this event."""
        first = event.blocks[0]
        if segment.is_fragment:
            if why := can_shift(self.terms.unsafe):
                yield "a model whose keys cannot be shifted", why, ADVICE["shift"], first
            elif self.excess:
                cause, advice = self._gate(seq)
                yield cause, f"by the default gate it would not pass ({self.excess})", advice, first
        pool, size = books.pools[event.pool_id], segment.block_size
        for number, block in enumerate(event.blocks, len(segment.blocks)):
            said = f"block {block} of {event.pool_id}"
            if block not in pool.keys:
                why = f"{said} was being written, and read as if it had its KV"
                yield "the written check is off", why, ADVICE["check"].format("pending"), block
            elif pool.tokens[block] != segment.block_tokens(number):
                why = f"{said} has the KV of other tokens: two texts have one fingerprint"
                yield "the token check is off", why, ADVICE["check"].format("tokens"), block
            elif not may_hold(pool.labels[block], seq.clearance):
                why = f"{said} was encoded behind text of {', '.join(pool.labels[block])}"
                yield "the label check is off", why, ADVICE["check"].format("label"), block
            elif self._is_elsewhere(seq, event, number, block) and not segment.is_fragment:
                at = segment.first_position + number * size
                why = f"{said} was encoded behind another text than what stands before token {at}"
                yield "the position check is off", why, ADVICE["check"].format("position"), block

    def _gate(self, seq: Sequence) -> tuple[str, str]:
        gate = self.terms.gate
        if "gate" in seq.off:
            return "the gate is off", ADVICE["check"].format("gate")
        if gate is not None and gate.max_kl is None and gate.min_agreement is None:
            return "a gate without bounds", ADVICE["gate"]
        return "a gate with loose bounds", ADVICE["loose"]

    def _is_elsewhere(self, seq: Sequence, event: Shared, number: int, block: int) -> bool:
        """Whether a block was written behind another text (where keys do not say so)."""
        known = self._contexts.get((event.pool_id, block))
        return known is not None and known != _context(seq, event.segment, number)


def _excess(gate: Gate | None) -> str:
    """Why the default bounds would let no fragment of this model pass; "": they would."""
    return "" if gate is None else replace(DEFAULT, calibration=gate.calibration).excess()


def _context(seq: Sequence, segment: int, number: int) -> bytes:
    """A digest of everything up to the end of block `number` of a segment."""
    tokens = array("i")
    for before in seq.segments[:segment]:
        tokens.extend(before.tokens)
    here = seq.segments[segment]
    tokens.extend(here.tokens[: (number + 1) * here.block_size])
    return blake2b(tokens.tobytes(), digest_size=16).digest()
