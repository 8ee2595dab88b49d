"""The dashboards of INMS Lab: pictures of a lab's memory, for notebooks.

Names are loaded when they are first used, so that a recorded run shows without torch or ipywidgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AgentsView": "view",
    "BlockMap": "view",
    "Dashboard": "dashboard",
    "DecisionStepper": "view",
    "Settings": "settings",
    "Snapshot": "snapshot",
    "Timeline": "view",
    "View": "view",
    "WeightsMap": "weights",
    "contexts_at": "frames",
    "export_html": "export",
    "measures_at": "frames",
    "show_recorded": "recorded",
    "snapshot_at": "frames",
    "snapshot_of": "snapshot",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
