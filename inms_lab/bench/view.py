"""What the log and a live view cost a run: with and without, in turns. No weights, no browser.

The runs are of a model that computes nothing: `bare`, at once; `paced`, asleep for a while in each
step as if a device computed. A view's messages are made into bytes as for a socket, and
acknowledged as by a page.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inms_lab.bench.header import spread
from inms_lab.books.events import Event
from inms_lab.config import Config
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab

STEP_SECONDS = 0.005  # of a paced run, asleep, as if a device computed
PROMPT, READ, AGENTS = 200, 60, 4  # tokens of the prompt, of each agent's text; agents
SIZES = Config(
    block_size=16,
    tile=16,
    context=1 << 15,
    global_bytes=1 << 24,
    group_bytes=1 << 24,
    private_bytes=1 << 24,
)
View = Callable[[Lab], Any]  # opens a view of a lab


class Paced(DryModel):
    """A model whose step takes its time, as a real one's does, and leaves the processor alone."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """Nothing, later."""
        time.sleep(STEP_SECONDS)
        return super().forward(*args, **options)


@dataclass(frozen=True, slots=True)
class Viewed:
    """What a view did in a run: the share of it that its thread was busy, seconds from the last
    event to the last message, messages."""

    share: float
    lag: float
    messages: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds, events."""

    seconds: float
    events: int
    viewed: Viewed | None = None


def measure(view: View, tokens: int, repeat: int) -> dict[str, Any]:
    """Each kind of run `repeat` times; `tokens` of each agent, a quarter of them paced."""
    return {
        "agents": AGENTS,
        "tokens": tokens,
        "bare": in_turns(DryModel(1000, 1 << 15, 64), tokens, repeat, view),
        "paced": in_turns(Paced(1000, 1 << 15, 64), max(1, tokens // 4), repeat, view),
    }


def in_turns(model: DryModel, tokens: int, repeat: int, view: View) -> dict[str, Any]:
    """Runs without a log, with it, and with a view of it."""
    run(model, max(1, tokens // 4), view)  # the first is not like the others
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("no log", {"log": False}),
        ("log", {}),
        ("view", {"view": view}),
    )
    rounds = []
    for number in range(repeat):
        order = kinds if number % 2 else kinds[::-1]
        rounds.append({name: run(model, tokens, **how) for name, how in order})
    return told(rounds)


def told(rounds: list[dict[str, Run]]) -> dict[str, Any]:
    """Ratios of times within each round; seconds of a run with a log and without a view."""

    def ratio(one: str, other: str) -> dict[str, float]:
        return spread([r[one].seconds / r[other].seconds for r in rounds])

    views = [r["view"].viewed for r in rounds]
    seen = [view for view in views if view is not None]
    return {
        "seconds": round(statistics.median(r["log"].seconds for r in rounds), 4),
        "events": rounds[0]["log"].events,
        "view_ratio": ratio("view", "log")["median"],
        "view_ratio_spread": ratio("view", "log"),
        "log_ratio": ratio("log", "no log")["median"],
        "log_ratio_spread": ratio("log", "no log"),
        "publisher_share": round(statistics.median(v.share for v in seen), 4),
        "messages": statistics.median(v.messages for v in seen),
        "lag_ms": round(1000 * max(v.lag for v in seen), 2),
    }


def run(model: DryModel, tokens: int, view: View | None = None, log: bool = True) -> Run:
    """Four agents write behind a prompt; with a view that takes every message and says so."""
    with Lab(model, config=SIZES) as lab:
        if not log:
            unlogged(lab.log)
        lab.preload(list(range(PROMPT)), progress=False)
        shown = view(lab) if view is not None else None
        if shown is not None:
            attend(shown)

        async def program(me: Any) -> None:
            me.read([len(me.name)] * READ, role=None)
            await me.write(tokens, role=None, stop=False)

        agents = [lab.agent(f"agent {n}") for n in range(AGENTS)]
        started = time.perf_counter()
        lab.start(dict.fromkeys(agents, program))
        lab.run_to(None)
        seconds = time.perf_counter() - started
        viewed = _viewed(shown, seconds) if shown is not None else None
        return Run(seconds, len(lab.log), viewed)


def _viewed(shown: Any, seconds: float) -> Viewed:
    end, pump = time.perf_counter(), shown.publisher
    busy = pump.seconds
    while pump.feed.is_behind(pump.position):
        time.sleep(0.001)
    out = Viewed(busy / seconds, time.perf_counter() - end, pump.num_sent)
    shown.close()
    return out


def unlogged(log: Log) -> None:
    """From here on this log only counts its events: nothing can be replayed or shown."""

    def count(_: Event) -> None:
        log.first += 1

    log.append = count  # type: ignore[method-assign, assignment]
    log.decide = lambda *_: None  # type: ignore[method-assign]


def attend(view: Any) -> None:
    """Somebody looks at it: what is sent is made into bytes as for a socket, and acknowledged."""
    pump = view.publisher

    def send(content: dict[str, Any], buffers: list[bytes]) -> None:
        len(json.dumps(content)) + sum(map(len, buffers))
        have = content.get("from", 0) + pump.position.events
        pump.receive({"kind": "ack", "number": content.get("number"), "have": have})

    pump.send = send
