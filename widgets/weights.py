"""Weights as a page map, live: which pages each process has for itself, by parameter name.

`WeightsMap(params)` shows every agent of shared parameters, `WeightsMap(params, branch)` branches
as well. A thread of its own looks some times a second at the kernel's figures; a page that somebody
writes lights up. Whoever trains waits for nobody who looks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import traitlets

from inms_lab import reload
from inms_lab.errors import BadInput, InmsError
from inms_lab.parameters import kernel
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.branch import Branch
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.shared import SharedParameters

from . import esm
from .pictured import Pictured
from .weights_picture import picture
from .words import check_language, strings

PERIOD = 0.25  # seconds between two looks
LONGEST = 3600.0  # seconds of a period
SHARE = 0.1  # of a core that looking takes at most
MOST_CELLS = 2400  # of a map; larger weights have more pages in a cell
FULL = 15  # of a cell: all of its pages
NOBODY: dict[str, Any] = {"version": 0, "holders": [], "problem": ""}


class Cells:
    """Weights in cells of equally many pages: a tensor begins a cell of its own.

    `tensors`: [name, first cell, cells, pages] each; `pages_per_cell`: a power of two.
    """

    def __init__(self, layout: Layout) -> None:
        spots = [(name, s.start // PAGE, s.stop // PAGE) for name, s in layout.spots.items()]
        spots = [spot for spot in spots if spot[1] < spot[2]]
        self.pages_per_cell = 1
        while self._num(spots) > max(MOST_CELLS, len(spots)):
            self.pages_per_cell *= 2
        self.tensors: list[list[Any]] = []
        starts: list[int] = []
        at = 0
        for name, first, stop in spots:
            mine = range(first, stop, self.pages_per_cell)
            self.tensors.append([name, at, len(mine), stop - first])
            starts.extend(mine)
            at += len(mine)
        self._starts = np.array(starts, dtype=np.int64)
        self._sizes = np.diff([*starts, spots[-1][2] if spots else 0])
        self._firsts = np.array([first for _, first, _ in spots], dtype=np.int64)

    def _num(self, spots: list[tuple[str, int, int]]) -> int:
        return sum(-(-(stop - first) // self.pages_per_cell) for _, first, stop in spots)

    def of(self, states: kernel.States) -> tuple[bytes, bytes]:
        """A byte for each cell (high half: how many of its pages are the holder's own, low half:
        shared; 0 none, 15 all), and for each tensor two numbers of pages: own, shared."""
        if not len(self._starts):
            return b"", b""
        own = (states >= kernel.PRIVATE).astype(np.int32)  # in memory, or swapped
        shared = (states == kernel.SHARED).astype(np.int32)
        high, low = (
            np.ceil(FULL * np.add.reduceat(part, self._starts) / self._sizes).astype(np.uint8)
            for part in (own, shared)
        )
        counts = [np.add.reduceat(part, self._firsts) for part in (own, shared)]
        return (high << 4 | low).tobytes(), np.stack(counts, 1).astype(np.uint32).tobytes()


class WeightsMap(Pictured):
    """`WeightsMap(params)` as a cell's last line: live until the parameters are closed.

    `branches`: of this process, shown beside the agents. `lang`: "en" or "zh"; `projector`: large
    type; `period`: seconds between two looks. Running the cell again replaces it.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    lang = traitlets.Unicode("en").tag(sync=True)
    projector = traitlets.Bool(False).tag(sync=True)
    strings = traitlets.Dict().tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)
    num_bytes = traitlets.Int().tag(sync=True)
    tensors = traitlets.List().tag(sync=True)
    now = traitlets.Dict().tag(sync=True)  # what there is: `look_now`
    look = traitlets.Dict().tag(sync=True)  # where it was last told to look: `point`

    closed = True  # until it is built: what fails half-way needs no closing

    def __init__(
        self,
        params: SharedParameters,
        *branches: Branch,
        lang: str = "en",
        projector: bool = False,
        period: float = PERIOD,
    ) -> None:
        if not isinstance(params, SharedParameters):
            raise BadInput(f"shared parameters are wanted, not {params!r}")
        if not all(isinstance(branch, Branch) for branch in branches):
            raise BadInput("behind the parameters come branches of them, and nothing else")
        for branch in branches:
            if branch.layout is not params.layout:
                raise BadInput(f"{branch!r} is of other parameters: show it in a map of those")
        if not isinstance(period, int | float) or not 0 < period <= LONGEST:
            raise BadInput(f"period is more than 0 s, at most {LONGEST:.0f} s, not {period!r}")
        check_language(lang)
        self._params: Callable[[], SharedParameters | None] = weakref.ref(params)
        self._branches = branches
        self._cells, self._layout = Cells(params.layout), params.layout
        self.period, self._wake = period, threading.Event()
        table = {key: list(row) for key, row in strings().items() if key.startswith("weights_")}
        super().__init__(
            _esm=esm.alone("weights"),
            _css=esm.styles("base", "weights"),
            lang=lang,
            projector=bool(projector),
            strings=table,
            name=params.source.name,
            num_bytes=params.num_bytes,
            tensors=self._cells.tensors,
            now=self.look_now(),
        )
        self.closed = False
        reload.register(self)
        threading.Thread(target=self._main, name="inms-weights-map", daemon=True).start()

    def point(self, holder: str = "", tensor: str = "", note: str = "") -> None:
        """Show a process or branch by its name, frame a tensor in it, say `note` above.

        Raises `BadInput` for a name that there is not."""
        names = [one["name"] for one in self.look_now()["holders"]]
        for what, wanted, have in (("holder", holder, names), ("tensor", tensor, self._names())):
            if wanted and wanted not in have:
                some = ", ".join(have[:6]) + (", ..." if len(have) > 6 else "")
                raise BadInput(f"there is no {what} {wanted!r}; there are: {some or 'none'}")
        number = self.look.get("number", 0) + 1
        self.look = {"holder": holder, "tensor": tensor, "note": str(note), "number": number}

    def look_now(self) -> dict[str, Any]:
        """What there is now: `version`, whether the parameters are `open`, and `holders`: of each
        its name, kind, state, version, bytes of its `own` pages and of `shared` and `swapped` ones,
        `cells` and `counts` as `Cells.of` gives them."""
        params = self._params()
        if params is None or params.closed:
            return {**NOBODY, **self.now, "open": False}
        shown: list[AgentProcess | Branch] = [*params.agents, *self._branches]
        holders = [self._holder(params, one) for one in shown]
        taken: set[str] = set()
        for holder in holders:  # an agent and a branch may have one name
            name, number = holder["name"], 1
            while holder["name"] in taken:
                number += 1
                holder["name"] = f"{name} #{number}"
            taken.add(holder["name"])
        return {**NOBODY, "version": params.version.number, "holders": holders, "open": True}

    def refresh(self) -> None:
        """Look now, on this thread."""
        found = self.look_now()
        if found != self.now:
            self.now = found

    def close(self) -> None:
        """Stop looking and take the map out of the page."""
        if not self.closed:
            self.closed = True
            self._wake.set()
            self.layout.close()
            super().close()

    def __repr__(self) -> str:
        return f"<page map of the weights of {self.name}>"

    def fallback(self) -> dict[str, str]:
        """What a page without a kernel shows: a script-free picture, a plain line."""
        self.refresh()
        html = picture(self.now, self.tensors, self.look, self.lang)
        return {"text/plain": "live page map of shared weights", "text/html": html}

    def _names(self) -> list[str]:
        return [row[0] for row in self._cells.tensors]

    def _holder(self, params: SharedParameters, one: AgentProcess | Branch) -> dict[str, Any]:
        if isinstance(one, AgentProcess):
            kind, pid, address = "agent", str(one.pid), one.address
        else:
            kind, pid, address = "branch", "self", one.view.address
        told = {"name": str(one.name), "kind": kind, "version": one.base.number, "state": "lives"}
        told |= {"own": 0, "shared": 0, "swapped": 0}
        states = kernel.page_states(pid, address, params.num_bytes)
        if states is None:  # it has ended, or the kernel tells no single pages here
            try:
                figures = params.pages(one).weights
            except InmsError:
                figures = kernel.Figures()
            if not figures.rss and not (isinstance(one, AgentProcess) and one.lives):
                return told | {"state": "ended"}
            return told | {"own": figures.anonymous + figures.swap, "swapped": figures.swap}
        numbers = np.bincount(states, minlength=len(kernel.WORDS)) * PAGE
        _, shared, private, swapped = map(int, numbers)
        cells, counts = self._cells.of(states)
        sizes = {"own": private + swapped, "shared": shared, "swapped": swapped}
        return told | sizes | {"cells": cells, "counts": counts}

    def _main(self) -> None:
        pause = self.period
        while not self._wake.wait(pause):
            began = time.thread_time()
            try:
                self.refresh()
            except Exception as error:  # a viewer's fault is nobody else's
                self.now = {**self.now, "problem": f"{type(error).__name__}: {error}"}
            pause = max(self.period, (time.thread_time() - began) / SHARE)
            if not self.now.get("open"):
                return
