"""Curves in a cell: drawn by plotly in a notebook, as a plain picture on pages without it.

Curves({"30 %": [(1, 0.0), (2, 0.15)]}, title="saved", across="agents")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

PLOTLY = "application/vnd.plotly.v1+json"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by colour-blind readers too
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # and without any colour
HEIGHT = 300
FEW = 10  # points of a line that are marked, each
LEFT, RIGHT, TOP, BOTTOM = 60, 520, 36, 220  # of the plain picture's plot


@dataclass(frozen=True, slots=True)
class Curves:
    """Named lines of points (x, y); `across`: what x is; `limits`: dotted lines at these y.

    `shares`: the axes ("x", "y" or "xy") whose numbers are shares, written in per cent.
    """

    lines: Mapping[str, Sequence[tuple[float, float]]]
    title: str
    across: str
    shares: str = ""
    limits: Sequence[float] = ()

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        import plotly.graph_objects as go

        ends = [points[i][0] for points in self.lines.values() for i in (0, -1)]
        figure = go.Figure(layout={"title": self.title, "height": HEIGHT})
        figure.update_layout(template="simple_white", margin={"t": 50, "b": 50})
        for (name, points), colour, dash in zip(self.lines.items(), COLOURS, DASHES, strict=False):
            xs, ys = zip(*points, strict=True)
            look = {"color": colour, "dash": ",".join(f"{n}px" for n in dash.split()) or "solid"}
            mode = "lines+markers" if len(points) <= FEW else "lines"  # what was measured
            figure.add_scatter(x=xs, y=ys, name=name, mode=mode, line=look)
        for limit in self.limits:
            dotted = {"dash": "dot", "color": "grey", "width": 1}
            level = {"x": [min(ends), max(ends)], "y": [limit, limit], "line": dotted}
            figure.add_scatter(**level, mode="lines", showlegend=False, hoverinfo="skip")
        percent = {axis: ".0%" if axis in self.shares else None for axis in "xy"}
        figure.update_xaxes(title=self.across, tickformat=percent["x"])
        return figure.update_yaxes(rangemode="tozero", tickformat=percent["y"])

    def svg(self) -> str:
        """The same for pages that run no scripts: each line with its name at its end."""
        points = [point for line in self.lines.values() for point in line]
        low, high = min(x for x, _ in points), max(x for x, _ in points)
        most = max([*(y for _, y in points), *self.limits]) or 1

        def at(x: float, y: float) -> tuple[float, float]:
            return (
                LEFT + (RIGHT - LEFT) * (x - low) / ((high - low) or 1),
                BOTTOM - (BOTTOM - TOP) * y / most,
            )

        def word(x: float, y: float, text: str, anchor: str = "start") -> str:
            return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'

        def path(line: Sequence[tuple[float, float]], look: str) -> str:
            where = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
            return f'<polyline points="{where}" fill="none" {look}/>'

        parts = [word(LEFT, 20, self.title), word((LEFT + RIGHT) / 2, 258, self.across, "middle")]
        parts += [path([(low, most), (low, 0), (high, 0)], 'stroke="#777"')]
        parts += [word(LEFT - 6, at(low, y)[1] + 4, self._said("y", y), "end") for y in (0, most)]
        parts += [word(at(x, 0)[0], 238, self._said("x", x), "middle") for x in (low, high)]
        parts += [
            path([(low, y), (high, y)], 'stroke="#777" stroke-dasharray="1 3"') for y in self.limits
        ]
        for (name, line), colour, dash in zip(self.lines.items(), COLOURS, DASHES, strict=False):
            look = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            parts += [path(line, look), word(RIGHT + 8, at(*line[-1])[1] + 4, name)]
        style = "background:#fff;fill:#222;font:13px sans-serif;max-width:100%"
        return f'<svg viewBox="0 0 680 268" width="680" style="{style}">{"".join(parts)}</svg>'

    def __str__(self) -> str:
        ends = (
            f"{name}: {self._said('y', line[0][1])} to {self._said('y', line[-1][1])}"
            for name, line in self.lines.items()
        )
        return f"{self.title}, by {self.across}: {'; '.join(ends)}"

    __repr__ = __str__

    def _said(self, axis: str, value: float) -> str:
        return f"{value:.0%}" if axis in self.shares else f"{value:g}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """For a notebook, for pages without plotly, in words."""
        drawn = json.loads(self.figure().to_json())
        return {PLOTLY: drawn, "text/html": self.svg(), "text/plain": str(self)}
