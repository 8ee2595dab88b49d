"""Time to first token: the first agent, the next one, and one that has the shared text elsewhere.

first      the shared text and its own are computed
next       the shared text is mounted as a prefix, its own is computed
fragment   its own text comes first, and the shared one is mounted behind it at a shift
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from inms_lab.bench.contexts import Work
from inms_lab.bench.header import spread
from inms_lab.books.gate import Gate
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

ANY = Gate(max_kl=None, min_agreement=None)  # how good a fragment is, is not the question here
ROOM = 2  # tokens to write


@dataclass(frozen=True, slots=True)
class First:
    """One agent: seconds until its first token, tokens through the model until then."""

    seconds: float
    computed: int


def measure(runner: Runner, work: Work, repeat: int, progress: bool = True) -> dict[str, Any]:
    """Every kind `repeat` times, in turns; the median counts."""
    found: dict[str, list[First]] = {"first": [], "next": [], "fragment": []}
    work = replace(work, agents=2, room=ROOM)
    vocab = runner.vocab_size
    shared = work.text("shared", 0, work.shared, vocab)
    library = _Library(runner, work, shared)
    with library.lab, bar(repeat, "first tokens", unit="round", enabled=progress) as shown:
        for number in range(repeat):
            first, second, third = (work.text(kind, number, work.own, vocab) for kind in found)
            with _lab(runner, work, None) as lab:
                found["first"].append(_first(lab, shared, first))
                found["next"].append(_next(lab, second))
            found["fragment"].append(library.first(f"reader {number}", third))
            shown.update()
    return {"compiled": runner.native is not None} | told(work, found)


def told(work: Work, found: dict[str, list[First]]) -> dict[str, Any]:
    """Medians, and ratios to the first agent."""
    out: dict[str, Any] = {"shared": work.shared, "own": work.own}
    for kind, firsts in found.items():
        out[f"{kind}_s"] = spread([one.seconds for one in firsts], 4)["median"]
        out[f"{kind}_s_spread"] = spread([one.seconds for one in firsts], 4)
        out[f"{kind}_computed"] = firsts[-1].computed
    for kind in ("next", "fragment"):
        ratios = [a.seconds / b.seconds for a, b in zip(found[kind], found["first"], strict=True)]
        out[f"{kind}_ratio"] = spread(ratios)["median"]
    return out


class _Library:
    """A lab with the shared text as a record."""

    def __init__(self, runner: Runner, work: Work, shared: list[int]) -> None:
        self.lab = _lab(runner, work, ANY)
        self.team = self.lab.group("team")
        (author,) = self.team.agents("author")
        self.record = self.team.publish(shared, by=author, role=None)

    def first(self, name: str, own: list[int]) -> First:
        """A reader with text of its own attaches the record and writes."""
        lab = self.lab
        before, started = lab.engine.num_computed, time.perf_counter()
        (reader,) = self.team.agents(name)
        reader.read(own, role=None)
        reader.attach(self.record)
        found = _written(lab, reader, started, before)
        reader.close().result()
        return found


def _lab(runner: Runner, work: Work, gate: Gate | None) -> Lab:
    """With room for readers whose copy of the shared text is their own."""
    served: Any = runner
    return Lab(served, gate=gate, config=work.config(runner, "independent"))


def _first(lab: Lab, shared: list[int], own: list[int]) -> First:
    before, started = lab.engine.num_computed, time.perf_counter()
    lab.preload(shared, progress=False)
    agent = lab.agent("first")
    agent.read(own, role=None)
    return _written(lab, agent, started, before)


def _next(lab: Lab, own: list[int]) -> First:
    before, started = lab.engine.num_computed, time.perf_counter()
    agent = lab.agent("next")
    agent.read(own, role=None)
    return _written(lab, agent, started, before)


def _written(lab: Lab, agent: Agent, started: float, before: int) -> First:
    agent.write(1, role=None, stop=False).result()
    return First(time.perf_counter() - started, lab.engine.num_computed - before)
