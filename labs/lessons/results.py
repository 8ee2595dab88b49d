"""Full measurements for lessons: what a named command wrote into `benchmarks/results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"  # whatever engine is run


def results(name: str) -> dict[str, Any]:
    """The results file of this name, without its ending; raises `BadInput` where there is none."""
    path = RESULTS / f"{name}.json"
    known = ", ".join(sorted(p.stem for p in RESULTS.glob("*.json"))) or "none"
    if not path.is_file():
        raise BadInput(f"there are no results {name!r}; there are: {known}")
    return dict(json.loads(path.read_text("utf-8")))
