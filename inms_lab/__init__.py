"""INMS Lab: what may many LLM agents share in memory, and what must stay private?

Names are loaded when they are first used, so that the deciding part works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Lab": "inms_lab.lab",
    "Config": "inms_lab.config",
    "Gate": "inms_lab.gate",
    "Sampling": "inms_lab.sample",
    "Ledger": "inms_lab.ledger",
    "Log": "inms_lab.log",
    "Engine": "inms_lab.engine",
    "MODES": "inms_lab.policy",
    "connect": "inms_lab.remote.client",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inms_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
