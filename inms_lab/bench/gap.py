"""What writers feel of an agent that reads a long text meanwhile, by the budget of its prefill."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from inms_lab.bench.contexts import Contexts, Work, room_for
from inms_lab.decisions.outcome import StepReport
from inms_lab.model.runner import Runner

ALONE = 8  # steps behind the reading, for comparison


def measure(
    runner: Runner, work: Work, read: int, budgets: Sequence[int], repeat: int
) -> dict[str, Any]:
    """`work.agents` write while one more agent reads `read` tokens behind the shared prefix; the
    reading is computed, the writers' contexts are drawn."""
    rows = [one(runner, work, read, budget, repeat) for budget in budgets]
    sizes = {"shared": work.shared, "own": work.own, "writers": work.agents, "read": read}
    how = {"contexts": "drawn", "compiled": runner.native is not None}
    return {**sizes, **how, "budgets": rows}


def one(runner: Runner, work: Work, read: int, budget: int, repeat: int) -> dict[str, Any]:
    """The same for one prefill budget: milliseconds between two tokens of a writer."""
    steps = -(-read // budget) + ALONE + 1
    room = max(room_for(steps), read)  # the reader takes the place of a writer's own text and room
    sizes = work.shared, work.own, work.agents + 1
    gaps, alone, took = list[float](), list[float](), list[float]()
    with Contexts(runner, Work(*sizes, room, work.seed, drawn=True), prefill=budget) as contexts:
        reader = contexts.agents.pop()
        reader.rollback(work.own).result()
        for number in range(repeat):
            text = contexts.work.text("read", number, read, runner.vocab_size)
            beside, without, seconds = _round(contexts, reader, text, steps)
            gaps += beside
            alone += without
            took.append(seconds)
    return {
        "prefill_budget": budget,
        "median_gap_ms": round(1e3 * statistics.median(gaps), 1),
        "worst_gap_ms": round(1e3 * max(gaps), 1),
        "alone_ms": round(1e3 * statistics.median(alone), 1),
        "gaps": len(gaps),
        "read_s": round(statistics.median(took), 3),
        "read_tokens_per_s": round(read / statistics.median(took), 1),
    }


def _round(
    contexts: Contexts, reader: Any, text: list[int], steps: int
) -> tuple[list[float], list[float], float]:
    """Gaps while it reads, gaps behind that, seconds of the reading."""
    notes: list[tuple[float, bool]] = []

    def note(report: StepReport) -> None:
        if len(report.tokens) == len(contexts.agents):
            reads = any(chunk.seq_id == reader.seq_id for chunk in report.chunks)
            notes.append((time.perf_counter(), reads))

    started = time.perf_counter()
    reading = reader.read(text, role=None)
    contexts.all_write(room_for(steps), note)
    reading.result()
    gaps = [(after - before, reads) for (before, _), (after, reads) in pairwise(notes)]
    last = max(at for at, reads in notes if reads)
    reader.rollback(len(text)).result()
    return (
        [seconds for seconds, reads in gaps if reads],
        [seconds for seconds, reads in gaps if not reads][1:],
        last - started,
    )
