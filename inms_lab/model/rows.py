"""How many rows a forward must have so that a row's bits do not depend on the rows beside it.

Matrix libraries choose their kernels by the number of rows, and kernels round differently; with
rows padded to a multiple of some number they stay with one. That number is found by experiment: the
model computes two contexts packed and alone (probe.py), and its matrix products and tile reads are
repeated at row counts that such a small experiment does not reach. Promised on CPU in fp32 only,
with a fixed number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from inms_lab.attention.tiles import read_tiles
from inms_lab.model import probe
from inms_lab.model.runner import Runner

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
MKL_FLOOR = 16  # smaller ones pass on one machine and fail on the next
MANY = (1, 2, 3, 5, 64, 192, 512)  # row counts to compare, each rounded up to the multiple
LARGE_TILE = 256
HEAD = 1 << 24  # weights; a matrix larger than that sees few rows here, as an output head does


def candidates(runner: Runner) -> tuple[int, ...]:
    """Multiples worth trying, smallest first; nothing is padded where bits are not promised."""
    if runner.device.type != "cpu" or runner.dtype != torch.float32:
        return (1,)
    floor = MKL_FLOOR if torch.backends.mkl.is_available() and runner.native is None else 1
    return tuple(m for m in MULTIPLES if m >= floor)


def settle(runner: Runner, tile: int, packed: probe.Trial) -> None:
    """Set the runner's `row_multiple` and `bitwise`; `packed` was computed at the first candidate.

    Never refuses: without a multiple that works, rows are not padded and `bitwise` is False.
    """
    tried = candidates(runner)
    for multiple in tried if len(tried) > 1 else ():
        runner.row_multiple = multiple
        if not _operations_agree(runner, tile):
            continue
        if multiple != tried[0]:
            packed = probe.packed(runner, tile)
        if probe.alone(runner, tile).equals(packed):
            runner.bitwise = True
            return
    runner.row_multiple, runner.bitwise = 1, False


def _operations_agree(runner: Runner, tile: int) -> bool:
    """Matrix products of every shape that the model has, and tile reads, at many row counts."""
    multiple, generator = runner.row_multiple, torch.Generator().manual_seed(0)
    counts = sorted({-(-count // multiple) * multiple for count in MANY})
    for linear in _products(runner.model):
        few = [c for c in counts if c <= 64 or linear.weight.numel() <= HEAD]
        x = torch.randn(1, max(few), linear.in_features, generator=generator)
        plain = partial(functional.linear, weight=linear.weight, bias=linear.bias)
        if not _rows_agree(linear.forward if type(linear) is nn.Linear else plain, x, few):
            return False
    if runner.native is not None:
        return True  # its reads have no row counts to choose by; tests hold it to that
    g = runner.geometry
    queries = torch.randn(g.num_kv_heads, counts[-1], g.head_dim, generator=generator)
    for size in {tile, LARGE_TILE}:
        shape = (3, g.num_kv_heads, size, g.head_dim)
        keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
        for read in (_Read(keys[:1], values[:1]), _Read(keys, values)):
            if not _rows_agree(read, queries, counts):
                return False
    return True


def _products(model: nn.Module) -> list[nn.Linear]:
    """One linear layer of each shape."""
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    plain = (f for f in linears if f.weight.dtype == torch.float32)  # a quantised one has no rows
    return list({(f.weight.shape, f.bias is None): f for f in plain}.values())


class _Read:
    """Attention of queries [K, R, D] over these tiles, the last slots of each hidden."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values

    def __call__(self, queries: torch.Tensor) -> torch.Tensor:
        """Results and log-sum-exp side by side: [n, K, R, D + 1]."""
        mask = torch.zeros(queries.shape[1], self.keys.shape[2])
        mask[:, -5:] = -torch.inf
        out, lse = read_tiles(queries, self.keys, self.values, mask, queries.shape[-1] ** -0.5)
        return torch.cat((out, lse.unsqueeze(-1)), dim=-1)


def _rows_agree(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, counts: list[int]
) -> bool:
    """Whether the rows (dimension -2) of f(x) keep their bits with fewer rows, first or last."""
    most, full = x.shape[-2], f(x)
    return all(
        torch.equal(f(x[:, start : start + count]), full[..., start : start + count, :])
        for count in counts
        for start in (0, most - count)
    )
