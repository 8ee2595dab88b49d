"""Lab 15: layers that come from a disk while others are computed. A model of time with its picture,
and a small module that really lies in a file.

The model: one disk loads one layer after the other, one processor computes one after the other.
When a layer's turn comes, it and the next `degree` layers are asked for; it is computed as soon as
it is there. `degree` 0 asks for a layer when its turn has come, and for nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from inms_lab.errors import BadInput
from inms_lab.parameters import kernel
from inms_lab.parameters.prefetch import File, forget
from inms_lab.parameters.region import PAGE, View
from inms_lab.parameters.sources import source_of
from inms_lab.parameters.weights import module_on

from .curves import COLOURS

LEFT, WIDTH, LANE, GAP = 150, 480, 20, 14  # of the picture, in pixels
STYLE = "background:#fff;fill:#222;font:13px sans-serif;max-width:100%"


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happens to a layer, and when, in ms: its turn comes, it is loaded (from, up to) and
    computed (from, up to)."""

    turn: int
    loads: int
    there: int
    computes: int
    done: int

    @property
    def waits(self) -> int:
        """How long the processor waits for the disk before it."""
        return self.computes - self.turn


def timeline(loads: Sequence[int], computes: Sequence[int], degree: int) -> list[Stretch]:
    """What happens to each layer. `loads`, `computes`: how long it takes, in ms.

    Raises `BadInput` for a degree below 0, or where not each layer has both."""
    if type(degree) is not int or degree < 0:
        raise BadInput(f"a degree is 0 or more layers, not {degree!r}")
    if len(loads) != len(computes) or not loads:
        raise BadInput("each layer takes a time to load and a time to compute")
    found = list[Stretch]()
    for number, (load, compute) in enumerate(zip(loads, computes, strict=True)):
        turn = found[-1].done if found else 0
        asked = found[max(0, number - degree)].turn if degree and found else turn
        starts = max(asked, found[-1].there if found else 0)
        begins = max(turn, starts + load)
        found.append(Stretch(turn, starts, starts + load, begins, begins + compute))
    return found


@dataclass(frozen=True, slots=True)
class Timelines:
    """The same layers with several degrees, as a picture: above what the disk does, below what the
    processor does; the numbers are those of the layers."""

    loads: Sequence[int]
    computes: Sequence[int]
    degrees: Sequence[int]

    def ends(self) -> dict[int, int]:
        """Degree -> ms until all layers are computed."""
        return {d: timeline(self.loads, self.computes, d)[-1].done for d in self.degrees}

    def svg(self) -> str:
        """As a picture for any page."""
        ends = self.ends()
        scale = WIDTH / max(ends.values())
        parts = list[str]()
        for place, degree in enumerate(self.degrees):
            top = 8 + place * (2 * LANE + GAP)
            for number, one in enumerate(timeline(self.loads, self.computes, degree)):
                parts += _box(one.loads, one.there, top, scale, COLOURS[1], number)
                parts += _box(one.computes, one.done, top + LANE, scale, COLOURS[0], number)
            said = f"degree {degree}"
            parts.append(f'<text x="8" y="{top + LANE + 4}" font-weight="bold">{said}</text>')
            for lane, name in enumerate(("disk", "computes")):
                y = top + LANE * lane + 14
                parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{name}</text>')
            x = LEFT + scale * ends[degree] + 6
            parts.append(f'<text x="{x:.0f}" y="{top + LANE + 14}">{ends[degree]} ms</text>')
        height = 8 + len(self.degrees) * (2 * LANE + GAP)
        size = f'viewBox="0 0 700 {height}" width="700"'
        label = f'role="img" aria-label="{escape(str(self))}"'
        return f'<svg {size} {label} style="{STYLE}">{"".join(parts)}</svg>'

    def __str__(self) -> str:
        return ", ".join(f"degree {d}: {end} ms" for d, end in self.ends().items())

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/html": self.svg(), "text/plain": str(self)}


def _box(start: int, stop: int, top: int, scale: float, colour: str, number: int) -> list[str]:
    x, wide = LEFT + scale * start, scale * (stop - start)
    place = f'x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{LANE - 3}"'
    box = [f'<rect {place} fill="{colour}" stroke="#fff"/>']
    if wide > 14:
        where = f'x="{x + wide / 2:.1f}" y="{top + 13}" text-anchor="middle" fill="#fff"'
        box.append(f"<text {where}>{number}</text>")
    return box


def told(measured: dict[str, Any]) -> str:
    """What the results of a cold start say: how often somebody waited for the disk, and whether the
    greatest degree that was measured is quicker."""
    first, last = measured["rows"][0], measured["rows"][-1]
    low, high = last["low"], last["high"]
    verdict = "no difference can be told" if low <= 1 <= high else "slower" if low > 1 else "faster"
    pages = measured["weights_bytes"] // PAGE
    return (
        f"degree {first['degree']}: the model waited for the disk {first['major_faults']} times, "
        f"for {pages:,} pages\n"
        f"degree {last['degree']}: {last['to_degree_0']:.2f} of its time, "
        f"95 % interval {low:.2f} to {high:.2f}: {verdict}"
    )


# --- a module in a file -----------------------------------------------------------------------


class Stack(torch.nn.Module):
    """Layers that follow one another, all of one size."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = (torch.nn.Linear(width, width, bias=False) for _ in range(count))
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, width] -> [n, width]"""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class OnDisk:
    """A `Stack` whose weights are mapped from a file in the system's folder for such files; that
    has no name any more, and is gone with the mapping."""

    def __init__(self, count: int = 8, width: int = 512) -> None:
        source = source_of(Stack(count, width))
        self.layout, self.layer_bytes = source.layout, source.layout.num_bytes // count
        with tempfile.TemporaryDirectory() as folder:
            file = File(Path(folder) / "weights", source.layout)
            file.write(source.tensors())
            self.piece = file.open()
        self.view = View(self.layout.num_bytes)
        self.view.lay([self.piece])
        assert source.make is not None
        self.module = module_on(source.make, self.view, self.layout)

    def cold(self) -> None:
        """Nothing of it is mapped here or in the system's cache: the next touch reads the file."""
        self.view.lay([self.piece])
        forget(self.piece)

    def layers_here(self) -> int:
        """How many layers' worth of its pages are mapped here, rounded."""
        states = kernel.page_states("self", self.view.address, self.view.num_bytes)
        assert states is not None, "Linux tells each process of its own pages"
        return round(int((states != kernel.ABSENT).sum()) * PAGE / self.layer_bytes)

    def run(self) -> torch.Tensor:
        """One pass through all layers."""
        with torch.inference_mode():
            width = self.module.layers[0].weight.shape[1]  # type: ignore[index, union-attr]
            out: torch.Tensor = self.module(torch.linspace(-1, 1, int(width))[None])
            return out.clone()
