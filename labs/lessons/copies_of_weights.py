"""What processes that have one model cost, by the kernel's figures: lab 13."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from inms_lab.bench.own_weights import Starter, on_disk, weights_pss
from inms_lab.errors import InmsError
from inms_lab.model.source import DEFAULT_MODEL
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.kernel import WORDS, holders, page_states, whole
from inms_lab.parameters.region import View
from inms_lab.parameters.shared import SharedParameters

from .agent_calls import MIB

PATIENCE = 30.0  # seconds for processes to end


def told(view: View) -> list[str]:
    """The kernel's word for each page of a view of this process."""
    states = page_states("self", view.address, view.num_bytes)
    if states is None:
        raise InmsError("the kernel does not tell single pages here (/proc/self/pagemap)")
    return [WORDS[state] for state in states]


def copies(params: SharedParameters) -> float:
    """How many copies of the weights the agents have in memory together: the sum of their PSS."""
    pss = sum(params.pages(agent).weights.pss for agent in params.agents)
    return pss / params.layout.weight_bytes


def private(agent: AgentProcess) -> float:
    """MiB that would be free if the agent's process ended."""
    return whole(agent.pid).private / MIB


@contextmanager
def independent() -> Iterator[AgentProcess]:
    """A process that shares nothing: a fresh interpreter with a copy of the weights of its own."""
    with on_disk(DEFAULT_MODEL) as (folder, kind), closing(Starter(folder, kind, "own")) as own:
        yield own.start()


def beside(agent: AgentProcess) -> float:
    """MiB of an independent process that are its own and no weights."""
    return private(agent) - agent.run(weights_pss) / MIB


def assert_clean(params: SharedParameters) -> None:
    """Close it; then no other process may have its weights any more."""
    params.close()
    until, name = time.monotonic() + PATIENCE, f"inms-weights-{os.getpid()}"
    while left := set(holders(name)) - {os.getpid()}:
        assert time.monotonic() < until, f"processes {sorted(left)} still hold the weights"
        time.sleep(0.05)
