"""Pages: what is free goes back to the system, whatever the pattern of the survivors; what is held
or cached keeps its bytes; a positive limit is never "off".

A small store stands for a real one: 6 rows (keys and values, one layer, three heads) of blocks that
are exactly a page, smaller, larger, and such that no edge of a block is the edge of a page.
"""

from __future__ import annotations

import random
import sys
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from toy import TensorModel, Toy

from inms_lab.attention import pages
from inms_lab.attention.pages import PAGE
from inms_lab.attention.store import KVStore, NoStore
from inms_lab.config import Config
from inms_lab.errors import BadInput, LabClosed
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.waste import compact, trim

linux = pytest.mark.skipif(sys.platform != "linux", reason="nobody tells what is in memory")
ROWS, DIM = 6, 64  # a token is 256 bytes of a row
TOKEN = DIM * 4
BLOCKS = 24
SIZES = {  # tokens of a block
    "exactly a page": PAGE // TOKEN,
    "a quarter": PAGE // TOKEN // 4,
    "four pages": 4 * PAGE // TOKEN,
    "unaligned, smaller": PAGE // TOKEN // 3,
    "unaligned, larger": PAGE // TOKEN + 5,
}
WHOLE = ("exactly a page", "four pages")


def full(size: int) -> KVStore:
    """A store whose every block was written."""
    store = KVStore(num_layers=1, num_kv_heads=3, head_dim=DIM)
    store.open("p", BLOCKS * size)
    store.regions["p"].fill_(1.0)
    return store


def free_but(held: set[int]) -> list[int]:
    return [block for block in range(BLOCKS) if block not in held]


def patterns(count: int) -> dict[str, set[int]]:
    """`count` survivors in several places."""
    draw = random.Random(count)
    return {
        "the first": set(range(count)),
        "the last": set(range(BLOCKS - count, BLOCKS)),
        "spread": {i * BLOCKS // count for i in range(count)},
        **{f"drawn {i}": set(draw.sample(range(BLOCKS), count)) for i in range(8)},
    }


@linux
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("count", [1, 6, 12])
def test_what_comes_back_is_all_but_the_pages_that_survivors_touch(name: str, count: int) -> None:
    size = SIZES[name]
    returned = set()
    for held in patterns(count).values():
        store = full(size)
        whole = store.resident("p")
        given = store.give_back("p", free_but(held), size)
        row, block = BLOCKS * size * TOKEN, size * TOKEN
        touched = {
            page
            for at in (r * row + b * block for r in range(ROWS) for b in held)
            for page in range(at // PAGE, -(-(at + block) // PAGE))
        }
        assert (given.why, store.resident("p")) == ("", len(touched) * PAGE)
        assert given.num_bytes == whole - len(touched) * PAGE
        assert len(touched) * PAGE <= pages.pinned_bytes(count, ROWS, block)
        for block in held:  # a survivor's bytes are as they were
            assert store.regions["p"][:, :, :, block * size : (block + 1) * size].eq(1).all()
        returned.add(given.num_bytes)
    if name in WHOLE:
        assert len(returned) == 1, "the pattern of the survivors decided what came back"


@linux
@pytest.mark.parametrize("name", SIZES)
def test_a_cap_in_blocks_is_a_cap_in_bytes(name: str) -> None:
    """However blocks come and go, what is in memory after a trim is what the held ones may pin."""
    size, draw = SIZES[name], random.Random(3)
    store = KVStore(1, 3, DIM)
    store.open("p", BLOCKS * size)
    cap, held = 5, list[int]()
    for _ in range(200):
        if len(held) == cap or (held and draw.random() < 0.4):
            held.remove(draw.choice(held))
        else:
            block = draw.choice(free_but({*held}))
            store.clear("p", (block,), size)
            store.regions["p"][:, :, :, block * size : (block + 1) * size] = block + 1
            held.append(block)
        store.give_back("p", free_but({*held}), size)
        assert store.resident("p") <= pages.pinned_bytes(cap, ROWS, size * TOKEN)
        for block in held:
            kv = store.regions["p"][:, :, :, block * size : (block + 1) * size]
            assert kv.eq(block + 1).all()


@linux
def test_a_page_that_two_blocks_share_goes_back_when_both_are_free() -> None:
    size = SIZES["a quarter"]
    store = full(size)
    whole = store.resident("p")
    assert store.give_back("p", (0, 1, 2), size).num_bytes == 0
    assert store.resident("p") == whole
    assert store.give_back("p", (0, 1, 2, 3), size).num_bytes == ROWS * PAGE
    assert store.give_back("p", (3, 1, 0, 2), size).num_bytes == 0, "it went back already"
    assert not store.regions["p"][:, :, :, : 4 * size].any()
    assert store.regions["p"][:, :, :, 4 * size :].eq(1).all()


@linux
def test_everything_free_leaves_nothing_even_where_the_region_ends_in_a_page() -> None:
    for size in SIZES.values():
        store = full(size)
        assert store.give_back("p", range(BLOCKS), size).num_bytes > 0
        assert store.resident("p") == 0


def test_whole_pages_by_hand() -> None:
    parts = pages.stretches([(0, 1), (2, 2)], 2, 400, 100)
    assert parts.tolist() == [[0, 100], [200, 500], [600, 800]]
    found = pages.whole_pages(parts, 800, 128)
    assert found.tolist() == [[2, 3], [5, 7]]  # the last page ends behind the region
    assert pages.whole_pages(parts, 900, 128).tolist() == [[2, 3], [5, 6]]
    assert pages.stretches([], 2, 400, 100).shape == (0, 2)


def test_whole_pages_are_those_of_which_every_byte_is_free() -> None:
    draw = random.Random(0)
    for _ in range(200):
        rows, block, blocks, page = (draw.randint(1, 5), *draw.choices(range(1, 40), k=2), 16)
        row = block * blocks
        free = sorted(draw.sample(range(blocks), draw.randint(0, blocks)))
        parts = pages.stretches([(b, 1) for b in free], rows, row, block)
        assert all(a[1] < b[0] for a, b in pairwise(parts.tolist()))
        byte = np.zeros(-(-rows * row // page) * page, dtype=bool)
        byte[rows * row :] = True
        for r in range(rows):
            for b in free:
                byte[r * row + b * block : r * row + (b + 1) * block] = True
        want = byte.reshape(-1, page).all(axis=1).nonzero()[0].tolist()
        if not free or free[-1] != blocks - 1:
            want = [p for p in want if (p + 1) * page <= rows * row]
        found = pages.whole_pages(parts, rows * row, page).tolist()
        assert [p for first, stop in found for p in range(first, stop)] == want


def test_where_pages_do_not_go_back_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = full(16)
    monkeypatch.setattr(pages.sys, "platform", "win32")
    given = store.give_back("p", range(BLOCKS), 16)
    assert (given.num_bytes, given.why) == (0, "this system does not take single pages back")
    assert store.resident("p") is None
    assert store.regions["p"].eq(1).all()
    elsewhere = KVStore(1, 1, 4, device="meta")
    elsewhere.open("p", 16)
    assert elsewhere.give_back("p", (0,), 4).why == "a region on meta is kept whole"
    assert elsewhere.resident("p") == 16 * elsewhere.bytes_per_token
    assert NoStore(1).give_back("p", (0,), 4).why


class Paged(TensorModel):
    """A toy model of whose blocks of 4 tokens `per_page` are a page in each of four rows."""

    def __init__(self, per_page: int = 1) -> None:
        super().__init__()
        self.dim = PAGE // 16 // per_page

    def new_store(self) -> KVStore:
        return KVStore(num_layers=2, num_kv_heads=1, head_dim=self.dim)

    def put(self, store: KVStore, pool_id: str, slot: int, state: int) -> None:
        kv = torch.full((1, 1, self.dim), float(state))
        for layer in range(2):
            store.write(pool_id, layer, torch.tensor([slot]), kv, -kv)

    def get(self, store: KVStore, pool_id: str, slot: int) -> int | None:
        return int(store.layer(pool_id, 1)[0][0, slot, 0]) or None


@linux
def test_a_trim_gives_back_free_blocks_and_neither_held_nor_cached_ones() -> None:
    toy = Toy(model=Paged(), blocks=(4, 4, 16))
    store, block = toy.cache.store, 4 * PAGE
    toy.prompt([1, 2, 3, 4])
    agents = [toy.agent(name) for name in "ab"]
    for agent in agents:
        toy.do(agent, "append", [agent % 5] * 16)
    assert store.resident("private") == 8 * block
    assert trim(toy.cache).num_bytes == 0, "nothing that was written is free"
    toy.do(agents[0], "close")
    back = trim(toy.cache)
    assert back.by_pool == {"global": 0, "group:team": 0, "private": 4 * block}
    assert (back.why, store.resident("private")) == ("", 4 * block)
    answer = toy.do(agents[1], "write", [1], count=3)  # the survivor reads its blocks: a witness
    assert answer == toy.model.generate([agents[1] % 5] * 16 + [1], 3)
    again = toy.agent("c")
    toy.do(again, "append", [3] * 42)  # takes blocks that went back, and writes half of the last
    assert toy.states(again) == toy.model.run([3] * 42)
    last = toy.table(again)[0][1][-1]
    assert not store.regions["private"][..., 4 * last + 2 : 4 * last + 4, :].any(), "not zero"
    assert store.resident("private") == (5 + 11) * block


@linux
def test_after_a_compaction_small_blocks_too_give_back_the_same_whoever_survives() -> None:
    """Four blocks a page: scattered survivors pin a page each, until they lie together."""
    draw, apart, together = random.Random(1), set(), set()
    for _ in range(6):
        toy = Toy(model=Paged(4), blocks=(4, 4, 32), compare=False)
        agents = [toy.agent(f"a{i}") for i in range(32)]
        for agent in agents:
            toy.do(agent, "append", [agent % 5] * 4)
        whole = toy.cache.store.resident("private")
        held = set(draw.sample(agents, 8))
        for agent in set(agents) - held:
            toy.do(agent, "close")
        apart.add(trim(toy.cache).num_bytes)
        compact(toy.cache)
        trim(toy.cache)
        assert toy.cache.store.resident("private") == whole * 8 // 32
        together.add(toy.cache.store.resident("private"))
        for agent in held:
            answer = toy.do(agent, "write", [1], count=2)
            assert answer == toy.model.generate([agent % 5] * 4 + [1], 2)
    assert len(together) == 1 < len(apart)


@linux
def test_cached_blocks_keep_their_pages() -> None:
    toy = Toy("global", model=Paged(), blocks=(4, 4, 16))
    one = toy.agent("one")
    toy.do(one, "append", [1] * 16)
    toy.do(one, "close")
    pool = toy.ledger.pools["common"]
    assert len(pool.cached) == 4
    assert trim(toy.cache).num_bytes == 0
    other = toy.agent("other")
    toy.do(other, "append", [1] * 16)
    assert toy.do(other, "write", [2], count=2) == toy.model.generate([1] * 16 + [2], 2)


@linux
def test_a_lab_tells_how_many_bytes_came_back() -> None:
    with Lab(Paged(), config=small(), gate=None) as lab:
        first, second = lab.agent("first"), lab.agent("second")
        for agent in (first, second):
            agent.read([1] * 8).result()
        held = lab.waste()
        (private,) = (pool for pool in held.pools if pool.pool_id == "private")
        assert (private.held, private.resident) == (4, 4 * 4 * PAGE)
        first.close()
        lab.run_to()
        back = lab.trim()
        assert back.num_bytes == 2 * 4 * PAGE
        assert f"{back!r}".startswith("32 KiB given back (private 32 KiB)")
        (private,) = (pool for pool in lab.waste().pools if pool.pool_id == "private")
        assert private.resident == private.used == 2 * 4 * PAGE
    with pytest.raises(LabClosed):
        lab.trim()


def small() -> Config:
    token = 2 * 2 * 1 * PAGE // 16 * 4
    return Config(4, 4, 100, 1000, 4 * 4 * token, 4 * 4 * token, 16 * 4 * token)


# a positive limit is a limit ----------------------------------------------------------------

OFF = {"tile": "a block's own tile", "suspect_after": "no sweep"}  # what 0 means, where it may be


def test_a_small_positive_limit_never_means_off() -> None:
    """Each number of `Config`: 0 is refused or has a meaning of its own, 1 (or a byte) is never
    taken for it."""
    numbers = [f.name for f in fields(Config) if f.type in ("int", "float")]
    assert {*OFF} <= {*numbers}
    for name in numbers:
        if name in OFF or name.endswith("_bytes"):
            continue
        with pytest.raises(BadInput):
            Config(**{name: 0})
    for name in OFF:
        assert getattr(Config(**{name: 0}), name) == 0
    for name in ("token_budget", "prefill_budget", "copy_budget", "log_limit", "suspect_after"):
        assert getattr(Config(**{name: 1}), name) == 1


@pytest.mark.parametrize("arguments", [{"pool_bytes": 0}, {"block_size": 0}, {"token_budget": 0}])
def test_a_labs_own_sizes_of_nothing_are_refused(arguments: dict[str, int]) -> None:
    """0 is not "as if nothing was said"."""
    with pytest.raises(BadInput):
        Lab(DryModel(64, 256, 1024), gate=None, **arguments)


@pytest.mark.parametrize("name", ["global_bytes", "group_bytes", "private_bytes"])
@pytest.mark.parametrize("budget", [0, 1, 16 * 45 * 1024 - 1])
def test_bytes_for_less_than_a_block_are_refused_and_more_is_rounded_down(
    name: str, budget: int
) -> None:
    tier = name.removesuffix("_bytes")
    with pytest.raises(BadInput, match="do not hold one block"):
        Config(block_size=16, **{name: budget}).num_blocks(tier, 45 * 1024)
    block = 16 * 45 * 1024
    assert Config(floor_bytes=1).floor_blocks(1) == 1, "a floor is rounded up: never none"
    for count, extra in ((1, 0), (1, block - 1), (2, 0), (7, 5)):
        config = Config(block_size=16, **{name: count * block + extra})
        assert config.num_blocks(tier, 45 * 1024) == count


def test_pools_and_budgets_of_one_work() -> None:
    """One block, one token a step, one block copied a step, a log of one event: slow, not off."""
    dry = DryModel(64, 256, 1024)
    limits = {"token_budget": 1, "prefill_budget": 1, "copy_budget": 1, "log_limit": 1}
    config = Config(4, 0, context=64, private_bytes=4 * 1024, **limits)
    with Lab(dry, config=config, gate=None) as lab:
        agent = lab.agent("one")
        agent.read([1, 2, 3]).result()
        assert len(lab.engine.ledger.pools["private"].refs) == 1
        assert lab.engine.ledger.num_steps == 3
