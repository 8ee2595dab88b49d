"""Events as int32 words: what travels to a browser and lies in an exported page. Pure.

One record per event: its type (the place in `EVENT_TYPES`), then its fields. Strings and labels are
numbers in a string table that only grows; a label is its principals, one a line. A key is 16 bytes,
so four words. Records of the types from `POOL` on make up a keyframe: the books at one moment.
`js/wire.js` is the reader; whoever changes one changes the other and the golden vectors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from inms_lab.books.events import (
    EVENT_TYPES,
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence

TYPE = {kind: number for number, kind in enumerate(EVENT_TYPES)}
POOL, HOLDER, SEGMENT, BOOKS = range(len(EVENT_TYPES), len(EVENT_TYPES) + 4)
VERSION = 1
NO_KEY = (0, 0, 0, 0)


class Encoder:
    """Turns events into words; `strings` is the table so far, and a reader gets it from its end."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self._numbers: dict[str, int] = {}

    def string(self, text: str) -> int:
        """The number of `text` in the table."""
        if text not in self._numbers:
            self._numbers[text] = len(self.strings)
            self.strings.append(text)
        return self._numbers[text]

    def label(self, principals: Iterable[str]) -> int:
        """The number of a label."""
        return self.string("\n".join(sorted(principals)))

    def encode(self, events: Iterable[Event]) -> array[int]:
        """The words of these events, one record after the other."""
        words = array("i")
        for event in events:
            words.append(TYPE[type(event)])
            words.extend(_WRITE[type(event)](self, event))
        return words

    def keyframe(self, books: Ledger) -> array[int]:
        """The words of the books as they are: pools, holders with their segments, the rest."""
        words = array("i")
        for pool in books.pools.values():
            words.append(TYPE[PoolOpened])
            words.extend(_pool_opened(self, pool.spec))
            words.append(POOL)
            words.extend(self._pool(pool))
        for seq in books.sequences.values():
            words.append(HOLDER)
            words.extend(self._holder(seq))
            for segment in seq.segments:
                words.append(SEGMENT)
                words.extend(self._segment(seq.seq_id, segment))
        words.extend((BOOKS, books.num_steps, len(books.records)))
        for group, records in books.records.items():
            words.extend((self.string(group), len(records), *records))
        return words

    def _pool(self, pool: Pool) -> Iterable[int]:
        blocks = sorted({*pool.refs, *pool.cached})
        yield from (self.string(pool.spec.pool_id), len(blocks))
        for block in blocks:
            flags = (block in pool.keys) | (block in pool.promised) << 1
            yield from (block, pool.refs.get(block, 0), self.label(pool.labels[block]), flags)
            yield from _key(pool.keys.get(block, b""))

    def _holder(self, seq: Sequence) -> Iterable[int]:
        s = self.string
        yield from (seq.seq_id, s(seq.kind), s(seq.name), s(seq.tenant), self.label(seq.clearance))
        yield from (s(seq.namespace.hex()), seq.parent_id, self.label(seq.off), s(seq.state))
        yield from (seq.number, seq.to_generate, seq.wants_logits, seq.wanted)

    def _segment(self, seq_id: int, segment: Segment) -> Iterable[int]:
        s, flags = self.string, segment.open | segment.indexed << 1 | segment.is_fragment << 2
        yield from (seq_id, s(segment.pool_id), s(segment.tier), self.label(segment.label))
        yield from (segment.block_size, segment.first_position, segment.encoded, flags)
        yield segment.source
        yield from (segment.length, segment.computed, len(segment.blocks), *segment.blocks)
        yield from (len(segment.tokens), *segment.tokens)


def _key(key: bytes) -> tuple[int, ...]:
    return tuple(array("i", key)) if key else NO_KEY


def _pool_opened(c: Encoder, e: PoolOpened) -> tuple[int, ...]:
    names = (c.string(e.pool_id), c.string(e.tier), c.string(e.tenant))
    return (*names, e.block_size, e.num_blocks, c.label(e.label))


def _registered(c: Encoder, e: Registered) -> tuple[int, ...]:
    names = (c.string(e.kind), c.string(e.name), c.string(e.tenant), c.label(e.clearance))
    return (e.seq_id, *names, c.string(e.namespace.hex()), e.parent_id, c.label(e.off))


def _commanded(c: Encoder, e: Commanded) -> tuple[int, ...]:
    place = (c.string(e.tier), c.label(e.label), c.string(e.pool_id))
    flags = e.seal | e.fresh << 1 | e.indexed << 2
    what = (e.offset, e.length, e.count, flags, c.string(e.cause))
    whose = (e.source, e.piece, e.encoded)
    return (e.seq_id, e.number, c.string(e.verb), *place, *what, *whose)


def _released(c: Encoder, e: Released) -> tuple[int, ...]:
    return (e.seq_id, c.string(e.by), c.string(e.group), e.offset, e.length, e.replaces)


def _shared(c: Encoder, e: Shared) -> tuple[int, ...]:
    where = (e.seq_id, e.segment, c.string(e.pool_id))
    return (*where, e.length, c.string(e.cause), len(e.blocks), *e.blocks)


def _allocated(c: Encoder, e: Allocated) -> tuple[int, ...]:
    """A block with its lowest bit for "has a key already": the key itself comes when published."""
    blocks = (2 * b + bool(key) for b, key in zip(e.blocks, e.keys, strict=True))
    return (e.seq_id, e.segment, c.string(e.pool_id), e.length, len(e.blocks), *blocks)


def _copied(c: Encoder, e: Copied) -> tuple[int, ...]:
    where = (e.seq_id, e.segment, e.index, c.string(e.src_pool), e.src)
    return (*where, c.string(e.pool_id), e.dst, e.num_slots)


def _evicted(c: Encoder, e: Evicted) -> tuple[int, ...]:
    head = (c.string(e.pool_id), c.string(e.cause), len(e.blocks))
    return (*head, *e.blocks, *e.remaining)


def _freed(c: Encoder, e: Freed) -> tuple[int, ...]:
    where = (e.seq_id, e.segment, c.string(e.pool_id), e.length, c.string(e.cause))
    return (*where, int(e.forget), len(e.blocks), *e.blocks)


def _stepped(c: Encoder, e: Stepped) -> tuple[int, ...]:
    items = (int(value) for item in e.items for value in item)
    return (e.step, e.offset, len(e.items), *items)


def _published(c: Encoder, e: Published) -> tuple[int, ...]:
    keys = (word for key in e.keys for word in _key(key))
    where = (e.seq_id, e.segment, c.string(e.pool_id), e.first)
    return (*where, len(e.blocks), *e.blocks, *keys)


def _aborted(c: Encoder, e: Aborted) -> tuple[int, ...]:
    where = (e.seq_id, e.segment, c.string(e.pool_id), e.length, c.string(e.cause))
    return (*where, len(e.blocks), *e.blocks)


_WRITE: dict[type, Callable[..., tuple[int, ...]]] = {
    PoolOpened: _pool_opened,
    Registered: _registered,
    Commanded: _commanded,
    Released: _released,
    Shared: _shared,
    Allocated: _allocated,
    Copied: _copied,
    Evicted: _evicted,
    Freed: _freed,
    Stepped: _stepped,
    Published: _published,
    Aborted: _aborted,
}
