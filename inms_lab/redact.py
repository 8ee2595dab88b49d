"""Logs that may leave the house: private text is masked, and the books are the same to the event.

What is public is decided by provenance, never by labels (in mode `global` every label is public):
    prompt     token-table ranges that a sealed prompt's holder appended
    released   token-table ranges that a `Released` declassified
In a snapshot, which tells no ranges: what holders of prompts, and of released records, have read.
Everything else (read, written, generated) is private. A private token becomes a negative number
that stands for its whole context: the contexts of a namespace form a trie, its nodes are numbered
as they first appear, and node n is shown as -(2 + n). So what can be seen is which contexts are
equal, which the block tables show anyway, and nothing of what they say. The events are then folded
again on fresh books, where every key is computed from the masked tokens: the original keys are
digests of private text, and somebody who guesses the text could confirm it.

Not masked: names, labels, lengths, the schedule and how long steps took.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any

from inms_lab.errors import BadInput, PlanInvalid, error_type
from inms_lab.events import (
    Allocated,
    Commanded,
    Event,
    Evicted,
    Published,
    Registered,
    Released,
    Stepped,
)
from inms_lab.ledger import Ledger
from inms_lab.log import Log
from inms_lab.redact_books import NOWHERE, masked_snapshot

SOURCES = ("prompt", "released")


def redacted(log: Log, keep: Collection[str] = SOURCES) -> Log:
    """A log with the same books in which only text of the sources `keep` can be read."""
    unknown = sorted(set(keep) - set(SOURCES))
    if unknown:
        raise BadInput(f"text comes from {' or '.join(SOURCES)}, not {unknown[0]}")
    snapshot = log.snapshot
    contexts = Contexts(log, keep, snapshot)
    try:
        out = _Fold(log, contexts, snapshot and masked_snapshot(snapshot, contexts)).run()
    except PlanInvalid as error:
        raise BadInput(f"this log cannot be masked, its books would differ: {error}") from error
    out.decisions = list(log.decisions)
    out.durations, out.about, out.piece = dict(log.durations), dict(log.about), log.piece
    out.errors = {seq_id: error_type(told) for seq_id, told in log.errors.items()}
    return out


def public_offsets(log: Log, keep: Collection[str], before: dict[int, Any]) -> bytearray:
    """For each token of the table: 1 where its provenance makes it public. `before`: holders that
    the log begins with."""
    public = bytearray(len(log.tokens))
    prompts = {seq_id for seq_id, seq in before.items() if seq["kind"] == "prompt"}
    for e in log.events:
        if isinstance(e, Registered) and e.kind == "prompt":
            prompts.add(e.seq_id)
        prompt = isinstance(e, Commanded) and "prompt" in keep and e.seq_id in prompts
        if prompt or (isinstance(e, Released) and "released" in keep):
            assert isinstance(e, Commanded | Released)
            public[e.offset : e.offset + e.length] = b"\1" * e.length
    return public


class Contexts:
    """The trie of all contexts of a log: which node every token that enters a context is."""

    def __init__(self, log: Log, keep: Collection[str], snapshot: dict[str, Any] | None) -> None:
        snapshot = snapshot or {"records": {}, "sequences": {}}
        self.log, self.public = log, public_offsets(log, keep, snapshot["sequences"])
        # (node before, token; of a fragment also whose it is) -> node
        self.nodes: dict[tuple[int, ...], int] = {}
        self.tokens: list[int] = []  # of each node
        self.shown: set[int] = set()  # nodes whose token is public
        self.roots: dict[bytes, int] = {}  # namespace -> what stands before its first nodes
        self.root_of: dict[int, int] = {}  # by holder
        self.texts: dict[int, list[int]] = {}  # by holder: the nodes of its context
        self.added: dict[int, list[int]] = {}  # by number of the event: the nodes that it adds
        self.released: dict[tuple[int, int, int], list[int]] = {}  # (holder, offset, length)
        self._begin(snapshot, keep)
        self.before = {seq_id: list(nodes) for seq_id, nodes in self.texts.items()}  # the log
        for number, event in enumerate(log.events):
            self._follow(number, event)

    def visible(self, nodes: list[int]) -> list[int]:
        """What a reader sees of these tokens."""
        return [self.tokens[n] if n in self.shown else -(2 + n) for n in nodes]

    def _begin(self, snapshot: dict[str, Any], keep: Collection[str]) -> None:
        released = {seq_id for records in snapshot["records"].values() for seq_id in records}
        for seq_id, seq in snapshot["sequences"].items():
            self._enter(seq_id, seq["namespace"], seq["off"], -1)
            prompt = seq["kind"] == "prompt" and "prompt" in keep
            record = seq["kind"] == "record" and "released" in keep and seq_id in released
            for segment in seq["segments"]:
                whose = (segment["source"],) if segment.get("is_fragment") else ()
                self._extend(seq_id, segment["tokens"], repeat(prompt or record), whose)

    def _enter(self, seq_id: int, namespace: bytes, off: Collection[str], parent_id: int) -> None:
        if "position" in off:
            raise BadInput(
                "this log was made without the check of positions: blocks of unequal contexts "
                "share a key in it, and masking cannot keep that without telling of the text"
            )
        self.root_of[seq_id] = self.roots.setdefault(namespace, -1 - len(self.roots))
        self.texts[seq_id] = list(self.texts.get(parent_id, ()))

    def _follow(self, number: int, e: Event) -> None:
        if isinstance(e, Registered):
            self._enter(e.seq_id, e.namespace, e.off, e.parent_id)
        elif isinstance(e, Commanded) and e.verb in ("append", "write"):
            whose = (e.source,) if e.piece >= 0 else ()
            self.added[number] = self._read(e.seq_id, e.offset, e.length, whose)
            self.released.setdefault((e.seq_id, e.offset, e.length), self.added[number])
        elif isinstance(e, Commanded) and e.verb == "rollback":
            del self.texts[e.seq_id][e.count :]
        elif isinstance(e, Stepped):
            self.added[number], offset = [], e.offset
            for seq_id, _, num_sampled, _ in e.items:
                self.added[number] += self._read(seq_id, offset, num_sampled)
                offset += num_sampled

    def _read(
        self, seq_id: int, offset: int, length: int, whose: tuple[int, ...] = ()
    ) -> list[int]:
        """Tokens of the table come behind a holder's context; gives their nodes."""
        place = slice(offset, offset + length)
        return self._extend(seq_id, self.log.tokens[place], self.public[place], whose)

    def _extend(
        self, seq_id: int, tokens: Iterable[int], public: Iterable[int], whose: tuple[int, ...]
    ) -> list[int]:
        text = self.texts[seq_id]
        start, node = len(text), text[-1] if text else self.root_of[seq_id]
        for token, is_public in zip(tokens, public):  # noqa: B905  (what is public may be endless)
            node = self.nodes.setdefault((node, token, *whose), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
            if is_public:
                self.shown.add(node)
            text.append(node)
        return text[start:]


class _Fold:
    """The events once more, on books that only know what is visible."""

    def __init__(self, log: Log, contexts: Contexts, snapshot: dict[str, Any] | None) -> None:
        self.log, self.contexts = log, contexts
        self.out = Log(snapshot, first=log.first)
        self.books = Ledger.replay(snapshot, (), self.out.tokens)
        self.places: dict[bytes, int] = {}  # a visible text's offset in the new table

    def run(self) -> Log:
        """The masked log; every event passes the rules again."""
        for number, event in enumerate(self.log.events):
            masked = self._masked(number, event)
            self.books.apply(masked)
            self.out.append(masked)
        return self.out

    def _masked(self, number: int, e: Event) -> Event:
        if isinstance(e, Commanded):
            offset = self._place(self._text(number, e)) if e.verb in ("append", "write") else 0
            cause = error_type(e.cause) if e.verb == "fail" else e.cause
            return replace(e, offset=offset, cause=cause)
        if isinstance(e, Stepped):
            return replace(e, offset=self._place(self._visible(number)))
        if isinstance(e, Released):
            return replace(e, offset=self._place(self._published(e)))
        if isinstance(e, Evicted):
            pool = self.books.pools[e.pool_id]
            return replace(e, keys=tuple(pool.keys[block] for block in e.blocks))
        if isinstance(e, Allocated | Published):
            segment = self.books.sequences[e.seq_id].segments[e.segment]
            first = e.first if isinstance(e, Published) else len(segment.blocks)
            keys = tuple(segment.key(first + index) for index in range(len(e.blocks)))
            return replace(e, keys=keys)
        return e

    def _text(self, number: int, e: Commanded) -> list[int]:
        """What is seen of a text; of a fragment what is seen of it where it was encoded."""
        if e.piece < 0:
            return self._visible(number)
        donor = self.books.sequences[e.source].segments[e.piece]
        start = e.encoded - donor.encoded
        return donor.tokens[start : start + e.length].tolist()

    def _visible(self, number: int) -> list[int]:
        return self.contexts.visible(self.contexts.added[number])

    def _published(self, e: Released) -> list[int]:
        """A record's text: public, or what is seen of it where its holder read it."""
        place = slice(e.offset, e.offset + e.length)
        if all(self.contexts.public[place]):
            return self.log.tokens[place].tolist()
        nodes = self.contexts.released.get((e.seq_id, e.offset, e.length))
        return self.contexts.visible(nodes) if nodes else [NOWHERE] * e.length

    def _place(self, visible: list[int]) -> int:
        """The offset of these tokens in the new table."""
        text = array("i", visible)
        place = self.places.setdefault(text.tobytes(), len(self.out.tokens))
        if place == len(self.out.tokens):
            self.out.tokens.extend(text)
        return place
