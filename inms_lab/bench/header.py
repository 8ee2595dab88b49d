"""What every measurement says of itself: the command, the machine, the seed."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def header(name: str, seed: int, repeat: int) -> dict[str, Any]:
    """The head of a result, as plain data."""
    command = shlex.join(["inms-lab", *sys.argv[1:]])
    return {
        "bench": name,
        "command": command,
        "machine": machine(),
        "seed": seed,
        "repeat": repeat,
    }


def machine() -> dict[str, Any]:
    """This machine: what decides times. Loads no torch."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


class Others:
    """How many cores everybody else used since this was made: a busy machine measures little."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = self._now()

    def cores(self) -> float:
        """The mean number of cores."""
        now, busy, own = self._now()
        used = (busy - self._busy) - (own - self._own)
        return round(max(0.0, used / (now - self._started)), 2)

    def _now(self) -> tuple[float, float, float]:
        """Seconds: of the clock, of all cores at work, of this process and its children."""
        import psutil

        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return time.monotonic(), sum(times) - idle - guests, sum(own[:4])


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median of repeated measurements with the least and the greatest."""
    parts = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in parts.items()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
