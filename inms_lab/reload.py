"""Re-running a cell closes what its earlier run made: a lab, a view, shared parameters."""

from __future__ import annotations

import weakref
from typing import Protocol

from inms_lab.shell import shell


class Closable(Protocol):
    """What is to be closed."""

    closed: bool

    def close(self) -> None:
        """End it."""


_MADE: dict[str, tuple[int, list[weakref.ref[Closable]]]] = {}  # cell -> (execution, made there)


def register(made: Closable) -> int:
    """Remember which cell made this; gives the number of earlier ones of its kind it closed."""
    notebook = shell()
    if notebook is None:
        return 0
    parent = getattr(notebook, "parent_header", None) or {}
    cell = (parent.get("metadata") or {}).get("cellId") or notebook.user_ns.get("_ih", [""])[-1]
    count = notebook.execution_count
    before, earlier = _MADE.get(cell, (count, []))
    closed = 0
    if before != count:
        for old in filter(None, (ref() for ref in earlier)):
            closed += not old.closed and type(old) is type(made)
            old.close()
        earlier = []
    _MADE[cell] = (count, [*earlier, weakref.ref(made)])
    return closed
