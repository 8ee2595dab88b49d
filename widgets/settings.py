"""The settings of a lab under the names that the field knows, and how to change each.

What can be changed while a lab lives is changed at once; for the rest the panel writes the line
that makes a new lab.
"""

from __future__ import annotations

import weakref
from dataclasses import fields
from typing import Any

from ipywidgets import (
    HTML,
    Accordion,
    BoundedFloatText,
    BoundedIntText,
    Checkbox,
    Dropdown,
    GridBox,
    Layout,
    VBox,
    Widget,
)

from inms_lab.config import Config
from inms_lab.decisions.policy import MODES
from inms_lab.errors import InmsError
from inms_lab.notebook.lab import Lab

from .words import teller

LIVE = ("token_budget", "prefill_budget", "copy_budget", "debug")
MOST = 1 << 40


class Settings(VBox):
    """`Settings(lab)`: every setting, the live ones editable in place."""

    def __init__(self, lab: Lab, lang: str = "en") -> None:
        self._lab, self._t = weakref.ref(lab), teller(lang)
        self.fields: dict[str, Any] = {}
        self.line, self.note, self.body = HTML(), HTML(), VBox()
        panel = Accordion([self.body], titles=(self._t("settings"),), selected_index=None)
        super().__init__([panel])
        panel.observe(lambda _: self.fill(), "selected_index")

    def fill(self) -> None:
        """Make the fields, when the panel is first opened (they are many widgets for a page)."""
        lab = self._lab()
        if self.fields or lab is None:
            return
        self.fields["mode"] = _choice(lab.policy.name, list(MODES))
        for field in fields(Config):
            self.fields[field.name] = _input(field.name, getattr(lab.config, field.name))
        rows: list[Widget] = []
        for name, widget in self.fields.items():
            when = self._t("settings_now" if name in LIVE else "settings_new")
            words = f"{self._t(f'settings_{name}')} <i>({when})</i>"
            rows += [HTML(f"<code>{name}</code>"), widget, HTML(words)]
            widget.observe(self._changed, "value")
        layout = Layout(grid_template_columns="max-content 150px 1fr", grid_gap="2px 12px")
        self.body.children = [GridBox(rows, layout=layout), self.line, self.note]
        self._show()

    def _changed(self, change: dict[str, Any]) -> None:
        name = next(n for n, widget in self.fields.items() if widget is change["owner"])
        self._show()
        lab = self._lab()
        if name not in LIVE or lab is None:
            return
        try:
            lab.controls.configure(**{name: change["new"]})
            self.note.value = self._t("settings_done", name)
        except InmsError as error:
            self.note.value = str(error)

    def _show(self) -> None:
        """The line that makes a lab with what differs from the defaults."""
        chosen = {name: widget.value for name, widget in self.fields.items()}
        mode = chosen.pop("mode")
        usual = Config()
        changed = [f"{n}={v!r}" for n, v in chosen.items() if v != getattr(usual, n)]
        config = f", config=Config({', '.join(changed)})" if changed else ""
        where = "from inms_lab.config import Config\n" if changed else ""
        line = f"{where}lab = Lab(mode={mode!r}{config})"
        self.line.value = f"{self._t('settings_line')}<pre>{line}</pre>"

    def close(self) -> None:
        """Take all of it out of the page."""
        for child in [*_all(self), *_all(self.line), *_all(self.note)]:
            if child is not self:
                child.close()
        super().close()


def _all(widget: Widget) -> list[Widget]:
    inside = [w for child in getattr(widget, "children", ()) for w in _all(child)]
    return [*inside, *(p for p in (widget.layout, getattr(widget, "style", None)) if p), widget]


def _input(name: str, value: Any) -> Widget:
    if isinstance(value, bool):
        return Checkbox(value, indent=False, description="", layout=Layout(width="auto"))
    if isinstance(value, float):
        return BoundedFloatText(value, min=0, max=MOST, layout=Layout(width="auto"))
    return BoundedIntText(value, min=0, max=MOST, layout=Layout(width="auto"))


def _choice(value: str, options: list[str]) -> Widget:
    known = options if value in options else [value, *options]
    return Dropdown(options=known, value=value, layout=Layout(width="auto"))
