"""Dashboards in a real JupyterLab: a lab that runs, pointer, keyboard, busy cells, many re-runs.

Skipped with a message where there is no Chromium, unless INMS_REQUIRE_BROWSER=1. The model is a
stand-in that takes a while for a step, so nothing needs to be fetched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from inms_lab.terminal.doctor import find_chromium

if find_chromium() is None and os.environ.get("INMS_REQUIRE_BROWSER") != "1":
    pytest.skip("no Chromium here (inms-lab doctor says how to get one)", allow_module_level=True)

import browser

from inms_lessons import EXERCISES, examine
from inms_lessons.order import RULES, TOOLS, sentence

pytestmark = [pytest.mark.browser, pytest.mark.slow]
HUB = "document.querySelector('.inms-dash').hub"

SETUP = """
import time
from inms_lab import Lab
from inms_lab.model.forward import DryModel
from inms_widgets import BlockMap, Dashboard, View

class Slow(DryModel):
    def forward(self, spans, store, tile, cancel=None):
        time.sleep(0.02)
        return super().forward(spans, store, tile, cancel)

lab = Lab(Slow(100, 2048, 1 << 16), block_size=16)
lab.preload(list(range(40)), progress=False)
team = lab.group("team")
agents = team.agents("architect", "backend", "frontend")
team.publish([7] * 20, by=agents[0], role=None)

async def program(me):
    me.attach(team)
    me.read([len(me.name)] * 20)
    child = await me.fork()
    await child.write(3, role=None, stop=False)
    return len((await me.write(20, role=None, stop=False)).tokens)
"""
CELLS = {
    "setup": SETUP,
    "show": "dashboard = Dashboard(lab)\ndashboard",
    "run": "lab.controls.speed(12)\nawait lab.run(dict.fromkeys(agents, program))",
    "again": "display(dashboard)",
    "busy": """
async def long(me):
    me.read([1] * 20)
    await me.write(400, role=None, stop=False)

lab.start({lab.agent("late"): long})
lab.controls.run()
end = time.time() + 6
while time.time() < end:  # the kernel's main thread does nothing else
    time.sleep(0.01)
""",
    "rest": "lab.controls.speed(None)\nlab.controls.run()\nlab.run_to(None)",
    "small": "view = BlockMap(lab)\nview",
    "close": "lab.assert_clean()",
    "after": "View(lab.log, parts=['bar', 'decision'])",
    "weights": """
import torch
from inms_lab.parameters import SharedParameters
from inms_widgets import WeightsMap
torch.manual_seed(0)
layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
params = SharedParameters(layers, preload=())
ada, ben = params.agent("ada"), params.agent("ben")

def read(model):
    return model(torch.ones(1, 256)).sum().item()

def write(model, number):
    with torch.no_grad():
        model[number].weight.add_(1)

for one in (ada, ben):
    one.run(read)
weights = WeightsMap(params, period=0.1)
weights
""",
    "write": "ada.run(write, 2)",
    "frame": "weights.point('ben', '1.weight', 'nobody wrote here')",
    "end": "params.close()",
    "point": "dashboard.point(5, block=('global', 1), note='look here')",
    "check": """
from inms_lessons import check, reset
from inms_lessons.order import RULES, TOOLS, sentence
shared = lambda name: [RULES, TOOLS, sentence(name)]
check("order", shared, shared, 0)
""",
    "reset": "reset('order', view=dashboard)",
}
PLACE = {name: number for number, name in enumerate(CELLS)}


class Notebook:
    """The notebook on a page, cell by cell."""

    def __init__(self, lab: browser.LabPage) -> None:
        self.lab, self.page = lab, lab.page

    def run(self, name: str, wait: bool = True) -> None:
        """Run one cell."""
        self.page.evaluate(f"{browser.NOTEBOOK}.activeCellIndex = {PLACE[name]}")
        self.page.evaluate(f"void {browser.COMMANDS}.execute('notebook:run-cell')")
        self.page.wait_for_timeout(150)
        if wait:
            self.lab.wait_until_run(60)
            error = self.page.locator("[data-mime-type='application/vnd.jupyter.error']")
            assert error.count() == 0, error.first.inner_text()

    def is_running(self, name: str) -> bool:
        """Whether the cell is being run."""
        state = f"{browser.NOTEBOOK}.widgets[{PLACE[name]}].model.executionState"
        return bool(self.page.evaluate(f"{state} === 'running'"))

    def hub(self, expression: str, number: int = 0) -> Any:
        """A value of a dashboard on the page: an expression of its `hub`."""
        found = f"[...document.querySelectorAll('.inms-dash')].at({number}).hub"
        return self.page.evaluate(f"(hub => {expression})({found})")

    def words(self, where: Any) -> str:
        """What a node says once every dashboard is drawn: a change is drawn a frame later."""
        drawn = "[...document.querySelectorAll('.inms-dash')].every(dash => !dash.hub?.dirty)"
        self.page.wait_for_function(f"() => {drawn}", timeout=10_000)
        return str(where.inner_text())

    def wait_for(self, expression: str, seconds: float = 10, number: int = 0) -> float:
        """Until it holds; gives the seconds that it took."""
        started = time.monotonic()
        while not self.hub(expression, number):
            assert time.monotonic() - started < seconds, expression
            self.page.wait_for_timeout(20)
        return time.monotonic() - started


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("views")
    with (
        browser.jupyterlab(folder) as address,
        browser.chromium(viewport={"width": 1280, "height": 1300}) as page,
    ):
        cells = [new_code_cell(code.strip()) for code in CELLS.values()]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        made = new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(made, folder / "labs" / "views.ipynb")
        lab = browser.LabPage(page, address, "views.ipynb")
        lab.tidy()
        page.wait_for_function(f"{browser.KERNEL}?.status === 'idle'", timeout=60_000)
        one = Notebook(lab)
        one.run("setup")
        one.run("show")
        page.wait_for_selector(".inms-map canvas")
        yield one
        page.screenshot(path=folder / "views.png")
        print(f"\nshots: {folder}")


def scrub(notebook: Notebook, to: float, number: int = 0) -> None:
    """Press on the timeline's strip and drag; nothing was clicked before."""
    strip = notebook.page.locator(".inms-timeline canvas").nth(1 + 7 * number)
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    assert box is not None
    mouse, y = notebook.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 0.9 * box["width"], y)
    mouse.down()
    mouse.move(box["x"] + (0.2 + 0.8 * to) * box["width"], y, steps=8)
    mouse.up()


def test_the_picture_moves_while_agents_run_and_ends_at_the_last_event(notebook: Notebook) -> None:
    notebook.run("run", wait=False)
    lengths = set()
    while notebook.is_running("run"):
        lengths.add(notebook.hub("hub.fold.length"))
        notebook.page.wait_for_timeout(60)
    assert len(lengths) > 4, "it did not move"
    notebook.lab.wait_until_run()
    late = notebook.wait_for("hub.fold.end.seqs.length === 8 && hub.cursor === hub.fold.length", 3)
    print(f"\nthe last frame came {late:.2f} s after the cell")
    assert notebook.hub("hub.mode") == "follow"


def test_the_first_drag_scrubs_and_the_lab_does_not_notice(notebook: Notebook) -> None:
    """rerun#12687: a scrubber that is dead until something else is clicked."""
    before = notebook.hub("hub.fold.length")
    scrub(notebook, 0.4)
    assert notebook.hub("hub.mode") == "paused"
    assert 0 < notebook.hub("hub.cursor") < before
    assert notebook.hub("hub.fold.length") == before
    assert "PAUSED" in notebook.words(notebook.page.locator(".inms-bar").first)


def test_a_click_pins_a_block_and_shows_all_of_it(notebook: Notebook) -> None:
    notebook.hub("hub.seek(hub.fold.length)")
    where = "hub.parts.find(p => p.where).where('global', 1)"
    notebook.page.locator(".inms-map").first.scroll_into_view_if_needed()
    spot = notebook.hub(where)
    notebook.page.mouse.click(spot["x"], spot["y"])
    assert notebook.hub("hub.pin") == {"pool": "global", "block": 1}
    words = notebook.words(notebook.page.locator(".inms-detail").first)
    for part in ("global", "architect", "backend", "frontend", "16 "):
        assert part in words, words
    assert notebook.page.locator(".inms-detail .detail-history, .inms-detail .detail-list").count()


def test_a_decision_is_stepped_with_the_keyboard_alone(notebook: Notebook) -> None:
    page = notebook.page
    page.locator(".inms-dash").first.evaluate("dash => dash.focus()")
    page.keyboard.press("Home")
    assert notebook.hub("hub.cursor") == 0
    page.keyboard.press("]")
    page.keyboard.press("]")
    first = notebook.hub("hub.decision")
    assert first is not None
    page.wait_for_function(f"{HUB}.fold.explained.has({first})", timeout=10_000)  # from the kernel
    page.keyboard.press("j")
    page.keyboard.press("j")
    words = notebook.words(page.locator(".inms-decision").first)
    assert "decision" in words
    assert page.locator(".inms-decision").first.locator("[aria-current]").count() >= 1
    page.keyboard.press("[")
    assert notebook.hub("hub.decision") == first - 1
    assert notebook.hub("hub.mode") == "paused"


def test_what_if_plans_again_and_touches_nothing(notebook: Notebook) -> None:
    last = notebook.hub("hub.fold.decisions.length") - 1
    before = notebook.hub("hub.fold.length")
    answer = notebook.page.evaluate(
        f"{HUB}.ask('whatif', {{number: {last}, mode: 'independent'}}).then(a => a.words || 'none')"
    )
    assert answer
    refused = notebook.page.evaluate(
        f"{HUB}.ask('whatif', {{number: 10 ** 6}}).catch(error => error.message)"
    )
    assert "decisions 0 to" in refused
    assert notebook.hub("hub.fold.length") == before


def test_a_canvas_is_not_blank_after_scrolling_away_and_back(notebook: Notebook) -> None:
    """jupyterlab#17815."""
    notebook.lab.scroll_to(PLACE["close"])
    notebook.page.wait_for_timeout(500)
    notebook.lab.scroll_to(PLACE["show"])
    notebook.page.locator(".inms-map").first.scroll_into_view_if_needed()
    notebook.page.wait_for_timeout(300)
    colours = notebook.page.evaluate("""() => {
      const canvas = document.querySelector('.inms-map canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size;
    }""")
    assert colours > 8


def test_two_views_of_one_lab_have_a_cursor_each(notebook: Notebook) -> None:
    notebook.run("again")
    notebook.page.wait_for_function("document.querySelectorAll('.inms-dash').length === 2")
    notebook.hub("hub.seek(5)", 0)
    notebook.page.wait_for_timeout(100)
    assert notebook.hub("hub.cursor", 1) == notebook.hub("hub.fold.length", 1)
    assert notebook.hub("hub.cursor", 0) == 5
    same = "document.querySelectorAll('.inms-dash')[1].hub.fold"
    assert notebook.hub(f"hub.fold === {same}", 0), "the log is folded once for both"
    notebook.hub("hub.setMode('follow')", 0)


def test_a_busy_cell_does_not_freeze_pause_and_step(notebook: Notebook) -> None:
    """The main thread sleeps in its cell: the picture moves, and buttons reach the lab."""
    notebook.run("busy", wait=False)
    notebook.wait_for("hub.lab.state === 'running'")
    started = time.monotonic()
    notebook.page.locator(".inms-bar button", has_text="Pause lab").first.click()
    notebook.wait_for("hub.lab.state === 'paused'", 3)
    print(f"\npaused after {time.monotonic() - started:.2f} s")
    assert notebook.is_running("busy"), "the cell was over already"
    notebook.page.wait_for_timeout(400)
    step = notebook.hub("hub.fold.end.step")
    notebook.page.locator(".inms-bar button", has_text="Step lab").first.click()
    notebook.wait_for(f"hub.fold.end.step === {step + 1}", 3)
    notebook.page.wait_for_timeout(300)
    assert notebook.hub("hub.fold.end.step") == step + 1
    assert notebook.is_running("busy"), "the cell was over already"
    notebook.lab.wait_until_run()
    notebook.run("rest")


def test_twenty_re_runs_of_the_display_cell_leave_nothing_behind(notebook: Notebook) -> None:
    """rerun#6642, anywidget#613, #929: what the page holds does not grow."""
    page = notebook.page
    session = page.context.new_cdp_session(page)

    def count() -> tuple[int, float]:
        page.wait_for_timeout(500)
        session.send("HeapProfiler.collectGarbage")
        used = session.send("Runtime.getHeapUsage")["usedSize"]
        return page.evaluate("document.querySelectorAll('*').length"), used / 2**20

    for _ in range(3):
        notebook.run("show")
    before = count()
    for _ in range(20):
        notebook.run("show")
    nodes, heap = count()
    print(f"\nnodes {before[0]} -> {nodes}, heap {before[1]:.1f} -> {heap:.1f} MiB")
    assert abs(nodes - before[0]) < 60
    assert heap < before[1] * 1.15 + 4


def test_a_part_alone_shows_in_both_themes(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("small")
    for theme in ("dark", "light"):
        notebook.lab.theme(theme)
        for width in (1280, 1920):
            notebook.page.set_viewport_size({"width": width, "height": 1300})
            notebook.page.wait_for_timeout(300)
            assert notebook.lab.clashes() == []
            notebook.page.screenshot(path=tmp_path / f"{theme}_{width}.png")
    print(f"\nshots: {tmp_path}")


def test_a_closed_lab_stays_in_its_view(notebook: Notebook) -> None:
    notebook.run("close")
    notebook.wait_for("hub.lab.state === 'closed'")
    assert not [e for e in notebook.lab.errors if any(w in e for w in ("inms", "idget", "comm"))]


def test_a_log_without_a_lab_has_no_buttons_of_a_lab(notebook: Notebook) -> None:
    """Nor is it live: nothing will happen any more."""
    notebook.run("after")
    last = notebook.page.locator(".inms-dash").last
    last.locator(".inms-bar-badge", has_text="AT THE END").wait_for()
    assert not last.locator(".inms-bar-lab").is_visible()
    shown = notebook.page.locator(".inms-bar-lab").first
    assert shown.is_visible(), "this one saw the lab close"
    assert "closed" in notebook.words(shown)
    assert shown.locator("button:enabled, select:enabled").count() == 0


def test_enter_reaches_the_block_field(notebook: Notebook) -> None:
    """JupyterLab keeps Enter to itself, so that no `change` comes."""
    box = notebook.page.get_by_label("Go to block").first
    box.scroll_into_view_if_needed()
    box.fill("global:1")
    box.press("Enter")
    notebook.wait_for("hub.pin?.pool === 'global' && hub.pin.block === 1")


def test_a_view_goes_where_the_kernel_points(notebook: Notebook) -> None:
    notebook.hub("hub.setMode('follow')")
    notebook.run("point")
    notebook.wait_for("hub.cursor === 5 && hub.mode === 'paused'")
    assert notebook.hub("hub.pin") == {"pool": "global", "block": 1}
    told = notebook.page.locator(".inms-dash").first.locator(".inms-message").nth(1)
    assert notebook.words(told) == "look here"
    notebook.hub("hub.seek(8)")
    notebook.page.wait_for_timeout(300)
    assert notebook.hub("hub.cursor") == 8, "told once, it goes once"
    notebook.run("point")
    notebook.wait_for("hub.cursor === 5")


def test_a_failed_check_opens_a_view_at_the_first_wrong_event(notebook: Notebook) -> None:
    def shared(name: str) -> list[str]:
        return [RULES, TOOLS, sentence(name)]

    wrong = examine("order", shared, shared, 0)
    assert wrong is not None
    assert wrong.block is not None
    notebook.run("check")
    notebook.wait_for(f"hub.cursor === {wrong.moment}", number=-1)
    pool, block = wrong.block
    assert notebook.hub("hub.pin", -1) == {"pool": pool, "block": block}
    last = notebook.page.locator(".inms-dash").last
    assert notebook.words(last.locator(".inms-message").nth(1)) == wrong.note()
    assert "PAUSED" in notebook.words(last.locator(".inms-bar"))
    other = notebook.page.locator(".inms-agents > ul").first
    style = other.evaluate("list => getComputedStyle(list).listStyleType")
    assert style == "none", "a view of fewer parts took the style of the others"


def test_a_reset_puts_the_stub_into_a_new_cell(notebook: Notebook) -> None:
    cells = f"{browser.NOTEBOOK}.widgets.map(cell => cell.model.sharedModel.getSource())"
    before = notebook.page.evaluate(cells)
    shown = notebook.page.locator(".inms-dash").count()
    notebook.run("reset")
    after = notebook.page.evaluate(cells)
    assert after == [*before, EXERCISES["order"].stub.rstrip()]
    notebook.wait_for("hub.mode === 'follow'")
    left = f"document.querySelectorAll('.inms-dash').length === {shown - 1}"
    notebook.page.wait_for_function(left, timeout=5000)


def test_weights_light_up_in_the_strip_of_who_writes_them(
    notebook: Notebook, tmp_path: Path
) -> None:
    page = notebook.page
    notebook.run("weights")
    page.wait_for_selector(".inms-weights canvas")
    strips = page.locator(".inms-strip")
    assert [strips.nth(n).locator("button").inner_text() for n in range(2)] == ["ada", "ben"]
    said = strips.nth(0).locator("span")
    assert said.inner_text().startswith("0 KiB own")
    yellow = """n => { const c = document.querySelectorAll('.inms-strip canvas')[n],
      d = c.getContext('2d').getImageData(0, 0, c.width, 4).data;
      let count = 0; for (let i = 0; i < d.length; i += 4) count += d[i] > 200 && d[i + 1] > 200;
      return count / (d.length / 4); }"""
    assert page.evaluate(yellow, 0) == page.evaluate(yellow, 1) == 0
    notebook.run("write")
    page.wait_for_function(
        "() => /256 KiB own/.test(document.querySelector('.inms-strip').innerText)"
    )
    page.wait_for_timeout(1200)
    assert 0.2 < page.evaluate(yellow, 0) < 0.3, "one of four layers"
    assert page.evaluate(yellow, 1) == 0
    notebook.run("frame")
    under = page.locator(".inms-under")
    page.wait_for_function(
        "() => /^1.weight/.test(document.querySelector('.inms-under').innerText)"
    )
    assert under.inner_text() == "1.weight: 0 own, 64 shared, 0 not touched, of 64 pages"
    assert page.locator(".inms-weights .inms-message").nth(1).inner_text() == "nobody wrote here"
    strips.nth(0).locator("button").click()
    page.locator(".inms-weights summary").click()
    rows = page.locator(".inms-weights tbody tr")
    assert rows.first.inner_text().split() == ["2.weight", "64", "0", "0"]
    assert notebook.lab.clashes() == []
    notebook.run("end")
    page.wait_for_function(
        "() => /closed/.test(document.querySelector('.inms-weights h3').innerText)"
    )
    page.locator(".inms-weights").screenshot(path=tmp_path / "weights.png")


def test_a_view_says_that_its_kernel_is_gone(notebook: Notebook) -> None:
    before = len(notebook.lab.errors)
    notebook.page.evaluate(f"{browser.KERNEL}.restart()")
    notebook.page.wait_for_function(f"{browser.KERNEL}?.status === 'idle'", timeout=60_000)
    answer = notebook.page.evaluate(
        f"{HUB}.ask('explain', {{number: 0}}).catch(error => error.message)"
    )
    assert answer == "kernel_gone"
    notebook.wait_for("hub.lab.state === 'gone'")
    message = notebook.page.locator(".inms-message").first
    assert "run this cell again" in notebook.words(message)
    assert "kernel gone" in notebook.words(notebook.page.locator(".inms-bar-lab").first)
    assert "LIVE" not in notebook.words(notebook.page.locator(".inms-bar-badge").first)
    notebook.hub("hub.command('pause')")
    assert not [e for e in notebook.lab.errors[before:] if "Cannot send" in e]
