"""How fast agents write at once behind a shared prefix, what a step reads, where its time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from inms_lab.bench.contexts import WARM_UP, Contexts, Steps, Work, room_for
from inms_lab.bench.header import spread
from inms_lab.bench.parts import Traffic, clocked, read_bandwidth, traffic
from inms_lab.model.runner import Runner

CLOCKED = 8  # steps whose parts are timed, apart from those that count


def measure(runner: Runner, work: Work, tokens: int, repeat: int) -> dict[str, Any]:
    """`repeat` rounds of `tokens` steps; the median step counts. `work.room` is made to fit."""
    bandwidth = read_bandwidth(runner.device)
    with Contexts(runner, with_room(work, max(tokens, CLOCKED))) as contexts:
        contexts.write(1)  # the first is not like the others
        steps = contexts.write(tokens, repeat)
        moved = traffic(contexts)
        parts = parts_ms(contexts, runner.device)
    said = told(work, steps) | {"compiled": runner.native is not None}
    return said | bytes_told(moved, statistics.median(steps.counted), bandwidth) | parts


def with_room(work: Work, num_steps: int) -> Work:
    """The same work with room for a round of so many steps."""
    sizes = work.shared, work.own, work.agents
    return Work(*sizes, room_for(num_steps), work.seed, work.drawn)


def told(work: Work, steps: Steps) -> dict[str, Any]:
    """Sizes and speed."""
    median, counted = statistics.median(steps.counted), [1e3 * s for s in steps.counted]
    rates = [work.agents / statistics.median(one[WARM_UP:]) for one in steps.rounds]
    return {
        "shared": work.shared,
        "own": work.own,
        "agents": work.agents,
        "contexts": "drawn" if work.drawn else "computed",
        "tokens_per_s": round(work.agents / median, 2),
        "tokens_per_s_spread": spread(rates, 2),
        "step_ms": round(1e3 * median, 3),
        "step_ms_spread": percentiles(counted),
        "worst_gap_ms": round(1e3 * steps.worst, 3),
        "bookkeeping_ms": round(1e3 * statistics.median(steps.bookkeeping), 3),
    }


def bytes_told(moved: Traffic, seconds: float, bandwidth: float) -> dict[str, Any]:
    """Bytes of one step, and how near it comes to the speed at which this machine reads."""
    return {
        "weights_bytes": moved.weights,
        "logical_bytes": moved.logical,
        "unique_bytes": moved.unique,
        "kv_bytes_read": moved.read,
        "bytes_read": moved.total,
        "read_gb_per_s": round(moved.total / seconds / 1e9, 3),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 3),
        "bandwidth_share": round(moved.total / seconds / bandwidth, 4),
        "threads": torch.get_num_threads(),
    }


def parts_ms(contexts: Contexts, device: torch.device) -> dict[str, Any]:
    """Milliseconds of a step's parts, the mean over steps of their own; nothing off the CPU. Where
    whole layers are computed by one kernel, also those of a step without that (`by_parts_ms`)."""
    if device.type != "cpu":
        return {}
    parts = _parts(contexts, by_parts=False)
    return {"parts_ms": parts} | (
        {"by_parts_ms": _parts(contexts, by_parts=True)} if parts["layers"] else {}
    )


def _parts(contexts: Contexts, by_parts: bool) -> dict[str, float]:
    names = ("layers", "products", "attention")
    with clocked(by_parts) as clock:
        steps = contexts.write(CLOCKED, clock=lambda: tuple(getattr(clock, n) for n in names))
    kernels = [1e3 * statistics.mean(part) for part in zip(*steps.parts, strict=True)]
    step, books = (1e3 * statistics.mean(s) for s in (steps.counted, steps.bookkeeping))
    parts = {"step": step, **dict(zip(names, kernels, strict=True)), "bookkeeping": books}
    parts["other"] = step - sum(kernels) - books
    return {name: round(value, 3) for name, value in parts.items()}


def percentiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median with the 5th and the 95th percentile."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[round(share * (len(ordered) - 1))], digits)

    return {"median": round(statistics.median(values), digits), "p5": at(0.05), "p95": at(0.95)}
