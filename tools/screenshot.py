"""The README's pictures, docs/{lab00,dashboard,check,weights}.png: `python tools/screenshot.py`

Opens lab 00 in a real JupyterLab in Chromium and runs it up to the dashboard. The first picture is
of the cell in which two agents write while the view shows what they share; the second of the
dashboard, taken back to the copy-on-write, with a block pinned. The third is of lab 02, where a
class with its last fault left in it has been checked; the fourth of the page map of lab 13.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LAB, SECOND = "00_start_here.ipynb", "02_blocks_refcounts_copy_on_write.ipynb"
WEIGHTS = "13_one_copy_of_the_weights.ipynb"
MENDED = "            self.found.pop(self.key.pop(block, None), None)\n            self.text"
SMALL, LARGE = {"width": 1180, "height": 830}, {"width": 1760, "height": 2000}
TALL = {"width": 1180, "height": 1400}
MOST_BYTES = 400_000
BACK = """() => {
  const { hub } = [...document.querySelectorAll('.inms-dash')].at(-1);
  hub.seek(hub.fold.first);
  hub.jump('copy');
  const last = hub.fold.decisions.findLast(d => d && d.stop <= hub.cursor);
  if (last) { hub.decision = last.number; }
  hub.setPin({ pool: 'global', block: 1 });
}"""

sys.path.insert(0, str(ROOT / "tests"))

import browser  # noqa: E402


def main() -> None:
    """Run, wait, look."""
    cells = nbformat.read(ROOT / "labs" / LAB, as_version=4).cells
    writing = next(i for i, cell in enumerate(cells) if "await lab.run({architect" in cell.source)
    looking = next(i for i, cell in enumerate(cells) if "Dashboard(lab)" in cell.source)
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.jupyterlab(Path(folder)) as address,
        browser.chromium(viewport=SMALL) as page,
    ):
        lab = browser.LabPage(page, address, LAB)
        lab.tidy()
        lab.run_above(looking + 1)
        lab.wait_for_refcount(5)
        lab.wait_until_run()
        for _ in range(2):  # cells that come into sight change the height of those above
            lab.scroll_to(writing)
        save(page, "lab00.png")
        page.set_viewport_size(LARGE)
        lab.scroll_to(looking)
        page.evaluate(BACK)
        page.wait_for_timeout(1500)  # flashes fade, the kernel explains the decision
        page.locator(".inms-bar").last.evaluate("bar => bar.scrollIntoView()")
        page.wait_for_timeout(500)
        top = page.locator(".inms-bar").last.bounding_box()
        end = page.locator(".inms-agents").last.bounding_box()
        assert top is not None
        assert end is not None
        clip = {**top, "height": min(end["y"], LARGE["height"] - 40) - top["y"]}
        page.screenshot(path=DOCS / "dashboard.png", clip=clip)
        said("dashboard.png")
        page.set_viewport_size(SMALL)
        checking = with_the_last_fault(Path(folder) / "labs" / SECOND)
        lab = browser.LabPage(page, address, SECOND)
        lab.tidy()
        lab.run_all()
        lab.wait_until_run()
        for _ in range(2):
            lab.scroll_to(checking)
        page.wait_for_timeout(1000)
        save(page, "check.png")
        page_map(page, address)


def page_map(page: browser.Page, address: str) -> None:
    """The weights of eight agents, of whom one trains."""
    cells = nbformat.read(ROOT / "labs" / WEIGHTS, as_version=4).cells
    looking = next(i for i, cell in enumerate(cells) if "WeightsMap(params)" in cell.source)
    lab = browser.LabPage(page, address, WEIGHTS)
    lab.tidy()
    page.set_viewport_size(TALL)
    lab.run_above(looking + 1)
    lab.wait_until_run()
    for _ in range(2):
        lab.scroll_to(looking)
    page.wait_for_timeout(1500)  # what lights up has faded
    page.locator(".inms-weights").first.screenshot(path=DOCS / "weights.png")
    said("weights.png")


def with_the_last_fault(path: Path) -> int:
    """Put the solution without one line into a copy of lab 02; gives the place of its check."""
    notebook = nbformat.read(ROOT / "labs" / "solutions" / SECOND, as_version=4)
    stub = next(cell for cell in notebook.cells if cell.source.startswith("# Exercise"))
    assert stub.source.count(MENDED) == 1
    stub.source = stub.source.replace(MENDED, "            self.text")
    nbformat.write(notebook, path)
    return next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("check("))


def save(page: browser.Page, name: str) -> None:
    """The page as it is, into docs/."""
    DOCS.mkdir(exist_ok=True)
    page.screenshot(path=DOCS / name)
    said(name)


def said(name: str) -> None:
    """How large it is."""
    size = (DOCS / name).stat().st_size
    assert size < MOST_BYTES, f"{size} bytes"
    print(f"docs/{name}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
