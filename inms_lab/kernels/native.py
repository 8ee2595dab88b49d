"""The compiled kernels as functions of tensors: matrix products with what stands around them in a
decoder layer, and attention over tiles. They check nothing: model/fused.py gives what they take.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import Array, Structure
from typing import Any

import torch

from inms_lab.kernels.build import library

Pointer = ctypes.c_void_p
LANES = 16  # head dimensions come in multiples of it


class Native:
    """The kernels, and room for the results of tiles that a thread keeps from step to step."""

    def __init__(self) -> None:
        """Raises `CompilerMissing`."""
        self._library = library()
        self._library.inms_linear.argtypes = [Pointer] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int]
        self._library.inms_attend.argtypes = [Pointer, Pointer, ctypes.c_int]
        self._library.inms_norm.argtypes = [
            *(Pointer, Pointer, ctypes.c_float, Pointer),
            *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int),
        ]
        self._library.inms_gated.argtypes = [Pointer] * 6 + [ctypes.c_int64] * 3 + [ctypes.c_int]
        self._library.inms_heads.argtypes = [Pointer] * 7 + [ctypes.c_int]
        self._library.inms_blocks.argtypes = [Pointer] * 3 + [ctypes.c_int64, ctypes.c_int]
        for name in ("linear", "attend", "norm", "gated", "heads", "blocks"):
            getattr(self._library, f"inms_{name}").restype = None
        self._own = threading.local()

    def linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
    ) -> torch.Tensor:
        """x [..., K] times weight [N, K] transposed, plus bias [N]: [..., N] in float32.

        A row's bits do not depend on the number of rows. All are plain (`is_plain`).
        """
        columns, outputs = x.shape[-1], weight.shape[0]
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], outputs)
        add = None if bias is None else bias.data_ptr()
        self._library.inms_linear(
            *(x.data_ptr(), weight.data_ptr(), add, out.data_ptr()),
            *(x.numel() // columns, outputs, columns, torch.get_num_threads()),
        )
        return out

    def readers(self, groups: int) -> int:
        """Rows that read a tile in one piece of work, for this many query heads a kv head."""
        return 32

    def serves(self, head_dim: int) -> bool:
        """Whether heads of this size can be read."""
        return head_dim % LANES == 0

    def attend(self, plan: Structure, layer: Structure) -> None:
        """Write a layer's keys and values and read its tiles; see attention/compiled.py."""
        self._library.inms_attend(ctypes.byref(plan), ctypes.byref(layer), torch.get_num_threads())

    def blocks(self, plan: Structure, layers: Array[Any], blocks: Array[Any]) -> None:
        """Decoder layers, each behind the one before; see model/layers.py."""
        count = len(blocks), torch.get_num_threads()
        self._library.inms_blocks(ctypes.byref(plan), layers, blocks, *count)

    def scratch(self, size: int, name: str = "tiles") -> torch.Tensor:
        """At least `size` floats, this thread's own; their content is nobody's."""
        room: torch.Tensor | None = getattr(self._own, name, None)
        if room is None or room.numel() < size:
            room = torch.empty(size)
            setattr(self._own, name, room)
        return room

    def norm(self, weight: torch.Tensor, eps: float, x: torch.Tensor) -> torch.Tensor:
        """x [..., N] over the root of its mean square, times weight [N]."""
        x = x.contiguous()
        out, columns = torch.empty_like(x), x.shape[-1]
        self._library.inms_norm(
            *(x.data_ptr(), weight.data_ptr(), eps, out.data_ptr()),
            *(x.numel() // columns, columns, torch.get_num_threads()),
        )
        return out

    def gated(
        self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        """down (silu(gate x) * up x) for x [..., N], gate and up [M, N], down [N, M]."""
        x = x.contiguous()
        out, columns, inner = torch.empty_like(x), x.shape[-1], gate.shape[0]
        rows = x.numel() // columns
        room = x.new_empty(2, rows, inner)
        self._library.inms_gated(
            *(part.data_ptr() for part in (x, gate, up, down, out, room)),
            *(rows, inner, columns, torch.get_num_threads()),
        )
        return out

    def heads(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        cos: torch.Tensor,
        sin: torch.Tensor,
        x: torch.Tensor,
        dim: int,
    ) -> list[torch.Tensor]:
        """Queries [T, H, dim], keys and values [T, K, dim] of x [T, N], the first two turned by
        cos and sin [T, dim], half-split."""
        rows, columns = x.shape
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        counts = [weight.shape[0] // dim for weight in weights]
        out = x.new_empty(rows * sum(counts) * dim)
        add = (None if bias is None else bias.data_ptr() for bias in biases)
        sizes = (ctypes.c_int64 * 6)(rows, columns, *counts[:2], dim, cos.shape[-1])
        self._library.inms_heads(
            x.data_ptr(),
            (Pointer * 3)(*(weight.data_ptr() for weight in weights)),
            (Pointer * 3)(*add),
            *(cos.data_ptr(), sin.data_ptr(), out.data_ptr(), sizes, torch.get_num_threads()),
        )
        parts = out.split([rows * count * dim for count in counts])
        return [part.view(rows, n, dim) for part, n in zip(parts, counts, strict=True)]


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether these are float32 on the CPU, as they lie in memory."""
    return all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
        for x in tensors
        if x is not None
    )
