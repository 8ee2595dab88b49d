"""The README's picture, docs/lab00.png: `python benchmarks/screenshot.py`

Opens lab 00 in a real JupyterLab in Chromium, runs it up to the published decision, and takes the
picture of the cell in which two agents write while the view shows what they share.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "lab00.png"
LAB = "00_start_here.ipynb"
SIZE = {"width": 1180, "height": 830}
MOST_BYTES = 200_000

sys.path.insert(0, str(ROOT / "tests"))

import browser  # noqa: E402


def main() -> None:
    """Run, wait, look."""
    cells = nbformat.read(ROOT / "labs" / LAB, as_version=4).cells
    shown = next(i for i, cell in enumerate(cells) if "await lab.run({architect" in cell.source)
    last = next(i for i, cell in enumerate(cells) if "recorded" in cell.metadata.get("tags", ()))
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.jupyterlab(Path(folder)) as address,
        browser.chromium(viewport=SIZE) as page,
    ):
        lab = browser.LabPage(page, address, LAB)
        lab.tidy()
        lab.run_above(last + 1)
        lab.wait_for_refcount(5)
        lab.wait_until_run()
        lab.scroll_to(shown)
        TARGET.parent.mkdir(exist_ok=True)
        page.screenshot(path=TARGET)
    size = TARGET.stat().st_size
    assert size < MOST_BYTES, f"{size} bytes"
    print(f"{TARGET.relative_to(ROOT)}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
