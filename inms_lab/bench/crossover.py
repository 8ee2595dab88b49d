"""From where on sharing pays: reading a shared tile once for all against once for each agent, and
a tile more in every step against a prefill that is not done. Contexts are drawn, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inms_lab.bench.contexts import Contexts, Work, room_for
from inms_lab.bench.header import spread
from inms_lab.model.runner import Runner

STEPS = 6  # of a round
PIECES = 8  # tiles more that a context is cut into
PREFILLED = 128  # tokens whose prefill is timed
WRITTEN = 1000  # tokens that an agent writes behind a shared text, for the break-even
Row = dict[str, Any]


def measure(
    runner: Runner,
    work: Work,
    lengths: Sequence[int],
    counts: Sequence[int],
    repeat: int,
) -> Row:
    """Both modes at each shared length and number of agents, `work.own` own tokens each."""
    rows = [
        one(runner, replace(work, shared=length, agents=count, room=room_for(STEPS)), repeat)
        for count in counts
        for length in lengths
    ]
    out: Row = {"own": work.own, "contexts": "drawn", "compiled": runner.native is not None}
    out["shared_from"] = crossings(rows)
    return out | {"tile": tile(runner, work, repeat), "steps": rows}


def one(runner: Runner, work: Work, repeat: int) -> Row:
    """The same contexts in both modes, a round of one and a round of the other in turns."""
    work = replace(work, drawn=True)
    with (
        Contexts(runner, work, mode="independent") as alone,
        Contexts(runner, work, mode="inms") as shared,
    ):
        for lab in (alone, shared):
            lab.write(1)
        pairs = [(_step(alone), _step(shared)) for _ in range(repeat)]
    ratios = spread([one / each for each, one in pairs])
    return {
        "agents": work.agents,
        "shared": work.shared,
        "independent_ms": round(1e3 * statistics.median(each for each, _ in pairs), 3),
        "inms_ms": round(1e3 * statistics.median(one for _, one in pairs), 3),
        **{f"ratio_{name}": value for name, value in ratios.items()},
    }


def crossings(rows: Sequence[Row]) -> dict[str, int | None]:
    """By number of agents: the least shared length from which on sharing is faster; None: never."""
    out: dict[str, int | None] = {}
    for count in dict.fromkeys(row["agents"] for row in rows):
        mine = sorted((r["shared"], r["ratio_median"]) for r in rows if r["agents"] == count)
        slower = [shared for shared, ratio in mine if ratio >= 1]
        faster = [shared for shared, _ in mine if not slower or shared > slower[-1]]
        out[str(count)] = faster[0] if faster else None
    return out


def tile(runner: Runner, work: Work, repeat: int) -> Row:
    """What a tile more costs an agent in a step, what a token's prefill costs, and how long a text
    must be for its sharing to save more than its tile costs while `WRITTEN` tokens are written."""
    sizes = work.shared, work.own, work.agents, max(room_for(STEPS), PREFILLED)
    with (
        Contexts(runner, Work(*sizes, work.seed, drawn=True)) as whole,
        Contexts(runner, Work(*sizes, work.seed, drawn=True), pieces=PIECES + 1) as cut,
    ):
        for lab in (whole, cut):
            lab.write(1)
        pairs = [(_step(whole), _step(cut)) for _ in range(repeat)]
        prefill = [_prefill(whole, number) for number in range(repeat)]
    more = statistics.median(b - a for a, b in pairs) / (PIECES * work.agents)
    return break_even(more, statistics.median(prefill))


def break_even(tile_s: float, prefill_s: float) -> Row:
    """`tile_s` of one tile more in a step, `prefill_s` of one token."""
    return {
        "tile_ms": round(1e3 * tile_s, 5),
        "prefill_ms": round(1e3 * prefill_s, 4),
        "written": WRITTEN,
        "break_even_tokens": round(max(0.0, WRITTEN * tile_s / prefill_s), 1),
    }


def _step(lab: Contexts) -> float:
    return statistics.median(lab.write(STEPS).counted)


def _prefill(lab: Contexts, number: int) -> float:
    """Seconds of a token's prefill behind a whole context; forgotten again."""
    text = lab.work.text("prefill", number, PREFILLED, lab.model.vocab_size)
    started = time.perf_counter()
    lab.agents[0].read(text, role=None).result()
    seconds = time.perf_counter() - started
    lab.agents[0].rollback(PREFILLED).result()
    return seconds / PREFILLED
