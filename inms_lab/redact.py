"""Logs that may leave the house: private text is masked, and the books are the same to the event.

What is public is decided by provenance, never by labels (in mode `global` every label is public):
    prompt     token-table ranges that a sealed prompt's holder appended
    released   token-table ranges that a `Released` declassified
Everything else (read, written, generated) is private. A private token becomes a negative number
that stands for its whole context: the contexts of a namespace form a trie, its nodes are numbered
as they first appear, and node n is shown as -(2 + n). So what can be seen is which contexts are
equal, which the block tables show anyway, and nothing of what they say. The events are then folded
again on fresh books, where every key is computed from the masked tokens: the original keys are
digests of private text, and somebody who guesses the text could confirm it.

Not masked: names, labels, lengths, the schedule and how long steps took.
"""

from __future__ import annotations

import builtins
import re
from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace

from inms_lab import errors
from inms_lab.errors import BadInput
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

SOURCES = ("prompt", "released")
NOWHERE = -1  # a masked token that never became part of a context
_TYPE = re.compile(r"([A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?=:|\s*$)")


def redacted(log: Log, keep: Collection[str] = SOURCES) -> Log:
    """A log with the same books in which only text of the sources `keep` can be read."""
    unknown = sorted(set(keep) - set(SOURCES))
    if unknown:
        raise BadInput(f"text comes from {' or '.join(SOURCES)}, not {unknown[0]}")
    if log.snapshot is not None:
        raise BadInput("the log begins with a snapshot of texts whose origin it no longer tells")
    contexts = Contexts(log, public_offsets(log, keep))
    out = _Fold(log, contexts).run()
    out.decisions = list(log.decisions)
    out.durations, out.about, out.piece = dict(log.durations), dict(log.about), log.piece
    out.errors = {seq_id: error_type(told) for seq_id, told in log.errors.items()}
    return out


def public_offsets(log: Log, keep: Collection[str]) -> bytearray:
    """For each token of the table: 1 where its provenance makes it public."""
    public, prompts = bytearray(len(log.tokens)), set()
    for e in log.events:
        if isinstance(e, Registered) and e.kind == "prompt":
            prompts.add(e.seq_id)
        text = isinstance(e, Commanded) and e.seq_id in prompts and e.length
        if ("prompt" in keep and text) or ("released" in keep and isinstance(e, Released)):
            assert isinstance(e, Commanded | Released)
            public[e.offset : e.offset + e.length] = b"\1" * e.length
    return public


def error_type(told: str) -> str:
    """The type of the error that a traceback, or its last line, tells of; "error" if unclear.

    Only types of Python's own and of this package are named: anything else may be text.
    """
    lines = told.splitlines()
    if lines and lines[0].startswith("Traceback "):
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    match = _TYPE.match(lines[0]) if lines else None
    name = match.group(2) if match else ""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    known = isinstance(found, type) and issubclass(found, BaseException)
    return name if known else "error"


class Contexts:
    """The trie of all contexts of a log: which node every token that enters a context is."""

    def __init__(self, log: Log, public: bytearray) -> None:
        self.log, self.public = log, public
        self.nodes: dict[tuple[int, int], int] = {}  # (node before, token) -> node
        self.tokens: list[int] = []  # of each node
        self.shown: set[int] = set()  # nodes whose token is public
        self.roots: dict[bytes, int] = {}  # namespace -> what stands before its first nodes
        self.root_of: dict[int, int] = {}  # by holder
        self.texts: dict[int, list[int]] = {}  # by holder: the nodes of its context
        self.added: dict[int, list[int]] = {}  # by number of the event: the nodes that it adds
        self.released: dict[tuple[int, int, int], list[int]] = {}  # (holder, offset, length)
        for number, event in enumerate(log.events):
            self._follow(number, event)

    def visible(self, nodes: Sequence[int]) -> list[int]:
        """What a reader sees of these tokens."""
        return [self.tokens[n] if n in self.shown else -(2 + n) for n in nodes]

    def _follow(self, number: int, e: Event) -> None:
        if isinstance(e, Registered):
            if "position" in e.off:
                raise BadInput(
                    "this log was made without the check of positions: blocks of unequal contexts "
                    "share a key in it, and masking cannot keep that without telling of the text"
                )
            self.root_of[e.seq_id] = self.roots.setdefault(e.namespace, -1 - len(self.roots))
            self.texts[e.seq_id] = list(self.texts.get(e.parent_id, ()))
        elif isinstance(e, Commanded) and e.verb in ("append", "write"):
            self.added[number] = self._extend(e.seq_id, e.offset, e.length)
            self.released.setdefault((e.seq_id, e.offset, e.length), self.added[number])
        elif isinstance(e, Commanded) and e.verb == "rollback":
            del self.texts[e.seq_id][e.count :]
        elif isinstance(e, Stepped):
            self.added[number], offset = [], e.offset
            for seq_id, _, num_sampled, _ in e.items:
                self.added[number] += self._extend(seq_id, offset, num_sampled)
                offset += num_sampled

    def _extend(self, seq_id: int, offset: int, length: int) -> list[int]:
        """Tokens of the table come behind a holder's context; gives their nodes."""
        text = self.texts[seq_id]
        start, node = len(text), text[-1] if text else self.root_of[seq_id]
        for at in range(offset, offset + length):
            token = self.log.tokens[at]
            node = self.nodes.setdefault((node, token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
            if self.public[at]:
                self.shown.add(node)
            text.append(node)
        return text[start:]


class _Fold:
    """The events once more, on books that only know what is visible."""

    def __init__(self, log: Log, contexts: Contexts) -> None:
        self.log, self.contexts = log, contexts
        self.out = Log(first=log.first)
        self.books = Ledger(self.out.tokens)
        self.places: dict[bytes, int] = {}  # a visible text's offset in the new table

    def run(self) -> Log:
        """The masked log; every event passes the rules again."""
        for number, event in enumerate(self.log.events):
            masked = self._masked(number, event)
            self.books.apply(masked)
            self.out.append(masked)
        return self.out

    def _masked(self, number: int, e: Event) -> Event:
        books = self.books
        if isinstance(e, Commanded):
            offset = self._place(self._visible(number)) if e.verb in ("append", "write") else 0
            cause = error_type(e.cause) if e.verb == "fail" else e.cause
            return replace(e, offset=offset, cause=cause)
        if isinstance(e, Stepped):
            return replace(e, offset=self._place(self._visible(number)))
        if isinstance(e, Released):
            return replace(e, offset=self._place(self._published(e)))
        if isinstance(e, Evicted):
            pool = books.pools[e.pool_id]
            return replace(e, keys=tuple(pool.keys[block] for block in e.blocks))
        if isinstance(e, Allocated | Published):
            segment = books.sequences[e.seq_id].segments[e.segment]
            first = e.first if isinstance(e, Published) else len(segment.blocks)
            keys = tuple(segment.key(first + index) for index in range(len(e.blocks)))
            return replace(e, keys=keys)
        return e

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
