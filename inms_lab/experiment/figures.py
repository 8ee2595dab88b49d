"""The experiment as plotly figures: choices, memory beside quality, what is held at each p."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

# Letters of `Experiment.marks`: what they mean, a colour-blind-safe colour, and a hatch.
MARKS = {
    "R": ("right", "#0072B2", ""),
    "G": ("private guess of another agent", "#D55E00", "/"),
    "S": ("stale", "#E69F00", "\\"),
    "o": ("another option", "#999999", "."),
    "-": ("nothing usable", "#444444", "x"),
}


def choices(marks: Mapping[str, str]) -> go.Figure:
    """What was chosen, a bar a mode: shares of all tasks. `marks` as of `Experiment.marks`."""
    figure = go.Figure()
    for letter, (name, colour, hatch) in MARKS.items():
        shares = [text.count(letter) / len(text) for text in marks.values()]
        if any(shares):
            look = {"color": colour, "pattern": {"shape": hatch}}
            bar = go.Bar(x=shares, y=list(marks), name=name, orientation="h", marker=look)
            figure.add_trace(bar)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="share of tasks", range=[0, 1], tickformat=".0%")
    count = len(next(iter(marks.values()), ""))
    return figure.update_layout(barmode="stack", title=f"What the reader chose ({count} tasks)")


def trade(table: pd.DataFrame, what: str = "correct") -> go.Figure:
    """Quality against KV memory, a point a mode with its 95 % interval; `table` as of
    `Experiment.table`."""
    ends = {
        "array": table[f"{what}_high"] - table[what],
        "arrayminus": table[what] - table[f"{what}_low"],
    }
    points = go.Scatter(
        x=table.kv_bytes / 2**20,
        y=table[what],
        error_y={"type": "data", **ends},
        mode="markers+text",
        text=list(table.index),
        textposition="top center",
    )
    figure = go.Figure(points)
    figure.update_xaxes(title="KV at its peak, MiB (mean over teams)", rangemode="tozero")
    figure.update_yaxes(title=f"{what}, share of tasks", range=[0, 1.05])
    return figure.update_layout(title=f"Memory and {what} (95 % intervals)")


def held(table: pd.DataFrame, mode: str = "inms") -> go.Figure:
    """KV that is held by common share, a line a block size, beside the smooth formula; `table` as
    of `benefit.measure`."""
    mine = table[table["mode"] == mode]
    figure = go.Figure()
    for size, rows in mine.groupby("block_size"):
        line = go.Scatter(x=rows.share, y=rows.kv / 2**20, name=f"blocks of {size}")
        figure.add_trace(line)
    smooth = mine.drop_duplicates("share")
    dashed = {"dash": "dash", "color": "black"}
    line = go.Scatter(x=smooth.share, y=smooth.formula / 2**20, name="formula", line=dashed)
    figure.add_trace(line)
    figure.update_xaxes(title="common share p of a context")
    figure.update_yaxes(title="KV held, MiB", rangemode="tozero")
    agents, tokens = mine.num_agents.iloc[0], mine.tokens.iloc[0]
    return figure.update_layout(title=f"{agents} agents of {tokens} tokens, mode {mode}")


def overhead(table: pd.DataFrame, share: float = 0.6, mode: str = "inms") -> go.Figure:
    """Waste and metadata by block size, in MiB: the one grows, the other falls."""
    mine = table[(table["mode"] == mode) & ((table.share - share).abs() < 1e-9)]
    sizes, hatched = [str(size) for size in mine.block_size], {"pattern": {"shape": "/"}}
    bars = [
        go.Bar(x=sizes, y=mine.waste / 2**20, name="empty slots of last blocks"),
        go.Bar(x=sizes, y=mine.metadata / 2**20, name="metadata", marker=hatched),
    ]
    figure = go.Figure(bars)
    figure.update_xaxes(title="tokens of a block", type="category")
    figure.update_yaxes(title="MiB beside the KV of tokens")
    return figure.update_layout(barmode="stack", title=f"What blocks cost, p = {share:g}")
