"""Lab 15: messages from one process to another, by reference and by copies, and their curves."""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import socket
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path
from typing import Any

import torch

from inms_lab.bench.message_ways import times
from inms_lab.parameters import kernel
from inms_lab.parameters.grouping import Talk, Traffic
from inms_lab.parameters.inbox import Inbox
from inms_lab.parameters.messages import NAME
from inms_lab.parameters.postbox import Outbox
from inms_lab.parameters.region import PAGE

from .curves import COLOURS, DASHES, PLOTLY

WAYS = {  # as they are measured -> as the lab calls them
    "reference": "by reference",
    "placed": "late reference",
    "copied": "third buffer",
    "pipe": "pipe",
}
WITHIN = 0.9  # of all messages: inside of a team
LEFT, RIGHT, TOP, BOTTOM = 70, 520, 36, 240  # of the plain picture's plot
Lines = Mapping[str, Sequence[tuple[float, float]]]


class Line:
    """A line that messages go over, with both of its ends in this process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.outbox, self.inbox = Outbox(ours), Inbox(theirs)

    def assert_clean(self) -> None:
        """Close both ends. Raises `AssertionError` if this process still has an end, the memory of
        a message, or a child."""
        self.outbox.close()
        self.inbox.close()
        del self.outbox, self.inbox
        gc.collect()
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
        assert f"/memfd:{NAME}" not in maps, "somebody keeps a message: let its tensors go"
        assert not multiprocessing.active_children(), "a process that was started has not ended"


def own_pages(tensor: torch.Tensor) -> int:
    """How many pages of a tensor in shared memory this process has to itself: it wrote them."""
    states = kernel.page_states("self", tensor.data_ptr(), -(-tensor.nbytes // PAGE) * PAGE)
    assert states is not None, "Linux tells each process of its own pages"
    return int((states == kernel.PRIVATE).sum())


def race(sizes: Sequence[int], repeat: int = 5) -> dict[str, list[tuple[float, float]]]:
    """Way -> (bytes, median microseconds until the receiver has the tensor), between this process
    and one that it starts, and ends."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS.values()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process with torch's threads cannot be forked
    try:
        for size in sizes:
            ready = times(size, repeat)["ready"]
            for way, name in WAYS.items():
                found[name].append((size, statistics.median(ready[way])))
    finally:
        torch.set_num_threads(threads)
    return found


def latencies(measured: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """The same of a results file."""
    rows = [row for row in measured["latency"] if row["until"] == "ready"]
    return {name: [(row["bytes"], row[way]) for row in rows] for way, name in WAYS.items()}


def savings(measured: dict[str, Any]) -> Any:
    """By size, from 1 MiB on, how much less time the reference takes than two copies over the same
    line (until the tensor is there; until each page was read), and than two bare ones; a table."""
    import pandas as pd

    columns = {
        ("copied", "ready"): "than a third buffer",
        ("copied", "read"): "and each page read",
        ("bare", "ready"): "than a bare one",
    }
    table: dict[str, dict[str, str]] = {}
    for row in measured["less"]:
        column = columns.get((row["than"], row["until"]))
        if column and row["bytes"] >= 1 << 20:
            table.setdefault(size_of(row["bytes"]), {})[column] = f"{row['less']:.1%}"
    return pd.DataFrame.from_dict(table, orient="index")[list(columns.values())]


def first_win(lines: Lines, winner: str, loser: str) -> float | None:
    """The smallest x from which on one line stays below another; None: it never does."""
    pairs = [(x, low < high) for (x, low), (_, high) in
             zip(lines[winner], lines[loser], strict=True)]  # fmt: skip
    lost = [at for at, (_, wins) in enumerate(pairs) if not wins]
    start = lost[-1] + 1 if lost else 0
    return pairs[start][0] if start < len(pairs) else None


def conversation(agents: Sequence[str], teams: int, messages: int, seed: int = 0) -> Talk:
    """Who talked with whom: nine messages of ten stay in a team. The agents of all teams arrive by
    turns."""
    rng, talk = random.Random(seed), Talk()
    for _ in range(messages):
        number = rng.randrange(len(agents))
        inside = rng.random() < WITHIN
        among = [at for at in range(len(agents)) if (at % teams == number % teams) is inside]
        talk.said(agents[number], agents[rng.choice([at for at in among if at != number])])
    return talk


def matrix(traffic: Traffic, order: Sequence[str]) -> list[list[float]]:
    """Messages of each agent with each other, rows and columns in this order."""
    return [[traffic.get((min(a, b), max(a, b)), 0.0) for b in order] for a in order]


def size_of(num_bytes: float) -> str:
    """Bytes as people say them: 64 KiB, 16 MiB."""
    return f"{num_bytes / 2**20:g} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:g} KiB"


def time_of(microseconds: float) -> str:
    """Microseconds as people say them."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:g} s"
    return f"{microseconds / 1000:g} ms" if microseconds >= 1000 else f"{microseconds:g} µs"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Lines of (bytes, microseconds), both in factors: a straight line that rises says that twice
    the bytes take twice the time."""

    lines: Lines
    title: str

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        import plotly.graph_objects as go

        figure = go.Figure(layout={"title": self.title, "height": 340})
        for (name, points), colour, dash in zip(self.lines.items(), COLOURS, DASHES, strict=False):
            xs, ys = zip(*points, strict=True)
            look = {"color": colour, "dash": ",".join(f"{n}px" for n in dash.split()) or "solid"}
            figure.add_scatter(x=xs, y=ys, name=name, mode="lines+markers", line=look)
        sizes, marks = self._sizes(), self._marks()
        figure.update_layout(template="simple_white", margin={"t": 50, "b": 50})
        named = {"tickvals": sizes, "ticktext": [size_of(size) for size in sizes]}
        figure.update_xaxes(type="log", title="message", **named)
        named = {"tickvals": marks, "ticktext": [time_of(mark) for mark in marks]}
        ends = [log10(marks[0]), log10(marks[-1])]
        return figure.update_yaxes(type="log", title="until it is there", range=ends, **named)

    def svg(self) -> str:
        """The same for pages that run no scripts."""
        sizes, marks = self._sizes(), self._marks()

        def at(x: float, y: float) -> tuple[float, float]:
            across = log10(x / sizes[0]) / (log10(sizes[-1] / sizes[0]) or 1)
            up = log10(y / marks[0]) / (log10(marks[-1] / marks[0]) or 1)
            return LEFT + (RIGHT - LEFT) * across, BOTTOM - (BOTTOM - TOP) * up

        parts = [_word(LEFT, 20, self.title)]
        for size in sizes[:: max(1, len(sizes) // 4)]:
            parts.append(_word(at(size, marks[0])[0], BOTTOM + 18, size_of(size), "middle"))
        for mark in marks:
            y = at(sizes[0], mark)[1]
            parts.append(_path([(LEFT, y), (RIGHT, y)], 'stroke="#bbb"'))
            parts.append(_word(LEFT - 6, y + 4, time_of(mark), "end"))
        for (name, points), colour, dash in zip(self.lines.items(), COLOURS, DASHES, strict=False):
            line = [at(x, y) for x, y in points]
            look = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            parts += [_path(line, look), _word(RIGHT + 8, line[-1][1] + 4, name)]
        style = "background:#fff;fill:#222;font:13px sans-serif;max-width:100%"
        return f'<svg viewBox="0 0 680 270" width="680" style="{style}">{"".join(parts)}</svg>'

    def _sizes(self) -> list[float]:
        return sorted({x for line in self.lines.values() for x, _ in line})

    def _marks(self) -> list[float]:
        """The powers of ten around all times."""
        powers = [log10(y) for line in self.lines.values() for _, y in line]
        return [10.0**power for power in range(int(min(powers)), int(max(powers)) + 2)]

    def __str__(self) -> str:
        ends = (
            f"{name}: {size_of(line[0][0])} {time_of(line[0][1])}, "
            f"{size_of(line[-1][0])} {time_of(line[-1][1])}"
            for name, line in self.lines.items()
        )
        return f"{self.title}: {'; '.join(ends)}"

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        drawn = json.loads(self.figure().to_json())
        return {PLOTLY: drawn, "text/html": self.svg(), "text/plain": str(self)}


def _word(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]], look: str) -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" {look}/>'
