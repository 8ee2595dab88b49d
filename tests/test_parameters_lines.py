"""Lines between agents: tensors by reference from one process to another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from shared_models import hear, linux, shared, tell

from inms_lab.errors import AgentClosed, AgentDied, BadInput
from inms_lab.parameters.agent import AgentProcess

pytestmark = linux


@pytest.fixture(scope="module")
def agents() -> Iterator[list[AgentProcess]]:
    with shared() as params:
        yield [params.agent(name) for name in ("ada", "ben", "cora", "dora", "eve")]


def test_what_one_agent_writes_the_other_reads_in_the_same_memory(
    agents: list[AgentProcess],
) -> None:
    ada, ben, *_ = agents
    out, into = ada.line_to(ben)
    for number in range(3):
        said = ada.run(tell, out, number)
        heard = ben.run(hear, into)
        assert heard["sum"] == said
        assert heard["copied"] < 0.1, "its pages are the sender's"
    back, there = ben.line_to(ada)
    assert ben.run(tell, back, 7) == ada.run(hear, there)["sum"]


def test_an_end_is_of_use_to_its_agent_alone(agents: list[AgentProcess]) -> None:
    ada, ben, cora, *_ = agents
    out, into = ada.line_to(ben)
    for agent, act, end, owner in ((cora, hear, into, "ben"), (ben, tell, out, "ada")):
        with pytest.raises(BadInput, match=f"pass it to {owner}"):
            agent.run(act, end)
    assert repr(into) == "<inbox of ben>"


def test_who_waits_for_a_dead_agent_is_told(agents: list[AgentProcess]) -> None:
    *_, dora, eve = agents
    _, into = dora.line_to(eve)
    out, _ = eve.line_to(dora)
    waits = eve.start(hear, into)
    os.kill(dora.pid, signal.SIGKILL)
    with pytest.raises(AgentDied, match="sender has ended"):
        waits.result(30)
    with pytest.raises(AgentDied, match="nobody receives"):
        eve.run(tell, out)
    with pytest.raises(AgentDied):
        eve.line_to(dora)
    eve.close()
    with pytest.raises(AgentClosed):
        eve.line_to(agents[0])


@pytest.mark.parametrize("other", [None, "ben", torch.nn.Linear(1, 1)])
def test_a_line_goes_to_another_agent(agents: list[AgentProcess], other: Any) -> None:
    for wrong in (other, agents[0]):
        with pytest.raises(BadInput, match="to another agent"):
            agents[0].line_to(wrong)
