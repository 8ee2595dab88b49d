"""The Triton kernels as functions of tensors, for CUDA. Triton comes with CUDA builds of torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch

from inms_lab.errors import CompilerMissing

# The head of a plan's buffer, as in tiles_triton.py: two counts, then where each array begins.
HEADER = (
    *("num_work", "num_writes"),
    *("tile_pool", "tile_step", "tile_stretch", "stretches", "work"),
    *("reader_row", "reader_seen", "row_state", "states"),
    *("write_row", "write_pool", "write_slot", "pool_slots", "pool_at"),
)
ROWS = 64  # query rows, heads of a group folded in, of one piece of work


class Launcher:
    """The kernels. Where Triton is told to interpret them, they run on the CPU, very slowly."""

    def __init__(self) -> None:
        """Raises `CompilerMissing`."""
        try:
            self._kernels: Any = import_module("inms_lab.kernels.tiles_triton")
        except ImportError as error:
            raise CompilerMissing(
                f"compiled kernels for CUDA need Triton ({error}): install it with `pip install "
                "triton`, in the version that this torch names"
            ) from error

    def readers(self, groups: int) -> int:
        """Rows that read a tile in one piece of work, for this many query heads a kv head."""
        return max(1, ROWS // groups)

    def serves(self, head_dim: int) -> bool:
        """Whether heads of this size can be read."""
        return True

    def write(
        self,
        plan: torch.Tensor,
        num_writes: int,
        kv: torch.Tensor,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """Put rows of k and v [T, K, D] into their slots. `plan`: a packed one (`packed`);
        `num_writes`: at least as many as the plan has; `kv`: the region that it counts from."""
        if not num_writes:
            return
        _, layers, kv_heads, _, dim = kv.shape
        self._kernels.write[num_writes, kv_heads](
            *(plan, k, v, kv, layer, layers, *k.stride()[:2], *v.stride()[:2]),
            *(kv_heads, dim, _power(dim)),
        )

    def read(
        self,
        plan: torch.Tensor,
        num_work: int,
        most: int,
        kv: torch.Tensor,
        layer: int,
        q: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """The states of all (row, tile) pairs from q [T', H, D]: out [readers, H, D], lse
        [readers, H] in float32. `most`: readers of a piece of work."""
        if not num_work:
            return
        _, layers, kv_heads, _, dim = kv.shape
        groups, wide = q.shape[1] // kv_heads, kv.dtype == torch.float32
        # float32 is not rounded; half precision has no such choice.
        precision = "ieee" if wide else "widened" if self._kernels.INTERPRETED else "tf32"
        rows = max(16, _power(most * groups))
        self._kernels.read[num_work, kv_heads](
            *(plan, q, kv, out, lse, layer, layers, scale, *q.stride()[:2]),
            *(kv_heads, groups, dim, max(16, _power(dim)), rows, 32 if wide else 64, precision),
            num_stages=2,
        )

    def join(
        self, plan: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, y: torch.Tensor
    ) -> None:
        """Merge the states of each row into y [rows, H, D]."""
        rows, heads, dim = y.shape
        if rows:
            sizes = heads, dim, _power(dim), 16
            self._kernels.join[rows, heads](plan, out, lse, y, y.stride(0), *sizes)


def packed(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """A plan's arrays as one buffer: the header, then the arrays."""
    head = [len(arrays["work"]), arrays["write_row"].size]
    parts, at = [], len(HEADER)
    for name in HEADER[2:]:
        head.append(at)
        parts.append(arrays[name].reshape(-1))
        at += arrays[name].size
    return np.concatenate([np.array(head, np.int64), *parts])


def _power(number: int) -> int:
    """The power of two from `number` on."""
    return 1 << max(0, number - 1).bit_length()
