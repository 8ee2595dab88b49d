"""INMS Lab: what may many LLM agents share in memory, and what must stay private?

Names are loaded when they are first used, so that the deciding part works without torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# MKL reads this at its first product: in its strict mode a row's bits do not depend on how many
# rows there are. Without it some processors get other kernels at other row counts.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_HOME = {
    "Lab": "inms_lab.notebook.lab",
    "Config": "inms_lab.config",
    "Gate": "inms_lab.books.gate",
    "Sampling": "inms_lab.serving.sample",
    "Ledger": "inms_lab.books.ledger",
    "Log": "inms_lab.logs.log",
    "Engine": "inms_lab.serving.engine",
    "MODES": "inms_lab.decisions.policy",
    "connect": "inms_lab.remote.client",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inms_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
