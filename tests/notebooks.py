"""Labs in a kernel, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
LABS = ROOT / "labs"
SECONDS = 120  # for one cell


def run(notebook: NotebookNode, **environment: str) -> None:
    """All cells, in the labs' folder; raises at the first one that fails."""
    with kernel(notebook, **environment) as client:
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)


@contextmanager
def kernel(notebook: NotebookNode, **environment: str) -> Iterator[NotebookClient]:
    """A kernel that runs a notebook's cells, in the labs' folder.

    With one thread: as fast for so small a model, and calm where other work wants the cores.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(LABS)}})
    with client.setup_kernel(env=environment):
        yield client
