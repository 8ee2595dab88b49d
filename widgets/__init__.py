"""The dashboards of INMS Lab: pictures of a lab's memory, for notebooks.

Names are loaded when they are first used, so that a recorded run shows without torch or ipywidgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "PoolView": "pool_view",
    "Snapshot": "snapshot",
    "snapshot_at": "snapshot",
    "snapshot_of": "snapshot",
    "show_recorded": "recorded",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
