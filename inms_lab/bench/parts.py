"""What a decode step is made of: bytes that it reads, and where its time goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from inms_lab.attention.batch import Batch, Span, TileRef
from inms_lab.bench.contexts import Contexts
from inms_lab.kernels.native import Native
from inms_lab.model.layers import Layer
from inms_lab.model.runner import Runner

SUMMED = 512 << 20  # bytes; larger than any cache of a processor


def read_bandwidth(device: torch.device, num_bytes: int = SUMMED, repeat: int = 7) -> float:
    """Bytes a second that this machine reads from memory: all threads (or a whole GPU) sum a
    tensor, the best of all."""
    data = torch.ones(num_bytes // 4, device=device)
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        data.sum().item()
        best = min(best, time.perf_counter() - started)
    return data.numel() * 4 / best


@dataclass(frozen=True, slots=True)
class Traffic:
    """KV bytes of one step: as if each agent read its whole context; each slot once; what the plan
    reads. And bytes of the weights that a step multiplies with."""

    logical: int
    unique: int
    read: int
    weights: int

    @property
    def total(self) -> int:
        """What the step reads in all."""
        return self.read + self.weights


def traffic(contexts: Contexts) -> Traffic:
    """Of the last step that this lab took."""
    engine, runner, spans = contexts.lab.engine, contexts.model.runner, contexts.model.spans
    store = engine.cache.store
    plan = contexts.lab.look(lambda: runner.batch(spans, store, engine.tile))  # type: ignore[arg-type]
    logical, unique = slots_seen(spans)
    if plan.compiled is None:
        read = sum(part.count * engine.tile for part in plan.reads)
    else:
        heads = runner.geometry
        assert runner.native is not None
        read = slots_read(spans, runner.native.readers(heads.num_heads // heads.num_kv_heads))
    each = store.bytes_per_token
    return Traffic(logical * each, unique * each, read * each, weights_read(runner))


def slots_seen(spans: Sequence[Span]) -> tuple[int, int]:
    """Slots that the rows of a step see: each row's counted, and each slot once."""
    logical = sum(seen for _, seen in _readers(spans))
    return logical, slots_read(spans, 1 << 30)


def slots_read(spans: Sequence[Span], readers: int) -> int:
    """Slots that kernels read, a tile once for each `readers` rows that hold it."""
    rows, most = Counter[tuple[str, int]](), dict[tuple[str, int], int]()
    for tile, seen in _readers(spans):
        where = (tile.pool_id, tile.slot)
        rows[where] += 1
        most[where] = max(most.get(where, 0), seen)
    return sum(-(-rows[where] // readers) * length for where, length in most.items())


def _readers(spans: Sequence[Span]) -> Iterator[tuple[TileRef, int]]:
    """Each tile with each row that reads it: how many of its slots the row sees."""
    for span in spans:
        for tile in span.tiles:
            for at in range(max(span.start, tile.first), span.start + len(span.tokens)):
                yield tile, min(at - tile.first + 1, tile.length)


def weights_read(runner: Runner) -> int:
    """Bytes of all weights, but for an embedding that rows are only looked up in."""
    model = runner.model
    total, _ = runner.weights_bytes()
    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    tied = last is not None and last.weight.data_ptr() == first.weight.data_ptr()
    return total if tied else total - first.weight.numel() * first.weight.itemsize


@dataclass(slots=True)
class Clock:
    """Seconds in matrix products, in attention (writing KV included), and in whole decoder layers
    that one kernel computes, whose products and attention nobody sees apart."""

    products: float = 0.0
    attention: float = 0.0
    layers: float = 0.0


@contextmanager
def clocked(by_parts: bool = False) -> Iterator[Clock]:
    """A `with` block in which the parts of forwards are timed (on the CPU only). `by_parts`: no
    layer is computed by one kernel meanwhile."""
    clock = Clock()
    places: tuple[tuple[type, str, str], ...] = (
        (nn.Linear, "forward", "products"),
        (Native, "linear", "products"),
        (Native, "heads", "products"),
        (Native, "gated", "products"),
        (Native, "blocks", "layers"),
        (Batch, "attend", "attention"),
    )
    changed = [(*place[:2], _timed(getattr(*place[:2]), clock, place[2])) for place in places]
    if by_parts:
        changed.append((Layer, "serves", lambda *args: False))
    kept = [getattr(owner, name) for owner, name, _ in changed]
    for owner, name, function in changed:
        setattr(owner, name, function)
    try:
        yield clock
    finally:
        for (owner, name, _), function in zip(changed, kept, strict=True):
            setattr(owner, name, function)


def _timed(function: Callable[..., Any], clock: Clock, part: str) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            setattr(clock, part, getattr(clock, part) + time.perf_counter() - started)

    return timed
