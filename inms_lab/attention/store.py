"""Where KV lives: per pool one region [2, layers, K, slots, D], keys and values, never moved.

A layer's keys are [K, slots, D], so tiles and runs of neighbouring tiles are views. A region is
reserved, all zero, when its pool opens; on the CPU the operating system gives pages only as they
are first written, so a large pool costs nothing until it is used, and takes them back (pages.py).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from inms_lab.attention import pages
from inms_lab.attention.pages import GivenBack

# Not shared with a forked child; Windows knows no flags and shares nothing anyway.
_PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class KVStore:
    """Regions by pool id."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = (2, num_layers, num_kv_heads, head_dim)
        self.dtype, self.device = dtype, torch.device(device)
        self.regions: dict[str, torch.Tensor] = {}
        self.memory: dict[str, mmap.mmap] = {}  # what they lie in, on the CPU

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token, all layers: 2 x layers x kv heads x head dim x element size."""
        two, layers, heads, dim = self.shape
        return two * layers * heads * dim * self.dtype.itemsize

    def open(self, pool_id: str, num_slots: int) -> None:
        """Reserve a region of `num_slots` slots."""
        two, layers, heads, dim = self.shape
        shape = (two, layers, heads, num_slots, dim)
        if self.device.type == "cpu":  # fresh pages are zero; torch.zeros would touch every one
            memory = mmap.mmap(-1, num_slots * self.bytes_per_token, **_PRIVATE)
            self.memory[pool_id] = memory
            self.regions[pool_id] = torch.frombuffer(memory, dtype=self.dtype).view(shape)
        else:
            self.regions[pool_id] = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def close(self) -> None:
        """Give every region back."""
        self.regions.clear()
        self.memory.clear()

    def layer(self, pool_id: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each [K, slots, D]."""
        region = self.regions[pool_id]
        return region[0, layer], region[1, layer]

    def write(
        self,
        pool_id: str,
        layer: int,
        slots: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Put `key` and `value`, each [K, T, D], into `slots` [T]."""
        keys, values = self.layer(pool_id, layer)
        keys.index_copy_(1, slots, key.to(self.dtype))
        values.index_copy_(1, slots, value.to(self.dtype))

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        """Zero the slots of these blocks."""
        for first, count in runs(blocks):
            self.regions[pool_id][
                :, :, :, first * block_size : (first + count) * block_size
            ].zero_()

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        """Copy `num_slots` slots between (pool id, first slot) places."""
        (src_pool, src), (dst_pool, dst) = source, target
        from_region, to_region = self.regions[src_pool], self.regions[dst_pool]
        to_region[:, :, :, dst : dst + num_slots] = from_region[:, :, :, src : src + num_slots]

    def give_back(self, pool_id: str, blocks: Iterable[int], block_size: int) -> GivenBack:
        """Give the system every whole page that lies in these blocks only; `blocks` are all that
        are free: of a page that two of them share, both have to be named. They must hold nothing
        that anybody reads; on other devices than the CPU nothing happens."""
        memory = self.memory.get(pool_id)
        if memory is None:
            return GivenBack(why=f"a region on {self.device.type} is kept whole")
        region = self.regions[pool_id]
        two, layers, heads, slots, dim = region.shape
        token = dim * region.itemsize
        where = (two * layers * heads, slots * token, block_size * token)
        parts = pages.stretches(runs(sorted(blocks)), *where)
        return pages.give_back(memory, region.data_ptr(), pages.whole_pages(parts, region.nbytes))

    def resident(self, pool_id: str) -> int | None:
        """Bytes of a region that are in memory, in whole pages; None where nobody can tell."""
        region = self.regions.get(pool_id)
        if region is None or pool_id not in self.memory:
            return None if region is None else region.nbytes
        found = pages.in_memory(region.data_ptr(), region.nbytes)
        return None if found is None else int(found.sum()) * pages.PAGE


class NoStore:
    """The store of a dry run: bookkeeping without tensors."""

    def __init__(self, bytes_per_token: int) -> None:
        self._bytes_per_token = bytes_per_token

    @property
    def bytes_per_token(self) -> int:
        """What one token would take."""
        return self._bytes_per_token

    def open(self, pool_id: str, num_slots: int) -> None:
        """Nothing to reserve."""

    def close(self) -> None:
        """Nothing to give back."""

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        """Nothing to clear."""

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        """Nothing to copy."""

    def give_back(self, pool_id: str, blocks: Iterable[int], block_size: int) -> GivenBack:
        """Nothing to give back."""
        return GivenBack(why="a dry run keeps no KV")

    def resident(self, pool_id: str) -> int | None:
        """Nothing is there."""
        return 0


def runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring blocks as (first, count)."""
    out: list[tuple[int, int]] = []
    for block in blocks:
        if out and sum(out[-1]) == block:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((block, 1))
    return out
