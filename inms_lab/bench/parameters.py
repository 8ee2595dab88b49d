"""What agent processes cost that share their weights, against as many that load their own.

Three kinds of processes have the same model and change the same share of its weights:

    sharing      agents of `SharedParameters`
    independent  fresh interpreters, each with a copy of the weights
    mapped       fresh interpreters in which transformers maps the file, as it does by default: the
                 system keeps a file's pages once, so these share too, until they write

All figures are the kernel's, in bytes. `weights_held`: the shared memory, whether or not anybody
maps all of it, and what each has for itself. `whole`: the processes with Python and torch, each
page of a library once, and with the one that agents are forked from.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil

from inms_lab.bench import own_weights
from inms_lab.bench.own_weights import PATTERNS, Starter
from inms_lab.errors import BadInput, SharingUnsupported
from inms_lab.model.progress import bar
from inms_lab.model.source import DEFAULT_MODEL
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.kernel import Figures, between, whole
from inms_lab.studies.bill import Geometry
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

Row = dict[str, Any]
TOGETHER = 4  # processes that are started at once
CLAIM, CLAIMED_GB, ABOUT = "ten-7b-agents", (160, 24), 0.05  # of claims.py
SEVEN_B = Geometry(32, 4096, 32, 32, 128, "float16", num_params=6_738_415_616)


@dataclass(frozen=True, slots=True)
class Trial:
    """Numbers of `agents`, rising. Each writes `tokens` and changes a share of its weights by a
    pattern; a further one, that changes nothing, writes `further_tokens`."""

    agents: tuple[int, ...] = (10,)
    changed: float = 0.15
    patterns: tuple[str, ...] = PATTERNS
    tokens: int = 16
    further_tokens: int = 80
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.agents or list(self.agents) != sorted({n for n in self.agents if n >= 1}):
            raise BadInput(f"--agents: rising whole numbers from 1 on, not {self.agents}")
        if not (math.isfinite(self.changed) and 0 <= self.changed <= 1):
            raise BadInput(f"--changed: a share from 0 to 1, not {self.changed!r}")
        if not self.patterns or set(self.patterns) - set(PATTERNS):
            raise BadInput(f"--pattern: of {', '.join(PATTERNS)}; not {', '.join(self.patterns)}")
        if min(self.tokens, self.further_tokens) < 1:
            raise BadInput("at least one token is to be written, so that all weights are read")


def measure(
    source: Any = DEFAULT_MODEL, trial: Trial | None = None, progress: bool = True
) -> dict[str, Any]:
    """A row for each pattern and number of agents; at the top that of the first pattern with most
    agents. `source`: a model's name or folder, or a module of transformers.

    Raises `SharingUnsupported` where no kernel tells of pages, `NotEnoughMemory` or `BadInput`.
    Nothing is left running.
    """
    trial, most = trial or Trial(), (trial or Trial()).agents[-1]
    if sys.platform != "linux":
        raise SharingUnsupported("pages are counted by Linux' own figures: measure there")
    with (
        own_weights.on_disk(source) as (folder, kind),
        SharedParameters(source) as params,
        bar(most * (3 + len(trial.patterns)), "processes", unit="", enabled=progress) as shown,
    ):
        size = params.layout.weight_bytes
        own_weights.require_memory(most, size)
        kinds = Kinds(trial, shown.update)
        with closing(Starter(folder, kind, "own")) as own:
            alone = kinds.grown(own.start, _row, *trial.patterns)
        with closing(Starter(folder, kind, "mapped")) as maps:
            mapped = kinds.grown(maps.start, _row, trial.patterns[0])
        with closing(Sharing(params, trial)) as sharing:
            unchanged = kinds.grown(sharing.agent, sharing.generating)
            rows = [kinds.grown(sharing.agent, sharing.row, one) for one in trial.patterns]
    compared = [_beside(row, alone, trial.changed) for several in rows for row in several]
    return {
        "model": params.source.name,
        "weights_bytes": size,
        **next(row for row in compared if row["agents"] == most),
        "same_output": all(wrote == kinds.wrote[0] for wrote in kinds.wrote),
        "rows": compared,
        "unchanged": [_beside(row, alone, 0.0) for row in unchanged],
        "mapped": [_beside(row, alone, trial.changed) for row in mapped],
    }


def _beside(row: Row, alone: Sequence[Row], changed: float) -> Row:
    """A row beside that of as many independent processes, and beside (1 + N x) / N."""
    n = row["agents"]
    other = next(one for one in alone if one["agents"] == n)
    return row | {
        "changed": changed,
        "saved": round(1 - row["weights_held"] / other["weights_held"], 4),
        "saved_by_formula": round(1 - (1 + n * changed) / n, 4),
        "whole_saved": round(1 - row["whole"] / other["whole"], 4),
        "independent": {k: other[k] for k in ("weights_held", "whole", "private_by_agent")},
    }


class Kinds:
    """Processes of any kind, made one after another and measured at each number. `wrote`: what each
    wrote before it changed anything."""

    def __init__(self, trial: Trial, step: Callable[[int], object]) -> None:
        self.trial, self.step = trial, step
        self.wrote: list[list[int]] = []

    def grown(
        self,
        make: Callable[[], AgentProcess],
        row_of: Callable[[list[AgentProcess]], Row],
        *patterns: str,
    ) -> list[Row]:
        """A row a number of agents. Each generates, then changes its weights by each pattern, in
        places that it draws for itself. They have ended when this returns."""
        agents, rows, share = list[AgentProcess](), list[Row](), self.trial.changed
        try:
            for n in self.trial.agents:
                while len(agents) < n:
                    new = range(len(agents), min(n, len(agents) + TOGETHER))
                    for _ in new:
                        agents.append(make())
                    works = [agents[at].start(own_weights.work, self.trial.tokens) for at in new]
                    self.wrote += [one.result() for one in works]
                    for at in new:  # each changes other places
                        for pattern in patterns:
                            agents[at].run(own_weights.change, share, pattern, self.trial.seed + at)
                    self.step(len(new))
                told = {"pattern": ", ".join(patterns) or "none", "agents": n}
                rows.append(told | row_of(agents))
        finally:
            own_weights.end(agents)
        return rows


def _row(agents: list[AgentProcess]) -> Row:
    """Of processes that have loaded the model for themselves."""
    pss = sum(one.result() for one in [agent.start(own_weights.weights_pss) for agent in agents])
    figures = [whole(agent.pid) for agent in agents]
    return {
        "pss_sum": pss,
        "weights_held": pss,
        "private_by_agent": [one.private for one in figures],
        "whole": sum(one.pss for one in figures),
    }


class Sharing:
    """Agents of shared parameters, as a measurement makes them."""

    def __init__(self, params: SharedParameters, trial: Trial) -> None:
        self.params, self.trial = params, trial
        self.nursery: list[psutil.Process] = []  # none or one

    def agent(self) -> AgentProcess:
        """A new one."""
        agent = self.params.agent()
        self.nursery = psutil.Process(agent.pid).parents()[:1]
        return agent

    def row(self, agents: list[AgentProcess]) -> Row:
        """Their figures."""
        weights, figures = self._weights(agents), [whole(agent.pid) for agent in agents]
        files = {piece.memory.fd for piece in self.params.version.pieces}
        held = sum(os.fstat(fd).st_blocks * 512 for fd in files)
        held += sum(one.anonymous for one in weights)
        pss = sum(one.pss for one in weights)
        processes = sum(one.pss for one in (*figures, whole(self.nursery[0].pid)))
        return {
            "pss_sum": pss,
            "weights_held": held,
            "private_by_agent": [one.private for one in figures],
            "whole": processes + held - pss,  # what nobody maps is held too
        }

    def generating(self, agents: list[AgentProcess]) -> Row:
        """Their figures, with the greatest PSS seen while all generate, in bytes and in copies of
        the weights; then the private bytes of a further agent, idle and at most while it does."""
        works = [agent.start(own_weights.work, self.trial.tokens) for agent in agents]
        most = own_weights.most_of(works, lambda: sum(one.pss for one in self._weights(agents)))
        row = self.row(agents) | {
            "pss_sum": most,
            "copies": round(most / self.params.layout.weight_bytes, 4),
        }
        with self.agent() as further:
            further.run(type)
            idle = whole(further.pid).private
            works = [further.start(own_weights.work, self.trial.further_tokens)]
            busy = own_weights.most_of(works, lambda: whole(further.pid).private)
        return row | {"further_idle_private": idle, "further_generating_private": busy}

    def close(self) -> None:
        """End all of them, and wait until they have ended."""
        own_weights.end(self.params.agents)
        self.params.close()
        psutil.wait_procs(self.nursery, own_weights.PATIENCE)

    def _weights(self, agents: list[AgentProcess]) -> list[Figures]:
        size = self.params.num_bytes
        return [between(one.pid, one.address, one.address + size) for one in agents]


def ten_agents(changed: float = 0.15) -> dict[str, Any]:
    """The bill of the claim, computed: ten agents of a 7B model without grouped queries, weights
    once and a KV cache each, at some context lengths, in bytes; and what becomes of the claim."""
    alone, shared = (10**9 * size for size in CLAIMED_GB)
    weights, token = SEVEN_B.weights_bytes, 10 * SEVEN_B.kv_bytes_per_token

    def row(tokens: int) -> Row:
        kv = tokens * token
        figures = {"independent": 10 * weights + kv, "shared": weights + kv}
        return {"tokens": tokens, "kv": kv, **figures, "left": shared - weights - kv}

    fit, there = (shared - weights) // token, row((alone - 10 * weights) // token)
    measured = (
        f"weights once are {weights / 1e9:.1f} GB, so {shared / 1e9:g} GB have room for KV of "
        f"{fit:,} tokens for each of ten; where they need {alone / 1e9:g} GB without sharing "
        f"({there['tokens']:,} tokens each) they need {there['shared'] / 1e9:.1f} GB with it; if "
        f"each changes {changed:.0%} of the weights these alone are "
        f"{weights * (1 + 10 * changed) / 1e9:.1f} GB"
    )
    verdict = HOLDS if abs(there["shared"] - shared) <= ABOUT * shared else DOES_NOT_HOLD
    interval = f"exact (arithmetic); about = within {ABOUT:.0%}"
    return {
        "weights_bytes": weights,
        "tokens_that_fit": fit,
        "rows": [row(tokens) for tokens in (0, 1024, 2048, 4096, 8192, 32768)],
        "claims": {CLAIM: {"measured": measured, "interval": interval, "verdict": verdict}},
    }
