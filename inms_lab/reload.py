"""Re-running a cell closes what its earlier run made: labs, views, shared parameters, agents."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from inms_lab.shell import shell


class Closable(Protocol):
    """What is to be closed."""

    closed: bool

    def close(self) -> None:
        """End it."""


@dataclass
class _Run:
    """The newest run of a cell: what it has made, and what was closed when it began, by kind."""

    number: int
    made: list[weakref.ref[Closable]] = field(default_factory=list)
    closed: Counter[type] = field(default_factory=Counter)


_RUNS: dict[str, _Run] = {}  # by cell


def renew() -> _Run | None:
    """Close what an earlier run of this cell has made; None outside of a notebook."""
    notebook = shell()
    if notebook is None:
        return None
    parent = getattr(notebook, "parent_header", None) or {}
    cell = (parent.get("metadata") or {}).get("cellId") or notebook.user_ns.get("_ih", [""])[-1]
    count = notebook.execution_count
    run = _RUNS.get(cell)
    if run is None or run.number != count:
        earlier, run = run, _Run(count)
        _RUNS[cell] = run
        for old in filter(None, (ref() for ref in (earlier.made if earlier else ()))):
            run.closed[type(old)] += not old.closed
            old.close()
    return run


def register(made: Closable) -> int:
    """Remember which cell made this; gives the number of earlier ones of its kind it closed."""
    run = renew()
    if run is None:
        return 0
    run.made.append(weakref.ref(made))
    return run.closed.pop(type(made), 0)
