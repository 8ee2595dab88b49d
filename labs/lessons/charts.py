"""Bars with intervals and heatmaps in a cell: plotly in a notebook, a plain picture without it.

Bars({"public": (0.023, 0.018, 0.028)}, title="KL", across="nats")
Heat([[0.0, 0.1], [0.2, 0.3]], title="KV error", across="token", down="layer")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Any

from .curves import COLOURS, PLOTLY

DARK = "#222"
STYLE = f"background:#fff;fill:{DARK};font:13px sans-serif;max-width:100%"
LEFT, WIDTH = 190, 330  # of a picture's plot
ROW = 22  # pixels of a bar
CIVIDIS = ((0, 34, 78), (87, 93, 109), (165, 156, 116), (254, 232, 56))  # dark: small


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar a name: (value, low, high), the ends of its interval, or a value alone.

    `across`: what is measured. `limit`: a dotted line there. `scale`: "log" where values differ by
    factors (a point a name then, for no length says a factor; those at nought are left out),
    "share" where they are written in per cent.
    """

    rows: Mapping[str, float | tuple[float, float, float]]
    title: str
    across: str
    limit: float | None = None
    scale: str = ""

    @property
    def spans(self) -> dict[str, tuple[float, float, float]]:
        """Name -> value, low, high."""
        whole = {n: r if isinstance(r, tuple) else (r, r, r) for n, r in self.rows.items()}
        return {n: r for n, r in whole.items() if self.scale != "log" or r[0] > 0}

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        import plotly.graph_objects as go

        spans = self.spans
        values = [value for value, _, _ in spans.values()]
        error = {
            "type": "data",
            "array": [high - value for value, _, high in spans.values()],
            "arrayminus": [value - low for value, low, _ in spans.values()],
        }
        given = {"x": values, "y": list(spans), "error_x": error, "marker": {"color": COLOURS[0]}}
        if self.scale == "log":
            drawn = go.Scatter(**given, mode="markers", marker_size=11)
        else:
            drawn = go.Bar(**given, orientation="h")
        figure = go.Figure(drawn, layout={"title": self.title, "height": 130 + ROW * len(spans)})
        figure.update_layout(template="simple_white", margin={"t": 50, "b": 50, "l": 10})
        figure.update_yaxes(autorange="reversed", automargin=True)
        kind = "log" if self.scale == "log" else "linear"
        form = ".0%" if self.scale == "share" else None
        figure.update_xaxes(title=self.across, type=kind, tickformat=form)
        if kind == "log":
            figure.update_xaxes(dtick=1, minor={"dtick": "D1", "ticks": "outside"})  # by decades
        if self.limit is not None:
            line = {"dash": "dot", "color": COLOURS[1], "width": 2}  # the template has no width
            figure.add_vline(x=self.limit, line=line, opacity=1)
        return figure

    def svg(self) -> str:
        """The same for pages that run no scripts."""
        spans = self.spans
        seen = [high for _, _, high in spans.values()] + [self.limit or 0]
        most = max(seen) or 1
        least = min((low or value for value, low, _ in spans.values()), default=1) / 2

        def at(value: float) -> float:
            if self.scale == "log":
                share = log10(max(value, least) / least) / log10(most / least)
            else:
                share = value / most
            return LEFT + WIDTH * min(1.0, max(0.0, share))

        parts = [_word(8, 20, self.title)]
        for place, (name, (value, low, high)) in enumerate(spans.items()):
            y = 36 + ROW * place
            middle = y + ROW / 2 - 3
            box = f'<rect x="{LEFT}" y="{y}" width="{at(value) - LEFT:.1f}" height="{ROW - 6}"'
            if self.scale == "log":
                box = f'<circle cx="{at(value):.1f}" cy="{middle}" r="5"'
            parts += [
                _word(LEFT - 8, middle + 4, name, "end"),
                f'{box} fill="{COLOURS[0]}"/>',
                _line(at(low), middle, at(high), middle),
                _word(LEFT + WIDTH + 8, middle + 4, self._span(value, low, high)),
            ]
        end = 36 + ROW * len(spans)
        parts.append(_line(LEFT, 32, LEFT, end))
        if self.limit is not None:
            parts.append(_line(at(self.limit), 32, at(self.limit), end, "2 3"))
        parts.append(_word(LEFT, end + 16, self.across))
        return _svg(700, end + 26, parts)

    def __str__(self) -> str:
        rows = (f"{name}: {self._span(*span)}" for name, span in self.spans.items())
        return f"{self.title} ({self.across}): {'; '.join(rows)}"

    __repr__ = __str__

    def _span(self, value: float, low: float, high: float) -> str:
        ends = "" if low == high else f" [{self._said(low)}, {self._said(high)}]"
        return self._said(value) + ends

    def _said(self, value: float) -> str:
        if self.scale == "share":
            return f"{value:.0%}"
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.2g}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return _bundle(self)


@dataclass(frozen=True, slots=True)
class Heat:
    """A table of numbers as colours, the larger the lighter; `names`: of its columns.

    `across` is what a column is, `down` what a row is (rows are numbered from nought, but those of
    a table of the same on both sides have the columns' names), `unit` what the numbers are.
    `marked`: columns with a frame around them.
    """

    rows: Sequence[Sequence[float]]
    title: str
    across: str
    down: str
    names: Sequence[str] = ()
    unit: str = ""
    marked: Sequence[int] = ()

    @property
    def columns(self) -> list[str]:
        """The columns' names."""
        return list(self.names) or [str(i) for i in range(len(self.rows[0]))]

    @property
    def lines(self) -> list[str]:
        """The rows' names."""
        square = self.across == self.down and len(self.names) == len(self.rows)
        return list(self.names) if square else [str(i) for i in range(len(self.rows))]

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        import plotly.graph_objects as go

        rows = [[round(float(x), 4) for x in row] for row in self.rows]
        heat = go.Heatmap(z=rows, x=self.columns, colorscale="Cividis")
        heat.colorbar.title = self.unit
        height = max(260, min(520, 150 + 14 * len(rows)))
        figure = go.Figure(heat, layout={"title": self.title, "height": height})
        figure.update_layout(template="simple_white", margin={"t": 50, "b": 50})
        for column in self.marked:
            place = {"x0": column - 0.48, "x1": column + 0.48, "y0": -0.5, "y1": len(rows) - 0.5}
            look = {"line": {"color": COLOURS[1], "width": 3}, "fillcolor": "rgba(0,0,0,0)"}
            figure.add_shape(type="rect", opacity=1, **place, **look)
        figure.update_xaxes(title=self.across, type="category")
        if self.across == self.down:
            every = {"tickvals": [*range(len(rows))], "ticktext": self.lines}
            figure.update_yaxes(**every)
        return figure.update_yaxes(title=self.down, autorange="reversed")

    def svg(self) -> str:
        """The same for pages that run no scripts."""
        most = max(max(row) for row in self.rows) or 1
        wide, high = 460 / len(self.columns), min(18, max(8, 300 / len(self.rows)))
        parts = [_word(60, 20, self.title)]

        def box(row: int, column: int, count: int, look: str) -> str:
            place = f'x="{60 + wide * column:.1f}" y="{32 + high * row:.1f}"'
            return f'<rect {place} width="{wide:.1f}" height="{high * count:.1f}" {look}/>'

        for i, row in enumerate(self.rows):
            parts += [box(i, j, 1, f'fill="{_colour(x / most)}"') for j, x in enumerate(row)]
        look = f'fill="none" stroke="{COLOURS[1]}" stroke-width="3"'
        parts += [box(0, column, len(self.rows), look) for column in self.marked]
        step = 1 if self.across == self.down else max(1, len(self.rows) // 6)
        end = 32 + high * len(self.rows)
        for i in range(0, len(self.rows), step):
            parts.append(_word(54, 32 + high * (i + 0.5) + 4, self.lines[i], "end"))
        for j, name in enumerate(self.columns):
            parts.append(_word(60 + wide * (j + 0.5), end + 16, name, "middle"))
        parts.append(_word(290, end + 34, f"{self.down} (down), {self.across} (across)", "middle"))
        for i in range(5):
            x = f'x="540" y="{40 + 18 * (4 - i)}" width="18" height="18"'
            parts.append(f'<rect {x} fill="{_colour(i / 4)}"/>')
        parts += [_word(566, 53, f"{most:.2g} {self.unit}"), _word(566, 125, "0")]
        return _svg(700, end + 44, parts)

    def __str__(self) -> str:
        most = max((x, -i, -j) for i, row in enumerate(self.rows) for j, x in enumerate(row))
        where = f"{self.down} {self.lines[-most[1]]}, {self.across} {self.columns[-most[2]]}"
        return f"{self.title}: 0 to {most[0]:.2g} {self.unit} (at {where})".replace("  ", " ")

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return _bundle(self)


def _bundle(chart: Bars | Heat) -> dict[str, Any]:
    """For a notebook, for pages without plotly, in words."""
    drawn = json.loads(chart.figure().to_json())
    return {PLOTLY: drawn, "text/html": chart.svg(), "text/plain": str(chart)}


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    return f'<svg {size} style="{STYLE}">{"".join(parts)}</svg>'


def _word(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, dash: str = "") -> str:
    ends = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    look = f'stroke="{COLOURS[1]}" stroke-width="2"' if dash else f'stroke="{DARK}"'
    return f'<line {ends} {look} stroke-dasharray="{dash}"/>'


def _colour(share: float) -> str:
    """Of a number from 0 to 1."""
    place = min(1.0, max(0.0, share)) * (len(CIVIDIS) - 1)
    low = min(int(place), len(CIVIDIS) - 2)
    pairs = zip(CIVIDIS[low], CIVIDIS[low + 1], strict=True)
    mixed = (round(a + (b - a) * (place - low)) for a, b in pairs)
    return "#{:02x}{:02x}{:02x}".format(*mixed)
