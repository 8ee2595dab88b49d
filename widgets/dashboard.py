"""The dashboard: all views of a lab or a log in one, its settings below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipywidgets import VBox, Widget

from inms_lab import reload
from inms_lab.errors import LogUnreadable
from inms_lab.logs.log import Log
from inms_lab.notebook.lab import Lab

from .export import export_html
from .picture import render_svg
from .settings import Settings
from .snapshot import Snapshot
from .view import PARTS, View

if TYPE_CHECKING:
    from inms_lab.parameters.shared import SharedParameters


class Dashboard(VBox):
    """`Dashboard(lab)` as a cell's last line: live while the lab runs, a replay afterwards.

    Also of a log, or of the path of a saved one. `weights`: shared parameters, whose page map is
    shown as well. `lang`: "en" or "zh"; `projector`: large type.
    Running the cell again replaces the dashboard.
    """

    closed = True  # until it is built: what fails half-way needs no closing

    def __init__(
        self,
        source: Lab | Log | str | Path,
        lang: str = "en",
        projector: bool = False,
        parts: tuple[str, ...] = PARTS,
        weights: SharedParameters | None = None,
    ) -> None:
        self.view = View(source, parts=parts, lang=lang, projector=projector)
        panels: list[Widget] = []
        if weights is not None:
            from .weights import WeightsMap

            panels.append(WeightsMap(weights, lang=lang, projector=projector))
        if isinstance(source, Lab):
            panels.append(Settings(source, lang))
        super().__init__([self.view, *panels])
        self.closed = False
        self.lang, self.projector = lang, projector
        reload.register(self)

    @property
    def shown(self) -> Log:
        """What it shows."""
        return self.view.shown

    def snapshot(self, index: int | None = None) -> Snapshot:
        """What it shows when `index` events had happened (None: now), as plain data."""
        return self.view.snapshot(index)

    def point(self, index: int | None = None, **where: Any) -> None:
        """Show a moment, a block, a decision; as `View.point`."""
        self.view.point(index, **where)

    def to_svg(self, path: str | Path | None = None, index: int | None = None) -> str:
        """The block map, agents and memory as an SVG for slides; also written to `path`."""
        svg = render_svg(self.snapshot(index), lang=self.lang)
        if path is not None:
            Path(path).write_text(svg, "utf-8")
        return svg

    def export_html(self, path: str | Path, redact: str = "private", **options: Any) -> Path:
        """One offline page with the whole scrubber. Private text is masked unless `redact` is
        "nothing"; "all" masks every text."""
        problem = self.view.publisher.problem
        if problem and problem != self.shown.note:  # a note is shown on the page
            raise LogUnreadable(problem)
        chosen: dict[str, Any] = {"lang": self.lang, "projector": self.projector, **options}
        return export_html(self.shown, path, redact=redact, **chosen)

    def close(self) -> None:
        """Take it out of the page."""
        if not self.closed:
            self.closed = True
            for child in self.children:
                child.close()
            self.layout.close()
            super().close()

    def __repr__(self) -> str:
        return "<dashboard of a lab's memory>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The widget; a picture of this moment for pages without a kernel; a plain line."""
        bundle = super()._repr_mimebundle_(**options) or {}
        return bundle | self.fallback()

    def fallback(self) -> dict[str, str]:
        """What a page without a kernel shows: a script-free picture, a plain line."""
        return self.view.fallback()
