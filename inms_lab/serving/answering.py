"""What a step gives to those who asked: tokens drawn, logits, and the ends of requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inms_lab.books.ledger import Ledger
from inms_lab.decisions.completion import Done
from inms_lab.decisions.outcome import Chunk
from inms_lab.serving.desk import Desk
from inms_lab.serving.sample import sample
from inms_lab.serving.spans import Sampled, wants_logits


def sampled(
    books: Ledger, desk: Desk, chunks: Sequence[Chunk], logits: torch.Tensor
) -> list[Sampled]:
    """The next token of every sequence that generates and whose context is complete."""
    rows, out = iter(logits), []
    for chunk in chunks:
        seq = books.sequences[chunk.seq_id]
        row = next(rows) if wants_logits(seq, chunk) else None
        token = None
        if row is not None and seq.to_generate:
            token = sample(row, desk.current(seq.seq_id).sampling, seq.num_tokens)
        out.append(Sampled(chunk, row, token))
    return out


def done(books: Ledger, desk: Desk, s: Sampled) -> Done:
    """What came of a chunk: whether a token was drawn, and whether that ends the request."""
    if s.token is None:
        return Done(s.chunk, 0, s.logits is not None)
    last = books.sequences[s.chunk.seq_id].to_generate == 1
    return Done(s.chunk, 1, last or s.token in desk.current(s.chunk.seq_id).stop_tokens)


def tell(books: Ledger, desk: Desk, drawn: Sequence[Sampled], ends: Sequence[Done]) -> None:
    """Answer the requests of a step that is a fact."""
    for s, d in zip(drawn, ends, strict=True):
        if s.token is not None:
            desk.token(s.chunk.seq_id, s.token, d.over)
        elif s.logits is not None:
            desk.logits(s.chunk.seq_id, s.logits.clone())
        desk.computed(books.sequences[s.chunk.seq_id])
