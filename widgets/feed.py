"""A log cut into messages for a reader who has part of it already. Not here: who sends them when.

A message says where it begins in each of the log's tables (events, strings, tokens, pieces of text,
decisions), so a reader notices a gap and can ask again from what it has.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

from inms_lab.books.ledger import Ledger
from inms_lab.decisions.outcome import Decided
from inms_lab.logs.log import Log

from .wire import Encoder

MOST_EVENTS = 4096  # in one message
MOST_DECISIONS = 1024
MOST_IN_PAGE = 1_500_000  # events that a browser is given: the newest; the rest is a keyframe


@dataclass(slots=True)
class Position:
    """How much of each table a reader has (numbers of entries; `events` is a log index)."""

    events: int = 0
    strings: int = 0
    tokens: int = 0
    pieces: int = 0
    decisions: int = 0
    errors: int = 0
    started: bool = False  # it has the beginning: the log's birth, or a keyframe


@dataclass(slots=True)
class Message:
    """Plain data and the binary parts beside it: events, tokens, and a keyframe or nothing."""

    content: dict[str, Any]
    buffers: list[bytes] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes of the binary parts."""
        return sum(map(len, self.buffers))

    def packed(self) -> bytes:
        """All in one: the length of the JSON (uint32, little-endian), the JSON, the buffers."""
        sizes = {"sizes": [len(part) for part in self.buffers]}
        head = json.dumps(self.content | sizes, ensure_ascii=False, separators=(",", ":")).encode()
        return b"".join((len(head).to_bytes(4, "little"), head, *self.buffers))


class Feed:
    """The messages of one log."""

    def __init__(self, log: Log, most: int = MOST_IN_PAGE) -> None:
        self.log, self.most = log, most
        self.encoder = Encoder()
        self.pieces: list[tuple[int, bytes]] = []  # in order of first appearance
        self._known: set[int] = set()

    def is_behind(self, at: Position) -> bool:
        """Whether there is something that a reader at `at` does not have."""
        log = self.log
        if at.decisions < log.first_decision + len(log.decisions):
            return True
        return at.events < len(log) or at.errors < len(log.errors)

    def next(self, at: Position, most: int | None = MOST_EVENTS) -> Message:
        """The next message for a reader at `at`, which moves on to what it has then."""
        log = self.log
        keyframe = array("i")
        while True:  # what is forgotten meanwhile makes us begin again
            if not at.started or at.events < log.first:
                at.events, books = self._beginning()
                at.started = True
                keyframe = self.encoder.keyframe(books) if books else keyframe
            first, events = log.stretch(at.events, most)
            if first == at.events:
                break
        words = self.encoder.encode(events)
        tokens = log.tokens[at.tokens :]
        self._scan(tokens)
        decisions = log.decisions_since(at.decisions, None if most is None else MOST_DECISIONS)
        content: dict[str, Any] = {
            "kind": "log",
            "from": first,
            "hasKeyframe": bool(keyframe),
            "strings": self.encoder.strings[at.strings :],
            "stringsFrom": at.strings,
            "tokensFrom": at.tokens,
            "pieces": [(i, b64encode(piece).decode()) for i, piece in self.pieces[at.pieces :]],
            "decisions": [row(number, decided) for number, decided in decisions],
        }
        if not at.strings or keyframe:
            content["about"] = log.about
        if at.errors < len(log.errors):
            content["errors"] = dict(log.errors)
        at.events = first + len(events)
        at.strings, at.pieces = len(self.encoder.strings), len(self.pieces)
        at.tokens += len(tokens)
        at.decisions = decisions[-1][0] + 1 if decisions else at.decisions
        at.errors = len(log.errors)
        return Message(content, [words.tobytes(), tokens.tobytes(), keyframe.tobytes()])

    def _beginning(self) -> tuple[int, Ledger | None]:
        """Where a page begins, and the books there."""
        log, first = self.log, len(self.log) - self.most
        return (first, log.replay(first)) if first > log.first else log.beginning()

    def _scan(self, tokens: array[int]) -> None:
        piece = self.log.piece
        if piece is None:
            return
        for token in set(tokens) - self._known:
            if token >= 0:
                self.pieces.append((token, piece(token)))
        self._known.update(tokens)


def row(number: int, decided: Decided) -> dict[str, Any]:
    """A decision as the browser keeps it."""
    parts = [(p.segment, p.first, p.num_blocks, p.outcome, p.reason) for p in decided.parts]
    return {
        "number": number,
        "at": decided.at,
        "stop": decided.stop,
        "seq": decided.seq_id,
        "budget": decided.budget,
        "outcome": decided.outcome,
        "check": decided.check,
        "reason": decided.reason,
        "parts": parts,
    }
