"""Attention over tiles by the Triton kernels, on CUDA: a layout bound to them, layer by layer.

Results equal the plain operators' within a tolerance, not in every bit: the order of sums depends
on how many rows read a tile together.
"""

from __future__ import annotations

from copy import copy
from functools import partial

import numpy as np
import torch

from inms_lab.attention.layout import Layout, Planner
from inms_lab.attention.reads import Span, TileRef
from inms_lab.attention.store import KVStore
from inms_lab.attention.tiles import read_tiles_plain
from inms_lab.errors import CompilerMissing
from inms_lab.kernels.launcher import Launcher, packed

TILE = 64  # tokens of a tile of the trial


class Launched:
    """The reads and writes of a step, for `attend` in every layer."""

    def __init__(self, launcher: Launcher, store: KVStore, layout: Layout) -> None:
        self.launcher, self.num_rows = launcher, layout.num_rows
        _, layers, kv_heads, self.dim = store.shape
        regions = [store.regions[pool] for pool in layout.pools]
        # All regions are reached from the first one's address.
        none = torch.zeros(2, layers, kv_heads, 0, self.dim, dtype=store.dtype, device=store.device)
        self.kv = regions[0] if regions else none
        at = [region.data_ptr() - self.kv.data_ptr() for region in regions]
        arrays = {**layout.arrays, "pool_at": np.array(at, np.int64) // store.dtype.itemsize}
        sizes = np.diff(arrays["work"][:, 1:]).reshape(-1)
        self.num_work, self.num_writes = len(arrays["work"]), arrays["write_row"].size
        self.num_readers = arrays["reader_row"].size
        self.most = int(sizes.max(initial=1))
        self.plan = torch.from_numpy(packed(arrays)).to(store.device)  # one transfer a step
        self.states: tuple[torch.Tensor, torch.Tensor] | None = None

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write k and v [T, K, D], then read q [T', H, D], own rows first -> out [T, H, D]."""
        heads = q.shape[1]
        q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
        if self.states is None:  # the layers take turns with it
            size = self.num_readers, heads
            out = torch.empty(*size, self.dim, dtype=torch.float32, device=q.device)
            self.states = out, out.new_empty(size)
        y = q.new_empty(self.num_rows, heads, self.dim)
        self.launcher.write(self.plan, self.num_writes, self.kv, layer, k, v)
        self.launcher.read(
            *(self.plan, self.num_work, self.most, self.kv, layer, q, scale), *self.states
        )
        self.launcher.join(self.plan, *self.states, y)
        return y

    @property
    def shape(self) -> tuple[int, ...]:
        """What steps must have in common to be served by one `grown` reader."""
        return (
            *(self.num_rows, bucket(self.num_work), bucket(self.num_writes)),
            *(bucket(self.num_readers), bucket(self.plan.numel()), self.most, self.kv.data_ptr()),
        )

    def grown(self) -> Launched:
        """A reader of the same plan with room for any other of its shape, to `take`. The kernels
        skip what a plan does not have, so the results are the same."""
        made = copy(self)
        made.plan, made.states = self.plan.new_zeros(bucket(self.plan.numel())), None
        for name in ("num_work", "num_writes", "num_readers"):
            setattr(made, name, bucket(getattr(self, name)))
        made.take(self)
        return made

    def take(self, other: Launched) -> None:
        """Follow the plan of `other`, which has the same shape."""
        self.plan[: other.plan.numel()].copy_(other.plan)


def bucket(number: int) -> int:
    """The next of the sizes 0 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: four to a doubling."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return -(-number // step) * step


def trial(
    launcher: Launcher, heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Build the kernels for this many heads, kv heads and dimensions, and read a few tiles.

    Raises `CompilerMissing` where that fails, or gives something else than plain attention.
    """
    num, kv_heads, dim = heads
    make = torch.Generator().manual_seed(0)
    store = KVStore(1, kv_heads, dim, dtype, device)
    store.open("trial", 4 * TILE)
    region = store.regions["trial"]
    region.copy_(torch.randn(region.shape, generator=make))
    planner = Planner(TILE, launcher.readers(num // kv_heads), partial(Launched, launcher))
    shared = TileRef("trial", 2 * TILE, 0, TILE)
    for row in (0, 1):  # two readers of a tile, each behind it with a token of its own
        own = TileRef("trial", row * TILE, TILE, 1)
        slots = [("trial", row * TILE)]
        planner.add(Span(TILE, [0], [TILE], slots, [shared, own], True), row)
    q, k, v = (
        torch.randn(2, n, dim, generator=make).to(device, dtype) for n in (num, kv_heads, kv_heads)
    )
    try:
        out = planner.plan(store, 2)["compiled"].attend(0, q, k, v, dim**-0.5)
    except Exception as error:  # of Triton's compiler, the C compiler that it calls, or the driver
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CompilerMissing(
            f"Triton cannot build or run the kernels here ({type(error).__name__}: {reason})"
        ) from error
    keys, values = (x.float() for x in store.layer("trial", 0))
    for row in (0, 1):
        index = torch.tensor([*range(2 * TILE, 3 * TILE), row * TILE], device=device)
        folded = q[row].view(kv_heads, -1, dim)
        truth, _ = read_tiles_plain(
            folded.float(), keys[None, :, index], values[None, :, index], None, dim**-0.5
        )
        off = (out[row].view(kv_heads, -1, dim).float() - truth[0]).abs().max()
        if not off <= (1e-4 if dtype == torch.float32 else 0.05):
            raise CompilerMissing(f"Triton's kernels are {off:.1e} off plain attention here")
