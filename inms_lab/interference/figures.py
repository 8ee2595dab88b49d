"""A measurement as plotly figures: KL by variant with intervals, KV error by layer and place."""

from __future__ import annotations

import plotly.graph_objects as go

from inms_lab.interference.measure import Measurement
from inms_lab.interference.variants import FULL, PUBLIC


def by_variant(measured: Measurement, what: str = "kl", seed: int = 0) -> go.Figure:
    """Means of "kl" or "agreement" with their 95 % intervals, a bar a variant."""
    table = measured.table(seed).drop(index=FULL)
    ends = [table[f"{what}_high"] - table[what], table[what] - table[f"{what}_low"]]
    error = {"type": "data", "array": ends[0], "arrayminus": ends[1]}
    bar = go.Bar(x=table[what], y=table.index, error_x=error, orientation="h")
    title = {"kl": "KL to full prefill, nats a token", "agreement": "same best token, share"}[what]
    figure = go.Figure(bar)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=title, type="log" if what == "kl" else "linear")
    return figure.update_layout(title=f"{title} ({len(measured.outcomes)} samples, 95 %)")


def kv_error(measured: Measurement, variant: str = PUBLIC) -> go.Figure:
    """Relative KV error of a variant as a heatmap: layers by places in the fragment."""
    table = measured.kv_error(variant)
    heat = go.Heatmap(
        z=table.to_numpy(),
        x=[str(place) for place in table.columns],
        y=list(table.index),
        colorscale="Cividis",
        colorbar={"title": "relative error"},
    )
    figure = go.Figure(heat)
    figure.update_xaxes(title="token of the fragment, from")
    figure.update_yaxes(title="layer", autorange="reversed")
    return figure.update_layout(title=f"KV error of {variant!r} against full prefill")


def kl_by_token(measured: Measurement) -> go.Figure:
    """KL along the continuation, a line a variant."""
    table = measured.kl_by_token().drop(columns=FULL)
    lines = [go.Scatter(x=table.index, y=table[name], name=name) for name in table.columns]
    figure = go.Figure(lines)
    figure.update_xaxes(title="token of the continuation")
    figure.update_yaxes(title="KL to full prefill, nats", type="log")
    return figure.update_layout(title="Does interference fade along the continuation?")
