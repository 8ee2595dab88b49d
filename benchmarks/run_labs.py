"""Run labs in place, so that each is committed executed: `python benchmarks/run_labs.py [FILE ...]`

Kept: counts and outputs. Left out: widget state and the views that need it (a page without a kernel
then shows the picture that each view brings along), times, and the versions of this machine.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

LABS = Path(__file__).resolve().parents[1] / "labs"
VIEW = "application/vnd.jupyter.widget-view+json"


def main(paths: list[Path]) -> None:
    """Run each notebook in its own folder and write it back."""
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        started = time.perf_counter()
        NotebookClient(
            notebook,
            timeout=120,
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(path.parent)}},
        ).execute()
        clean(notebook)
        nbformat.write(notebook, path)
        size = path.stat().st_size / 1000
        print(f"{path.name}: {time.perf_counter() - started:.1f} s, {size:.0f} kB")


def clean(notebook: NotebookNode) -> None:
    """Leave out what depends on the machine or needs a kernel."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    for cell in (c for c in notebook.cells if c.cell_type == "code"):
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            output.get("data", {}).pop(VIEW, None)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(LABS.glob("**/*.ipynb")))
