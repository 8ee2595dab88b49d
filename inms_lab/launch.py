"""Opening JupyterLab on the first lab, and saying how long things took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from inms_lab.errors import BadInput
from inms_lab.model.source import resolve

FIRST = "00_start_here.ipynb"


def find_labs() -> Path:
    """The folder with the labs: in the working directory, else beside the package's sources."""
    for folder in (Path.cwd() / "labs", Path(__file__).resolve().parent.parent / "labs"):
        if (folder / FIRST).is_file():
            return folder
    raise BadInput(f"there is no labs/{FIRST} here: run this in the project's folder")


def open_lab(arguments: list[str]) -> int:
    """Fetch the model if it is not there, then run JupyterLab until it is stopped."""
    started = time.perf_counter()
    notebook = find_labs() / FIRST
    resolve("smollm2-135m")
    print(f"ready after {time.perf_counter() - started:.1f} s; opening {notebook.name}", flush=True)
    flags = [
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--allow-root")
    command = [sys.executable, "-m", "jupyterlab", *flags, *arguments, str(notebook)]
    return subprocess.call(command)
