"""Run labs in place, so that each is committed executed: `python tools/run_labs.py [FILE ...]`

Each lab with its solutions in place is written to `labs/solutions/` and run too. Kept: counts and
outputs. Left out: widget state and the views that need it (a page without a kernel then shows the
picture that each view brings along), times, the versions of this machine, and what a cell with
`reveal(` says: whoever opens a lab is to make a guess first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from inms_lessons.copies import solved, stubs_in

LABS = Path(__file__).resolve().parents[1] / "labs"
IGNORED = "# NBVAL_IGNORE_OUTPUT"
VIEW = "application/vnd.jupyter.widget-view+json"


def main(paths: list[Path]) -> None:
    """Run each notebook in the labs' folder and write it back; then the one with its solutions."""
    for path in [one for lab in paths for one in (lab, solutions_of(lab)) if one]:
        notebook = nbformat.read(path, as_version=4)
        started = time.perf_counter()
        client = NotebookClient(
            notebook,
            timeout=120,
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(LABS)}},
        )
        with client.setup_kernel():
            for number, cell in enumerate(list(notebook.cells)):
                client.execute_cell(cell, number)
                redraw(client, cell)
        clean(notebook)
        nbformat.write(notebook, path)
        size = path.stat().st_size / 1000
        print(f"{path.name}: {time.perf_counter() - started:.1f} s, {size:.0f} kB")


def solutions_of(path: Path) -> Path | None:
    """The lab with its solutions, written anew; None: it has no exercise, or is one already."""
    lab = json.loads(path.read_text("utf-8"))
    if path.parent != LABS or not stubs_in(lab):
        return None
    copy = LABS / "solutions" / path.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(json.dumps(solved(lab), ensure_ascii=False, indent=1) + "\n", "utf-8")
    return copy


def redraw(client: NotebookClient, cell: NotebookNode) -> None:
    """A page without a kernel shows each view as it was at the end of its cell."""
    shown = [o for o in cell.get("outputs", []) if VIEW in o.get("data", {})]
    name = next((name for name in ("view", "dashboard") if name in cell.source), None)
    if not shown or name is None or "check(" in cell.source:  # a check brings its own picture
        return
    code = f"print({name}.fallback()['text/html'])"
    probe = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(probe)
    client.execute_cell(probe, len(client.nb.cells) - 1, store_history=False)
    client.nb.cells.pop()
    picture = "".join(output["text"] for output in probe.outputs if output.get("name") == "stdout")
    for output in shown:
        output["data"]["text/html"] = picture


def clean(notebook: NotebookNode) -> None:
    """Leave out what depends on the machine or needs a kernel."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    for cell in (c for c in notebook.cells if c.cell_type == "code"):
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            output.get("data", {}).pop(VIEW, None)
        if "reveal(" in cell.source:
            assert cell.source.startswith(IGNORED), f"begin it with {IGNORED}: {cell.source[:60]}"
            cell.outputs = []


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or sorted(LABS.glob("*.ipynb")))
