"""Which compiled kernels a model gets: C++ on the CPU, Triton on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inms_lab.attention.launched import trial
from inms_lab.errors import BadInput
from inms_lab.kernels.launcher import Launcher
from inms_lab.kernels.native import Native

if TYPE_CHECKING:
    from inms_lab.model.runner import Geometry

ON_CUDA = (torch.float32, torch.bfloat16, torch.float16)


def kernels(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> Native | Launcher:
    """The kernels for such a model. Raises `CompilerMissing`, or `BadInput`: there are none."""
    if device.type == "cpu" and dtype == torch.float32:
        return Native()
    if device.type == "cuda" and dtype in ON_CUDA:
        launcher = Launcher()
        heads = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
        trial(launcher, heads, dtype, device)
        return launcher
    raise BadInput(
        "compile=True is for float32 on the CPU, and for float32, bfloat16 and float16 on CUDA, "
        f"not for {dtype} on {device}"
    )
