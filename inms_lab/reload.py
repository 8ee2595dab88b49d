"""Re-running the cell that makes a lab closes the lab that its earlier run made."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inms_lab.lab import Lab

_MADE: dict[str, tuple[int, list[weakref.ref[Lab]]]] = {}  # cell -> (execution, its labs)


def register(lab: Lab) -> int:
    """Remember which cell made `lab`; gives the number of earlier labs that were closed."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return 0
    parent = getattr(shell, "parent_header", None) or {}
    cell = (parent.get("metadata") or {}).get("cellId") or shell.user_ns.get("_ih", [""])[-1]
    count = shell.execution_count
    before, labs = _MADE.get(cell, (count, []))
    closed = 0
    if before != count:
        for earlier in filter(None, (ref() for ref in labs)):
            closed += not earlier.closed
            earlier.close()
        labs = []
    _MADE[cell] = (count, [*labs, weakref.ref(lab)])
    return closed
