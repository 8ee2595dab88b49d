"""Logs that may leave the house: private text is masked, and the books are the same to the event.

What is public is decided by provenance, never by labels (in mode `global` every label is public):
    prompt     token-table ranges that a sealed prompt's holder appended
    released   token-table ranges that a `Released` declassified
In a snapshot, which tells no ranges: what holders of prompts, and of released records, have read.
Everything else (read, written, generated) is private. A private token becomes a negative number
that stands for its whole context: the contexts of a namespace form a trie, its nodes are numbered
as they first appear, and node n is shown as -(2 + n). So nothing can be seen of what they say.

Where text is placed under the label of a single agent (all private text in the modes `inms` and
`independent`), a node is also of that principal and of one provenance: equal private texts of two
principals have different masks, and words that were released are masked all the same where
somebody read them privately. Two nodes are seen as one only where the books give their blocks one
key, or copy one's block for the other: the block tables show that these are equal. In mode
`global` they show it of whatever is equal, and equal contexts have equal masks.

The events are then folded again on fresh books, where every key is computed from the masked
tokens: the original keys are digests of private text, and who guesses the text could confirm it.

Not masked: names, labels, lengths, the schedule and how long steps took.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any

from inms_lab.books.events import (
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.label import is_shared
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.errors import BadInput, PlanInvalid, error_type
from inms_lab.logs.log import Log
from inms_lab.logs.redact_books import NOWHERE, Trie, masked_snapshot, public_offsets

SOURCES = ("prompt", "released")


def redacted(log: Log, keep: Collection[str] = SOURCES) -> Log:
    """A log with the same books in which only text of the sources `keep` can be read."""
    unknown = sorted(set(keep) - set(SOURCES))
    if unknown:
        raise BadInput(f"text comes from {' or '.join(SOURCES)}, not {unknown[0]}")
    snapshot = log.snapshot
    try:
        contexts = Contexts(log, keep, snapshot)
        out = _Fold(log, contexts, snapshot and masked_snapshot(snapshot, contexts)).run()
    except PlanInvalid as error:
        raise BadInput(f"this log cannot be masked, its books would differ: {error}") from error
    out.decisions = list(log.decisions)
    out.durations, out.about, out.piece = dict(log.durations), dict(log.about), log.piece
    out.errors = {seq_id: error_type(told) for seq_id, told in log.errors.items()}
    return out


class Contexts:
    """The trie of all contexts of a log: which node every token that enters a context is."""

    def __init__(self, log: Log, keep: Collection[str], snapshot: dict[str, Any] | None) -> None:
        self.log, self.books = log, Ledger.replay(snapshot, (), log.tokens)
        snapshot = snapshot or {"records": {}, "sequences": {}}
        self.public = public_offsets(log, keep, snapshot["sequences"])
        self.trie = Trie()
        self.ends: dict[bytes, int] = {}  # key of a block -> the node of its last token
        self.roots: dict[bytes, int] = {}  # namespace -> what stands before its first nodes
        self.texts: dict[int, list[int]] = {}  # by holder: the nodes of its context
        self.added: dict[int, list[int]] = {}  # by number of the event: the nodes that it adds
        self.released: dict[tuple[int, int, int], list[int]] = {}  # (holder, offset, length)
        self._begin(snapshot, keep)
        self.before = {seq_id: list(nodes) for seq_id, nodes in self.texts.items()}  # the log
        for number, event in enumerate(log.events):
            self.books.apply(event)
            self._follow(number, event)

    def _begin(self, snapshot: dict[str, Any], keep: Collection[str]) -> None:
        released = {seq_id for records in snapshot["records"].values() for seq_id in records}
        for seq_id, seq in self.books.sequences.items():
            self._enter(seq_id, seq.off, -1)
            prompt = seq.kind == "prompt" and "prompt" in keep
            record = seq.kind == "record" and "released" in keep and seq_id in released
            for segment in seq.segments:
                whose = (segment.source,) if segment.is_fragment else ()
                public = repeat(prompt or record)
                self._extend(seq_id, segment.tokens, public, segment.label, whose)
            for segment in seq.segments:
                count = -(-len(segment.tokens) // segment.block_size)
                self._known(seq_id, segment, 0, [segment.key(index) for index in range(count)])

    def _enter(self, seq_id: int, off: Collection[str], parent_id: int) -> None:
        if "position" in off:
            raise BadInput(
                "this log was made without the check of positions: blocks of unequal contexts "
                "share a key in it, and masking cannot keep that without telling of the text"
            )
        self.texts[seq_id] = list(self.texts.get(parent_id, ()))

    def _follow(self, number: int, e: Event) -> None:
        if isinstance(e, Registered):
            self._enter(e.seq_id, e.off, e.parent_id)
        elif isinstance(e, Commanded) and e.verb in ("append", "write"):
            whose = (e.source,) if e.piece >= 0 else ()
            self.added[number] = self._read(e.seq_id, e.offset, e.length, e.label, whose)
            self.released.setdefault((e.seq_id, e.offset, e.length), self.added[number])
        elif isinstance(e, Commanded) and e.verb == "rollback":
            del self.texts[e.seq_id][e.count :]
        elif isinstance(e, Stepped):
            self.added[number], offset = [], e.offset
            for seq_id, _, num_sampled, _ in e.items:
                if num_sampled:
                    label = self.books.sequences[seq_id].segments[-1].label
                    self.added[number] += self._read(seq_id, offset, num_sampled, label)
                    offset += num_sampled
        elif isinstance(e, Allocated | Published | Shared):
            segment = self.books.sequences[e.seq_id].segments[e.segment]
            first = e.first if isinstance(e, Published) else len(segment.blocks) - len(e.blocks)
            if not isinstance(e, Shared):
                self._known(e.seq_id, segment, first, e.keys)
            elif e.cause != "fork":  # which has its parent's nodes
                keys = self.books.pools[e.pool_id].keys
                self._known(e.seq_id, segment, first, [keys.get(b, b"") for b in e.blocks])
        elif isinstance(e, Copied):
            self._copied(e)

    def _known(self, seq_id: int, segment: Segment, first: int, keys: Iterable[bytes]) -> None:
        """Blocks of a holder, from number `first` of a segment on, have these keys."""
        for index, key in enumerate(keys, first):
            if key and not segment.is_fragment:  # that one has its key from elsewhere
                stop = min((index + 1) * segment.block_size, len(segment.tokens))
                node = self.texts[seq_id][segment.first_position + stop - 1]
                self.trie.unite(node, self.ends.setdefault(key, node))

    def _copied(self, e: Copied) -> None:
        """A segment that begins with a part of another pool's block says what that block says."""
        segment = self.books.sequences[e.seq_id].segments[e.segment]
        source = self.books.pools[e.src_pool]
        node = self.ends.get(source.keys.get(e.src, b""), -1)
        if e.src_pool != e.pool_id and node >= 0:
            for _ in range(len(source.tokens[e.src]) // 4 - e.num_slots):
                node = self.trie.behind[node]
            here = segment.first_position + e.num_slots - 1
            self.trie.unite(node, self.texts[e.seq_id][here])

    def _read(self, seq_id: int, offset: int, length: int, *where: Any) -> list[int]:
        """Tokens of the table come behind a holder's context; gives their nodes."""
        place = slice(offset, offset + length)
        return self._extend(seq_id, self.log.tokens[place], self.public[place], *where)

    def _extend(
        self,
        seq_id: int,
        tokens: Iterable[int],
        public: Iterable[int],
        label: Collection[str],
        whose: tuple[int, ...] = (),
    ) -> list[int]:
        seq, text = self.books.sequences[seq_id], self.texts[seq_id]
        root = self.roots.setdefault(seq.namespace, -1 - len(self.roots))
        start, node = len(text), text[-1] if text else root
        own = not is_shared(label)
        for token, is_public in zip(tokens, public):  # noqa: B905  (what is public may be endless)
            mine = (*whose, seq.name, bool(is_public)) if own else whose
            node = self.trie.node(node, token, mine)
            if is_public:
                self.trie.show(node)
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
        return self.contexts.trie.visible(self.contexts.added[number])

    def _published(self, e: Released) -> list[int]:
        """A record's text: public, or what is seen of it where its holder read it."""
        place = slice(e.offset, e.offset + e.length)
        if all(self.contexts.public[place]):
            return self.log.tokens[place].tolist()
        nodes = self.contexts.released.get((e.seq_id, e.offset, e.length))
        return self.contexts.trie.visible(nodes) if nodes else [NOWHERE] * e.length

    def _place(self, visible: list[int]) -> int:
        """The offset of these tokens in the new table."""
        text = array("i", visible)
        place = self.places.setdefault(text.tobytes(), len(self.out.tokens))
        if place == len(self.out.tokens):
            self.out.tokens.extend(text)
        return place
