"""Leak rank and judge consistency as plotly figures: means with their 95 % intervals."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from inms_lab.errors import BadInput


def leaks(table: pd.DataFrame, num_candidates: int = 10, what: str = "top1") -> go.Figure:
    """`Leak.table()` as bars by variant and reader: "top1", "rank" or "auc"; chance is a line."""
    k = num_candidates
    known = {
        "top1": (1 / k, f"true secret ranked first among {k}, share"),
        "rank": ((k - 1) / 2, f"mean rank of the true secret among {k}, from 0"),
        "auc": (0.5, "wrong candidates ranked behind the true one, share"),
    }
    if what not in known:
        raise BadInput(f"{what!r} is none of {', '.join(known)}")
    chance, title = known[what]
    figure = _bars(table, what)
    figure.add_vline(x=chance, line_dash="dash", annotation_text="chance")
    return figure.update_layout(title=title)


def decisions(table: pd.DataFrame, what: str = "changed") -> go.Figure:
    """`Decisions.table()` as bars by kind and variant: "changed", "correct" or "swayed"."""
    if what not in ("changed", "correct", "swayed"):
        raise BadInput(f"{what!r} is none of changed, correct, swayed")
    return _bars(table, what).update_layout(title=f"decisions {what}, share")


def _bars(table: pd.DataFrame, what: str) -> go.Figure:
    """A bar a row; rows have two names."""
    ends = [table[f"{what}_high"] - table[what], table[what] - table[f"{what}_low"]]
    error = {"type": "data", "array": ends[0], "arrayminus": ends[1]}
    names = [", ".join(key) for key in table.index]
    figure = go.Figure(go.Bar(x=table[what], y=names, error_x=error, orientation="h"))
    return figure.update_yaxes(autorange="reversed")
