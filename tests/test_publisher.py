"""The pump and the browser's store across a bad network: the engine's run does not notice."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toy import ToyModel

from inms_lab.config import Config
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_widgets import esm
from inms_widgets.feed import Feed, Position
from inms_widgets.publisher import Publisher

NODE = shutil.which("node")
if NODE is None and os.environ.get("INMS_REQUIRE_BROWSER") != "1":
    pytest.skip("no node here: it runs the browser's side", allow_module_level=True)
Content = dict[str, Any]
Network = Callable[[Content, list[bytes]], list[tuple[float, Content, list[bytes]]]]


def at_once(content: Content, buffers: list[bytes]) -> list[tuple[float, Content, list[bytes]]]:
    return [(0.0, content, buffers)]


class Page:
    """The browser's store in a node process, behind a network that may do anything."""

    def __init__(self, folder: Path, network: Network = at_once) -> None:
        self.network, self.publisher, self.count = network, None, 0
        source = folder / "esm.js"
        source.write_text(esm.esm())
        script = Path(__file__).with_name("viewer.mjs")
        pipe = subprocess.PIPE
        self.node = subprocess.Popen([NODE, script, source], stdin=pipe, stdout=pipe, text=True)
        self.states: list[Any] = []
        self.lock = threading.Lock()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.node.stdout is not None
        for line in self.node.stdout:
            message = json.loads(line)
            if "state" in message:
                self.states.append(message["state"])
            elif self.publisher is not None:
                self.publisher.receive(message["send"])

    def write(self, line: Content) -> None:
        with self.lock:
            assert self.node.stdin is not None
            self.node.stdin.write(json.dumps(line) + "\n")
            self.node.stdin.flush()

    def send(self, content: Content, buffers: list[bytes]) -> None:
        """What the publisher calls."""
        self.count += 1
        for delay, what, parts in self.network(content, buffers):
            line = {"content": what, "buffers": [b64encode(part).decode() for part in parts]}
            if delay:
                threading.Timer(delay, lambda line=line: self.write(line)).start()
            else:
                self.write(line)

    def show(self, **options: Any) -> Any:
        before = len(self.states)
        self.write({"show": True, **options})
        wait_for(lambda: len(self.states) > before)
        return self.states[-1]

    def close(self) -> None:
        with self.lock:
            assert self.node.stdin is not None
            self.node.stdin.close()
        self.node.wait(10)
        self.reader.join(10)


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@contextmanager
def watched(lab: Lab, folder: Path, network: Network = at_once) -> Iterator[tuple[Page, Publisher]]:
    page = Page(folder, network)
    publisher = Publisher(lab.log, page.send, lab)
    page.publisher = publisher
    first = publisher.next()
    page.write({"first": b64encode(first.packed()).decode()})
    publisher.start()
    try:
        yield page, publisher
    finally:
        publisher.close()
        time.sleep(0.3)  # what is on its way arrives
        page.close()


def new_lab(limit: int = 1_000_000) -> Lab:
    return Lab(ToyModel(), config=Config(4, 4, 16, 1000, 400, 400, 400, log_limit=limit))


async def program(me: Agent) -> int:
    total = 0
    for turn in range(6):
        me.read([1, 2, 3, 4, turn % 5])
        total += len((await me.write(12, role=None, stop=False)).tokens)
        child = await me.fork()
        await child.close()
    return total


def run(lab: Lab) -> list[str]:
    """A run with a prompt, a record, forks and four agents; gives its log."""
    lab.preload([1, 2, 3, 4, 1, 2], progress=False)
    team = lab.group("team")
    agents = team.agents(*"abcd")
    team.publish([4, 4, 3, 2], by=agents[0], role=None)
    lab.start(dict.fromkeys(agents, program))
    lab.run_to(None)
    assert lab.results() == dict.fromkeys("abcd", 72)
    return list(map(repr, lab.log.events))


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The log of the run that nobody looks at."""
    with new_lab() as lab:
        return run(lab)


def same_as(lab: Lab, state: Any) -> bool:
    refs = {
        name: [pool.refs.get(block, 0) for block in range(len(state["refs"][name]))]
        for name, pool in lab.engine.ledger.pools.items()
    }
    states = [seq.state for seq in lab.engine.ledger.sequences.values()]
    return (
        state["length"] == len(lab.log)
        and state["refs"] == refs
        and state["states"] == states
        and state["step"] == lab.engine.ledger.num_steps
    )


def bad_network(seed: int) -> Network:
    """Drops a quarter, delays (and so shuffles) a third, doubles a few."""
    rng = random.Random(seed)

    def network(content: Content, buffers: list[bytes]) -> list[tuple[float, Content, list[bytes]]]:
        chance = rng.random()
        if chance < 0.25:
            return []
        delay = rng.uniform(0.01, 0.4) if chance < 0.6 else 0.0
        copies = 2 if chance > 0.95 else 1
        return [(delay, content, buffers)] * copies

    return network


@pytest.mark.parametrize("seed", range(3))
def test_the_view_converges_over_a_network_that_drops_delays_and_shuffles(
    seed: int, tmp_path: Path, alone: list[str]
) -> None:
    """wigglystuff#289: stutter, and frames out of order."""
    with new_lab() as lab, watched(lab, tmp_path, bad_network(seed)) as (page, publisher):
        lab.controls.speed(200)  # so that there are many messages
        assert run(lab) == alone
        page.network = at_once  # the last word must get through some time
        wait_for(lambda: same_as(lab, page.show()))
        assert not publisher.num_failures


def test_the_last_frame_is_the_last_event_within_half_a_second(tmp_path: Path) -> None:
    with new_lab() as lab, watched(lab, tmp_path) as (page, _):
        run(lab)
        started = time.monotonic()
        wait_for(lambda: page.show()["length"] == len(lab.log))
        late = time.monotonic() - started
        assert same_as(lab, page.show())
        assert late < 2, "half a second, on a machine that does nothing else"


def test_a_run_is_the_same_without_a_viewer_and_with_one_that_never_answers(
    alone: list[str],
) -> None:
    sent: list[Content] = []
    with new_lab() as lab:
        publisher = Publisher(lab.log, lambda content, _: sent.append(content), lab)
        publisher.start()
        assert run(lab) == alone
        wait_for(lambda: publisher.position.events == len(lab.log))
        time.sleep(1)
        count = len(sent)
        time.sleep(1)
        assert len(sent) <= count + 2, "it goes on talking to nobody"
        publisher.close()


def test_a_viewer_that_is_closed_in_the_middle_of_a_run_changes_nothing(alone: list[str]) -> None:
    with new_lab() as lab:
        publisher = Publisher(lab.log, lambda content, _: None, lab)
        publisher.start()
        threading.Timer(0.1, publisher.close).start()
        assert run(lab) == alone
        wait_for(lambda: not publisher._thread.is_alive())
        assert not publisher.num_failures


def test_a_viewer_that_breaks_is_contained_and_told(alone: list[str]) -> None:
    def broken(content: Content, buffers: list[bytes]) -> None:
        raise OSError("the page is gone")

    with new_lab() as lab:
        publisher = Publisher(lab.log, broken, lab)
        publisher.start()
        assert run(lab) == alone
        wait_for(lambda: publisher.num_failures > 0)
        assert "the page is gone" in publisher.status()["problem"]
        publisher.close()
        assert lab.engine.desk.hook_errors  # `assert_clean` raises it
        lab.engine.desk.hook_errors.clear()


def test_buttons_of_the_page_reach_the_lab(tmp_path: Path) -> None:
    with new_lab() as lab, watched(lab, tmp_path) as (page, publisher):
        publisher.receive({"kind": "command", "name": "pause"})
        wait_for(lambda: lab.controls.state == "paused")
        wait_for(lambda: page.show()["lab"]["state"] == "paused")
        publisher.receive({"kind": "command", "name": "speed", "value": -3})
        wait_for(lambda: "more than 0" in page.show()["problem"])
        publisher.receive({"kind": "command", "name": "close"})  # no button
        publisher.receive({"kind": "nonsense"})
        for nonsense in (None, 3, [], {}, {"kind": 3}, {"kind": "ack", "number": {}, "have": "x"}):
            publisher.receive(nonsense)  # type: ignore[arg-type]
        publisher.receive({"kind": "ready", "have": "abc", "strings": None})
        publisher.receive({"kind": "command", "name": "resume"})
        wait_for(lambda: lab.controls.state == "idle")
        assert not publisher.num_failures


def test_a_bounded_log_says_where_it_begins(tmp_path: Path, monkeypatch: Any) -> None:
    """ray#22027: a history that is never dropped takes all memory."""
    monkeypatch.setattr("inms_lab.logs.log.CHUNK", 20)
    with new_lab(limit=60) as lab:
        run(lab)
        assert lab.log.first > 0
        assert len(lab.log.events) <= 80
        with watched(lab, tmp_path) as (page, _):
            wait_for(lambda: page.show()["length"] == len(lab.log))
            state = page.show()
            assert state["first"] == lab.log.first
            assert same_as(lab, state)


def test_a_log_that_forgets_while_it_is_watched(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("inms_lab.logs.log.CHUNK", 20)
    with new_lab(limit=30) as lab, watched(lab, tmp_path, bad_network(9)) as (page, publisher):
        lab.controls.speed(300)
        run(lab)
        page.network = at_once
        wait_for(lambda: same_as(lab, page.show()))
        assert not publisher.num_failures


def test_a_feed_gives_each_table_once() -> None:
    with new_lab() as lab:
        run(lab)
        feed, at, messages = Feed(lab.log), Position(), []
        while feed.is_behind(at):
            messages.append(feed.next(at, 37))
        sums = {"strings": len(feed.encoder.strings), "decisions": len(lab.log.decisions)}
        for name, total in sums.items():
            assert sum(len(m.content[name]) for m in messages) == total
        tokens = b"".join(m.buffers[1] for m in messages)
        assert tokens == lab.log.tokens.tobytes()
