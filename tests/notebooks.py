"""Labs in a kernel, for tests."""

from __future__ import annotations

import os
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
LABS = ROOT / "labs"
SECONDS = 120  # for one cell


def run(notebook: NotebookNode, **environment: str) -> None:
    """All cells, in the labs' folder; raises at the first one that fails.

    With one thread: as fast for so small a model, and calm where other work wants the cores.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(LABS)}})
    client.execute(env=environment)
