"""The KV store: views, writes, clears and copies touch the slots that they name and no others."""

from __future__ import annotations

import psutil
import pytest
import torch

from inms_lab.attention.store import KVStore, runs


def filled() -> KVStore:
    store = KVStore(num_layers=2, num_kv_heads=3, head_dim=4)
    for pool_id in ("a", "b"):
        store.open(pool_id, 32)
        shape = store.regions[pool_id].shape
        store.regions[pool_id].copy_(torch.arange(1.0, 1 + shape.numel()).view(shape))
    return store


def changed(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """Slots in which anything differs."""
    differs = (before != after).flatten(0, 2).any(-1).any(0)
    return differs.nonzero().flatten().tolist()


def test_bytes_per_token_is_the_formula() -> None:
    assert KVStore(30, 3, 64).bytes_per_token == 2 * 30 * 3 * 64 * 4 == 45 * 1024
    assert KVStore(32, 32, 128, torch.float16).bytes_per_token == 512 * 1024


def test_a_new_region_is_zero_and_layers_are_views() -> None:
    store = KVStore(2, 3, 4)
    store.open("a", 8)
    assert not store.regions["a"].any()
    keys, values = store.layer("a", 1)
    assert keys.shape == values.shape == (3, 8, 4)
    keys[:, 5] = 1
    assert store.regions["a"][0, 1, :, 5].eq(1).all()
    assert not store.regions["a"][1].any()


def test_reserved_memory_is_taken_only_when_it_is_written() -> None:
    store = KVStore(30, 3, 64)
    process = psutil.Process()
    before = process.memory_info().rss
    store.open("a", 40_000)  # 1.7 GiB
    assert process.memory_info().rss - before < 100 << 20
    store.clear("a", range(100), 16)
    assert 50 << 20 < process.memory_info().rss - before < 400 << 20
    store.close()
    assert process.memory_info().rss - before < 50 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_element_type_has_its_size(dtype: torch.dtype) -> None:
    store = KVStore(2, 3, 4, dtype)
    store.open("a", 8)
    assert store.regions["a"].dtype == dtype
    assert store.regions["a"].nbytes == 8 * store.bytes_per_token


def test_write_puts_tokens_into_their_slots() -> None:
    store = filled()
    before = store.regions["a"].clone()
    key, value = torch.full((3, 2, 4), -1.0), torch.full((3, 2, 4), -2.0)
    store.write("a", 1, torch.tensor([9, 4]), key, value)
    assert changed(before, store.regions["a"]) == [4, 9]
    assert torch.equal(store.regions["a"][:, 0], before[:, 0])
    assert store.layer("a", 1)[0][:, [4, 9]].eq(-1).all()
    assert store.layer("a", 1)[1][:, [4, 9]].eq(-2).all()


def test_clear_zeroes_whole_blocks_only() -> None:
    store = filled()
    before = store.regions["a"].clone()
    store.clear("a", (1, 2, 5), 4)
    assert changed(before, store.regions["a"]) == [*range(4, 12), *range(20, 24)]
    assert not store.regions["a"][:, :, :, 4:12].any()


def test_copy_moves_slots_between_pools_and_leaves_the_source() -> None:
    store = filled()
    a, b = store.regions["a"].clone(), store.regions["b"].clone()
    store.regions["b"].neg_()
    store.copy(("a", 8), ("b", 16), 3)
    assert torch.equal(store.regions["a"], a)
    assert changed(-b, store.regions["b"]) == [16, 17, 18]
    assert torch.equal(store.regions["b"][:, :, :, 16:19], a[:, :, :, 8:11])


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [((), []), ((3,), [(3, 1)]), ((3, 4, 5, 9, 8), [(3, 3), (9, 1), (8, 1)])],
)
def test_runs(blocks: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    assert runs(blocks) == expected
