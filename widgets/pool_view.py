"""A live picture of a lab's pools and agents. It pulls; the engine never waits for it.

On the lab's own thread, between two steps and ten times a second at most, the view looks whether
the log has grown and draws the newest state: latest wins, and what happens without a step (an agent
that is closed, a rollback) is seen too. What goes wrong here is counted and shown, and raised by
`lab.assert_clean()`; it never reaches the engine.
"""

from __future__ import annotations

import weakref
from typing import Any

from ipywidgets import HTML

from inms_lab import reload
from inms_lab.lab import Lab
from inms_lab.launch import first_picture

from .picture import render_html, render_live
from .snapshot import Snapshot, blocks_in_use, snapshot_of

PERIOD = 0.1  # seconds between two looks


class PoolView(HTML):
    """`PoolView(lab)` as a cell's last line; running that cell again replaces the view.

    States: looking (its lab is open), still (the lab was closed: the last picture stays), closed.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self.closed = False
        self.shot: Snapshot | None = None  # as drawn last
        self.num_updates = self.num_failures = 0
        self._lab = weakref.ref(lab)  # a view does not keep a lab's memory
        self._index = 0  # of the log, as drawn
        self._in_use: dict[str, int] = {}
        reload.register(self)
        if lab.closed:
            self._draw(lab)
        else:
            lab.driver.call(self._look)

    def refresh(self) -> Snapshot | None:
        """Draw now; gives what was drawn, or the last picture where the lab is closed."""
        lab = self._lab()
        if lab is not None and not lab.closed:
            lab.driver.call(lambda: self._draw(lab))
        return self.shot

    def close(self) -> None:
        """Stop looking and take the view out of the page."""
        self.closed = True
        for part in (self.style, self.layout):
            part.close()
        super().close()

    def _look(self) -> None:
        """Draw if there is something new, and come back; on the lab's thread."""
        lab = self._lab()
        if lab is None or lab.closed or self.closed:
            return
        if self._index != len(lab.log):
            self._draw(lab)
        lab.driver.loop.call_later(PERIOD, self._look)

    def _draw(self, lab: Lab) -> None:
        new = lab.log.events[self._index :]
        self._index += len(new)
        try:
            self._in_use = blocks_in_use(new, self._in_use)
            bytes_per_token = lab.engine.cache.store.bytes_per_token
            self.shot = snapshot_of(lab.engine.ledger, bytes_per_token, self._in_use)
            failed = f"updates of this view that failed: {self.num_failures}"
            self.value = render_live(self.shot, failed if self.num_failures else "")
            self.num_updates += 1
            if self.shot.num_steps:
                first_picture()
        except Exception as error:  # a viewer's fault is not the engine's
            self.num_failures += 1
            if self.num_failures == 1:
                lab.engine.desk.hook_errors.append(error)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The widget; for pages without a kernel a picture of this moment; and a plain line."""
        bundle = super()._repr_mimebundle_(**options) or {}
        shot = self.refresh()
        bundle["text/plain"] = "live view of a lab's pools"
        if shot is not None:
            bundle["text/html"] = render_html(shot)
        return bundle
