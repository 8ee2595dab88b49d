"""Full measurements for lessons: a lab measures a few samples itself and reads the rest here.

Files in `benchmarks/results/`, each written by the command that it names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def results(name: str) -> dict[str, Any]:
    """What the file `name`.json holds; `results(name)["command"]` is what wrote it."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        found = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json"))) or "none"
        raise BadInput(
            f"there are no results called {name!r} in {FOLDER.name}/; there are: {found}"
        )
    return dict(json.loads(path.read_text("utf-8")))
