"""Federated rounds on shared weights: the plain way's losses, whoever dies, is refused or stops it;
only touched pages are written."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import pytest
import shared_models
import torch
from shared_models import is_gone, linux, same, shared, soon, spoil, values

from inms_lab.bench import federated as bench
from inms_lab.bench.federated import FullCopies
from inms_lab.errors import AgentDied, BadInput
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.federated import Rounds
from inms_lab.parameters.region import PAGE
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

pytestmark = linux
for module in (shared_models, sys.modules[__name__]):  # agents shall not import what tests import
    cloudpickle.register_pickle_by_value(module)
COUNTS = (24, 8, 16)  # samples: their shares are no powers of two


@pytest.fixture(scope="module")
def params() -> Iterator[SharedParameters]:
    """One copy for all tests of this file: versions go on, each test begins with the newest."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with shared(torch.nn.Sequential(*layers)) as made:
        yield made


@contextmanager
def clients_of(params: SharedParameters) -> Iterator[list[AgentProcess]]:
    """Three new agents, closed in the end."""
    agents = [params.agent() for _ in COUNTS]
    try:
        yield agents
    finally:
        for agent in agents:
            agent.close()
        assert soon(lambda: all(is_gone(agent.pid) for agent in agents))


def batches() -> list[list[tuple[torch.Tensor, int]]]:
    """Data of each client: pictures with labels, unequally many."""
    draws = torch.Generator().manual_seed(1)
    return [
        [(torch.randn(64, generator=draws), (at + who) % 4) for at in range(count)]
        for who, count in enumerate(COUNTS)
    ]


def learn(model: torch.nn.Module, data: Any, last_only: bool = False) -> float:
    """Three steps with weight decay, by hand: optimizers take seconds to import, in each agent.
    Gives the loss before the last."""
    parameters = list((model[-1] if last_only else model).parameters())  # type: ignore[index]
    texts, labels = torch.stack([x for x, _ in data]), torch.tensor([y for _, y in data])
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(texts), labels)
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.mul_(0.999).sub_(0.2 * slope)
    return loss.item()


def learn_last(model: torch.nn.Module, data: Any) -> float:
    """The same with the last layer only."""
    return learn(model, data, last_only=True)


def shift(model: torch.nn.Module, by: Any) -> float:
    """Add a number to all weights; or do as the word says."""
    if by == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if by == "wait":
        spoil(model)
        threading.Event().wait(60)
    spoil(model, by if isinstance(by, float) else 100.0)
    if by == "raise":
        raise ValueError("no such picture")
    return float("nan") if by == "nan" else 1.0


def mean_of(tensors: dict[str, torch.Tensor]) -> float:
    """Of the first layer's biases."""
    return tensors["0.bias"].mean().item()


def bits(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same as bytes."""
    return {name: value.reshape(-1).view(torch.uint8) for name, value in values.items()}


# --- the plain way's losses -------------------------------------------------------------------


def test_losses_and_weights_are_those_of_full_copies_bit_for_bit_if_all_is_trained(
    params: SharedParameters,
) -> None:
    first = params.version.number
    with clients_of(params) as ours, clients_of(params) as theirs:
        rounds = Rounds(params, ours, learn, batches())
        plain = FullCopies(params, theirs, learn, batches())
        curve, told = rounds.run(4, progress=False), plain.run(4, progress=False)
        state = {name: torch.from_numpy(raw) for name, raw in plain.state.items()}
    assert [[*one.losses.values()] for one in curve] == [[*one.losses.values()] for one in told]
    assert curve[-1].loss < curve[0].loss / 1.5
    mine = bits(params.tensors())
    assert same(mine, state)
    assert [one.version for one in curve] == [first + n for n in (1, 2, 3, 4)]


def test_losses_are_those_of_full_copies_within_rounding_if_a_part_is_trained(
    params: SharedParameters,
) -> None:
    """In the plain way a weight that nobody changed is averaged too; here it stays, bit for bit."""
    before = values(params.module())
    with clients_of(params) as ours, clients_of(params) as theirs:
        curve = Rounds(params, ours, learn_last, batches()).run(4, progress=False)
        told = FullCopies(params, theirs, learn_last, batches()).run(4, progress=False)
    assert [one.loss for one in curve] == pytest.approx([one.loss for one in told], abs=1e-6)
    after = params.tensors()
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert changed == {"2.weight", "2.bias"}


def test_clients_count_as_much_as_their_weights(params: SharedParameters) -> None:
    with clients_of(params) as clients:
        before = mean_of(params.tensors())
        rounds = Rounds(params, clients, shift, [1.0, 2.0, 4.0], weights=COUNTS)
        shares = rounds.round().shares
    assert [*shares.values()] == pytest.approx([0.5, 1 / 6, 1 / 3])
    assert mean_of(params.tensors()) - before == pytest.approx(0.5 + 2 / 6 + 4 / 3, rel=1e-4)


def test_only_touched_pages_are_written(params: SharedParameters) -> None:
    """The last layer has two pages, weights and biases: of each client, and of the average."""
    with clients_of(params) as clients, clients_of(params) as others:
        (one,) = Rounds(params, clients, learn_last, batches()).run(1, progress=False)
        (full,) = FullCopies(params, others, learn_last, batches()).run(1, progress=False)
        names = ["2.weight", "2.bias"]
        (named,) = FullCopies(params, others, learn_last, batches(), names=names).run(
            1, progress=False
        )
    assert one.num_bytes == 2 * PAGE * (len(COUNTS) + 1)
    assert full.num_bytes == params.layout.weight_bytes * (2 * len(COUNTS) + 1)
    assert named.num_bytes == 4 * (4 * 64 + 4) * (2 * len(COUNTS) + 1)
    assert one.seconds.keys() == {"move", "train", "delta", "average", "publish"}
    assert 0 < one.synchronisation == sum(one.seconds.values()) - one.seconds["train"]


# --- who does not come through ----------------------------------------------------------------


def test_a_client_that_is_killed_in_training_is_left_out_and_the_round_goes_on(
    params: SharedParameters,
) -> None:
    with clients_of(params) as clients:
        before = mean_of(params.tensors())
        rounds = Rounds(params, clients, shift, [1.0, "die", 4.0], weights=COUNTS)
        one = rounds.round()
        killed = clients[1].name
        assert list(one.left_out) == [killed]
        assert "killed by signal 9" in one.left_out[killed]
        assert [*one.shares.values()] == pytest.approx([0.6, 0.4])
        assert mean_of(params.tensors()) - before == pytest.approx(0.6 + 1.6, rel=1e-4)
        assert list(rounds.round().left_out) == [killed]  # it stays away
        with params.agent() as fresh:
            rounds.clients[1], rounds.data[1] = fresh, 1.0
            assert not rounds.round().left_out
            assert same(fresh.run(values), values(params.module()))


@pytest.mark.parametrize("verb", ["delta", "move"])
def test_a_client_that_is_killed_later_in_the_round_is_left_out_too(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    really = getattr(AgentProcess, verb)

    def dying(agent: AgentProcess, *args: Any, **kwargs: Any) -> Any:
        if agent is clients[2]:
            os.kill(agent.pid, signal.SIGKILL)
        return really(agent, *args, **kwargs)

    monkeypatch.setattr(AgentProcess, verb, dying)
    with clients_of(params) as clients:
        before = mean_of(params.tensors())
        one = Rounds(params, clients, shift, [1.0, 1.0, 7.0], weights=[1, 1, 2]).round()
        assert list(one.left_out) == [clients[2].name]
        assert (clients[2].name in one.losses) == (verb == "move")  # its weights came in time
        by = mean_of(params.tensors()) - before
        assert by == pytest.approx(1.0 if verb == "delta" else 4.0, rel=1e-4)
        for client in clients[:2]:
            assert same(client.run(values), values(params.module()))


@pytest.mark.parametrize(("word", "why"), [("raise", "no such picture"), ("nan", "loss is nan")])
def test_a_client_that_fails_is_left_out_and_what_it_did_is_gone(
    params: SharedParameters, word: str, why: str
) -> None:
    with clients_of(params) as clients:
        before = mean_of(params.tensors())
        one = Rounds(params, clients, shift, [1.0, word, 1.0], weights=COUNTS).round()
        assert why in one.left_out[clients[1].name]
        assert mean_of(params.tensors()) - before == pytest.approx(1.0, rel=1e-4)
        for client in clients:
            assert same(client.run(values), values(params.module()))


def test_if_all_fail_the_first_error_is_raised_and_nothing_changes(
    params: SharedParameters,
) -> None:
    version = params.version
    with clients_of(params) as clients:
        rounds = Rounds(params, clients, shift, ["raise", "nan", "raise"], weights=COUNTS)
        with pytest.raises(ValueError, match="no such picture"):
            rounds.round()
        assert params.version is version
        assert not rounds.history
        assert all(same(client.run(values), values(params.module())) for client in clients)
        rounds.data = ["die"] * 3
        with pytest.raises(AgentDied, match="killed by signal 9"):
            rounds.round()


def test_an_average_that_is_not_valid_reaches_nobody(params: SharedParameters) -> None:
    version = params.version
    before = values(params.module())
    asked = []

    def small(module: torch.nn.Module) -> bool:
        asked.append(mean_of(module.state_dict()))
        assert params.version is version  # nobody can have it yet
        return asked[-1] < mean_of(before) + 2

    with clients_of(params) as clients:
        rounds = Rounds(params, clients, shift, [1.0, 2.0, 9.0], weights=COUNTS, validate=small)
        one = rounds.round()
        assert "validation gave False" in one.refused
        assert asked == [pytest.approx(mean_of(before) + 0.5 + 2 / 6 + 3, rel=1e-4)]
        assert params.version is version
        assert one.version == version.number
        assert all(same(client.run(values), before) for client in clients)
        rounds.data[2] = 1.0
        assert not rounds.round().refused
        assert params.version.number == version.number + 1
        assert "validate" in one.seconds


def test_an_interrupt_takes_everything_back(params: SharedParameters) -> None:
    version = params.version
    with clients_of(params) as clients:
        rounds = Rounds(params, clients, shift, [1.0, "wait", 1.0], weights=COUNTS)
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        # Who was started in the background may ignore it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                rounds.round()
        finally:
            timer.join()
            signal.signal(signal.SIGINT, before)
        assert params.version is version
        assert all(same(client.run(values), values(params.module())) for client in clients)


def test_clients_of_an_older_version_are_moved_first(params: SharedParameters) -> None:
    with clients_of(params) as clients:
        rounds = Rounds(params, clients, shift, [1.0] * 3, weights=COUNTS)
        branch = params.branch("of somebody else")
        spoil(branch.module, 10.0)
        params.merge(branch)
        before = mean_of(params.tensors())
        assert not rounds.round().left_out
        assert mean_of(params.tensors()) - before == pytest.approx(1.0, rel=1e-4)


def test_a_client_whose_own_changes_are_of_an_older_version_is_left_out(
    params: SharedParameters,
) -> None:
    with clients_of(params) as clients:
        clients[0].run(spoil)
        branch = params.branch("of somebody else")
        spoil(branch.module, 10.0)
        params.merge(branch)
        one = Rounds(params, clients, shift, [1.0] * 3, weights=COUNTS).round()
        assert "merge or discard" in one.left_out[clients[0].name]
        assert clients[0].base.number == params.version.number


# --- bad input --------------------------------------------------------------------------------


def test_bad_input_is_refused_before_anybody_trains(params: SharedParameters) -> None:
    with clients_of(params) as clients:
        for wrong in (
            {"clients": [], "data": []},
            {"clients": clients, "data": [1.0]},
            {"clients": [clients[0], clients[0]], "data": [1.0, 1.0]},
            {"clients": clients, "weights": [1, 2]},
            {"clients": clients, "weights": [1, 0, 1]},
            {"clients": clients, "weights": [1, float("inf"), 1]},
            {"clients": clients},  # numbers have no len()
        ):
            with pytest.raises(BadInput):
                Rounds(params, train=shift, **({"data": [1.0] * 3} | wrong))  # type: ignore[arg-type]
        rounds = Rounds(params, clients, shift, [1.0] * 3, weights=COUNTS)
        with pytest.raises(BadInput, match="1 or more"):
            rounds.run(0)
        clients[0].close()
        with pytest.raises(BadInput, match="is closed"):
            rounds.round()
    with shared() as strange, pytest.raises(BadInput, match="no agent of these"):
        Rounds(strange, clients[1:], shift, [1.0] * 2, weights=[1, 1])


def test_a_training_without_a_loss_is_told_so(params: SharedParameters) -> None:
    with clients_of(params) as clients, pytest.raises(BadInput, match="gives a loss"):
        Rounds(params, clients, spoil, [1.0] * 3, weights=COUNTS).round()  # type: ignore[arg-type]


# --- the benchmark ----------------------------------------------------------------------------


def test_the_benchmark_compares_equal_work() -> None:
    load = bench.Load(clients=2, tokens=8, hidden=64, layers=3, vocab=64)
    result = bench.measure(load, ("layer", "everything"), repeat=2, progress=False)
    layer, everything = result["rows"]
    assert everything["losses_differ_by"] == 0.0  # bit for bit
    assert layer["losses_differ_by"] < 1e-6
    assert 0.2 < layer["pages_share"] < 0.4 < 0.8 < everything["pages_share"] <= 1.0
    assert layer["shared_bytes"] < layer["full_bytes"] / 3
    assert layer["named_bytes"] < layer["full_bytes"] / 3
    for row in result["rows"]:
        assert row["saved_low"] <= row["saved"] <= row["saved_high"] < 1.0
    assert result["claims"]["federated-rounds"]["verdict"] in (HOLDS, DOES_NOT_HOLD)
    with pytest.raises(BadInput):
        bench.measure(load, ("lora",))


def test_the_claim_holds_only_if_it_does_for_every_part() -> None:
    good = {"part": "layer", "saved": 0.9, "saved_low": 0.8, "saved_high": 0.95, "pages_share": 0.1}
    bad = good | {"part": "everything", "saved": 0.3}
    assert bench.claimed([good], bench.Load())["verdict"] == HOLDS
    told = bench.claimed([good, bad], bench.Load())
    assert told["verdict"] == DOES_NOT_HOLD
    assert "90% (80% to 95%) less with layer" in told["measured"]


def test_wrong_kinds_are_refused(params: SharedParameters) -> None:
    def made(**wrong: Any) -> Rounds:
        right: dict[str, Any] = {"params": params, "clients": [], "train": shift, "data": []}
        return Rounds(**(right | wrong))

    for name, value, told in (
        ("params", None, "SharedParameters"),
        ("train", 5, "functions"),
        ("validate", "yes", "functions"),
        ("clients", None, "lists"),
        ("data", None, "lists"),
        ("weights", "x", "weights are numbers"),
        ("weights", 5, "weights are numbers"),
    ):
        with pytest.raises(BadInput, match=told):
            made(**{name: value})
