"""What a finished step did: one `Stepped`, then `Published` for blocks that are now complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inms_lab.books.events import Event, Published, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.outcome import Chunk


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk's outcome: sampled tokens (0 or 1) and whether the request is over."""

    chunk: Chunk
    num_sampled: int
    over: bool


def completed(books: Ledger, offset: int, done: Sequence[Done]) -> tuple[Event, ...]:
    """Events of a finished step; the sampled tokens lie in the token table from `offset` on."""
    items = tuple((d.chunk.seq_id, d.chunk.num_written, d.num_sampled, d.over) for d in done)
    published = (event for d in done if d.chunk.num_written for event in _published(books, d.chunk))
    return (Stepped(books.num_steps + 1, offset, items), *published)


def _published(books: Ledger, chunk: Chunk) -> Iterator[Published]:
    seq = books.sequences[chunk.seq_id]
    for number, segment in enumerate(seq.segments):
        before, size, count = segment.computed, segment.block_size, len(segment.tokens)
        after = min(count, chunk.stop - segment.first_position)
        if not segment.indexed or after <= before:
            continue
        first = before // size
        last = after // size if segment.open or after < count else -(-after // size)
        if last > first:
            keys = segment.keys_of(first, last)
            blocks = tuple(segment.blocks[first:last])
            yield Published(seq.seq_id, number, segment.pool_id, first, blocks, keys)
