"""What each setting of shared parameters is good for: every value with a tiny and a larger module.

    shm_chunk_size       seconds until the weights are shared, and until all of them were read
    cow_threshold        bytes that writes in software copy, and what writing and computing take
    heartbeat_interval   what beats cost, until when a frozen agent's pages are back, and whether an
                         agent lives through a call that holds Python's lock

Values alternate, and ratios are taken of neighbours. `prefetch_degree` has a bench of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import AgentDied, BadInput
from inms_lab.model.progress import bar
from inms_lab.parameters import software
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.host import KIB, MIB
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.weights import without_parameters

LAYERS, ROWS = 4, 8  # of a module, and of what it computes
EVERY = 32  # one row of so many is written

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The values that are tried. `widths`: of the modules, four square layers each (1 and 64 MiB);
    `seconds`: how long beats are counted; `hold`: how long an agent holds Python's lock."""

    chunks: tuple[int, ...] = (MIB, 4 * MIB, 16 * MIB, 256 * MIB)
    thresholds: tuple[int, ...] = (4 * KIB, 32 * KIB, 128 * KIB, MIB)
    intervals: tuple[float, ...] = (0.2, 1.0, 5.0)
    widths: tuple[int, ...] = (256, 2048)
    repeat: int = 5
    seconds: float = 5.0
    hold: float = 1.0

    def __post_init__(self) -> None:
        for name in ("chunks", "thresholds", "intervals", "widths"):
            if not getattr(self, name):
                raise BadInput(f"{name} is at least one value")
        if self.repeat < 1:
            raise BadInput(f"repeat is 1 or more, not {self.repeat!r}")


def measure(sweep: Sweep = Sweep(), progress: bool = True) -> dict[str, Any]:
    """Rows by setting: see the module. Ratios below 1: faster than the usual value. Raises
    `SharingUnsupported`."""
    chunks, thresholds, intervals = [], [], []
    steps = len(sweep.widths) * (2 + len(sweep.intervals))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as agents have
    try:
        with bar(steps, "settings", unit="part", enabled=progress) as done:
            for width in sweep.widths:
                chunks += _chunks(sweep, width)
                done.update()
                thresholds += _thresholds(sweep, width)
                done.update()
                for interval in sweep.intervals:
                    intervals.append(_interval(sweep, width, interval))
                    done.update()
    finally:
        torch.set_num_threads(before)
    return {
        **asdict(sweep),
        "shm_chunk_size": chunks,
        "cow_threshold": thresholds,
        "heartbeat_interval": intervals,
        "prefetch_degree": "inms-lab bench prefetch",
        "recommended": Settings.recommended().reasons,
    }


def module(width: int) -> nn.Module:
    """Square layers of this width, drawn always alike."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = act()
    return time.perf_counter() - started, result


def _compared(
    values: Sequence[int], usual: int, repeat: int, once: Callable[[int], Figures]
) -> list[dict[str, Any]]:
    """A row a value: the medians of what `once` gives for it, and the ratio of its seconds (names
    that end in _s) to those of the usual value, or of the first. Every other round is backwards,
    and the first round is not counted."""
    found: dict[int, list[Figures]] = {value: [] for value in values}
    for number in range(repeat + 1):
        for value in values if number % 2 else reversed(values):
            figures = once(value)
            found[value] += [figures] if number else []
    base = found[usual if usual in found else values[0]]
    return [_row(value, found[value], base) for value in values]


def _row(value: int, rounds: list[Figures], base: list[Figures]) -> dict[str, Any]:
    ours, theirs = (
        [sum(x for name, x in figures.items() if name.endswith("_s")) for figures in side]
        for side in (rounds, base)
    )
    ratio, low, high = (round(x, 3) for x in ratio_of(ours, theirs))
    medians = {n: round(statistics.median(f[n] for f in rounds), 5) for n in rounds[0]}
    return {"bytes": value, **medians, "to_usual": ratio, "low": low, "high": high}


def _chunks(sweep: Sweep, width: int) -> list[dict[str, Any]]:
    made = module(width)

    def once(chunk: int) -> Figures:
        shares, params = _timed(lambda: SharedParameters(made, shm_chunk_size=chunk))
        with params:
            reads, _ = _timed(lambda: [_touch(tensor) for tensor in params.tensors().values()])
            return {"memories": len(params.version.pieces), "share_s": shares, "read_s": reads}

    rows = _compared(sweep.chunks, Settings().shm_chunk_size, sweep.repeat, once)
    return [{"width": width, **row, "memories": round(row["memories"])} for row in rows]


def _touch(tensor: torch.Tensor) -> torch.Tensor:
    """Read a value of each page."""
    return tensor.view(-1)[:: PAGE // tensor.element_size()].sum()


def _thresholds(sweep: Sweep, width: int) -> list[dict[str, Any]]:
    changed = LAYERS * -(-width // EVERY) * width * 4
    with SharedParameters(module(width)) as params:
        tensors, given = params.tensors(), torch.ones(ROWS, width)

        def once(threshold: int) -> Figures:
            with without_parameters():
                bare = module(width)
            wrapped = software.wrap(bare, tensors, threshold)
            with torch.no_grad():
                writes, _ = _timed(lambda: [one.weight[::EVERY].add_(1) for one in wrapped])  # type: ignore[attr-defined]
                computes, _ = _timed(lambda: wrapped(given))
            copied = software.private_bytes(wrapped)
            return {"copied_to_changed": copied / changed, "write_s": writes, "compute_s": computes}

        rows = _compared(sweep.thresholds, Settings().cow_threshold, sweep.repeat, once)
    return [{"width": width, **row} for row in rows]


def _interval(sweep: Sweep, width: int, interval: float) -> dict[str, Any]:
    with SharedParameters(module(width), heartbeat_interval=interval) as params:
        agents = []
        for _ in range(sweep.repeat):  # their beats are spread over an interval
            agents.append(params.agent())
            agents[-1].run(_write_all)
            time.sleep(interval / sweep.repeat)
        nursery = int(_stat(agents[0].pid)[1])
        before = _cpu(agents[0].pid), _cpu(nursery)
        time.sleep(sweep.seconds)
        agent, keeper = (
            (now - was) / sweep.seconds
            for now, was in zip((_cpu(agents[0].pid), _cpu(nursery)), before, strict=True)
        )
        lived = _lives(params.agent(), sweep.hold)
        back = _back([agent.pid for agent in agents], 6 * interval + 10)
    return {
        "width": width,
        "interval": interval,
        "agent_us_per_s": round(agent * 1e6, 1),
        "nursery_us_per_s": round(keeper * 1e6, 1),
        "back_s": round(statistics.median(back), 3),
        "back_max_s": round(max(back), 3),
        "lives_through_hold": lived,
    }


def _write_all(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


def _hold(_: nn.Module, seconds: float) -> None:
    """A call that holds Python's lock: nobody beats meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def _lives(agent: AgentProcess, hold: float) -> bool:
    with agent:
        try:
            agent.run(_hold, hold)
        except AgentDied:
            return False
        return True


def _back(pids: list[int], patience: float) -> list[float]:
    """Seconds from the moment in which all are stopped until each one's pages are given back."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    back: dict[int, float] = {}
    while len(back) < len(pids):
        now = time.monotonic() - started
        if now > patience:
            raise AgentDied(f"frozen agents were not ended within {patience:g} s")
        back |= {pid: now for pid in pids if pid not in back and _stat(pid)[0] in "ZX"}
        time.sleep(0.005)
    return list(back.values())


def _stat(pid: int) -> list[str]:
    """The state and the parent of a process; ["X"] if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return ["X"]


def _cpu(pid: int) -> float:
    """Seconds of processor time of all threads of a process, in nanoseconds' steps."""
    return (
        sum(
            int(path.read_text().split()[0])
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )
        / 1e9
    )
