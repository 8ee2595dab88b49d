"""What fragmentation costs: the same contexts read with their blocks in order, by turns, shuffled.

One layer's attention over and over, without a model: contexts of several agents in one pool, a
token of each reads all of its own. The keys and values are random numbers. A tile that lies in
pieces is gathered into a copy by torch's operators, and read where it lies by compiled kernels.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

import torch

from inms_lab.attention.batch import Batch, Span, TileRef, build
from inms_lab.attention.store import KVStore
from inms_lab.bench.header import spread
from inms_lab.errors import BadInput, CompilerMissing
from inms_lab.kernels.native import Native

KV_HEADS, GROUPS, DIM = 3, 3, 64  # the default model's
LAYERS = 30
TILE = 64  # tokens, or a block where that is longer
ORDERS = ("in order", "by turns", "shuffled")


def blocks_of(order: str, agents: int, count: int, seed: int) -> list[list[int]]:
    """The blocks of each agent: one behind the other, taken by turns, or anywhere."""
    numbers = list(range(agents * count))
    if order == "shuffled":
        random.Random(seed).shuffle(numbers)
    if order == "by turns":
        return [numbers[agent::agents] for agent in range(agents)]
    return [numbers[agent * count : (agent + 1) * count] for agent in range(agents)]


def span_of(blocks: list[int], block: int, tile: int) -> Span:
    """The last token of a context in these blocks."""
    tokens = len(blocks) * block
    tiles = []
    for first in range(0, tokens, tile):
        at = blocks[first // block] * block + first % block
        more = blocks[first // block + 1 : (first + tile) // block]
        slots = tuple(b * block for b in more)
        length = min(tile, tokens - first)
        tiles.append(TileRef("private", at, first, length, slots, min(block, tile)))
    last = ("private", blocks[-1] * block + block - 1)
    return Span(tokens - 1, [0], [tokens - 1], [last], tiles, True)


def tile_of(agents: int, tokens: int, block: int) -> int:
    """The tile that blocks of this size are read by; refuses sizes that do not fit."""
    for name, value in (("agents", agents), ("tokens", tokens), ("block", block)):
        if value < 1:
            raise BadInput(f"--{name} {value} is too small: give at least 1")
    if TILE % block and block % TILE:
        raise BadInput(f"--block {block} does not fit a tile of {TILE}: give 16, 32 or 64")
    if tokens % block:
        raise BadInput(f"--tokens {tokens} are no whole blocks: give a multiple of {block}")
    return max(block, TILE)


def measure(agents: int, tokens: int, block: int, seed: int, repeat: int) -> dict[str, Any]:
    """Milliseconds of attention in all layers of a step, and the ratio to blocks in order."""
    tile = tile_of(agents, tokens, block)
    store = KVStore(LAYERS, KV_HEADS, DIM)
    store.open("private", agents * tokens)
    store.regions["private"].uniform_(-1, 1)
    kernels: dict[str, Native | None] = {"torch": None}
    with suppress(CompilerMissing):
        kernels["compiled"] = Native()
    times: dict[tuple[str, str], list[float]] = {}
    batches: dict[tuple[str, str], Batch] = {}
    for order in ORDERS:
        placed = blocks_of(order, agents, tokens // block, seed)
        spans = [span_of(blocks, block, tile) for blocks in placed]
        for name, native in kernels.items():
            rows = 1 if native else 16
            batches[name, order] = build(spans, store, tile, KV_HEADS * GROUPS, rows, (), native)
    for _ in range(repeat + 1):
        for case, batch in batches.items():
            times.setdefault(case, []).append(_read(batch))
    found = {case: spread([x * 1e3 for x in values[1:]]) for case, values in times.items()}
    return {
        "agents": agents,
        "tokens": tokens,
        "block_size": block,
        "tile": tile,
        "ms": {name: {o: found[name, o] for o in ORDERS} for name in kernels},
        "ratio": {
            name: {
                o: round(found[name, o]["median"] / found[name, ORDERS[0]]["median"], 3)
                for o in ORDERS[1:]
            }
            for name in kernels
        },
    }


@torch.inference_mode()
def _read(batch: Batch) -> float:
    rows = batch.input_ids.shape[1]
    q, k, v = (torch.randn(rows, heads, DIM) for heads in (KV_HEADS * GROUPS, KV_HEADS, KV_HEADS))
    started = time.perf_counter()
    for layer in range(LAYERS):
        batch.attend(layer, q, k, v, DIM**-0.5)
    return time.perf_counter() - started
