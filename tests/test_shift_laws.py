"""A shift is part of a read and leaves nothing behind: no drift, no copy, no mark of a neighbour.

What a fragment gives at a shift is right (test_shift_models.py); here it is the same, to the bit,
however often, in what company, in what order and in how many chunks it is read.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import models
import pytest
import torch
from harness import one_thread  # noqa: F401
from placed import GROUP, OWN, Fragment, Place, Reader, mounted

from inms_lab.attention import batch
from inms_lab.attention.reads import MANY_ROWS
from inms_lab.attention.store import KVStore
from inms_lab.model import Runner, from_model

HOME, CONTEXT = 4200, 8448
SHIFTS = (-4096, -513, -1, 0, 1, 7, 500, 4096)
NAMES = (
    "llama",
    "yarn",
    "smollm3",
    "phi",
    "cohere",
)  # half-split, no rotation, partial, neighbours
LENGTH = 40


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=count)


@cache
def admitted(name: str, dtype: torch.dtype = torch.float32) -> Runner:
    build = (models.WANTED | models.OTHERS)[name]
    model = build(max_position_embeddings=CONTEXT, initializer_range=0.2)
    return from_model(model.to(dtype), name=name)


def world(name: str, dtype: torch.dtype = torch.float32) -> tuple[Place, Fragment]:
    """A place, and a fragment at home in it."""
    place = Place(admitted(name, dtype))
    (fragment,) = place.encode(words(LENGTH, 0), HOME)
    return place, fragment


def agents(place: Place, fragment: Fragment) -> list[Reader]:
    """One reader at each of `SHIFTS`, with a text of its own, and more or less of it."""
    return [
        place.reader([(fragment, HOME + shift)], words(2 + i, i + 1), HOME + shift + LENGTH)
        for i, shift in enumerate(SHIFTS)
    ]


def read(place: Place, readers: list[Reader]) -> list[torch.Tensor]:
    """Logits and then KV of each reader, all in one forward."""
    logits = place.read(*map(place.span, readers)).logits
    parts = logits.split([len(reader.tokens) for reader in readers])
    return [*parts, *(place.own_kv(reader).clone() for reader in readers)]


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """To the bit."""
    return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


# symptoms that users of other systems reported ----------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("first", "second"), [(500, -513), (-4096, 4096), (7, 4089)])
def test_20_two_shifts_are_one_shift(name: str, first: int, second: int) -> None:
    """llama.cpp#3825: of two shifts before they are applied only the last one counts. Here they are
    read between, or not: it is what a reader of the sum gets, and what it gets of the fragment
    encoded there."""
    place, fragment = world(name)
    mine, at = words(3, 1), HOME + LENGTH
    reader = place.reader([(fragment, HOME)], mine, at)
    once = read(place, [reader.moved(first + second)])
    assert same(read(place, [reader.moved(first).moved(second)]), once)
    read(place, [reader.moved(first)])
    assert same(read(place, [reader.moved(first).moved(second)]), once)
    (there,) = place.encode(fragment.tokens, HOME + first + second)
    fresh, _ = read(place, [place.reader([(there, there.at)], mine, there.at + LENGTH)])
    assert (once[0] - fresh).abs().max() <= 1e-3 * fresh.std()


@pytest.mark.parametrize("name", NAMES)
def test_21_every_agent_gets_its_shift_in_every_order(name: str) -> None:
    """llama.cpp#14742, #5652, #17109: the shift is ignored for some sequences or orders."""
    place, fragment = world(name)
    readers = agents(place, fragment)
    alone = [read(place, [reader]) for reader in readers]
    order = list(range(len(readers)))
    for seed in range(3):
        together = read(place, [readers[i] for i in order])
        logits, kv = together[: len(order)], together[len(order) :]
        for number, i in enumerate(order):
            assert same([logits[number], kv[number]], alone[i]), SHIFTS[i]
        random.Random(seed).shuffle(order)
    again = [read(place, [reader]) for reader in reversed(readers)]
    assert all(same(a, b) for a, b in zip(alone, reversed(again), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_21_no_type_ignores_a_shift(dtype: torch.dtype) -> None:
    """llama.cpp#14742, #5652, #17109: the shift is ignored for some types. What rounding does is
    far smaller than what ignoring it does."""
    place, fragment = world("llama", dtype)
    readers = agents(place, fragment)
    logits = read(place, readers)[: len(readers)]
    exact_place, exact_fragment = world("llama")
    truth = read(exact_place, agents(exact_place, exact_fragment))[: len(readers)]
    for shift, reader, mine, right in zip(SHIFTS, readers, logits, truth, strict=True):
        off = (mine - right).pow(2).mean().sqrt()
        ignored, _ = read(place, [replace(reader, mounts=((fragment, HOME),))])
        assert not shift or off < 0.5 * (ignored - right).pow(2).mean().sqrt(), shift
        assert off < 0.5 * right.std()


@pytest.mark.parametrize("name", NAMES)
def test_22_a_thousand_attachments_leave_no_trace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#57672, LMCache#4666, KVLink#1: drift after repeated rotation. Readers are attached here
    and there and back, a thousand times: at one shift always the same bits; the fragment's pool
    keeps every byte, keys and values are read where they lie, and the store never copies."""
    place, fragment = world(name)
    readers = agents(place, fragment)
    region = place.store.regions[GROUP]
    before, address = region.clone(), region.data_ptr()
    watch_for_copies(place.store, monkeypatch)
    rng, first = random.Random(0), {}
    for _ in range(1000 // len(readers)):
        moves = [rng.choice(SHIFTS) - shift for shift in SHIFTS]
        results = read(place, [r.moved(by) for r, by in zip(readers, moves, strict=True)])
        for number, by in enumerate(moves):
            mine = results[number :: len(readers)]
            assert same(mine, first.setdefault((number, by), mine)), (number, by)
    assert len(first) == len(readers) * len(SHIFTS)
    assert place.store.regions[GROUP].data_ptr() == address
    assert torch.equal(place.store.regions[GROUP], before)


def watch_for_copies(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the store moves KV, or tiles are read from anywhere but its regions."""
    regions = {region.untyped_storage().data_ptr() for region in store.regions.values()}
    read_tiles = batch.read_tiles

    def in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        assert {x.untyped_storage().data_ptr() for x in (k, v)} <= regions
        return read_tiles(q, k, v, *rest)

    def refuse(*_: Any) -> None:
        raise AssertionError("a shift moves nothing")

    monkeypatch.setattr(batch, "read_tiles", in_place)
    monkeypatch.setattr(KVStore, "copy", refuse)
    monkeypatch.setattr(KVStore, "clear", refuse)


# purity: the same bits in any company and any chunks ----------------------------------------------


def random_readers(place: Place, rng: random.Random) -> list[Reader]:
    """Readers of several fragments each, at random positions; one may have a fragment twice."""
    fragments = [
        place.encode(words(rng.randint(1, 60), rng.randrange(99)), rng.randrange(5000))[0]
        for _ in range(4)
    ]
    readers = []
    for _ in range(rng.randint(2, 5)):
        at, mounts = rng.randrange(2000), []
        for fragment in rng.choices(fragments, k=rng.randint(1, 4)):
            mounts.append((fragment, fragment.at if rng.random() < 0.2 else at))
            at += len(fragment) + rng.randrange(3)
        length = rng.choice([1, rng.randint(2, 40), MANY_ROWS // 2 + 5])
        readers.append(place.reader(mounts, words(length, rng.randrange(99)), at))
    return readers


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_same_bits_in_any_company_and_any_chunks(name: str) -> None:
    assert admitted(name).bitwise
    for seed in range(4):
        rng, place = random.Random(seed), Place(admitted(name))
        readers = random_readers(place, rng)
        alone = [read(place, [reader]) for reader in readers]
        place.store.regions[OWN].uniform_(-9, 9)
        done, rows = [0] * len(readers), [[] for _ in readers]
        while unfinished := [i for i, r in enumerate(readers) if done[i] < len(r.tokens)]:
            chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
            stops = [min(len(readers[i].tokens), done[i] + rng.choice([1, 9, 99])) for i in chosen]
            spans = [place.span(readers[i], done[i], s) for i, s in zip(chosen, stops, strict=True)]
            logits = place.read(*spans).logits.split([len(span.tokens) for span in spans])
            for i, stop, part in zip(chosen, stops, logits, strict=True):
                rows[i].append(part)
                done[i] = stop
        for reader, mine, truth in zip(readers, rows, alone, strict=True):
            assert same([torch.cat(mine), place.own_kv(reader)], truth), seed


@pytest.mark.parametrize("name", NAMES)
def test_a_fragments_last_tokens_are_computed_again_at_their_shift(name: str) -> None:
    """As for a full hit: without a write, under a causal mask over tiles at a shift."""
    place, fragment = world(name)
    (there,) = place.encode(fragment.tokens, HOME + 500)
    got = []
    for own, at in ((fragment, HOME + 500), (there, HOME + 500)):
        span = place.span(place.reader([(own, at)], [1], at + LENGTH))
        count, tiles = 5, mounted([(own, at)])
        again = replace(
            span,
            start=LENGTH - count,
            tokens=fragment.tokens[-count:],
            positions=range(at + LENGTH - count, at + LENGTH),
            slots=(),
            tiles=tiles,
        )
        got.append(place.read(again).logits)
    moved, fresh = got
    assert (moved - fresh).abs().max() <= 1e-3 * fresh.std()
