"""What a person sees while a model is being prepared: plain status lines and one bar at a time.

It goes to stderr, so that a command's stdout stays clean; in a notebook to stdout, for there stderr
looks like an error.
"""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm

from inms_lab.shell import shell


def say(text: str, *, enabled: bool = True) -> None:
    """Print one status line without breaking a bar that is being drawn."""
    if enabled:
        stream = sys.stderr if shell() is None else sys.stdout
        tqdm.write(f"inms-lab: {text}", file=stream)


def bar(total: int, text: str, *, unit: str, enabled: bool = True) -> Any:
    """Return a bar of `total` units (`unit="B"`: bytes, shown as MB); use it in a `with`."""
    is_bytes = unit == "B"
    return tqdm(
        total=total,
        desc=text,
        unit=unit,
        unit_scale=is_bytes,
        disable=not enabled,
        leave=False,
        file=sys.stderr,
    )
