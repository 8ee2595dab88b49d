"""This lab: the shared prefix is preloaded once, every agent has a private context behind it. For
the fragment a second lab on the same weights: a record, attached by reference. See protocol.py.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import protocol
import torch
from protocol import WARM_UP, Work

from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.config import Config
from inms_lab.decisions.outcome import StepReport
from inms_lab.model import load
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

SLACK = 64  # tokens that may be computed of a fragment besides the reader's own


class Inms:
    """Labs, agents, and the time of each step that the lab reports."""

    def __init__(self, work: Work, model: str, options: Any) -> None:
        torch.set_num_threads(options.threads)
        self.work, self.options = work, options
        self.runner = load(model, compile=options.compile)
        self.lab = self._lab(None)
        self.lab.preload(work.prefix(), progress=False)
        self.agents = [self.lab.agent(f"agent {number}") for number in range(work.agents)]
        for number, agent in enumerate(self.agents):
            agent.read(work.own_text(number), role=None).result()
        self.library: Lab | None = None  # made when the first fragment is asked for
        self.decode()

    def _lab(self, gate: Gate | None) -> Lab:
        size = self.options.block or None
        return Lab(self.runner, gate=gate, block_size=size, compile=self.options.compile)

    def about(self) -> dict[str, Any]:
        """Versions and settings."""
        config: Config = self.lab.config
        return {
            "inms_lab": version("inms-lab"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "compile": self.options.compile,
            "block_size": config.block_size,
            "tile": config.tile_size(),
        }

    def decode(self) -> list[float]:
        """All agents at once; what they wrote is rolled back."""
        n, ends = self.work.agents, list[float]()

        def note(report: StepReport) -> None:
            alone = all(chunk.stop - chunk.start == 1 for chunk in report.chunks)
            if len(report.tokens) == len(report.chunks) == n and alone:
                ends.append(time.perf_counter())

        count = WARM_UP + self.work.tokens + 1
        with self.lab.watching(note):
            writing = [agent.write(count, role=None, stop=False) for agent in self.agents]
            for pending in writing:
                pending.result()
        for agent in self.agents:
            agent.rollback(count).result()
        return [after - before for before, after in pairwise(ends)]

    def next_agent(self, number: int) -> float:
        """The prompt is mounted by reference, the rest is computed."""
        own = self.work.newcomer(number)[self.work.shared :]
        started = time.perf_counter()
        agent = self.lab.agent(f"newcomer {number}")
        agent.read(own, role=None)
        agent.write(1, role=None, stop=False).result()
        return self._ended(started, agent)

    def fragment(self, number: int) -> float:
        """The record is mounted by reference at its new place; the rest is computed."""
        if self.library is None:
            self._publish()
            self._read_fragment(0)  # once before it counts, like everything else here
        return self._read_fragment(number)

    def _publish(self) -> None:
        self.library = self._lab(DEFAULT)
        team = self.library.group("team")
        (author,) = team.agents("author")
        self.record = team.publish(self.work.prefix(), by=author, role=None)

    def _read_fragment(self, number: int) -> float:
        assert self.library is not None
        own = self.work.behind(number)[: self.work.own]
        engine = self.library.engine
        before = engine.num_computed
        started = time.perf_counter()
        (reader,) = self.library.group("team").agents(f"reader {number}")
        reader.read(own, role=None)
        reader.attach(self.record)
        reader.write(1, role=None, stop=False).result()
        took = self._ended(started, reader)
        if (computed := engine.num_computed - before) > self.work.own + SLACK:
            raise SystemExit(f"the gate let no fragment through: {computed} tokens were computed")
        return took

    def _ended(self, started: float, agent: Agent) -> float:
        took = time.perf_counter() - started
        agent.close().result()
        return took


def main() -> None:
    """Command line."""
    parser = protocol.parser(__doc__)
    parser.add_argument("--compile", action="store_true", help="Lab(..., compile=True)")
    parser.add_argument("--block", type=int, default=0, help="block_size; 0: the lab's default")
    options = parser.parse_args()
    work = protocol.work_of(options)
    protocol.serve(work, lambda: Inms(work, str(options.model), options))


if __name__ == "__main__":
    main()
