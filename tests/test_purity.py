"""Context purity: a token's logits and KV depend on its own context alone, to the bit.

Whole engine first (any schedule against the same engine serving one agent), then against stock
transformers, then attention by itself: any cut, any placement, against dense attention.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from harness import (
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
from inms_lab.attention.store import KVStore
from inms_lab.attention.tiles import merge, read_tiles_plain
from inms_lab.model.loader import load_model
from inms_lab.model.runner import Runner

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "llama3")
LOGITS, MARGIN = 2e-4, 4e-4  # fp32 against stock transformers
EVENTFUL = (
    "preempted",
    "evicted",
    "copied",
    "overwritten",
    "deferred",
    "batched",
    "cut",
    "attached",
)


def assert_pure(world: World, name: str, policy: str, *, every_row: bool) -> Counter[str]:
    """Every agent of the world gets, to the bit, what it gets alone; gives what the run went
    through."""
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
@pytest.mark.slow
def test_the_default_model_is_pure_and_equals_stock_transformers() -> None:
    try:
        from inms_lab.model.source import resolve

        folder = resolve(progress=False)
    except Exception as error:
        pytest.skip(f"the default model is not here ({error})")
    runner = EveryRow(load_model(folder, "cpu", torch.float32), "smollm2", "d")
    _check_default_model(runner)


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
                Op("write", count=4),
                Op("read", words(rng, 9)),
                Op("write", count=3),
            ),
        )
        for name, length in lengths.items()
    ]
    world = World(prompt, (record,), tuple(programs), block_size=16, tile=0, budget=67)
    run = world.bench(runner, budget=world.budget, private=20)
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
    common = draw(st.lists(st.integers(1, 100), max_size=2))
    own = st.lists(st.integers(1, 50), min_size=1, max_size=3)
    count = draw(st.integers(1, 3))
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

    def attend(self, rng: random.Random, largest: int, exactly: bool = True) -> list[torch.Tensor]:
        """All rows through the tile grid, in chunks of 1 to `largest` tokens, blocks scattered.

        The first sequence writes the shared segments, the others mount them. In the end the last
        tokens of all are computed again, together and without being written: the same bits.
        """
        layout = self.layout
        tables, store = self._place(rng)
        total = [sum(lengths) for lengths in layout.lengths]
        common = sum(layout.lengths[0][: layout.shared])
        done = [0, *(common for _ in total[1:])]
        out = [torch.zeros_like(q) for q, _, _ in self.qkv]
        while done != total:
            ready = [i for i, n in enumerate(total) if done[i] < n and (not i or done[0] >= common)]
            chosen = rng.sample(ready, rng.randint(1, len(ready)))
            stops = {i: min(total[i], done[i] + rng.randint(1, largest)) for i in chosen}
            spans = {i: self._span(i, tables[i], done[i], stops[i]) for i in chosen}
            for i, rows in self._forward(store, spans).items():
                out[i][done[i] : stops[i]] = rows
                done[i] = stops[i]
        for rows in out[1:]:
            rows[:common] = out[0][:common]
        if exactly:
            spans = {i: self._span(i, tables[i], n - 1, n) for i, n in enumerate(total)}
            again = self._forward(store, {i: replace(s, slots=()) for i, s in spans.items()})
            assert all(torch.equal(again[i][0], rows[-1]) for i, rows in enumerate(out))
        return out

    def _place(self, rng: random.Random) -> tuple[list[list[list[int]]], KVStore]:
        """A block table for every segment of every sequence, and a store full of rubbish."""
        layout, sizes = self.layout, [-(-n // self.layout.block) for n in self.lengths()]
        free = rng.sample(range(sum(sizes) + 8), sum(sizes) + 8)
        blocks = [[free.pop() for _ in range(size)] for size in sizes]
        common, rest = blocks[: layout.shared], iter(blocks[layout.shared :])
        tables = [common + [next(rest) for _ in own[layout.shared :]] for own in layout.lengths]
        store = KVStore(1, layout.heads[1], layout.dim)
        store.open("pool", (sum(sizes) + 8) * layout.block)
        store.regions["pool"].uniform_(-9, 9)  # what is masked must not matter
        return tables, store

    def lengths(self) -> list[int]:
        """Lengths of the distinct segments, the shared ones first."""
        shared = self.layout.shared
        own = (n for lengths in self.layout.lengths for n in lengths[shared:])
        return [*self.layout.lengths[0][:shared], *own]

    def _forward(self, store: KVStore, spans: dict[int, Span]) -> dict[int, torch.Tensor]:
        layout = self.layout
        plan = build(list(spans.values()), store, layout.tile, layout.heads[0], 16)
        padding = plan.input_ids.shape[1] - plan.num_rows
        rows = [
            torch.cat(
                [self.qkv[i][part][s.start : s.start + len(s.tokens)] for i, s in spans.items()]
            )
            for part in range(3)
        ]
        q, k, v = (torch.cat((x, torch.randn(padding, *x.shape[1:]))) for x in rows)
        result = plan.attend(0, q, k, v, layout.dim**-0.5)
        parts = result[: plan.num_rows].split([len(s.tokens) for s in spans.values()])
        return dict(zip(spans, parts, strict=True))

    def _span(self, number: int, table: list[list[int]], start: int, stop: int) -> Span:
        block, tile = self.layout.block, self.layout.tile
        first, tiles, slots = 0, [], []
        for length, blocks in zip(self.layout.lengths[number], table, strict=True):
            visible = max(0, min(length, stop - first))
            for at in range(0, visible, tile):
                count = min(tile, visible - at)
                where = [blocks[i] * block for i in range(at // block, -(-(at + count) // block))]
                slot, more, step = where[0] + at % block, tuple(where[1:]), min(tile, block)
                tiles.append(TileRef("pool", slot, first + at, count, more, step))
            for at in range(max(start - first, 0), visible):
                slots.append(("pool", blocks[at // block] * block + at % block))
            first += length
        return Span(start, [0] * (stop - start), range(start, stop), slots, tiles, False)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(layouts())
def test_tiles_equal_dense_attention_and_any_cut_gives_the_same_bits(layout: Layout) -> None:
    field, rng = Field(layout), random.Random(layout.seed)
    one = field.attend(rng, largest=10_000)
    for number, rows in enumerate(one):
        assert (rows - field.dense(number)).abs().max() < 2e-5
    for largest in (1 if sum(field.lengths()) < 60 else 9, 40):
        for rows, again in zip(one, field.attend(rng, largest), strict=True):
            assert torch.equal(rows, again), largest


@settings(max_examples=15, deadline=None, derandomize=True)
@given(layouts())
def test_the_plain_form_equals_the_fast_one(layout: Layout) -> None:
    field = Field(layout)
    fast = field.attend(random.Random(1), largest=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "read_tiles", read_tiles_plain)
        plain = field.attend(random.Random(1), largest=30, exactly=False)
    for a, b in zip(fast, plain, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 260, 800])
def test_a_row_gets_the_same_bits_in_small_and_large_batches(rows: int, threads: int) -> None:
    """The kernel cuts its rows at 32, 64 and 256, and among threads; no cut may be seen."""
    torch.set_num_threads(threads)
    layout = Layout(((rows, 1),), 0, (3, 1), 64, 64, 64, seed=rows)
    field = Field(layout)
    whole = field.attend(random.Random(0), largest=10_000)
    pieces = field.attend(random.Random(0), largest=max(2, rows // 5))
    torch.set_num_threads(1)
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
