"""Where a fragment's KV deviates most from what its reader would compute: the blocks worth afresh.

The first layers are computed once for the whole fragment behind the reader's real context, into a
scratch region, and compared with the KV that would be mounted. Layer 0 deviates nowhere: its keys
and values depend on the token and the position alone. So layers 1 and 2 decide, as CacheBlend (Yao
et al. 2025) proposes; whole blocks are chosen, for a block is what a table can leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import torch

from inms_lab.attention.batch import Batch, Span, TileRef
from inms_lab.books.segment import Segment
from inms_lab.decisions.outcome import Chunk
from inms_lab.errors import BadInput
from inms_lab.publishing.records import Record
from inms_lab.serving.engine import Engine
from inms_lab.serving.spans import span_of

EARLY = (1, 2)  # layers
SCRATCH = "scratch: deviation"  # no pool of the books has this name


class _Enough(Exception):
    """The layers that decide are computed."""


class _Early(Batch):
    """A batch that stops behind the early layers."""

    def attend(self, layer: int, *args: Any) -> torch.Tensor:
        out = Batch.attend(self, layer, *args)
        if layer >= EARLY[-1]:
            raise _Enough
        return out


def deviations(engine: Engine, seq_id: int, record: Record) -> list[float]:
    """For each block of the record's text its mean relative KV error at the end of the context of
    `seq_id`. Raises `BadInput` where there is no KV to compare, or no model to compute it."""
    runner: Any = engine.model
    store: Any = engine.cache.store
    seq = engine.ledger.sequences[seq_id]
    holder = engine.ledger.sequences[record.seq_id]
    donor = holder.segments[-1] if holder.segments else None
    if donor is None or donor.computed < len(donor.tokens):
        raise BadInput(f"{record.name} has no KV (yet): wait for it, or share records in this mode")
    if seq.num_computed < seq.num_tokens or engine.desk.queues.get(seq_id):
        raise BadInput(f"{seq.name} has tokens without KV: await what it reads first")
    if not getattr(runner, "rotations", ()):
        raise BadInput("this model has no weights, or its KV cannot be shifted: there is no saying")
    if len(runner.rotations) <= EARLY[-1]:
        raise BadInput(f"layers {EARLY} decide, and this model has {len(runner.rotations)} in all")
    count, tile, first = len(donor.tokens), engine.tile, seq.num_tokens
    padded = -(-count // tile) * tile
    store.open(SCRATCH, padded)
    try:
        behind = span_of(seq, Chunk(seq_id, first - 1, first, True), tile).tiles if first else ()
        own = [TileRef(SCRATCH, i, first + i, min(tile, count - i)) for i in range(0, count, tile)]
        slots = [(SCRATCH, i) for i in range(count)]
        positions = range(first, first + count)
        span = Span(first, donor.tokens, positions, slots, [*behind, *own], False)
        _run(runner, store, span, tile)
        errors = [_error(store, donor, layer, first, runner.rotations[layer]) for layer in EARLY]
    finally:
        del store.regions[SCRATCH]
    error = torch.stack(errors).mean(dim=0)
    return [float(block.mean()) for block in error.split(donor.block_size)]


def most_deviating(error: Sequence[float], share: float) -> list[int]:
    """The numbers of the `share` (0 to 1) of blocks with the largest error, rounded up."""
    if not 0 <= share <= 1:
        raise BadInput(f"a share is between 0 and 1, not {share}")
    count = ceil(share * len(error) - 1e-9)
    return sorted(sorted(range(len(error)), key=lambda i: (-error[i], i))[:count])


@torch.inference_mode()
def _run(runner: Any, store: Any, span: Span, tile: int) -> None:
    batch = runner.batch([span], store, tile)
    names = Batch.__dataclass_fields__
    early = _Early(**{name: getattr(batch, name) for name in names})
    with suppress(_Enough):
        runner.run(early)


def _error(store: Any, donor: Segment, layer: int, first: int, rotation: Any) -> torch.Tensor:
    """Relative error [T] of keys and values of one layer, keys brought to the reader's place."""
    size, count = donor.block_size, len(donor.tokens)
    index = torch.tensor([donor.blocks[i // size] * size + i % size for i in range(count)])
    keys, values = (x[:, index].float() for x in store.layer(donor.pool_id, layer))
    if rotation is not None:
        keys = rotation.turn(keys, first - donor.encoded)
    fresh = [x[:, :count].float() for x in store.layer(SCRATCH, layer)]
    errors = [
        (mine - truth).norm(dim=-1) / truth.norm(dim=-1).clamp(min=1e-9)
        for mine, truth in zip((keys, values), fresh, strict=True)
    ]
    return torch.stack(errors).mean(dim=(0, 1))
