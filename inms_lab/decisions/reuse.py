"""Whose KV a sealed text may be mounted from: in the same place, at a shift, or not at all.

A text is attached as the record that it is, or found by its content among the sealed texts of
holders that live. Where it stands in just the same place, ordinary prefix lookup does the rest. In
another place it is a fragment: the position must allow it (check 5), the gate must let it through
and it must be worth it (check 6). All of this is settled once, when the text enters the context,
from the books and from numbers that do not change: so equal scripts give equal logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from inms_lab.books.checks import can_shift, clears, pays, within_gate
from inms_lab.books.events import Commanded
from inms_lab.books.gate import Gate
from inms_lab.books.label import Label, is_shared, join
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import READ_ONLY, Sequence
from inms_lab.decisions.outcome import Gone, Plan
from inms_lab.decisions.policy import PRIVATE, Place, Policy, placed

NO_KV = "nobody has encoded this text for others"
FOREIGN = "of another tenant or model, or beyond the clearance"
SWITCHED_OFF = "encoded at another place, and fragments are switched off"
GONE = "the fragment's KV is gone"
AFRESH = "computed afresh, beside a fragment"


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of reuse at another place before anybody asks. `gate` None: no fragments."""

    gate: Gate | None = None
    unsafe: str = ""  # why this model's KV cannot be used at another position
    bytes_per_token: int = 0
    tile: int = 1

    def about(self) -> dict[str, Any]:
        """As plain data, for the log."""
        return {"gate": self.gate and self.gate.about(), "unsafe": self.unsafe}

    @classmethod
    def of(cls, about: dict[str, Any]) -> Terms:
        """What a log says of itself."""
        gate = about.get("gate")
        size = int(about.get("bytes_per_token", 0)), int(about.get("tile", 1))
        return cls(Gate.of(gate) if gate else None, str(about.get("unsafe", "")), *size)


@dataclass(frozen=True, slots=True)
class Reuse:
    """What became of a text that somebody else has KV of.

    `exact`: it stands where that KV was encoded. `piece` >= 0: a fragment of that segment of the
    holder `source`. Otherwise it is computed, and `why` says so ("": there was nothing to reuse).
    """

    source: int = -1
    piece: int = -1
    exact: bool = False
    why: str = ""


def reuse(
    books: Ledger, terms: Terms, seq: Sequence, tokens: bytes, record: int, sealed: bool
) -> Reuse:
    """What `seq` can have for `tokens` (int32 bytes) at its end: of the record `record`, or, with
    -1 and `sealed`, of whoever has the same text sealed and may share it."""
    if record >= 0:
        holder = books.sequences[record]
        donor = holder.segments[-1] if holder.segments else None
        if not holder.is_live or donor is None or donor.tokens.tobytes() != tokens:
            return Reuse(record, why=NO_KV)
        if stands_at(donor, seq):
            return Reuse(record, exact=True)
        if holder.namespace != seq.namespace or not clears(seq, donor.label):
            return Reuse(record, why=FOREIGN)
        if seq.kind != "agent":
            return Reuse(record)  # what others mount is encoded without approximation
        why = refusal(terms, seq, donor)
        return Reuse(record, -1 if why else len(holder.segments) - 1, why=why)
    if not sealed or terms.gate is None:
        return Reuse()
    told = Reuse()
    for holder, number, donor in found(books, seq, tokens):
        if stands_at(donor, seq):
            return Reuse()  # ordinary lookup finds it
        why = refusal(terms, seq, donor)
        if not why:
            return Reuse(holder.seq_id, number)
        told = Reuse(holder.seq_id, why=why)
    return told


def found(books: Ledger, seq: Sequence, tokens: bytes) -> Iterator[tuple[Sequence, int, Segment]]:
    """The sealed segments with these tokens that `seq` may hold, those of the oldest holder first.
    What it may not hold is not even looked at; nor is private text, its own neither: whether its KV
    is there just now depends on what others do, and results may not. Where there are no labels (and
    with the check switched off, for a lesson) an agent's text counts as soon as it is written."""
    length = len(tokens) // 4
    for holder in books.holders():
        if holder.seq_id == seq.seq_id or holder.namespace != seq.namespace or not holder.is_live:
            continue
        if seq.kind == "record" and holder.kind != "agent":
            continue  # what others mount is encoded without approximation
        for number, segment in enumerate(holder.segments):
            if len(segment.tokens) != length or segment.open or not segment.indexed:
                continue
            if seq.kind == "record" and segment.tier in READ_ONLY:
                continue  # an agent's mount of such a text is no other KV
            there = holder.kind != "agent" or segment.computed == length
            shared = is_shared(segment.label) or "label" in seq.off
            allowed = there and shared and clears(seq, segment.label)
            if allowed and segment.tokens.tobytes() == tokens:
                yield holder, number, segment


def stands_at(donor: Segment, seq: Sequence) -> bool:
    """Whether the end of `seq` is just the place where the donor's KV was encoded."""
    return donor.root == seq.end() and donor.encoded == seq.num_tokens


def refusal(terms: Terms, seq: Sequence, donor: Segment) -> str:
    """Why the donor's KV is no fragment for `seq` (checks 5 and 6); "": it is one."""
    if terms.gate is None:
        return SWITCHED_OFF
    return (
        can_shift(terms.unsafe)
        or within_gate(terms.gate, seq)
        or pays(terms.gate, len(donor.tokens), terms.bytes_per_token)
    )


def place_of(donor: Segment) -> Place:
    """Where a fragment of `donor` lies: where the donor does."""
    return Place(donor.pool_id, donor.tier, frozenset(donor.label), donor.indexed)


def own_place(policy: Policy, seq: Sequence, group_name: str, behind: Label) -> Place:
    """Where the holder's own text goes behind a context of this label."""
    return placed(policy, seq.tenant, PRIVATE, seq.name, group_name, behind)


def detach(books: Ledger, policy: Policy, at: int, gone: Gone) -> Plan:
    """A fragment whose KV is gone becomes text of the holder's own."""
    seq = books.sequences[gone.seq_id]
    before = seq.segments[: gone.segment + 1]
    place = own_place(policy, seq, "", join(*(s.label for s in before)))
    made = command(seq, "detach", place, 0, 0)
    return Plan(at, (replace(made, count=gone.segment, source=before[-1].source, cause=GONE),))


def command(seq: Sequence, verb: str, place: Place, offset: int, length: int) -> Commanded:
    """The next command of a holder, for text at this place."""
    return Commanded(
        seq.seq_id,
        seq.number + 1,
        verb,
        tier=place.tier,
        label=tuple(sorted(place.label)),
        pool_id=place.pool_id,
        offset=offset,
        length=length,
        indexed=place.indexed,
    )
