"""Skewed reads of blocks in several regions, with replicas of the hot ones and without.

On one NUMA node all regions have the same memory, so their bandwidth is kept by a clock here: a
region serves one read after the other, each as long as its bytes take. The bytes are real, and what
every reader got is compared with what had been written before it began.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inms_lab.bench.header import spread
from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import BadInput
from inms_lab.model.progress import bar
from inms_lab.parameters.replicas import Replicas
from inms_lab.parameters.slots import Region

Ways = dict[bool, list[dict[str, float]]]  # with replicas -> its runs


@dataclass(frozen=True, slots=True)
class Load:
    """Reads of `blocks` blocks, Zipf of exponent `skew`, by `threads`; a share of `writes` of all
    calls replaces a block. `budget`: replicas, in blocks, that a region has room for; `bandwidth`
    of a region in bytes a second."""

    blocks: int = 256
    block_bytes: int = 64 << 10
    regions: int = 4
    budget: int = 16
    skew: float = 1.1
    writes: float = 0.01
    calls: int = 3000
    threads: int = 8
    bandwidth: float = 40e6
    seed: int = 0

    def __post_init__(self) -> None:
        least = min(self.blocks, self.regions, self.calls, self.threads, self.block_bytes // 8)
        if least < 1 or self.block_bytes % 8 or self.budget < 0:
            raise BadInput(
                "blocks, regions, calls, threads are at least 1, block_bytes a multiple of 8, "
                "budget 0 or more"
            )
        if not 0 < self.bandwidth < math.inf:
            raise BadInput("bandwidth is a finite number above 0")
        if not 0 <= self.writes < 1 or not 0 <= self.skew < math.inf:
            raise BadInput("writes is a share below 1, skew a finite number, 0 or more")


def measure(load: Load | None = None, repeat: int = 5) -> dict[str, Any]:
    """`repeat` pairs of runs of the same calls, in changing order."""
    load = load or Load()
    if repeat < 1:
        raise BadInput("repeat is at least 1")
    runs: Ways = {False: [], True: []}
    with bar(2 * repeat, "replicas", unit="run") as progress:
        for number in range(repeat):
            for way in (False, True) if number % 2 else (True, False):
                runs[way].append(_run(load, way, load.seed + number))
                progress.update()
    calm = {way: [run["max_to_mean"] for run in runs[way]] for way in runs}
    ratio, low, high = ratio_of(calm[True], calm[False])
    speed, slow, fast = ratio_of(*([run["mib_per_s"] for run in runs[w]] for w in (True, False)))
    return {
        "sizes": {name: getattr(load, name) for name in Load.__slots__},
        "rows": [_row(way, runs[way]) for way in (False, True)],
        "max_to_mean_ratio": {
            "ratio": round(ratio, 3),
            "low": round(low, 3),
            "high": round(high, 3),
        },
        "throughput_ratio": {
            "ratio": round(speed, 3),
            "low": round(slow, 3),
            "high": round(fast, 3),
        },
        "stale_reads": sum(int(run["stale"]) for way in runs for run in runs[way]),
        "falls": high < 1 if repeat > 1 else ratio < 1,
    }


class _Pace:
    """Keeps a region's bandwidth: who reads waits until its bytes would have come."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth, self._free_at, self._lock = bandwidth, 0.0, threading.Lock()

    def serve(self, num_bytes: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._free_at = max(now, self._free_at) + num_bytes / self._bandwidth
            wait = self._free_at - now
        time.sleep(wait)


class _Checked:
    """Blocks whose bytes are their own version, again and again, so that a reader can tell."""

    def __init__(self, load: Load, replicas: Replicas) -> None:
        self.load, self.replicas, self.stale = load, replicas, 0
        self._written = [0] * load.blocks  # the newest version of which the write has ended
        self._writing = [threading.Lock() for _ in range(load.blocks)]
        self._paces = [_Pace(load.bandwidth) for _ in range(load.regions)]

    def write(self, number: int) -> None:
        with self._writing[number]:
            version = self._written[number] + 1
            self.replicas.write(number, _bytes(version, self.load))
            self._written[number] = version

    def read(self, number: int) -> None:
        least = self._written[number]
        got = self.replicas.read(number)
        self._paces[got.region].serve(self.load.block_bytes)
        values = got.value.view(torch.int64)
        if not (least <= int(values[0]) == got.version and bool((values == values[0]).all())):
            self.stale += 1


def _bytes(version: int, load: Load) -> torch.Tensor:
    return torch.full((load.block_bytes // 8,), version, dtype=torch.int64).view(torch.uint8)


def _run(load: Load, with_replicas: bool, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    numbers, writes = _calls(load, rng)
    budget = load.budget * load.block_bytes if with_replicas else 0
    regions = [Region(budget, load.bandwidth) for _ in range(load.regions)]
    homes = rng.integers(load.regions, size=load.blocks).tolist()
    blocks = torch.zeros(load.blocks, load.block_bytes, dtype=torch.uint8)
    replicas = Replicas(blocks, regions, homes)
    checked = _Checked(load, replicas)

    def work(first: int) -> None:
        for number, is_write in zip(numbers[first :: load.threads], writes[first :: load.threads],
                                    strict=True):  # fmt: skip
            (checked.write if is_write else checked.read)(number)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(load.threads)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    replicas.check()
    return {
        "max_to_mean": max(replicas.reads) / statistics.fmean(replicas.reads),
        "mib_per_s": sum(replicas.reads) * load.block_bytes / seconds / 2**20,
        "stale": checked.stale,
        "made": replicas.made,
        "dropped": replicas.dropped,
        "invalidated": replicas.invalidated,
    }


def _calls(load: Load, rng: np.random.Generator) -> tuple[list[int], list[bool]]:
    """Blocks in a drawn order of their use, by Zipf; and which calls are writes."""
    chances: npt.NDArray[np.float64] = 1 / np.arange(1, load.blocks + 1) ** load.skew
    ranks = rng.choice(load.blocks, load.calls, p=chances / chances.sum())
    return rng.permutation(load.blocks)[ranks].tolist(), (
        rng.random(load.calls) < load.writes
    ).tolist()


def _row(with_replicas: bool, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    told = ("max_to_mean", "mib_per_s", "made", "dropped", "invalidated", "stale")
    return {"replicas": with_replicas} | {
        name: spread([run[name] for run in runs], 2) for name in told
    }
