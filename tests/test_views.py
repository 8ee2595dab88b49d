"""Views of a lab from Python's side: no browser here (test_browser.py), no node, no model."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ipywidgets.widgets.widget import _instances
from test_widgets import dry_lab, same_as_books, work

from inms_lab import Lab
from inms_lab.errors import BadInput, LogUnreadable
from inms_lab.logs.log import Log
from inms_lab.logs.logfile import VERSION
from inms_widgets import AgentsView, BlockMap, Dashboard, DecisionStepper, Settings, Timeline, View
from inms_widgets import publisher as pump
from inms_widgets.picture import render_html


@pytest.fixture
def lab() -> Iterator[Lab]:
    with dry_lab(debug=True) as lab:
        yield lab


def wait_until(true: Any, seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def all_sent(view: View) -> bool:
    return not view.publisher.feed.is_behind(view.publisher.position)


def test_the_view_follows_a_run_and_what_happens_without_a_step(lab: Lab) -> None:
    view = View(lab)
    agents = work(lab)
    wait_until(lambda: all_sent(view))
    same_as_books(view.snapshot(), lab)
    agents[2].close().result()  # no step is taken for it
    wait_until(lambda: view.publisher.position.events == len(lab.log))
    assert view.snapshot().agents[2].state == "reclaimed"
    view.close()


def test_many_events_make_few_messages() -> None:
    """plotly.py#5056, #1288: an update for each change. Here: at most two a turn, however many."""
    lab = dry_lab()
    view = View(lab)
    agent = lab.agent("backend")
    sent, started = view.publisher.num_sent, time.monotonic()
    agent.read([1] * 16).result()
    agent.write(1500).result()
    seconds = time.monotonic() - started
    wait_until(lambda: all_sent(view))
    assert len(lab.log) > 1500
    assert view.publisher.num_sent - sent <= seconds / pump.PERIOD * pump.MOST_UNACKED + 4
    view.close()
    lab.assert_clean()


def test_the_pump_works_a_small_part_of_the_time(lab: Lab) -> None:
    """A loose bound, for this machine does other things; `benchmarks/view.py` prints the share."""
    view = View(lab)
    started = time.perf_counter()
    work(lab)
    time.sleep(1)
    assert view.publisher.seconds < 0.3 * (time.perf_counter() - started)
    view.close()


def test_a_failing_view_is_counted_shown_and_raised_at_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(lab)

    def fail(*_: object) -> None:
        raise RuntimeError("no ink")

    with monkeypatch.context() as broken:
        broken.setattr(view.publisher.feed, "next", fail)
        work(lab)
        wait_until(lambda: view.num_failures > 0)
    assert "no ink" in view.publisher.status()["problem"]
    lab.agent("late").read([1]).result()
    wait_until(lambda: view.publisher.position.events == len(lab.log))  # it goes on
    assert not lab.programs.failures
    with pytest.raises(RuntimeError, match="no ink"):
        lab.assert_clean()
    view.close()


def test_a_failing_hook_of_anybody_does_not_stop_a_run(lab: Lab) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a hook failed")

    with lab.watching(fail):
        assert lab.agent("backend").read([1] * 20).result() == 20
    with pytest.raises(RuntimeError, match="a hook failed"):
        lab.assert_clean()


def test_an_engine_that_failed_in_its_middle_is_said_in_the_view(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(lab)

    def fail(*_: object) -> None:
        raise RuntimeError("the model broke")

    with monkeypatch.context() as broken:
        broken.setattr(lab.engine, "forward", fail)
        with pytest.raises(RuntimeError, match="the model broke"):
            lab.agent("backend").read([1] * 20).result()
    assert "the model broke" in view.publisher.status()["problem"]
    assert lab.agent("frontend").read([1] * 20).result() == 20  # and the lab goes on
    assert "problem" not in view.publisher.status()
    view.close()


def test_a_closed_lab_can_still_be_looked_at(lab: Lab) -> None:
    view = View(lab)
    lab.agent("backend").read([1] * 20).result()
    lab.close()
    wait_until(lambda: all_sent(view))
    assert view.publisher.status()["state"] == "closed"
    late = View(lab)
    wait_until(lambda: all_sent(late))
    assert late.snapshot().agents[0].state == view.snapshot().agents[0].state == "reclaimed"
    assert late.snapshot(5).pools == view.snapshot(5).pools
    view.close()
    late.close()


@pytest.mark.parametrize("make", [View, Dashboard, Settings])
def test_views_leave_nothing_behind(lab: Lab, make: Any) -> None:
    make(lab).close()
    time.sleep(4 * pump.PERIOD)
    widgets, threads = len(_instances), threading.active_count()
    for _ in range(20):
        make(lab).close()
    time.sleep(4 * pump.PERIOD)
    assert len(_instances) == widgets
    assert threading.active_count() == threads
    assert len(lab.driver.loop._scheduled) == 0  # type: ignore[attr-defined]
    assert lab.driver.on_step == []


@pytest.mark.parametrize("make", [View, Dashboard])
def test_what_a_page_without_a_kernel_gets(lab: Lab, make: Any) -> None:
    work(lab)
    view = make(lab)
    data = [_data(view) for _ in range(2)]
    assert data[0]["text/plain"] == data[1]["text/plain"] == "live view of a lab's memory"
    assert data[0]["text/html"] == data[1]["text/html"] == render_html(view.snapshot())
    assert "application/vnd.jupyter.widget-view+json" in data[0]
    assert "<script" not in data[0]["text/html"]
    assert len(data[0]["text/html"]) < 60_000
    view.close()


def _data(view: Any) -> dict[str, str]:
    bundle = view._repr_mimebundle_()
    return bundle[0] if isinstance(bundle, tuple) else bundle


def test_each_part_is_usable_alone_and_brings_its_own_code_only(lab: Lab) -> None:
    for make, parts in (
        (BlockMap, ["map", "detail"]),
        (Timeline, ["bar", "timeline"]),
        (DecisionStepper, ["bar", "decision"]),
        (AgentsView, ["agents"]),
    ):
        view = make(lab)
        assert view.parts == parts
        assert ("function blockMap" in view.code) == (make is BlockMap)
        view.close()


def test_the_block_maps_code_is_small() -> None:
    from inms_widgets import esm

    assert len(esm.esm(("map", "detail")).encode()) < 60_000
    assert "import " not in esm.esm()  # no bundler, and nothing is fetched
    assert "http" not in esm.esm().replace("http://www.w3.org", "")


def test_wrong_sources_and_options_are_named(lab: Lab) -> None:
    for wrong in (3, None, lab.engine):
        with pytest.raises(BadInput, match="a lab, a log or the path"):
            View(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="there are: bar"):
        View(lab, parts=("maps",))
    with pytest.raises(BadInput, match="of no parts"):
        View(lab, parts=())
    with pytest.raises(BadInput, match="en and zh"):
        Dashboard(lab, lang="fr")
    with pytest.raises(BadInput, match="the moments 0 to"):
        View(lab).snapshot(10**9)


def test_a_file_that_cannot_be_read_is_said_in_the_view(lab: Lab, tmp_path: Path) -> None:
    """pytorch#183842: an unknown version showed an empty page."""
    work(lab)
    good = tmp_path / "run.inmslog"
    lab.log.save(good)
    whole = good.read_bytes()
    cases = {
        "cut.inmslog": whole[: len(whole) // 2],
        "flipped.inmslog": whole[:200] + bytes([whole[200] ^ 255]) + whole[201:],
        "text.inmslog": b"nothing of the kind",
        "empty.inmslog": b"",
        "newer.inmslog": gzip.compress(
            gzip.decompress(whole).replace(b'"version":%d' % VERSION, b'"version":9')
        ),
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    for name in (*cases, "absent.inmslog"):
        view = View(tmp_path / name)
        assert view.publisher.status()["problem"], name
        assert _data(view)["text/plain"]
        view.close()
        with pytest.raises(LogUnreadable):
            Dashboard(tmp_path / name).export_html(tmp_path / "page.html")
    view = View(good)
    assert "problem" not in view.publisher.status()
    assert view.snapshot().pools == View(lab).snapshot().pools
    view.close()


def test_a_log_too_large_for_a_page_begins_where_it_fits(lab: Lab) -> None:
    """pytorch#158364, #176290: the last event must be there, and the page alive."""
    from inms_widgets.feed import Feed, Position

    work(lab)
    feed, at = Feed(lab.log, most=50), Position()
    message = feed.next(at, None)
    assert message.content["from"] == len(lab.log) - 50
    assert message.content["hasKeyframe"]


def test_nothing_of_a_view_depends_on_what_is_printed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ipykernel#1564: output of a hook on a message is dropped. Here there is none to drop."""

    class Closed:
        def write(self, _: str) -> int:
            raise ValueError("nobody may print")

    view = View(lab)
    work(lab)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Closed())
    lab.agent("late").read([1] * 40).result()
    view.publisher.receive({"kind": "ready", "have": 0})
    view.publisher.receive({"kind": "command", "name": "pause"})
    wait_until(lambda: lab.controls.state == "paused" and all_sent(view))
    monkeypatch.undo()
    assert view.num_failures == 0
    lab.controls.resume()
    view.close()


def test_settings_change_what_can_be_changed_and_write_the_line_for_the_rest(lab: Lab) -> None:
    panel = Settings(lab)
    panel.children[0].selected_index = 0  # opened
    panel.fields["token_budget"].value = 64
    wait_until(lambda: lab.engine.config.token_budget == 64)
    panel.fields["prefill_budget"].value = 8
    wait_until(lambda: lab.engine.config.prefill_budget == 8)
    panel.fields["block_size"].value = 32
    assert lab.engine.config.block_size == 16
    assert "block_size=32" in panel.line.value
    panel.fields["token_budget"].value = 0
    assert "at least 1" in panel.note.value
    assert lab.engine.config.token_budget == 64
    panel.close()


def test_a_saved_log_shows_like_the_lab_it_came_from(lab: Lab, tmp_path: Path) -> None:
    work(lab)
    lab.log.save(tmp_path / "run.inmslog")
    log = Log.load(tmp_path / "run.inmslog")
    dash = Dashboard(log)
    assert dash.snapshot() == View(lab).snapshot()
    assert dash.to_svg().startswith("<svg")
    dash.close()
