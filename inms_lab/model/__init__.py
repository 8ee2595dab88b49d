"""Models: where they come from, how they are tried, and how they are run.

Names are loaded when they are first used, so that asking for a folder does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inms_lab.model.admission import Admission, LayerReport
    from inms_lab.model.loader import from_model, load
    from inms_lab.model.runner import Runner

__all__ = ["Admission", "LayerReport", "Runner", "from_model", "load"]

_HOME = {
    "load": "inms_lab.model.loader",
    "from_model": "inms_lab.model.loader",
    "Runner": "inms_lab.model.runner",
    "Admission": "inms_lab.model.admission",
    "LayerReport": "inms_lab.model.admission",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inms_lab.model' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
