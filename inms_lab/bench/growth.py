"""What one agent more costs: step time beside unique and logical bytes, and the process' memory.

Contexts are drawn. Memory is the process' peak while agents write, against what the pools hold.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inms_lab.bench.contexts import Contexts, Work, room_for
from inms_lab.bench.parts import traffic
from inms_lab.model.runner import Runner

STEPS = 8  # of a round
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Row = dict[str, Any]


def measure(
    runner: Runner,
    work: Work,
    counts: Sequence[int],
    contexts: Sequence[int],
    repeat: int,
    pair: tuple[int, int] = (8, 32),
) -> Row:
    """Steps at each number of agents behind `work.shared` tokens, and for `work.agents` agents at
    each length of a context; every agent has `work.own` tokens of its own."""
    room = room_for(STEPS)

    def at(shared: int, agents: int) -> Row:
        return one(runner, Work(shared, work.own, agents, room, work.seed, drawn=True), repeat)

    at(work.shared, counts[0])  # kernels, threads and room for results are there from here on
    by_agents = [at(work.shared, count) for count in counts]
    by_context = [at(total - work.own - room, work.agents) for total in contexts]
    for rows in (by_agents, by_context):
        for row in rows:
            row["more_peak_bytes"] = row["peak_bytes"] - by_agents[0]["peak_bytes"]
            row["more_held_bytes"] = row["held_bytes"] - by_agents[0]["held_bytes"]
    out: Row = {"own": work.own, "contexts": "drawn", "compiled": runner.native is not None}
    out |= {"growth": growth(by_agents, pair), "memory": memory(by_agents)}
    out["memory"]["logits_bytes_per_agent"] = 4 * runner.vocab_size
    return out | {"by_agents": by_agents, "by_context": by_context}


def one(runner: Runner, work: Work, repeat: int) -> Row:
    """One lab: its median step, its bytes, its memory."""
    gc.collect()  # labs of before
    with Contexts(runner, work) as lab:
        lab.write(1)
        reset_peak()
        steps = lab.write(STEPS, repeat)
        peak, moved = peak_bytes(), traffic(lab)
    return {
        "agents": work.agents,
        "shared": work.shared,
        "step_ms": round(1e3 * statistics.median(steps.counted), 3),
        "unique_bytes": moved.unique,
        "logical_bytes": moved.logical,
        "weights_bytes": moved.weights,
        "held_bytes": steps.held,
        "peak_bytes": peak,
    }


def growth(rows: Sequence[Row], pair: tuple[int, int]) -> Row:
    """From one number of agents to another: how step time, unique and logical bytes grow, and the
    first against the others (`with_weights`: bytes of the weights counted in)."""
    found = {row["agents"]: row for row in rows}
    if not all(count in found for count in pair):
        return {}
    few, many = (found[count] for count in pair)

    def times(*names: str) -> float:
        return float(sum(many[n] for n in names) / sum(few[n] for n in names))

    step, unique, logical = (times(f) for f in ("step_ms", "unique_bytes", "logical_bytes"))
    both = times("unique_bytes", "weights_bytes")
    grown = {"step": step, "unique": unique, "unique_with_weights": both, "logical": logical}
    ratios = {"step_to_unique": step / unique, "step_to_unique_with_weights": step / both}
    values = {"from": pair[0], "to": pair[1], **grown, **ratios}
    return {name: round(value, 3) for name, value in values.items()}


def memory(rows: Sequence[Row]) -> Row:
    """How much more memory the last row's lab takes than the first's, and the pools' share of it.
    Beyond it are what a step computes for each row (logits above all) and the books, in bytes."""
    last = rows[-1]
    more, held = last["more_peak_bytes"], last["more_held_bytes"]
    shares = {"ratio": round(more / held, 4)} if held else {}
    each = (more - held) // max(1, last["agents"] - rows[0]["agents"])
    beyond = {"beyond": more - held, "beyond_per_agent": each}
    return {"by_formula": held, "measured": more, **shares, **beyond}


def reset_peak() -> None:
    """From now on the process' peak counts (on Linux)."""
    if CLEAR.exists():
        CLEAR.write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The most memory that the process had since then; elsewhere what it has now."""
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.Process().memory_info().rss)
