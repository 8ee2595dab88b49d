"""Views of a lab or of a log, for notebooks: one widget class, and names for its single parts.

    BlockMap(lab)   Timeline(lab)   DecisionStepper(lab)   AgentsView(lab)
A view is a window on the log: all that moves in it (scrubbing, stepping, pinning) happens in the
browser. Running its cell again replaces it. Nothing of it is saved in the notebook but a picture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import traitlets

from inms_lab import reload
from inms_lab.errors import BadInput, InmsError
from inms_lab.logs.log import Log
from inms_lab.logs.open_log import open_log
from inms_lab.notebook.lab import Lab

from . import esm
from .frames import snapshot_at, snapshot_now
from .picture import render_html
from .pictured import Pictured
from .publisher import Publisher
from .snapshot import Snapshot
from .words import check_language, strings, teller

PARTS = tuple(esm.PARTS)
MOST_SAID = 400  # characters of what a file says of itself
MOST_PICTURED = 50_000  # events of a saved log up to which a picture is kept for other pages


class View(Pictured):
    """`View(lab)` or `View(log)` or `View("run.inmslog")`; `parts` as in `PARTS`, in that order."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    parts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    lang = traitlets.Unicode("en").tag(sync=True)
    projector = traitlets.Bool(False).tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)  # what `_esm` loads, once for a page
    strings = traitlets.Dict(strings()).tag(sync=True)
    first = traitlets.Bytes(b"").tag(sync=True)  # what there was when the view was made
    look = traitlets.Dict().tag(sync=True)  # where it was last told to look: `point`

    closed = True  # until it is built: what fails half-way needs no closing

    def __init__(
        self,
        source: Lab | Log | str | Path,
        *,
        parts: tuple[str, ...] = PARTS,
        lang: str = "en",
        projector: bool = False,
    ) -> None:
        check_options(parts, lang)
        log, lab, problem = _log_of(source)
        self.closed = False
        self.shown = log
        self._lab: Callable[[], Lab | None] = weakref.ref(lab) if lab is not None else lambda: None
        self.publisher = Publisher(log, self._publish, lab, problem)
        first = self.publisher.next()
        chosen = tuple(parts)
        # All of the style: a page keeps one sheet for a class, the last one that came.
        code = {"_esm": esm.loader(chosen), "code": esm.esm(chosen), "_css": esm.css()}
        look = {"parts": list(parts), "lang": lang, "projector": bool(projector)}
        super().__init__(**code, **look, key=uuid4().hex, first=first.packed())
        self._hear_anywhere()
        self.on_msg(lambda _, content, __: self.publisher.receive(content))
        reload.register(self)
        self._point_at_violation()
        self.publisher.start()

    def _publish(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        self.send(content, buffers)
        self._hear_anywhere()

    def _hear_anywhere(self) -> None:
        """ipykernel 7.4 sends what the page says to the thread that spoke last, and a busy cell
        keeps the main one from hearing it. Ours is only queued, so any thread will do: a page
        that has a subshell is heard there, at once."""
        if self.comm is not None:
            self.comm.__dict__.pop("_reply_subshell_id", None)

    def point(
        self,
        index: int | None = None,
        *,
        block: tuple[str, int] | None = None,
        decision: int | None = None,
        note: str = "",
    ) -> None:
        """Show the moment when `index` events had happened (None: now), pin `block` (pool, number),
        select the decision with this number in `log.decisions`, and say `note` above the picture.

        Also before the view is shown. Raises `BadInput` for a moment or decision that there is not.
        """
        if decision is not None:
            stop = self.shown.decision(decision).stop
            index = stop if index is None else index
        if index is not None and not self.shown.first <= index <= len(self.shown):
            have = f"{self.shown.first} to {len(self.shown)}"
            raise BadInput(f"there is no moment {index}: the log has {have}")
        pool, number = ("", 0) if block is None else _place(block)
        where = {"index": -1 if index is None else index, "pool": pool, "block": number}
        told = {"decision": decision, "note": str(note or "")}
        self.look = where | told | {"number": self.look.get("number", 0) + 1}

    def _point_at_violation(self) -> None:
        """A log that was saved because its books did not balance is opened there."""
        told = self.shown.about.get("violation")
        if not isinstance(told, dict):
            return
        at, block = told.get("at"), (told.get("pool"), told.get("block"))
        if type(at) is int and self.shown.first <= at <= len(self.shown):
            named = isinstance(block[0], str) and type(block[1]) is int and block[1] >= 0
            words = teller(self.lang)("read_only_log", at, str(told.get("text", ""))[:MOST_SAID])
            self.point(at, block=block if named else None, note=words)  # type: ignore[arg-type]

    @property
    def num_failures(self) -> int:
        """Updates of this view that failed (the engine went on)."""
        return self.publisher.num_failures

    def snapshot(self, index: int | None = None) -> Snapshot:
        """What the view shows when `index` events had happened (None: now), as plain data."""
        lab = self._lab()
        if lab is None or lab.closed or index is not None:
            return snapshot_at(self.shown, index)
        return lab.driver.call(lambda: snapshot_now(lab))

    def close(self) -> None:
        """Stop sending and take the view out of the page."""
        if not self.closed:
            self.closed = True
            self.publisher.close()
            self.layout.close()
            super().close()

    def __repr__(self) -> str:
        return f"<view of a log: {', '.join(self.parts)}>"

    def fallback(self) -> dict[str, str]:
        """What a page without a kernel shows: a script-free picture, a plain line."""
        return {"text/plain": "live view of a lab's memory", "text/html": self._picture()}

    def _picture(self) -> str:
        lab = self._lab()
        live = lab is not None and not lab.closed
        if not live and len(self.shown.events) > MOST_PICTURED:  # replaying takes seconds
            return f"<p>{escape(teller(self.lang)('large_log', len(self.shown)))}</p>"
        index = self.look.get("index", -1)
        said = (self.look.get("note", ""), self.shown.note)
        note = escape("; ".join(filter(None, said)))
        try:
            picture = render_html(self.snapshot(index if index >= 0 else None), self.lang)
            return f"<p>{note}</p>{picture}" if note else picture
        except InmsError as error:  # a log that cannot be replayed: the view itself says more
            return f"<p>{escape(str(error))}</p>"


class BlockMap(View):
    """Every block of every pool, and what is pinned of them."""

    def __init__(self, source: Lab | Log | str | Path, **options: Any) -> None:
        super().__init__(source, parts=("map", "detail"), **options)


class Timeline(View):
    """The scrubber, agents' lanes, memory against the counterfactual, fragmentation, hit rate."""

    def __init__(self, source: Lab | Log | str | Path, **options: Any) -> None:
        super().__init__(source, parts=("bar", "timeline"), **options)


class DecisionStepper(View):
    """One sharing decision after the other, check by check, and what-ifs."""

    def __init__(self, source: Lab | Log | str | Path, **options: Any) -> None:
        super().__init__(source, parts=("bar", "decision"), **options)


class AgentsView(View):
    """Each agent's context as coloured segments over its text."""

    def __init__(self, source: Lab | Log | str | Path, **options: Any) -> None:
        super().__init__(source, parts=("agents",), **options)


def _place(block: object) -> tuple[str, int]:
    """A (pool, number)."""
    if isinstance(block, tuple) and [type(part) for part in block] == [str, int]:
        return block
    raise BadInput(f'a block is named by its pool and number, as in ("private", 3), not {block!r}')


def _log_of(source: Lab | Log | str | Path) -> tuple[Log, Lab | None, str]:
    """The log, its lab if that is open, and what the view must say (a file that cannot be read)."""
    if isinstance(source, (str, Path)):
        try:
            log = open_log(source)
            return log, None, log.note
        except (InmsError, OSError) as error:
            return Log(), None, str(error)
    if isinstance(source, Log):
        return source, None, source.note
    if isinstance(source, Lab):
        return source.log, None if source.closed else source, ""
    raise BadInput(f"a lab, a log or the path of a saved log is wanted, not {source!r}")


def check_options(parts: tuple[str, ...], lang: str) -> None:
    """Raises for parts and languages that there are not."""
    unknown = sorted(set(parts) - set(PARTS))
    if unknown or not parts:
        named = repr(unknown[0]) if unknown else "of no parts"
        raise BadInput(f"no view is {named}; there are: {', '.join(PARTS)}")
    check_language(lang)
