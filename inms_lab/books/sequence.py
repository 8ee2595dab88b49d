"""A holder and its block table: an agent's context, a sealed prompt or a published record."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

from inms_lab.books import lifecycle
from inms_lab.books.events import Commanded, Registered
from inms_lab.books.fingerprint import block_key, label_bytes
from inms_lab.books.label import Label
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment

READ_ONLY = ("global", "group")  # tiers that only a prompt's or a record's holder writes


class Sequence:
    """A holder with a table: an agent's context, a sealed prompt or a published record."""

    def __init__(self, event: Registered) -> None:
        self.seq_id = event.seq_id
        self.kind = event.kind
        self.name = event.name
        self.tenant = event.tenant
        self.clearance: Label = frozenset(event.clearance)
        self.namespace = event.namespace
        self.parent_id = event.parent_id
        self.off = frozenset(event.off)
        self.segments: list[Segment] = []
        self.state = lifecycle.REGISTERED
        self.number = 0  # of the last command
        self.to_generate = 0
        self.wants_logits = False
        self.wanted = 0  # tokens whose KV somebody asked for; a generated last token can wait

    def overlay(self) -> Sequence:
        """A copy whose changes do not reach this one."""
        over = object.__new__(Sequence)
        over.__dict__.update(self.__dict__)
        over.segments = [segment.copy() for segment in self.segments]
        return over

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return sum(len(segment.tokens) for segment in self.segments)

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is written."""
        return sum(segment.computed for segment in self.segments)

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in lifecycle.LIVE

    @property
    def is_asked(self) -> bool:
        """Whether a token or logits are asked for."""
        return self.is_live and (self.to_generate > 0 or self.wants_logits)

    @property
    def has_work(self) -> bool:
        """Whether a step could do something for it."""
        return self.is_asked or (self.is_live and self.num_computed < self.wanted)

    def label(self) -> Label:
        """The join of everything in its context."""
        return frozenset().union(*(segment.label for segment in self.segments))

    def end(self) -> bytes:
        """Digest of the whole context: the parent of whatever segment comes next."""
        return self.segments[-1].end() if self.segments else self.namespace

    def append(
        self, event: Commanded, tokens: array[int], block_size: int, donor: Segment | None = None
    ) -> None:
        """Put `tokens` at the end: into the open last segment if it is of the same kind; sealed
        text is always a segment of its own. `donor`: the segment whose KV a fragment has."""
        last = self.segments[-1] if self.segments else None
        where = (event.pool_id, event.tier, event.label, event.indexed)
        own = event.fresh or event.seal
        if last is None or own or not last.open or where != last.where:
            if last is not None:
                last.open = False
            last = self._segment(event, self.end(), self.num_tokens, block_size)
            if donor is not None:
                last.take_from(donor, event.encoded)
            self.segments.append(last)
        last.tokens.extend(tokens)
        last.open = not event.seal
        self.wanted = self.num_tokens if tokens else self.wanted

    def _segment(self, event: Commanded, behind: bytes, first: int, block_size: int) -> Segment:
        label = event.label if "label" not in self.off else ()
        return Segment(
            pool_id=event.pool_id,
            tier=event.tier,
            label=event.label,
            block_size=block_size,
            first_position=first,
            behind=behind,
            encoded=first,
            root=behind,
            key_label=label_bytes(label),
            open=True,
            indexed=event.indexed,
            chained="position" not in self.off,
            source=event.source,
            why=event.cause,
        )

    def detach(self, event: Commanded, block_size: int) -> None:
        """What is not mounted of a fragment becomes a segment of this holder's own, and whatever
        stands behind it will be computed behind that."""
        old = self.segments[event.count]
        at = old.computed
        first = old.first_position + at
        own = self._segment(event, old.behind, first, block_size)
        own.open, own.source = False, old.source
        own.tokens.extend(old.tokens[at:])
        old.truncate(at)
        self.segments[event.count : event.count + 1] = [old, own] if at else [own]
        for before, segment in pairwise(self.segments[event.count - (event.count > 0) :]):
            segment.move_behind(before.end())

    def rollback(self, count: int) -> list[tuple[str, int]]:
        """Keep the first `count` tokens; gives the (pool, block) that the cut goes through.

        The owner may go on writing where its own text now ends.
        """
        through = []
        for segment in self.segments:
            keep = max(0, min(len(segment.tokens), count - segment.first_position))
            if keep == len(segment.tokens):
                continue
            segment.truncate(keep)
            segment.open = segment.tier not in READ_ONLY and not segment.is_fragment
            index = keep // segment.block_size
            if keep % segment.block_size and index < len(segment.blocks):
                through.append((segment.pool_id, segment.blocks[index]))
        self.to_generate = 0  # nothing is to come behind the cut
        self.trim()
        self.wanted = min(self.wanted, count)
        return through

    def begun(self) -> list[tuple[str, int]]:
        """The (pool, block) that is partly written, of each segment that has one."""
        parts = [(part, divmod(part.computed, part.block_size)) for part in self.segments]
        return [(part.pool_id, part.blocks[index]) for part, (index, rest) in parts if rest]

    def begins_as(self, number: int, pool: Pool, block: int) -> bool:
        """Whether a published block stands behind exactly what segment `number` stands behind."""
        segment, tokens = self.segments[number], array("i", pool.tokens[block])
        label = label_bytes(() if "label" in self.off else pool.labels[block])
        parents = [segment.root]
        if number:  # what was cut at the end of one of its blocks
            before = self.segments[number - 1]
            count, rest = divmod(len(before.tokens), before.block_size)
            if count and not rest and not before.is_fragment:
                parents.append(before.chain(count - 1))
        at = segment.first_position
        known = any(block_key(p, label, at, tokens) == pool.keys[block] for p in parents)
        return known or "position" in self.off

    def take_text(self, parent: Sequence) -> None:
        """A fork knows its parent's tokens; the blocks are mounted by `Shared`."""
        self.segments = [segment.copy() for segment in parent.segments]
        self.wanted = parent.wanted
        for segment in self.segments:
            segment.blocks, segment.length, segment.computed = [], 0, 0
        self.move()

    def wrote(self, count: int) -> None:
        """The next `count` slots have their KV."""
        for segment in self.segments:
            step = min(count, segment.room)
            segment.computed += step
            segment.length = max(segment.length, segment.computed)
            count -= step

    def tokens(self) -> array[int]:
        """All token ids, in order."""
        out = array("i")
        for segment in self.segments:
            out.extend(segment.tokens)
        return out

    def trim(self) -> None:
        """Drop last segments that have neither tokens nor blocks, unless text is to come."""
        while self.segments and not self.to_generate:
            if self.segments[-1].tokens or self.segments[-1].blocks:
                break
            self.segments.pop()

    def move(self, state: str | None = None) -> None:
        """Go to `state`, or to the live state that the counts give."""
        if state is None:
            if not self.is_live:
                return
            count = computed = 0
            for segment in self.segments:
                count, computed = count + len(segment.tokens), computed + segment.computed
            state = lifecycle.state_of(count, computed, self.wanted, self.to_generate)
        lifecycle.check_move(self.state, state)
        self.state = state

    def snapshot(self) -> dict[str, Any]:
        """All of it as plain data; two holders are equal exactly if these are."""
        plain = {k: v for k, v in self.__dict__.items() if k != "segments"}
        names = [n for n in Segment.__slots__ if n != "keys"]
        copies = [segment.copy() for segment in self.segments]
        return {**plain, "segments": [{n: getattr(s, n) for n in names} for s in copies]}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Sequence:
        """The holder with this `snapshot()`."""
        sequence = object.__new__(cls)
        sequence.__dict__.update({k: v for k, v in state.items() if k != "segments"})
        sequence.segments = [Segment.of(s) for s in state["segments"]]
        return sequence
