"""Notebooks as users run them: lab 00 in a kernel, and what people do to running cells.

Outputs as committed are nbval's part of `make test`; that labs were committed executed and small is
test_project.py's; that they turn red on a broken engine is test_mutations.py's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbconvert import HTMLExporter, SlidesExporter
from nbformat.v4 import new_code_cell
from notebooks import LABS, SECONDS, run

FIRST = LABS / "00_start_here.ipynb"
COMMITTED = sorted(p for p in LABS.glob("**/*.ipynb") if ".ipynb_checkpoints" not in p.parts)


# --- as committed (more of it in test_project.py) ----------------------------------------------


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_cells_are_short_portable_and_free_of_widget_state(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if path.parent == LABS:  # a solution is as long as it needs to be
        assert median(len(cell.source.splitlines()) for cell in cells) <= 7
    for cell in cells:
        for word in ("sys.path", "chdir", "%cd", "pip install", "urlopen", "requests."):
            assert word not in cell.source, cell.source
        assert "execution" not in cell.metadata, "it says when it was run"
        mimes = {mime for output in cell.outputs for mime in output.get("data", {})}
        assert not {mime for mime in mimes if "widget" in mime}, "a view without its kernel"
        assert not [o for o in cell.outputs if o.output_type == "error"]


# The plain text of a view, and how its picture is described to who cannot see it.
LIVE = {"live view of a lab's memory": 'alt="pools:', "live page map of shared weights": "alt="}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem[:2]}")
def test_a_page_without_a_kernel_shows_a_picture_for_each_view(path: Path) -> None:
    """As nbconvert makes it: no script is needed, and nothing but the notebook."""
    notebook = nbformat.read(path, as_version=4)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    shown = [o.data.get("text/html", "") for o in outputs if "data" in o]
    assert sum("<img" in html or "<svg" in html for html in shown) >= 2, "pictures"
    page, _ = HTMLExporter().from_notebook_node(notebook)
    for text, described in LIVE.items():
        views = [o for o in outputs if text in o.get("data", {}).get("text/plain", "")]
        assert all(described in view.data["text/html"] for view in views)
        assert page.count(described) >= len(views)
        assert text not in page, "the plain text is shown instead of a picture"


@pytest.mark.parametrize("path", sorted(LABS.glob("[0-9]*.ipynb")), ids=lambda path: path.stem[:2])
def test_the_deck_has_many_short_slides_and_no_solution(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    deck, _ = SlidesExporter().from_notebook_node(notebook)
    assert deck.count("<section") >= 20, "columns and slides"
    for word in ("<summary>Hint", "<summary>Solution"):
        assert word not in deck, "hints and solutions are for the notebook"
    kinds = [c.metadata.get("slideshow", {}).get("slide_type", "-") for c in notebook.cells]
    starts = [i for i, kind in enumerate(kinds) if kind in ("slide", "subslide")]
    for begin, end in pairwise([*starts, len(kinds)]):
        here = notebook.cells[begin:end]
        lines = sum(
            len(c.source.splitlines())
            for c, k in zip(here, kinds[begin:end], strict=True)
            if k != "skip"
        )
        assert lines <= 50, here[0].source[:60]


# --- lab 00 in a kernel -----------------------------------------------------------------------

FACTS = """
import json, threading
from inms_lab.books.events import Commanded, Released
from inms_widgets.frames import snapshot_at

books = [which.log.replay() for which in (lab, alone)]
events = list(enumerate(lab.log.events))
index = next(i for i, e in events if isinstance(e, Commanded) and e.verb == "rollback")
before = snapshot_at(lab.log, index)
print(json.dumps({
    "held": sum(pool.num_held for b in books for pool in b.pools.values()),
    "live": sum(seq.is_live for b in books for seq in b.sequences.values()),
    "refcounts": {p.pool_id: sorted({b.refs for b in p.blocks if b.refs}) for p in before.pools},
    "released": sum(isinstance(event, Released) for event in lab.log.events),
    "words": len(results["architect"].split()),
    "updates": view.publisher.num_sent,
    "failures": view.num_failures,
    "threads": sum(t.name == "inms-lab" for t in threading.enumerate()),
}))
"""


@pytest.mark.model
@pytest.mark.slow
def test_lab_00_runs_and_its_results_can_be_read_out_of_the_kernel() -> None:
    notebook = nbformat.read(FIRST, as_version=4)
    facts = new_code_cell(FACTS)
    notebook.cells.append(facts)
    run(notebook)
    found = json.loads("".join(output.text for output in facts.outputs))
    assert found["held"] == found["live"] == found["threads"] == found["failures"] == 0
    assert found["refcounts"] == {"global": [5], "group:checkout": [2], "private": [1]}
    assert found["released"] == 1
    assert found["words"] >= 2
    assert found["updates"] >= 5


# --- cells that are interrupted, run again, or wrong ------------------------------------------


class Kernel:
    """A kernel that a test talks to as a notebook does."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def start(self, code: str, cell_id: str | None = None) -> str:
        """Begin to run a cell; gives the request's id. `cell_id`: as JupyterLab sends it."""
        content = {"code": code, "silent": False, "store_history": True, "stop_on_error": False}
        metadata = {"cellId": cell_id} if cell_id else {}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, request: str) -> tuple[str, str]:
        """What the cell printed or showed as text, and the name of its error ("" for none)."""
        printed, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind in ("execute_result", "display_data"):
                printed += content["data"].get("text/plain", "")
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, code: str, cell_id: str | None = None) -> str:
        """Run a cell; gives what it printed."""
        printed, error = self.finish(self.start(code, cell_id))
        assert not error, error
        return printed

    def error(self, code: str) -> str:
        """Run a cell that fails; gives the name of its error."""
        return self.finish(self.start(code))[1]

    def value(self, expression: str) -> Any:
        """A value out of the kernel."""
        return json.loads(self.run(f"import json; print(json.dumps({expression}))"))


SETUP = """
import asyncio, threading, time
from inms_lab import Lab
from inms_lab.errors import StepInterrupted
from inms_lab.model.forward import DryModel
from inms_widgets import Dashboard

class Slow(DryModel):
    'Its forward takes a tenth of a second and looks at `cancel`, as a real one does.'
    def forward(self, spans, store, tile, cancel=None):
        for _ in range(20):
            time.sleep(0.005)
            if cancel is not None and cancel.is_set():
                raise StepInterrupted('stopped')
        return super().forward(spans, store, tile, cancel)

def new_lab(model=DryModel):
    return Lab(model(100, 2048, 1 << 20), block_size=16, debug=True)

async def write(me):
    me.read([1] * 30)
    return len(await me.write(40))
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """One kernel for all tests below; each makes a lab of its own."""
    manager, client = start_new_kernel(kernel_name="python3")
    one = Kernel(manager, client)
    try:
        one.run(SETUP)
        yield one
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_interrupted_cell_leaves_the_lab_usable(kernel: Kernel) -> None:
    kernel.run("lab = new_lab(Slow); a, b = lab.agent('a'), lab.agent('b'); view = Dashboard(lab)")
    request = kernel.start("results = await lab.run({a: write, b: write})")
    time.sleep(1)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request)[1] in {"KeyboardInterrupt", "CancelledError"}
    kernel.run("lab.check()")
    assert 0 < kernel.value("len(a.tokens)") < 70, "it was not stopped half-way"
    assert kernel.value("[a.state, b.state]") == ["ready", "ready"]
    kernel.run(
        "async def short(me):\n    me.read([2] * 5)\n    return len((await me.write(2)).tokens)"
    )
    assert kernel.value("await lab.run({a: short, b: short})") == {"a": 2, "b": 2}
    kernel.run("lab.assert_clean()")


def test_an_interrupted_plain_call_leaves_the_lab_usable(kernel: Kernel) -> None:
    """The same for `.result()`, which blocks the kernel's main thread."""
    kernel.run("lab = new_lab(Slow); a = lab.agent('a'); a.read([1] * 30)")
    request = kernel.start("a.write(100).result()")
    time.sleep(1)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request)[1] == "KeyboardInterrupt"
    kernel.run("lab.check(); assert len(a.read([2] * 5).result() and a.tokens) > 30")
    kernel.run("lab.assert_clean()")


ENDLESS = """
from dataclasses import replace
from inms_lessons import EXERCISES, check
EXERCISES['order'] = replace(EXERCISES['order'], seconds=0.5)

def endless(name):
    while True:
        print('and on')
"""


@pytest.mark.parametrize("begins", ["", "await asyncio.sleep(0)\n"])
def test_an_endless_answer_ends_and_the_kernel_goes_on(kernel: Kernel, begins: str) -> None:
    """In a cell with an `await`, too, in which the kernel handles interrupts in another way."""
    printed = kernel.run(f"{ENDLESS}{begins}check('order', endless, endless, 0)")
    assert "stopped after 0.5 seconds" in printed
    assert len(printed) < 6000
    assert "more characters were printed" in printed
    assert kernel.value("1 + 1") == 2
    request = kernel.start("time.sleep(20)")
    time.sleep(0.5)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request)[1] == "KeyboardInterrupt", "the stop button works as before"


def test_running_a_cell_again_closes_the_lab_it_made_and_says_so(kernel: Kernel) -> None:
    cell = "lab = new_lab(); keep = globals().get('keep', []) + [lab]"
    assert kernel.run(cell) == ""
    assert kernel.run(cell) == "closed 1 lab that this cell had made before\n"
    assert kernel.value("[one.closed for one in keep]") == [True, False]


def test_an_edited_cell_is_still_the_same_cell(kernel: Kernel) -> None:
    """JupyterLab says which cell it runs, whatever its text is by now; other cells' labs stay."""
    kernel.run("one, two = new_lab(), new_lab()", cell_id="first")
    kernel.run("other = new_lab()", cell_id="second")
    said = kernel.run("three = new_lab()  # edited", cell_id="first")
    assert said == "closed 2 labs that this cell had made before\n"
    labs = "(one, two, three, other)"
    assert kernel.value(f"[lab.closed for lab in {labs}]") == [True, True, False, False]
    kernel.run(f"for lab in {labs}: lab.close()")


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux' figures of pages")
def test_an_agent_s_name_is_free_when_its_cell_is_run_again(kernel: Kernel) -> None:
    kernel.run("""
import torch
from inms_lab.parameters import SharedParameters
params = SharedParameters(torch.nn.Linear(8, 8), preload=())
was = []""")
    cell = "ada = params.agent('ada'); was.append(ada); print(ada.run(type).__name__, len(was))"
    assert kernel.run(cell, cell_id="agent") == "Linear 1\n"
    assert kernel.run(cell, cell_id="agent") == "Linear 2\n"
    assert kernel.value("[one.closed for one in was]") == [True, False]
    assert kernel.error("params.agent('ada')") == "BadInput", "another cell's is left alone"
    kernel.run("params.close()")


def test_a_cell_that_failed_to_make_a_lab_can_be_run_again(kernel: Kernel) -> None:
    for cell in ("lab = Lab('no/such/model')", "lab = Lab(DryModel(100, 2048), mode='magic')"):
        name = kernel.error(cell)
        assert name in {"ModelNotFound", "BadInput"}
        assert [kernel.error(cell) for _ in range(2)] == [name] * 2


def test_a_run_completes_without_a_viewer(kernel: Kernel) -> None:
    """vscode-jupyter#17132: a widget that is never rendered must not hold anything up."""
    kernel.run("lab = new_lab(); a = lab.agent('a')")
    assert kernel.value("await lab.run({a: write})") == {"a": kernel.value("len(a.outputs[0])")}
    kernel.run("view = Dashboard(lab); lab.agent('b').read([3] * 40).result()")
    kernel.run("lab.assert_clean(); assert view.view.num_failures == 0")


def test_running_the_display_cell_again_leaves_one_view(kernel: Kernel) -> None:
    """rerun#6642, anywidget#613, #929: what a cell made goes when the cell is run again."""
    counts = (
        "[len(lab.driver.on_step), len(lab.driver.loop._scheduled), threading.active_count(),"
        " len(ipywidgets.widgets.widget._instances)]"
    )
    kernel.run("import ipywidgets; lab = new_lab(); a = lab.agent('a')")
    for _ in range(2):
        kernel.run("view = Dashboard(lab)\nview", cell_id="view")
    time.sleep(0.3)
    before = kernel.value(counts)
    for _ in range(20):
        assert kernel.run("view = Dashboard(lab)\nview", cell_id="view") == (
            "live view of a lab's memory"
        )
    time.sleep(0.3)
    assert kernel.value(counts) == before
    kernel.run("await lab.run({a: write})")
    time.sleep(0.5)
    assert kernel.value("view.view.publisher.position.events == len(lab.log) and not view.closed")
    kernel.run("lab.assert_clean()")


WRONG = {
    "a.read('').result()": "EmptyText",
    "a.read([100]).result()": "TokenOutOfRange",
    "a.read([1] * 3000).result()": "ContextTooLong",
    "a.rewrite('nowhere', 'else')": "BadInput",
    "a.rollback(10_000).result()": "BadInput",
    "await a.write(0)": "BadInput",
    "a.read([1], tier='global')": "SealedTier",
    "a.attach(lab.group('strangers'))": "NotAMember",
    "lab.agent('a')": "BadInput",
    "lab.agent('c', groups=['nobody'])": "UnknownGroup",
    "lab.preload([1])": "BadInput",
    "gone.read([1])": "AgentClosed",
    "Lab(DryModel(100, 2048), mode='magic')": "BadInput",
    "Lab('no/such/model/anywhere')": "ModelNotFound",
}


def test_bad_input_is_a_named_error_and_the_lab_stays_usable(kernel: Kernel) -> None:
    kernel.run("lab = new_lab(); a, gone = lab.agent('a'), lab.agent('gone')")
    kernel.run("a.read([1] * 30).result(); await gone.close()")
    for code, name in WRONG.items():
        assert kernel.error(code) == name, code
        kernel.run("lab.check()")
    assert kernel.value("a.tokens") == [1] * 30
    assert kernel.value("await lab.run({a: write})") == {"a": kernel.value("len(a.outputs[0])")}
    kernel.run("lab.assert_clean()")
    assert kernel.error("lab.agent('late')") == "LabClosed"
