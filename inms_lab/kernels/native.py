"""The compiled kernels as functions of tensors: matrix products, and attention over tiles."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

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
        self._library.inms_linear.restype = self._library.inms_attend.restype = None
        self._own = threading.local()

    def linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
    ) -> torch.Tensor:
        """x [..., K] times weight [N, K] transposed, plus bias [N]: [..., N] in float32.

        A row's bits do not depend on the number of rows. What the kernel does not do (gradients,
        other types) torch does.
        """
        columns, outputs = x.shape[-1], weight.shape[0]
        if torch.is_grad_enabled() or not self._takes(x, weight, bias):
            return functional.linear(x, weight, bias)
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], outputs)
        add = None if bias is None else bias.data_ptr()
        self._library.inms_linear(
            *(x.data_ptr(), weight.data_ptr(), add, out.data_ptr()),
            *(x.numel() // columns, outputs, columns, torch.get_num_threads()),
        )
        return out

    @staticmethod
    def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether the kernel reads these; a shape that fits nowhere is torch's to refuse."""
        parts = (x, weight) if bias is None else (x, weight, bias)
        return (
            all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parts)
            and x.shape[-1] == weight.shape[1]
            and weight.is_contiguous()
            and (bias is None or bias.is_contiguous())
        )

    def readers(self, groups: int) -> int:
        """Rows that read a tile in one piece of work, for this many query heads a kv head."""
        return 32

    def serves(self, head_dim: int) -> bool:
        """Whether heads of this size can be read."""
        return head_dim % LANES == 0

    def attend(self, plan: ctypes.Structure, layer: ctypes.Structure) -> None:
        """Write a layer's keys and values and read its tiles; see attention/compiled.py."""
        self._library.inms_attend(ctypes.byref(plan), ctypes.byref(layer), torch.get_num_threads())

    def scratch(self, size: int) -> torch.Tensor:
        """At least `size` floats, this thread's own; their content is nobody's."""
        room: torch.Tensor | None = getattr(self._own, "room", None)
        if room is None or room.numel() < size:
            room = self._own.room = torch.empty(size)
        return room

    def install(self, model: nn.Module) -> None:
        """Let every linear layer of `model` that can use the kernel."""
        for module in linears(model):
            module.forward = partial(self._forward, module._parameters)  # type: ignore[method-assign]

    def _forward(self, held: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        """A linear layer's forward; the weights are those that it holds now."""
        return self.linear(held["weight"], held["bias"], x)


def uninstall(model: nn.Module) -> None:
    """Give every linear layer its own forward back."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__dict__.pop("forward", None)


def linears(model: nn.Module) -> list[nn.Linear]:
    """The linear layers with float32 weights on the CPU, as they lie in memory."""
    found = [m for m in model.modules() if type(m) is nn.Linear]
    return [
        m
        for m in found
        if m.weight.dtype == torch.float32
        and m.weight.device.type == "cpu"
        and m.weight.is_contiguous()
    ]
