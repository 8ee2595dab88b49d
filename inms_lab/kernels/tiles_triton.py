"""Attention over tiles that lie anywhere, as Triton kernels: the twin of tiles.h for CUDA.

Three kernels a layer: `write` puts new keys and values into their slots, `read` computes a tile and
one kv head for all query rows that hold it (a program for each piece of work), `join` merges the
states of each row. They read the plan of a step (attention/layout.py) from one buffer: a header of
numbers says where each of its arrays begins. Keys and values lie in regions [2, layers, kv heads,
slots, dim], one a pool, reached from the address of one of them. Products are summed in float32.
Source: online softmax (Milakov and Gimelshein 2018), joined as in FlashAttention's split form.
"""

# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False
from __future__ import annotations

import triton
import triton.language as tl

# Places in the header; the order is that of `HEADER` in launcher.py.
NUM_WORK, NUM_WRITES = tl.constexpr(0), tl.constexpr(1)
TILE_POOL, TILE_STEP = tl.constexpr(2), tl.constexpr(3)
TILE_STRETCH, STRETCHES = tl.constexpr(4), tl.constexpr(5)
WORK = tl.constexpr(6)
READER_ROW, READER_SEEN = tl.constexpr(7), tl.constexpr(8)
ROW_STATE, STATES = tl.constexpr(9), tl.constexpr(10)
WRITE_ROW, WRITE_POOL, WRITE_SLOT = tl.constexpr(11), tl.constexpr(12), tl.constexpr(13)
POOL_SLOTS, POOL_AT = tl.constexpr(14), tl.constexpr(15)

LOWEST, TINY = tl.constexpr(-1e30), tl.constexpr(1e-30)  # numbers of float32, no smaller ones


@triton.jit
def _array(plan, place):
    """Where an array of the plan begins."""
    return plan + tl.load(plan + place)


@triton.jit
def _region(
    plan, kv, pool, layer, layers, head, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Where a pool's keys of this layer and kv head begin, and how far behind its values do."""
    slots = tl.load(_array(plan, POOL_SLOTS) + pool)
    at = tl.load(_array(plan, POOL_AT) + pool) + (layer * KV_HEADS + head) * slots * DIM
    behind = slots * layers * (KV_HEADS * DIM)
    if DIM % 16 == 0:  # regions begin at wide addresses: whole vectors can be loaded
        at, behind = tl.multiple_of(at, 16), tl.multiple_of(behind, 16)
    return kv + at, behind


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32. Interpreted, half precision is widened first: the numbers are the
    same, and Triton's interpreter multiplies the bits of bfloat16 as if they were integers."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit(do_not_specialize=["layer", "layers"])
def write(
    plan, k, v, kv, layer, layers, k_row, k_head, v_row, v_head,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The key and value of one row and kv head go into their slot."""
    at, head = tl.program_id(0), tl.program_id(1)
    if at >= tl.load(plan + NUM_WRITES):
        return
    row = tl.load(_array(plan, WRITE_ROW) + at)
    pool = tl.load(_array(plan, WRITE_POOL) + at)
    slot = tl.load(_array(plan, WRITE_SLOT) + at)
    keys, behind = _region(plan, kv, pool, layer, layers, head, KV_HEADS, DIM)
    d = tl.arange(0, BLOCK_D)
    key = tl.load(k + row * k_row + head * k_head + d, mask=d < DIM)
    value = tl.load(v + row * v_row + head * v_head + d, mask=d < DIM)
    tl.store(keys + slot * DIM + d, key, mask=d < DIM)
    tl.store(keys + behind + slot * DIM + d, value, mask=d < DIM)


@triton.jit(do_not_specialize=["layer", "layers"])
def read(
    plan, q, kv, out, lse, layer, layers, scale, q_row, q_head,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A piece of work: out [readers, heads, dim] and lse [readers, heads] of one tile's readers."""
    at, h = tl.program_id(0), tl.program_id(1)
    if at >= tl.load(plan + NUM_WORK):
        return
    piece = _array(plan, WORK) + at * 3
    tile, first, last = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    m, d = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_D)
    reader, head = first + m // GROUPS, h * GROUPS + m % GROUPS
    is_row, in_dim = reader < last, d < DIM
    row = tl.load(_array(plan, READER_ROW) + reader, mask=is_row, other=0)
    seen = tl.load(_array(plan, READER_SEEN) + reader, mask=is_row, other=0)
    fits = is_row[:, None] & in_dim[None, :]
    query = tl.load(q + (row * q_row + head * q_head)[:, None] + d[None, :], mask=fits, other=0.0)
    pool = tl.load(_array(plan, TILE_POOL) + tile)
    step = tl.load(_array(plan, TILE_STEP) + tile)
    stretches = _array(plan, STRETCHES) + tl.load(_array(plan, TILE_STRETCH) + tile)
    keys, behind = _region(plan, kv, pool, layer, layers, h, KV_HEADS, DIM)
    top = tl.full([BLOCK_ROWS], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    count = tl.max(seen, 0)
    for begin in range(0, count, BLOCK_TOKENS):
        t = begin + tl.arange(0, BLOCK_TOKENS)
        slot = tl.load(stretches + t // step, mask=t < count, other=0) + t % step
        places = keys + slot[:, None] * DIM + d[None, :]
        lies = (t < count)[:, None] & in_dim[None, :]
        key = tl.load(places, mask=lies, other=0.0)
        value = tl.load(places + behind, mask=lies, other=0.0)
        scores = _product(query, tl.trans(key), PRECISION) * scale
        scores = tl.where(t[None, :] < seen[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, 1)
        part = _product(weights.to(value.dtype), value, PRECISION)
        sums = sums * fade[:, None] + part
        top = higher
    total = tl.maximum(total, TINY)
    place = reader * (KV_HEADS * GROUPS) + head
    tl.store(out + place[:, None] * DIM + d[None, :], sums / total[:, None], mask=fits)
    tl.store(lse + place, top + tl.log(total), mask=is_row)


@triton.jit
def join(
    plan, out, lse, y, y_row,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_STATES: tl.constexpr,
):  # fmt: skip
    """The states of one row and head become its result in y [rows, heads, dim]; none: zeros."""
    row, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(_array(plan, ROW_STATE) + row)
    last = tl.load(_array(plan, ROW_STATE) + row + 1)
    d = tl.arange(0, BLOCK_D)
    top, total = tl.full([1], LOWEST, tl.float32), tl.zeros([1], tl.float32)
    sums = tl.zeros([BLOCK_D], tl.float32)
    for begin in range(first, last, BLOCK_STATES):
        i = begin + tl.arange(0, BLOCK_STATES)
        place = tl.load(_array(plan, STATES) + i, mask=i < last, other=0) * HEADS + head
        scores = tl.load(lse + place, mask=i < last, other=float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        fade = tl.exp(top - higher)
        fits = (i < last)[:, None] & (d < DIM)[None, :]
        states = tl.load(out + place[:, None] * DIM + d[None, :], mask=fits, other=0.0)
        total = total * fade + tl.sum(weights, 0)
        sums = sums * fade + tl.sum(weights[:, None] * states, 0)
        top = higher
    result = sums / tl.maximum(total, TINY)
    tl.store(y + row * y_row + head * DIM + d, result, mask=d < DIM)


INTERPRETED = not isinstance(read, triton.JITFunction)
