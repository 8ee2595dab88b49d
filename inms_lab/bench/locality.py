"""What locality is worth here: agents that talk much on one core, and hot weights apart from cold.

Agents send each other messages and read them with a model. A region is a core (with its cache; on a
machine with several NUMA nodes the cores lie far apart): the sender writes on the core of its
region, the receiver reads the message and takes a step of the model on its own. Four ways take
turns, message by message: agents placed in order of arrival or grouped, weights whole in memory or
only the hot pages with the cold ones on disk. How fast a memory is depends much on which pages the
system gives, so both memories are made anew for each round.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inms_lab.bench.header import spread
from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import BadInput, SharingUnsupported
from inms_lab.model.progress import bar
from inms_lab.parameters.grouping import Placement, Talk, at_random, crossing, grouped, in_order
from inms_lab.parameters.locality import cold_on_disk, on_disk, touches
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.weights import module_on
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

CLAIM, CLAIMED = "locality", 0.22  # of claims.py
WITHIN = 0.9  # of all messages: inside of a team
PAST = 400  # messages by which agents are placed
DRAWS = 20  # random placements, of which the mean is told
TEXTS, TOKENS = 4, 64  # runs that say which pages are hot, and how long each is
Way = tuple[bool, bool]  # grouped, split
WAYS: tuple[Way, ...] = ((False, False), (True, False), (False, True), (True, True))
Times = dict[str, float]  # seconds: message, model


@dataclass(frozen=True, slots=True)
class Load:
    """`agents` in as many hidden teams as `regions`; a round is `messages` of `message_bytes`, each
    followed by a step of the model over `tokens` (the fewer, the more a message weighs)."""

    agents: int = 8
    regions: int = 2
    messages: int = 16
    message_bytes: int = 256 << 10
    tokens: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        least = min(self.regions, self.messages, self.message_bytes, self.tokens)
        if least < 1 or self.tokens > TOKENS:
            raise BadInput(f"tokens are 1 to {TOKENS}, the other sizes at least 1")
        if self.agents < 2 * self.regions:
            raise BadInput(f"{self.agents} agents make no {self.regions} teams: give more agents")

    def names(self) -> list[str]:
        """Of the agents, in order of arrival."""
        return [f"agent-{number}" for number in range(self.agents)]


def measure(
    params: SharedParameters, load: Load | None = None, repeat: int = 7, folder: Path | None = None
) -> dict[str, Any]:
    """`repeat` rounds. `folder`: a disk with room for the weights. Raises `BadInput`, or
    `SharingUnsupported` where a thread cannot be bound to a core."""
    load = load or Load()
    if repeat < 1:
        raise BadInput("repeat is at least 1")
    if not hasattr(os, "sched_setaffinity"):
        raise SharingUnsupported(f"threads cannot be bound to cores on {sys.platform}: take Linux")
    rng = random.Random(load.seed)
    places, placements = _places(load, rng)
    vocab = max(spot.shape[0] for spot in params.layout.spots.values() if len(spot.shape) == 2)
    texts = [_text(vocab, rng) for _ in range(TEXTS)]
    found = touches(params, [partial(_step, text=text) for text in texts])
    hot, everything = found.hot(), np.arange(len(found.counts))
    times: dict[Way, list[Times]] = {way: [] for way in WAYS}
    equal = True
    assert params.source.make is not None
    with tempfile.TemporaryDirectory(dir=folder) as place, _Stage(load) as stage:
        file = on_disk(params.version, params.layout, Path(place) / "weights")
        with bar(repeat, "locality", unit="round") as progress:
            for number in range(repeat):
                stage.modules.clear()
                for split in (False, True) if number % 2 else (True, False):
                    laid = cold_on_disk(params.version, file, hot if split else everything)
                    view = laid.version.view(params.num_bytes)
                    stage.modules[split] = module_on(params.source.make, view, params.layout)
                whole, apart = ([_step(stage.modules[s], x) for x in texts] for s in (False, True))
                equal = equal and all(map(torch.equal, whole, apart))
                for way, took in stage.round(_trace(load, rng, load.messages), places, texts[0]):
                    times[way].append(took)
                progress.update()
        stage.modules.clear()
    table = found.by_name()
    least = (table.touched / table.pages).sort_values(kind="stable")
    pages = {
        "exact": found.exact,
        "weights_bytes": len(everything) * PAGE,
        "hot_bytes": len(hot) * PAGE,
        "cold_share": round(1 - len(hot) / len(everything), 4),
        "least_touched": f"{least.index[0]} ({least.iloc[0]:.1%} of its pages)",
    }
    rows = [_row(way, times) for way in WAYS]
    head = {"numa_nodes": _nodes(), "cores": stage.cores, "equal": equal, "pages": pages}
    told = {"placements": placements, "rows": rows}
    return {**head, **told, "claims": {CLAIM: _claimed(rows, placements, pages)}}


# --- agents and messages ----------------------------------------------------------------------


def _trace(load: Load, rng: random.Random, messages: int) -> list[tuple[str, str]]:
    """Senders and receivers, mostly of one team; agents of all teams arrive by turns."""
    names, trace = load.names(), []
    for _ in range(messages):
        team = names[rng.randrange(load.regions) :: load.regions]
        sender = rng.choice(team)
        inside = rng.random() < WITHIN or load.regions == 1
        among = [one for one in names if (one in team) is inside and one != sender]
        trace.append((sender, rng.choice(among)))
    return trace


def _places(load: Load, rng: random.Random) -> tuple[dict[bool, Placement], list[dict[str, Any]]]:
    """Where agents are in order of arrival (False) and grouped (True), and what crosses regions."""
    agents, rooms = load.names(), [-(-load.agents // load.regions)] * load.regions
    talk = Talk()
    for sender, receiver in _trace(load, rng, PAST):
        talk.said(sender, receiver, load.message_bytes)
    traffic = talk.traffic()
    places = {False: in_order(agents, rooms), True: grouped(agents, rooms, traffic)}
    drawn = [crossing(traffic, at_random(agents, rooms, seed)) for seed in range(DRAWS)]
    across = {
        "order of arrival": crossing(traffic, places[False]),
        f"random, mean of {DRAWS}": statistics.fmean(drawn),
        "grouped": crossing(traffic, places[True]),
    }
    whole = sum(traffic.values())
    return places, [
        {"placement": name, "bytes_across": round(value), "share": round(value / whole, 3)}
        for name, value in across.items()
    ]


class _Stage:
    """The agents' messages and models, on one thread that goes from core to core."""

    def __init__(self, load: Load) -> None:
        self._free, self._threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
        self.cores = [self._free[r * len(self._free) // load.regions] for r in range(load.regions)]
        self.modules: dict[bool, torch.nn.Module] = {}  # by whether its hot pages are apart
        empty = torch.zeros(load.message_bytes, dtype=torch.uint8)
        self._outbox, self._inbox = ({n: empty.clone() for n in load.names()} for _ in range(2))
        self._tokens = load.tokens

    def __enter__(self) -> _Stage:
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._threads)
        os.sched_setaffinity(0, self._free)

    def round(
        self, trace: Sequence[tuple[str, str]], places: dict[bool, Placement], text: torch.Tensor
    ) -> list[tuple[Way, Times]]:
        """The times of each way for all these messages."""
        times = {way: dict.fromkeys(("message", "model"), 0.0) for way in WAYS}
        for at, (sender, receiver) in enumerate(trace):
            for way in WAYS[at % 4 :] + WAYS[: at % 4]:
                message, model = self._play(sender, receiver, places[way[0]], way[1], text)
                times[way]["message"] += message
                times[way]["model"] += model
        os.sched_setaffinity(0, self._free)
        return list(times.items())

    def _play(
        self, sender: str, receiver: str, place: Placement, split: bool, text: torch.Tensor
    ) -> tuple[float, float]:
        """One message and the step after it: seconds of this thread's own processor time, in which
        whoever else uses the machine does not count."""
        os.sched_setaffinity(0, {self.cores[place[sender]]})
        self._outbox[sender].add_(1)
        os.sched_setaffinity(0, {self.cores[place[receiver]]})
        began = time.thread_time()
        self._inbox[receiver].copy_(self._outbox[sender])
        read = time.thread_time()
        _step(self.modules[split], text[:, : self._tokens])
        return read - began, time.thread_time() - read


def _step(module: torch.nn.Module, text: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        last: torch.Tensor = module(text)[0][0, -1].clone()  # logits, or an encoder's states
        return last


def _text(vocab: int, rng: random.Random) -> torch.Tensor:
    """Token ids [1, TOKENS] drawn as words are in a text: a few of them often (Zipf)."""
    return torch.tensor([[int(vocab ** rng.random()) - 1 for _ in range(TOKENS)]])


# --- what is told -----------------------------------------------------------------------------


def _row(way: Way, times: dict[Way, list[Times]]) -> dict[str, Any]:
    def speed(*parts: str) -> tuple[float, float, float]:
        plain, mine = ([sum(run[p] for p in parts) for run in times[one]] for one in (WAYS[0], way))
        return ratio_of(plain, mine)

    found: dict[str, Any] = {"grouped": way[0], "split": way[1]}
    for part in ("message", "model"):
        found[f"{part}_ms"] = spread([1e3 * run[part] for run in times[way]])
        found[f"{part}_speed"] = round(speed(part)[0], 3)
    both = zip(("speed", "low", "high"), speed("message", "model"), strict=True)
    return found | {name: round(value, 4) for name, value in both}


def _claimed(
    rows: Sequence[dict[str, Any]], places: Sequence[dict[str, Any]], pages: dict[str, Any]
) -> dict[str, str]:
    """It holds if with both the interval reaches what was claimed and not zero."""
    both = rows[-1]
    told = (
        f"inference {both['speed'] - 1:+.1%} with both, {_nodes()} NUMA node(s), regions are cores"
    )
    across = f"{places[0]['share']:.0%} to {places[-1]['share']:.0%}"
    return {
        "measured": f"{told}; traffic across regions {across}; "
        f"{pages['cold_share']:.1%} of the weights cold",
        "interval": f"{both['low'] - 1:+.1%} to {both['high'] - 1:+.1%}, 95 %, paired rounds",
        "verdict": HOLDS if both["low"] > 1 and both["high"] >= 1 + CLAIMED else DOES_NOT_HOLD,
    }


def _nodes() -> int:
    return max(1, len([*Path("/sys/devices/system/node").glob("node[0-9]*")]))
