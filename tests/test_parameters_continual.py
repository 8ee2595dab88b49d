"""Continual learning on branches: a task that spoils what was known never reaches anybody, and how
much is forgotten is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from shared_models import linux, same, shared, spoil, values

from inms_lab.errors import BadInput
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.continual import Continual, Task
from inms_lab.parameters.region import PAGE

pytestmark = linux
Examples = tuple[torch.Tensor, torch.Tensor]
KINDS = ("letters", "digits")


@pytest.fixture
def params() -> Iterator[SharedParameters]:
    """A small network that knows nothing yet."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with shared(torch.nn.Sequential(*layers)) as made:
        yield made


def examples(kind: str, seed: int, count: int = 64) -> Examples:
    """Pictures around four centres with their labels. Digits are pictures like letters, moved by
    something that all of them have, and want the next label."""
    drawn = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(seed)
    labels, by = torch.randint(4, (count,), generator=draws), KINDS.index(kind)
    pictures = drawn[(labels + by) % 4] + by * drawn[4]
    return pictures + 0.5 * torch.randn(count, 64, generator=draws), labels


def task(kind: str, also: Examples | None = None) -> Task:
    """A task; `also`: examples of an older one to rehearse."""
    data = examples(kind, 1)
    if also is not None:
        data = torch.cat([data[0], also[0]]), torch.cat([data[1], also[1]])
    return Task(kind, data, examples(kind, 2))


def learn(model: torch.nn.Module, data: Examples, steps: int = 60) -> None:
    """Plain gradient descent."""
    parameters = list(model.parameters())
    for _ in range(steps):
        slopes = torch.autograd.grad(loss_of(model, data), parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(0.1 * slope)


def loss_of(model: torch.nn.Module, data: Examples) -> Any:
    """The mean loss of some examples."""
    return torch.nn.functional.cross_entropy(model(data[0]), data[1])


def test_a_task_is_learnt_and_everybody_can_have_it(params: SharedParameters) -> None:
    lessons = Continual(params, learn, loss_of)
    learned = lessons.learn(task("letters"), progress=False)
    assert learned.merged
    assert learned.version == params.version.number == 1
    assert learned.after["letters"] < 0.2 < 1.0 < learned.before["letters"]
    assert learned.after == learned.alone  # of one branch
    assert loss_of(params.module(), task("letters").held_out) == learned.after["letters"]
    assert list(lessons.known) == ["letters"]
    assert lessons.history == [learned]
    assert 0 < learned.num_bytes <= params.num_bytes


def test_a_task_that_spoils_an_old_one_is_thrown_away(params: SharedParameters) -> None:
    """It is good at what it learnt: only the old task's data tells."""
    lessons = Continual(params, learn, loss_of)
    lessons.learn(task("letters"), progress=False)
    version, before = params.version, values(params.module())
    with params.agent() as agent:
        learned = lessons.learn(task("digits"), progress=False)
        assert not learned.merged
        assert learned.alone["digits"] < 0.2
        assert learned.forgetting["letters"] > 0.1
        assert "the loss of letters is" in learned.refused
        assert "digits" not in learned.refused
        assert params.version is version
        assert learned.version == version.number
        for reader in (agent, params.agent()):
            assert same(reader.run(values), before)
        assert same(values(params.module()), before)
    assert list(lessons.known) == ["letters"]


def test_the_same_task_with_rehearsal_is_merged_and_both_are_known(
    params: SharedParameters,
) -> None:
    lessons = Continual(params, learn, loss_of)
    lessons.learn(task("letters"), progress=False)
    learned = lessons.learn(task("digits", also=examples("letters", 3)), progress=False)
    assert learned.merged
    assert params.version.number == 2
    assert learned.forgetting["letters"] <= 0.1
    assert learned.forgetting.keys() == {"letters"}
    assert list(lessons.known) == ["letters", "digits"]
    for name in lessons.known:
        assert loss_of(params.module(), task(name).held_out) < 0.3


def test_branches_that_are_good_alone_are_judged_by_their_average(
    params: SharedParameters,
) -> None:
    """All know the task, with their hidden units in other orders; their mean is nobody's."""

    def learn_in_order(model: torch.nn.Module, data: tuple[int, Examples]) -> None:
        learn(model, data[1])
        order = torch.arange(64).roll(data[0])
        with torch.no_grad():
            for name in ("0.weight", "0.bias"):
                model.get_parameter(name).copy_(model.get_parameter(name)[order])
            model.get_parameter("2.weight").copy_(model.get_parameter("2.weight")[:, order])

    lessons = Continual(params, learn_in_order, loss_of, least_gain=1.2)
    letters = examples("letters", 1), examples("letters", 2)
    tasks = [Task(f"by {by}", (by, letters[0]), letters[1]) for by in (0, 16, 32, 48)]
    learned = lessons.learn(*tasks, progress=False)
    assert learned.names == ("by 0", "by 16", "by 32", "by 48")
    assert all(loss < learned.before[name] - 1.2 for name, loss in learned.alone.items())
    assert all(loss > learned.before[name] - 1.2 for name, loss in learned.after.items())
    assert not learned.merged
    assert params.version.number == 0
    assert lessons.learn(tasks[1], progress=False).merged


def test_weights_of_an_average_are_taken(params: SharedParameters) -> None:
    def constant(model: torch.nn.Module, by: float) -> None:
        with torch.no_grad():
            model.get_parameter("2.bias").fill_(by)

    def off(model: torch.nn.Module, target: float) -> float:
        return abs(model.get_parameter("2.bias").mean().item() - target)

    lessons = Continual(params, constant, off, most_forgetting=9.0)
    learned = lessons.learn(
        Task("a", 3.0, 4.0), Task("b", 7.0, 4.0), weights=[3, 1], progress=False
    )
    assert learned.after == {"a": 0.0, "b": 0.0}
    assert params.tensors()["2.bias"].tolist() == [4.0] * 4
    assert learned.num_bytes == 2 * PAGE
    assert learned.alone == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize("what", ["nan", "spoilt"])
def test_broken_weights_never_reach_anybody(params: SharedParameters, what: str) -> None:
    def broken(model: torch.nn.Module, data: Examples) -> None:
        spoil(model, float("nan") if what == "nan" else 1.0)

    version = params.version
    learned = Continual(params, broken, loss_of).learn(task("letters"), progress=False)
    assert not learned.merged
    assert "the loss of letters is" in learned.refused
    assert params.version is version


def test_nobody_can_have_the_merged_weights_while_they_are_judged(
    params: SharedParameters,
) -> None:
    version, before = params.version, values(params.module())
    seen = []

    def watching(model: torch.nn.Module, data: Examples) -> Any:
        assert params.version is version
        assert same(values(params.module()), before)
        seen.append(same(values(model), before))
        spoil(model, 5.0)  # what judges cannot change what is merged either
        with torch.no_grad():
            loss = loss_of(model, data)
            spoil(model, -5.0)
        return loss

    Continual(params, learn, watching).learn(task("letters"), progress=False)
    assert seen == [True, False, False]  # before, on the branch, merged


def test_a_training_that_raises_merges_nothing_and_leaves_no_pages(
    params: SharedParameters,
) -> None:
    def raising(model: torch.nn.Module, data: Examples) -> None:
        spoil(model)
        raise ValueError("no such picture")

    version = params.version
    lessons = Continual(params, raising, loss_of)
    with pytest.raises(ValueError, match="no such picture"):
        lessons.learn(task("letters"), progress=False)
    assert params.version is version
    assert not lessons.history
    assert not lessons.known


def test_a_branch_of_an_old_version_is_thrown_away_with_its_reason(
    params: SharedParameters,
) -> None:
    def overtaken(model: torch.nn.Module, data: Examples) -> None:
        learn(model, data)
        branch = params.branch("quicker")
        spoil(branch.module, 0.001)
        params.merge(branch)

    learned = Continual(params, overtaken, loss_of).learn(task("letters"), progress=False)
    assert "newest is 1" in learned.refused
    assert not learned.after
    assert params.version.number == 1


def test_more_forgetting_can_be_allowed(params: SharedParameters) -> None:
    lessons = Continual(params, learn, loss_of, most_forgetting=100.0)
    lessons.learn(task("letters"), progress=False)
    learned = lessons.learn(task("digits"), progress=False)
    assert learned.merged
    assert learned.forgetting["letters"] > 0.1


def test_bad_input_is_refused_before_training(params: SharedParameters) -> None:
    def never(model: torch.nn.Module, data: Any) -> None:
        raise AssertionError("it was trained")

    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(BadInput):
            Continual(params, never, loss_of, most_forgetting=wrong)
        with pytest.raises(BadInput):
            Continual(params, never, loss_of, least_gain=wrong)
    lessons = Continual(params, never, loss_of, {"letters": examples("letters", 2)})
    with pytest.raises(BadInput, match="one task or several"):
        lessons.learn()
    with pytest.raises(BadInput, match="different names"):
        lessons.learn(task("digits"), task("digits"))
    with pytest.raises(BadInput, match="known already"):
        lessons.learn(task("letters"))


def test_wrong_kinds_are_refused(params: SharedParameters) -> None:
    def made(**wrong: Any) -> Continual:
        def nothing(module: Any, data: Any) -> Any:
            return None

        right: dict[str, Any] = {"params": params, "train": nothing, "loss_of": nothing}
        return Continual(**(right | wrong))

    for name, value, told in (
        ("params", None, "SharedParameters"),
        ("train", 5, "functions"),
        ("loss_of", None, "functions"),
        ("known", [1], "by the name"),
        ("most_forgetting", "a", "most_forgetting"),
        ("least_gain", None, "least_gain"),
    ):
        with pytest.raises(BadInput, match=told):
            made(**{name: value})
    for task in ("x", Task(5, None, None), Task("", None, None)):  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="Task"):
            made().learn(task, progress=False)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="loss_of gives a number"):
        made().learn(Task("new", None, None), progress=False)
