"""Context purity: a token's logits and KV depend on its own context alone, to the bit.

Whole engine first (any schedule against the same engine serving one agent), then against stock
transformers, then attention by itself: any cut, any placement, against dense attention.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from harness import (
    GREEDY,
    Bench,
    EveryRow,
    Op,
    Program,
    World,
    contexts,
    differences,
    one_thread,  # noqa: F401
    random_world,
    tiny,
    words,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from inms_lab.attention import batch as batching
from inms_lab.attention.batch import Span, TileRef, build
from inms_lab.attention.tiles import merge, read_tiles_plain
from inms_lab.model.runner import Runner, load_model
from inms_lab.store import KVStore

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "llama3")
LOGITS, MARGIN = 2e-4, 4e-4  # fp32 against stock transformers
EVENTFUL = ("preempted", "evicted", "copied", "overwritten", "deferred", "batched", "cut", "attached")


def assert_pure(world: World, name: str, policy: str, *, every_row: bool) -> Counter[str]:
    """Every agent of the world gets, to the bit, what it gets alone; gives what the run went
    through. A tenth of the worlds' agents are compared with transformers too."""
    rng, singles = random.Random(world.budget), {}
    for program in world.programs:
        singles[program.name] = world.alone(tiny(name), program, policy)
    room = max(single.peak for single in singles.values()) + rng.randint(1, 4)
    if policy == "global":  # the prompt and the records live in the same pool
        room += -(-len(world.prompt) // world.block_size)
        room += sum(-(-len(tokens) // world.block_size) for tokens in world.records)
    run = world.together(tiny(name, every_row), room, policy)
    for program in world.programs:
        wrong = differences(run, singles[program.name], program.name)
        assert not wrong, (program.name, len(wrong), wrong[:3])
        asked = [key for key in singles[program.name].capture.asked if "/" not in key[0]]
        assert len(asked) <= len(run.capture.asked), "every answer was compared"
    return run.happened()


# the engine, any schedule -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_agent_gets_what_it_gets_alone_whatever_the_schedule(name: str) -> None:
    seen: Counter[str] = Counter()
    first = 100 * ARCHITECTURES.index(name)
    for seed in range(first, first + 8):
        seen += assert_pure(random_world(seed), name, "inms", every_row=seed % 2 == 0)
    assert not {what for what in EVENTFUL if not seen[what]}, seen


@pytest.mark.parametrize("policy", ["global", "independent"])
def test_purity_does_not_depend_on_the_mode(policy: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(900, 905):
        seen += assert_pure(random_world(seed), "llama", policy, every_row=True)
    assert seen["preempted"]
    assert seen["batched"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_stock_transformers(name: str) -> None:
    world = random_world(50 + ARCHITECTURES.index(name))
    for program in world.programs:
        single = world.alone(tiny(name), program)
        assert_dense(single, program.name)


def assert_dense(bench: Bench, name: str) -> None:
    """Every captured row of the agent's last context, teacher-forced through transformers."""
    seq = bench.sequence(name)
    tokens = list(seq.tokens())
    dense = bench.runner.dense(tokens)
    compared = 0
    for index, digest in enumerate(contexts(seq, 0, len(tokens))):
        data = bench.capture.rows.get((name, index, digest))
        if data is None:  # mounted
            continue
        row = torch.frombuffer(bytearray(data), dtype=torch.float32)
        assert (row - dense[index]).abs().max() <= LOGITS, (name, index)
        best, second = dense[index].topk(2).values
        if best - second > MARGIN:
            assert row.argmax() == dense[index].argmax(), (name, index)
        compared += 1
    assert compared > 1


@pytest.mark.model
def test_the_default_model_is_pure_and_equals_stock_transformers() -> None:
    try:
        from inms_lab.model.source import resolve

        folder = resolve(progress=False)
    except Exception as error:
        pytest.skip(f"the default model is not here ({error})")
    torch.set_num_threads(2)
    try:
        _check_default_model(EveryRow(load_model(folder, "cpu", torch.float32), "smollm2", "d"))
    finally:
        torch.set_num_threads(1)


def _check_default_model(runner: Runner) -> None:
    rng = random.Random(7)
    prompt, record = words(rng, 150), words(rng, 40)
    lengths = {"architect": 120, "backend": 77, "frontend": 101}
    programs = [
        Program(
            name,
            (
                Op("prompt"),
                Op("attach"),
                Op("read", words(rng, length)),
                Op("write", count=8),
                Op("read", words(rng, 9)),
                Op("write", count=8),
            ),
        )
        for name, length in lengths.items()
    ]
    world = World(prompt, (record,), tuple(programs), block_size=16, tile=0, budget=67)
    run = world.bench(runner, budget=world.budget, private=22)
    run.publish("nobody", "g", record)
    run.run(*programs)
    assert run.happened()["preempted"]
    assert run.happened()["cut"]
    for program in programs:
        single = world.alone(runner, program)
        assert not differences(run, single, program.name)
        assert len(single.sequence(program.name).tokens()) > 280
        assert_dense(single, program.name)


# attention alone --------------------------------------------------------------------------------

HEADS = st.sampled_from([(2, 1), (4, 2), (6, 2), (3, 3), (9, 3)])  # query heads, KV heads


@dataclass(frozen=True)
class Layout:
    """Sequences as lists of segment lengths; all share the first `shared` segments."""

    lengths: tuple[tuple[int, ...], ...]
    shared: int
    heads: tuple[int, int]
    dim: int
    block: int
    tile: int
    seed: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    block, tile = draw(
        st.sampled_from([(4, 1), (4, 4), (16, 4), (16, 16), (64, 16), (64, 64), (16, 64), (1, 16)])
    )
    common = draw(st.lists(st.integers(1, 150), min_size=0, max_size=2))
    own = st.lists(st.integers(1, 90), min_size=1, max_size=3)
    count = draw(st.integers(1, 4))
    lengths = tuple((*common, *draw(own)) for _ in range(count))
    heads, dim = draw(HEADS), draw(st.sampled_from([8, 16, 64]))
    return Layout(lengths, len(common), heads, dim, block, tile, draw(st.integers(0, 99)))


class Field:
    """Random q, k, v for every sequence of a layout; equal where the sequences share segments."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        g = torch.Generator().manual_seed(layout.seed)
        heads, kv_heads = layout.heads
        dim = layout.dim
        common = sum(layout.lengths[0][: layout.shared])
        base = torch.randn(common, heads + 2 * kv_heads, dim, generator=g)
        self.qkv = []
        for lengths in layout.lengths:
            rest = torch.randn(sum(lengths) - common, heads + 2 * kv_heads, dim, generator=g)
            self.qkv.append(torch.cat((base, rest)).split((heads, kv_heads, kv_heads), dim=1))

    def dense(self, number: int) -> torch.Tensor:
        """[T, H, D] in float64."""
        q, k, v = (x.double().transpose(0, 1) for x in self.qkv[number])
        repeat = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
        scores = q @ k.transpose(1, 2) * self.layout.dim**-0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1)

    def attend(self, rng: random.Random, largest: int) -> list[torch.Tensor]:
        """All rows through the tile grid, in chunks of 1 to `largest` tokens, blocks scattered."""
        layout = self.layout
        num_blocks = 8 + sum(-(-n // layout.block) for lengths in layout.lengths for n in lengths)
        free = rng.sample(range(num_blocks), num_blocks)
        store = KVStore(1, layout.heads[1], layout.dim)
        store.open("pool", num_blocks * layout.block)
        store.regions["pool"].uniform_(-9, 9)  # what is masked must not matter
        common = [[free.pop() for _ in range(-(-n // layout.block))] for n in self._common()]
        tables = [
            common + [[free.pop() for _ in range(-(-n // layout.block))] for n in own]
            for own in (lengths[layout.shared :] for lengths in layout.lengths)
        ]
        total = [sum(lengths) for lengths in layout.lengths]
        done, out = [0] * len(total), [torch.zeros_like(q) for q, _, _ in self.qkv]
        done[1:] = [0] * (len(total) - 1)
        while done != total:
            waiting = [i for i, n in enumerate(total) if done[i] < n]
            first = [i for i in waiting if self._is_ready(i, done)]
            chosen = rng.sample(first, rng.randint(1, len(first)))
            stops = {i: min(total[i], done[i] + rng.randint(1, largest)) for i in chosen}
            spans = [self._span(i, tables[i], done[i], stops[i]) for i in chosen]
            plan = build(spans, store, layout.tile, layout.heads[0], 16)
            rows = [
                torch.cat([self.qkv[i][part][done[i] : stops[i]] for i in chosen])
                for part in range(3)
            ]
            padding = plan.input_ids.shape[1] - len(rows[0])
            rows = [torch.cat((x, torch.randn(padding, *x.shape[1:]))) for x in rows]
            result = plan.attend(0, *rows, scale=layout.dim**-0.5)
            at = 0
            for i in chosen:
                out[i][done[i] : stops[i]] = result[at : at + stops[i] - done[i]]
                at += stops[i] - done[i]
                done[i] = stops[i]
        return out

    def _common(self) -> tuple[int, ...]:
        return self.layout.lengths[0][: self.layout.shared]

    def _is_ready(self, number: int, done: list[int]) -> bool:
        """The first sequence writes what is shared; the others come when it is written."""
        return number == 0 or done[0] >= sum(self._common())

    def _span(self, number: int, table: list[list[int]], start: int, stop: int) -> Span:
        layout, tiles, slots = self.layout, [], []
        first, block, tile = 0, layout.block, layout.tile
        common = sum(self._common())
        for length, blocks in zip(layout.lengths[number], table, strict=True):
            visible = min(length, stop - first)
            for at in range(0, max(visible, 0), tile):
                count = min(tile, visible - at)
                where = [blocks[i] * block for i in range(at // block, -(-(at + count) // block))]
                slot = where[0] + at % block
                step = min(tile, block)
                tiles.append(TileRef("pool", slot, first + at, count, tuple(where[1:]), step))
            for at in range(max(start - first, 0), max(visible, 0)):
                slots.append(("pool", blocks[at // block] * block + at % block))
            first += length
        if number and start < common:  # already written by the first sequence
            slots = []
        return Span(start, [0] * (stop - start), range(start, stop), slots, tiles, False)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layouts())
def test_tiles_equal_dense_attention_and_any_cut_gives_the_same_bits(layout: Layout) -> None:
    field, rng = Field(layout), random.Random(layout.seed)
    one = field.attend(rng, largest=10_000)
    for number, rows in enumerate(one):
        assert (rows - field.dense(number)).abs().max() < 2e-5
    for largest in (1, 7, 40):
        if largest == 1 and sum(map(sum, layout.lengths)) > 200:
            continue
        for rows, again in zip(one, field.attend(rng, largest), strict=True):
            assert torch.equal(rows, again), largest


@settings(max_examples=15, deadline=None, derandomize=True)
@given(layouts())
def test_the_plain_form_equals_the_fast_one(layout: Layout) -> None:
    field = Field(layout)
    fast = field.attend(random.Random(1), largest=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "read_tiles", read_tiles_plain)
        plain = field.attend(random.Random(1), largest=30)
    for a, b in zip(fast, plain, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 260, 800])
def test_a_row_gets_the_same_bits_in_small_and_large_batches(rows: int) -> None:
    """The kernel cuts its rows at 32, 64 and 256; no cut may be seen."""
    layout = Layout(((rows, 1),), 0, (3, 1), 64, 64, 64, seed=rows)
    field = Field(layout)
    whole = field.attend(random.Random(0), largest=10_000)
    pieces = field.attend(random.Random(0), largest=max(2, rows // 5))
    assert torch.equal(whole[0], pieces[0])


def test_the_merge_ignores_neighbours_and_absent_tiles() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        count, rows = (int(x) for x in torch.randint(1, 12, (2,), generator=g))
        out = torch.randn(count, rows, 8, generator=g)
        lse = torch.randn(count, rows, generator=g) * 3
        gone = torch.rand(count, rows, generator=g) < 0.3
        lse[gone], out[gone] = -torch.inf, 0
        both, total = merge(out, lse)
        for row in range(rows):
            used = np.flatnonzero(~gone[:, row].numpy()).tolist()
            if not used:
                assert both[row].eq(0).all()
                continue
            alone, single = merge(out[used, row : row + 1], lse[used, row : row + 1], used)
            assert torch.equal(both[row], alone[0])
            assert torch.equal(total[row], single[0])


__all__ = ["GREEDY"]
