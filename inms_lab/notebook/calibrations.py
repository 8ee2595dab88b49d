"""Where calibrations are kept: the user's own measurements first, then those of the package.

A calibration says how far fragments of one model change what its readers compute (gate.py judges by
it); `inms-lab calibrate` measures it. Not here: the measuring (interference/), nor anything that
loads torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from inms_lab.books.gate import Calibration
from inms_lab.errors import CacheNotWritable
from inms_lab.places import cache_root

MAX_BYTES = 1 << 20  # of a file; they have less than one thousandth of it
SHIPPED = Path(__file__).parents[1] / "interference" / "calibrations"


def calibration_of(digest: str) -> Calibration | None:
    """What was measured for the model with this digest; None: nothing, or only damaged files."""
    for folder in (cache_root() / "calibrations", SHIPPED):
        found = _read(folder / f"{digest}.json")
        if found is not None and found.model == digest:
            return found
    return None


def keep(calibration: Calibration, folder: Path | None = None) -> Path:
    """Write a calibration into `folder`, without one into the user's cache; gives the file."""
    folder = folder or cache_root() / "calibrations"
    path = folder / f"{calibration.model}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CacheNotWritable(f"{path} cannot be written ({error}): name another folder") from None
    return path


def _read(path: Path) -> Calibration | None:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES)
        return Calibration.of(json.loads(text))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None  # absent or damaged: as if nobody had measured
