"""One copy of a model's weights for many agent processes, and safe ways to change them."""

from __future__ import annotations

from typing import Any

_HOME = {
    "SharedParameters": "inms_lab.parameters.shared",
    "Settings": "inms_lab.parameters.settings",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inms_lab.parameters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
