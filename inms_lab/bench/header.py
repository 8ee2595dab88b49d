"""What every measurement says of itself: the command, the machine, the seed; and its printing."""

from __future__ import annotations

import json
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


def print_result(result: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or lines and tables."""
    if as_json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        _lines(key, value)


def _lines(name: str, value: Any) -> None:
    """A value behind its name; what is nested deeper has lines of its own."""
    if isinstance(value, list):
        print(f"{name:>22}")
        _table(value)
    elif isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
        for key, part in value.items():
            _lines(f"{name} {key}", part)
    else:
        flat = isinstance(value, dict)
        print(f"{name:>22}  {', '.join(f'{k} {v}' for k, v in value.items()) if flat else value}")


def _table(rows: list[dict[str, Any]]) -> None:
    """Rows with the same names, one below the other."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))
