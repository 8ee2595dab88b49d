"""Lab 00 in a real JupyterLab, driven in a real Chromium: what a student sees.

Skipped with a message where there is no Chromium, unless INMS_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from inms_lab.terminal.doctor import find_chromium

if find_chromium() is None and os.environ.get("INMS_REQUIRE_BROWSER") != "1":
    pytest.skip("no Chromium here (inms-lab doctor says how to get one)", allow_module_level=True)

import browser

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.slow]
NOTEBOOK = "00_start_here.ipynb"
OURS = ("inms", "idget", "comm")  # in the text of an error: ours, or about our widgets


class Opened(NamedTuple):
    """Lab 00 on a page; `started`: when its server was started; `shots`: where pictures go."""

    lab: browser.LabPage
    started: float
    shots: Path


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Opened, not run yet."""
    folder = tmp_path_factory.mktemp("jupyterlab")
    started = time.perf_counter()
    with (
        browser.jupyterlab(folder) as address,
        browser.chromium(viewport={"width": 1280, "height": 1000}) as page,
    ):
        lab = browser.LabPage(page, address, NOTEBOOK)
        print(
            f"\nthe notebook is open after {time.perf_counter() - started:.1f} s; shots: {folder}"
        )
        yield Opened(lab, started, folder)


def test_the_recorded_run_shows_before_anything_runs(opened: Opened) -> None:
    """Even in a notebook that is not trusted yet: an image and a table, no script."""
    page = opened.lab.page
    picture = page.locator(".jp-OutputArea img[alt^='pools:']:visible").first
    picture.wait_for(timeout=20_000)
    assert picture.evaluate("image => image.complete && image.naturalWidth") > 900
    assert page.locator(".jp-OutputArea:has(img) script").count() == 0
    page.screenshot(path=opened.shots / "opened.png")


def test_all_cells_run_and_the_view_shows_shared_blocks(opened: Opened) -> None:
    lab, page = opened.lab, opened.lab.page
    lab.run_all()
    page.locator(".inms-map canvas").first.wait_for(timeout=120_000)
    seconds = time.perf_counter() - opened.started
    print(f"\nfirst live picture {seconds:.1f} s after the start of the server")
    lab.wait_for_refcount(4)
    lab.wait_until_run()
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert not [error for error in lab.errors if any(word in error for word in OURS)]


@pytest.mark.parametrize("width", [1280, 1920])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_views_are_whole_at_this_width_and_theme(
    opened: Opened, width: int, theme: str
) -> None:
    page = opened.lab.page
    page.set_viewport_size({"width": width, "height": 1000})
    opened.lab.theme(theme)
    kinds = {"map": "", "whole": ":has(.inms-decision)", "check": ":has(.inms-message:visible)"}
    for name, kind in kinds.items():
        view = page.locator(f".inms-dash{kind}").first
        view.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        assert opened.lab.clashes() == []
        box = view.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
        page.screenshot(path=opened.shots / f"{name}_{width}_{theme}.png")


def test_the_words_of_a_block_are_the_models_text(opened: Opened) -> None:
    page = opened.lab.page
    words = page.evaluate("""() => {
      const { hub } = document.querySelector('.inms-dash:has(.inms-decision)');
      const seq = hub.fold.end.seqs.find(seq => seq.name === 'architect');
      const tokens = seq.segments.flatMap(s => hub.fold.tokensOf(s, 0, s.count));
      return hub.fold.textOf(tokens).map(piece => piece[0]).join('');
    }""")
    assert "Rules of the shop:\n1. A customer pays once" in words
    assert "<|im_start|>user\nThe pay button can be clicked twice." in words
