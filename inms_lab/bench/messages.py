"""How long a message of one tensor takes from one process to another, by reference and by copies;
the ways are those of `message_ways.py`.

The clock starts when the producer has written the tensor's values, and stops twice: when the
receiver has a tensor of them (`ready`), and when it has read one value of each page (`read`, the
same statement in all ways). Page faults of a mapping are in the second. Letting a message go is in
neither. Ways take turns, and ratios are of neighbours.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from inms_lab.bench.intervals import ratio_of
from inms_lab.bench.message_ways import MOMENTS, WAYS, times
from inms_lab.errors import BadInput
from inms_lab.model.progress import bar
from inms_lab.parameters.region import PAGE
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS, NOT_TESTABLE

CLAIM, CLAIMED = "zero-copy-messages", 0.83  # of claims.py
FROM = 1 << 20  # bytes from which on it is judged
SIZES = tuple(1 << power for power in range(12, 29, 2))  # 4 KiB to 256 MiB


def measure(sizes: Sequence[int] = SIZES, repeat: int = 20, show: bool = False) -> dict[str, Any]:
    """`repeat` messages of each size (bytes, whole pages) by each way; `show`: a progress bar.

    `latency`: medians in microseconds. `less`: by how much less the reference takes than each other
    way, with the 95 % interval. `pipe_wins_up_to`: the greatest size, in bytes, at which the pipe
    was faster than a way by reference; 0 if at none.

    Raises `BadInput` for other sizes, `NotEnoughMemory`; about eight times the greatest size is
    taken.
    """
    if not sizes or any(size < PAGE or size % PAGE for size in sizes):
        raise BadInput(f"sizes are whole pages of {PAGE} bytes, at least one")
    if repeat < 2:
        raise BadInput("an interval takes 2 repetitions or more")
    latency: list[dict[str, Any]] = []
    less: list[dict[str, Any]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # a process is a thread here, and only so may be forked
    try:
        with bar(len(sizes), "messages", unit="size", enabled=show) as shown:
            for size in sorted(sizes):
                taken = times(size, repeat)
                latency += [_medians(size, moment, taken[moment]) for moment in MOMENTS]
                less += [row for moment in MOMENTS for row in _less(size, moment, taken[moment])]
                shown.update()
    finally:
        torch.set_num_threads(before)
    return {
        "repeat_of_each": repeat,
        "latency": latency,
        "less": less,
        "pipe_wins_up_to": pipe_wins(latency),
        "claims": {CLAIM: claimed(less)},
    }


def _medians(size: int, moment: str, times: dict[str, list[float]]) -> dict[str, Any]:
    medians = {way: round(statistics.median(times[way]), 1) for way in WAYS}
    return {"bytes": size, "until": moment, **medians}


def _less(size: int, moment: str, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    rows = []
    for way in WAYS[1:]:
        ratio, low, high = ratio_of(times["reference"], times[way])
        shares = {"less": 1 - ratio, "low": 1 - high, "high": 1 - low}
        rounded = {name: round(value, 3) for name, value in shares.items()}
        rows.append({"bytes": size, "until": moment, "than": way, **rounded})
    return rows


def pipe_wins(latency: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Per way by reference and moment: the greatest size at which the pipe was faster."""
    return {
        f"{way}, {moment}": max(
            (r["bytes"] for r in latency if r["until"] == moment and r["pipe"] < r[way]), default=0
        )
        for way in WAYS[:3]
        for moment in MOMENTS
    }


def claimed(less: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the rows say of the claim: it holds if at every size from `FROM` on the reference is
    ready in so much less time than two copies over the same line into a tensor that is there. What
    it is against two copies without any line is told beside it."""

    def told(than: str, moment: str) -> str:
        found = [
            f"{row['bytes'] / 2**20:g} MiB {row['less']:.1%} ({row['low']:.1%}-{row['high']:.1%})"
            for row in less
            if (row["than"], row["until"]) == (than, moment) and row["bytes"] >= FROM
        ]
        return ", ".join(found) or "no such size"

    rows = [row for row in less if row["than"] == "copied" and row["bytes"] >= FROM]
    verdict = NOT_TESTABLE
    if rows:
        enough = all(row["less"] >= CLAIMED for row in rows if row["until"] == "ready")
        verdict = HOLDS if enough else DOES_NOT_HOLD
    return {
        "measured": f"less latency than two copies until the receiver has the tensor: "
        f"{told('copied', 'ready')}; and until it has read of each page: {told('copied', 'read')}; "
        f"than two copies with a bare signal, until it has the tensor: {told('bare', 'ready')}",
        "interval": "95 %, of neighbouring messages",
        "verdict": verdict,
    }
