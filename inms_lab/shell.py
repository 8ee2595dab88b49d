"""The notebook's shell, where there is one."""

from __future__ import annotations

import sys
from typing import Any


def shell() -> Any | None:
    """IPython's shell of this process; None outside of notebooks. Does not load IPython."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
