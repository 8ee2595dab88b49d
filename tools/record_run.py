"""Record the run that lab 00 shows first: `python tools/record_run.py`

Runs the cells of lab 00 on the default model up to the one tagged `recorded` (without the one that
shows the recording) and keeps a few moments of its log, and what the agents wrote.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "labs" / "00_start_here.ipynb"
TARGET = ROOT / "widgets" / "recorded_run.json"
MOST_BYTES = 60_000

COLLECT = """
import json

from inms_lab.books.events import Registered, Released, Shared, Stepped
from inms_widgets.recorded import Recording, to_json
from inms_widgets.frames import snapshot_at

events = list(enumerate(lab.log.events))
first_agent = next(i for i, e in events if isinstance(e, Registered) and e.kind == "agent")
published = next(i for i, e in events if isinstance(e, Released))
mounted = max(i for i, e in events[:published] if isinstance(e, Shared))
began = next(i for i, e in events[mounted:] if isinstance(e, Stepped)) + 1
moments = {
    "The system prompt and the tools are in the global tier, sealed.": first_agent,
    "Three agents begin with them: no block was copied, each has four holders.": began,
    "Architect and backend have read and written in private.": published,
    "The decision is published; frontend has attached it and written too.": len(events),
}
shots = tuple((words, snapshot_at(lab.log, i)) for words, i in moments.items())
setting = f"{lab.model.dtype} on {lab.model.device.type}, greedy".replace("torch.", "")
texts = {agent.name: str(agent.outputs[-1]) for agent in lab.agents.values()}
print(json.dumps(to_json(Recording(lab.model.name, setting, shots, texts))))
lab.assert_clean()
"""


def main() -> None:
    """Run, collect, write."""
    notebook = nbformat.read(LAB, as_version=4)
    cells = [c for c in notebook.cells if c.cell_type == "code" and "show_recorded" not in c.source]
    last = next(i for i, cell in enumerate(cells) if "recorded" in cell.metadata.get("tags", ()))
    collect = new_code_cell(COLLECT)
    notebook.cells = [*cells[: last + 1], collect]
    client = NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(LAB.parent)}}
    )
    client.execute()
    recording = json.loads("".join(o.text for o in collect.outputs if o.get("name") == "stdout"))
    TARGET.write_text(json.dumps(recording, ensure_ascii=False, indent=None) + "\n", "utf-8")
    size = TARGET.stat().st_size
    assert size < MOST_BYTES, f"{size} bytes: record fewer moments"
    print(f"{TARGET.relative_to(ROOT)}: {size / 1000:.0f} kB")
    for name, text in recording["texts"].items():
        print(f"  {name}: {text}")


if __name__ == "__main__":
    main()
