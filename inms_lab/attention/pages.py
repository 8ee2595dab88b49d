"""Memory in pages, as the operating system gives it and takes it back: which pages of a region lie
in free blocks only, and which are in memory at all.

A block is not one stretch of a region: it has one in each row (keys or values of one head of one
layer). A page goes back when every byte of it belongs to free blocks, whichever and however many.
So a block that is still held pins, in each row, the pages that it touches and no others.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
Stretches = npt.NDArray[np.int64]  # [n, 2]: first byte, and the one behind the last


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Bytes that left the process' memory; `why` says what stands against giving any back."""

    num_bytes: int = 0
    why: str = ""


def stretches(
    runs: Sequence[tuple[int, int]], num_rows: int, row_bytes: int, block_bytes: int
) -> Stretches:
    """Where runs (first block, count) lie: byte stretches in rising order, those that touch joined.

    `row_bytes` is a row's length, `block_bytes` what a block has of each row.
    """
    rows = np.arange(num_rows, dtype=np.int64)[:, None, None] * row_bytes
    parts = np.array([(first, first + count) for first, count in sorted(runs)], dtype=np.int64)
    all_of = (rows + parts.reshape(1, -1, 2) * block_bytes).reshape(-1, 2)
    if not len(all_of):
        return all_of
    apart = all_of[1:, 0] > all_of[:-1, 1]
    starts = all_of[np.concatenate(([True], apart)), 0]
    return np.stack((starts, all_of[np.concatenate((apart, [True])), 1]), axis=1)


def whole_pages(parts: Stretches, num_bytes: int, page: int = PAGE) -> Stretches:
    """The whole pages (first, and the one behind the last) within byte stretches of a region of
    `num_bytes`; what is left of its last page belongs to nobody and counts as free."""
    ends = np.where(parts[:, 1] == num_bytes, -(-num_bytes // page) * page, parts[:, 1])
    pages = np.stack((-(-parts[:, 0] // page), ends // page), axis=1)
    return pages[pages[:, 0] < pages[:, 1]]


def pinned_bytes(num_blocks: int, num_rows: int, block_bytes: int, page: int = PAGE) -> int:
    """The most that so many held blocks can keep in memory, wherever they lie: in each row a block
    touches its own length, rounded up to whole pages, and one page more where it may straddle."""
    straddles = page if block_bytes % page else 0
    return num_blocks * num_rows * (-(-block_bytes // page) * page + straddles)


def in_memory(address: int, num_bytes: int) -> npt.NDArray[np.bool_] | None:
    """For each page from `address` on whether it is in memory; None where nobody can tell."""
    if sys.platform != "linux":
        return None
    found = np.zeros(-(-num_bytes // PAGE), dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    where = (
        ctypes.c_void_p(address),
        ctypes.c_size_t(num_bytes),
        ctypes.c_void_p(found.ctypes.data),
    )
    return None if libc.mincore(*where) else (found & 1).astype(bool)


def give_back(memory: mmap.mmap, address: int, pages: Stretches) -> GivenBack:
    """Give pages of a private mapping at `address` back; they read as zero when used again."""
    before = in_memory(address, len(memory))
    if before is None or not hasattr(mmap, "MADV_DONTNEED"):
        return GivenBack(why="this system does not take single pages back")
    count = np.concatenate(([0], np.cumsum(before)))
    used = pages[count[pages[:, 1]] > count[pages[:, 0]]]  # the others were never taken
    for first, stop in used.tolist():
        length = min(stop * PAGE, len(memory)) - first * PAGE
        memory.madvise(mmap.MADV_DONTNEED, first * PAGE, length)
    after = in_memory(address, len(memory))
    return GivenBack(0 if after is None else int(before.sum() - after.sum()) * PAGE)
