"""Curves with a slider: it works in a notebook without a kernel, and stands still on other pages.

Sliding({"16": {"a": [(0, 1.0)]}, "64": {...}}, title="...", across="pair", slider="shift")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .curves import PLOTLY, Curves

Lines = Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Sliding:
    """`stops` of the slider: at each, lines of the same names; `start`: where it stands first."""

    stops: Mapping[str, Lines]
    title: str
    across: str
    slider: str
    start: str = ""

    @property
    def first(self) -> str:
        """The stop that is shown first."""
        return self.start or next(iter(self.stops))

    def curves(self, stop: str) -> Curves:
        """What is drawn at a stop."""
        return Curves(self.stops[stop], f"{self.title} ({self.slider} {stop})", self.across)

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        figure = self.curves(self.first).figure()
        steps = []
        for stop, lines in self.stops.items():
            points = {
                axis: [[float(f"{point[i]:.4g}") for point in line] for line in lines.values()]
                for i, axis in enumerate("xy")
            }
            title = {"title.text": self.curves(stop).title}
            steps.append({"label": stop, "method": "update", "args": [points, title]})
        active = list(self.stops).index(self.first)
        prefix = {"prefix": f"{self.slider} "}
        slider = {"active": active, "steps": steps, "currentvalue": prefix, "pad": {"t": 40}}
        most = max(y for lines in self.stops.values() for line in lines.values() for _, y in line)
        figure.update_layout(sliders=[slider], height=380)
        return figure.update_yaxes(range=[0, 1.05 * most])

    def __str__(self) -> str:
        return f"{self.curves(self.first)}; a slider for {', '.join(self.stops)}"

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """For a notebook, for pages without plotly, in words."""
        drawn = json.loads(self.figure().to_json())
        plain = self.curves(self.first).svg()
        return {PLOTLY: drawn, "text/html": plain, "text/plain": str(self)}
