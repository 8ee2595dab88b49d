"""From block tables to what a forward needs: the tiles and slots of a chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inms_lab.attention.batch import Span, TileRef
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.outcome import Chunk


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chunk with the logits of its last token [vocab] and the token drawn, where wanted."""

    chunk: Chunk
    logits: torch.Tensor | None
    token: int | None


def wants_logits(seq: Sequence, chunk: Chunk) -> bool:
    """Whether the logits of the chunk's last token are needed."""
    return chunk.stop == seq.num_tokens and (seq.to_generate > 0 or seq.wants_logits)


def span_of(seq: Sequence, chunk: Chunk, tile: int) -> Span:
    """The chunk's tokens, where their KV goes, and every tile that they may read."""
    tokens: list[int] = []
    slots: list[tuple[str, int]] = []
    tiles: list[TileRef] = []
    for segment in seq.segments:
        first, size = segment.first_position, segment.block_size
        visible = min(len(segment.tokens), chunk.stop - first)
        if visible <= 0:
            break
        shift = 0 if "position" in seq.off else segment.shift  # off: a lesson
        for start in range(0, visible, tile):
            length = min(tile, visible - start)
            slot = segment.blocks[start // size] * size + start % size
            blocks = segment.blocks[start // size + 1 : -(-(start + length) // size)]
            more = tuple(block * size for block in blocks)
            tiles.append(
                TileRef(segment.pool_id, slot, first + start, length, more, min(tile, size), shift)
            )
        begin = max(0, chunk.start - first)
        tokens.extend(segment.tokens[begin:visible])
        if not chunk.recompute:
            slots.extend(
                (segment.pool_id, segment.blocks[at // size] * size + at % size)
                for at in range(begin, visible)
            )
    positions = range(chunk.start, chunk.stop)
    return Span(chunk.start, tokens, positions, slots, tiles, wants_logits(seq, chunk))
