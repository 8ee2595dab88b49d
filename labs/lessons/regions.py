"""Lab 10: a machine's memory, region by region, under each pool policy. A bar is a region.

Regions({"one": fate, "own": other}, churn)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from inms_lab.bench.fragmentation import Fate, first_dead
from inms_lab.studies.churn import LIVES, TENANT, Churn

from .curves import COLOURS, PLOTLY

STUCK, NOBODY = "free, but a pool's", "nobody's"
KINDS = {  # what is drawn, from below -> its colour
    "prompt (whole run)": COLOURS[3],
    "records (long)": COLOURS[1],
    "contexts (short)": COLOURS[0],
    "a tenant's": "#777777",
    STUCK: "#d9d9d9",
}
LEFT, WIDE, HIGH, TOP = 70, 560, 70, 44  # of the plain picture
NAMES = dict(zip((*LIVES, TENANT), KINDS, strict=False))


def deaths(runs: Mapping[str, Sequence[Fate]]) -> tuple[dict[str, int], Counter[str]]:
    """Of each policy's fates, one a churn: in how many churns it died, by policy; and in how many
    it was the first to die ("one and classes": both at one operation; "none": all lived)."""
    died = {name: sum(f.died is not None for f in fates) for name, fates in runs.items()}
    return died, Counter(first_dead(each) for each in zip(*runs.values(), strict=True))


@dataclass(frozen=True, slots=True)
class Regions:
    """`fates` by name, at the moment of death or at the end; `churn` is what they lived through."""

    fates: Mapping[str, Fate]
    churn: Churn

    def parts(self, fate: Fate) -> Iterator[dict[str, int]]:
        """For each region its blocks by kind; none at all where it is nobody's."""
        for owner, lives in fate.regions:
            out = {NAMES[life]: count for life, count in lives.items()}
            if owner == TENANT:
                out[NAMES[TENANT]] = self.churn.region
            elif owner:
                out[STUCK] = self.churn.region - sum(out.values())
            yield out

    def title(self, name: str) -> str:
        """How it went, in a line."""
        fate = self.fates[name]
        if fate.died is None:
            return f"{name}: lived, {self.share(fate.free)} free at the end"
        return f"{name}: dead at {fate.died}, {self.share(fate.free)} free"

    def share(self, blocks: int) -> str:
        """Blocks in per cent of all."""
        return f"{blocks / (self.churn.regions * self.churn.region):.0%}"

    def figure(self) -> Any:
        """As a plotly figure, to be changed as one likes."""
        from plotly.subplots import make_subplots

        names = list(self.fates)
        titles = [self.title(name) for name in names]
        figure = make_subplots(
            len(names), 1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles
        )
        for row, name in enumerate(names, 1):
            parts = list(self.parts(self.fates[name]))
            for kind, colour in KINDS.items():
                counts = [part.get(kind, 0) for part in parts]
                bar = {"y": counts, "name": kind, "marker_color": colour, "legendgroup": kind}
                figure.add_bar(**bar, showlegend=row == 1, marker_line_width=0, row=row, col=1)
        figure.update_layout(
            template="simple_white", barmode="stack", bargap=0.08, height=90 + 130 * len(names)
        )
        figure.update_layout(margin={"t": 40, "b": 40}, legend={"traceorder": "reversed"})
        figure.update_annotations(font_size=13)
        figure.update_yaxes(range=[0, self.churn.region], showticklabels=False, ticks="")
        last = {"row": len(names), "col": 1}
        return figure.update_xaxes(title="region (a gap: it is nobody's)", **last)

    def svg(self) -> str:
        """The same for pages that run no scripts."""
        each = WIDE / self.churn.regions
        parts = []
        for row, name in enumerate(self.fates):
            y = TOP + row * (HIGH + 34)
            parts.append(_word(LEFT, y - 8, self.title(name)))
            for number, region in enumerate(self.parts(self.fates[name])):
                low = float(y + HIGH)
                for kind, colour in KINDS.items():
                    high = HIGH * region.get(kind, 0) / self.churn.region
                    low -= high
                    place = f'x="{LEFT + each * number:.1f}" y="{low:.1f}"'
                    size = f'width="{0.9 * each:.1f}" height="{high:.1f}"'
                    parts.append(f'<rect {place} {size} fill="{colour}"/>' if high else "")
            line = f'x1="{LEFT}" y1="{y + HIGH}" x2="{LEFT + WIDE}" y2="{y + HIGH}"'
            parts.append(f'<line {line} stroke="#222"/>')
        end = TOP + len(self.fates) * (HIGH + 34)
        for number, (kind, colour) in enumerate(KINDS.items()):
            x = LEFT + 124 * number
            parts.append(f'<rect x="{x}" y="{end - 10}" width="11" height="11" fill="{colour}"/>')
            parts.append(_word(x + 15, end, kind))
        size = f'viewBox="0 0 700 {end + 12}" width="700"'
        style = "background:#fff;fill:#222;font:12px sans-serif;max-width:100%"
        return f'<svg {size} style="{style}">{"".join(parts)}</svg>'

    def __str__(self) -> str:
        return "; ".join(map(self.title, self.fates))

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        drawn = json.loads(self.figure().to_json())
        return {PLOTLY: drawn, "text/html": self.svg(), "text/plain": str(self)}


def _word(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'
