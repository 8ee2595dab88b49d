"""All or nothing: what is half done, of other weights, or nobody's answer, reaches nobody."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shared_models import (
    change,
    has_a_child,
    is_gone,
    linux,
    mlp,
    num_open,
    pid_of,
    same,
    shared,
    soon,
    spoil,
    values,
)

from inms_lab.errors import (
    AgentClosed,
    AgentDied,
    BadInput,
    MergeRefused,
    NotEnoughMemory,
    ParametersClosed,
)
from inms_lab.parameters import SharedParameters, child
from inms_lab.parameters.region import PAGE, Memory, Piece, View
from inms_lab.parameters.versions import MOST_DELTAS, Version

pytestmark = linux


@pytest.fixture
def params() -> Iterator[SharedParameters]:
    with shared() as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[SharedParameters]:
    with shared(mlp(32)) as made:
        yield made


# a merge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [False, np.bool_(False), torch.tensor(False), 0.3, "good", torch.tensor([True, True])]
)
def test_a_validation_that_does_not_say_yes_refuses(params: SharedParameters, said: Any) -> None:
    branch = params.branch("task")
    spoil(branch.module, float("nan"))
    with pytest.raises(MergeRefused, match=r"not valid|neither True nor False"):
        params.merge(branch, validate=lambda model: said)
    assert params.version.number == 0


@pytest.mark.parametrize("said", [True, None, np.bool_(True), torch.tensor(True)])
def test_a_validation_that_says_yes_or_nothing_accepts(params: SharedParameters, said: Any) -> None:
    branch = params.branch("task")
    change(branch.module, "0.weight")
    assert params.merge(branch, validate=lambda model: said).number == 1


def test_changes_of_other_weights_are_refused(
    params: SharedParameters, other: SharedParameters
) -> None:
    theirs = other.branch("theirs")
    change(theirs.module, "0.weight")
    before = values(params.module())
    for what in (theirs, theirs.delta(), [theirs]):
        with pytest.raises(MergeRefused, match="from other weights"):
            params.merge(what)
    with pytest.raises(BadInput, match="of these weights is wanted"):
        params.pages(theirs)
    assert same(values(params.module()), before)


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        (None, {}),
        ([], {}),
        ("task", {}),
        ("branch", {"weights": [1, 2]}),
        ("branch", {"weights": [float("nan")]}),
        ("branch", {"validate": 3}),
    ],
)
def test_wrong_kinds_are_refused_by_name(
    params: SharedParameters, changed: Any, options: dict[str, Any]
) -> None:
    branch = params.branch("task")
    change(branch.module, "0.weight")
    with pytest.raises(BadInput):
        params.merge(branch if changed == "branch" else changed, **options)
    assert params.version.number == 0


def test_a_version_that_the_forking_process_cannot_have_is_none(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = params.agent("first")

    def full(version: Version) -> None:
        raise NotEnoughMemory("no more")

    assert params._nursery is not None
    monkeypatch.setattr(params._nursery, "lay", full)
    branch = params.branch("task")
    change(branch.module, "0.weight")
    with pytest.raises(NotEnoughMemory):
        params.merge(branch)
    assert params.version.number == 0
    monkeypatch.undo()
    assert params.merge(branch).number == 1
    assert same(params.agent("next").run(values), values(params.module()))
    assert first.base.number == 0


def test_many_versions_are_few_open_files(params: SharedParameters) -> None:
    reader = params.agent("reader")
    for number in range(MOST_DELTAS + 20):
        branch = params.branch("task")
        change(branch.module, f"{(0, 2, 4)[number % 3]}.weight")
        params.merge(branch)
    memories = {piece.memory for piece in params.version.pieces}
    assert len(memories) <= 1 + MOST_DELTAS
    assert len(params.version.deltas) <= MOST_DELTAS
    expected = mlp()
    for number in range(MOST_DELTAS + 20):
        change(expected, f"{(0, 2, 4)[number % 3]}.weight")
    assert same(values(params.module()), values(expected))
    reader.move(params.version)
    assert same(reader.run(values), values(expected))
    assert same(params.agent("next").run(values), values(expected))


def test_after_the_end_the_creator_holds_no_weights(params: SharedParameters) -> None:
    params.close()
    assert params.version.pieces == ()
    assert params.version.number == 0
    with pytest.raises(ParametersClosed):
        params.module()


# a move ----------------------------------------------------------------------------------------


def test_an_agent_keeps_what_it_has_if_it_cannot_move(
    params: SharedParameters, other: SharedParameters
) -> None:
    ada = params.agent("ada")
    before = ada.run(values)
    with pytest.raises(BadInput, match="other weights than ada has"):
        ada.move(other.version)
    with pytest.raises(BadInput, match="moves to a version"):
        ada.move(1)  # type: ignore[arg-type]
    assert same(ada.run(values), before)
    assert ada.base.number == 0


def test_nothing_is_laid_if_one_piece_lies_outside() -> None:
    memory, view = Memory.create(2 * PAGE), View(2 * PAGE)
    with memory.writing() as raw:
        raw[:] = b"x" * 2 * PAGE
    base = Memory.create(2 * PAGE)
    view.lay([Piece(0, 2 * PAGE, base)])
    with pytest.raises(BadInput, match="outside"):
        view.lay([Piece(0, PAGE, memory), Piece(2 * PAGE, PAGE, memory)])
    assert bytes(view.bytes_at(0, PAGE)) == bytes(PAGE)


def test_only_what_the_user_s_function_does_is_interrupted() -> None:
    base = Version(0, (), "x")
    me = child.Me("ada", mlp(), View(PAGE), base, None)  # type: ignore[arg-type]
    seen = []

    def ours(me: child.Me) -> None:
        seen.append(me.busy)

    def theirs(model: torch.nn.Module) -> None:
        seen.append(me.busy)

    import cloudpickle

    for act in (ours, child.OnModel(theirs)):
        original = cloudpickle.loads
        try:
            cloudpickle.loads = lambda raw, act=act: (act, (), {})
            child._done(me, b"")
        finally:
            cloudpickle.loads = original
    assert seen == [False, True]


# answers ---------------------------------------------------------------------------------------


def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s(params: SharedParameters) -> None:
    params.agent("ada")
    assert params._nursery is not None
    line = params._nursery._line
    poll = line.poll

    def interrupted(timeout: float | None = 0.0) -> bool:
        line.poll = poll  # type: ignore[method-assign]
        raise KeyboardInterrupt

    line.poll = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        params.agent("ben")
    cora = params.agent("cora")
    assert cora.run(pid_of) == cora.pid
    assert [row.holder[0] for row in params.leases()][::2] == ["ada", "cora"]  # type: ignore[index]


def test_who_asks_before_the_end_is_answered_and_who_asks_behind_it_is_told(
    params: SharedParameters,
) -> None:
    ada = params.agent("ada")

    class Closing:
        def __reduce__(self) -> tuple[Any, ...]:
            ada.close()  # while the question is being packed
            return int, ()

    with pytest.raises(AgentClosed):
        ada.run(pid_of, Closing())


def test_a_child_of_the_creator_cannot_ask_its_agents(params: SharedParameters) -> None:
    ada = params.agent("ada")
    hears, tells = os.pipe()
    if not (pid := os.fork()):
        try:
            ada.run(pid_of)
        except BadInput as error:
            os.write(tells, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert b"and no child of it" in os.read(hears, 4096)
    assert ada.run(pid_of) == ada.pid


def test_a_killed_agent_is_told_of_though_a_child_of_its_own_lives(
    params: SharedParameters,
) -> None:
    ada = params.agent("ada")
    waits = ada.start(has_a_child)
    children = Path(f"/proc/{ada.pid}/task/{ada.pid}/children")
    grandchild = int(soon(lambda: children.read_text().split())[0])
    try:
        os.kill(ada.pid, 9)
        with pytest.raises(AgentDied):
            waits.result(10)
        assert soon(lambda: not ada.lives, 10)
    finally:
        os.kill(grandchild, 9)


# lines, names, memory --------------------------------------------------------------------------


def test_a_line_that_cannot_be_made_harms_nobody(params: SharedParameters) -> None:
    ada, ben, cora = (params.agent(name) for name in ("ada", "ben", "cora"))
    ben.close()
    with pytest.raises(AgentClosed):
        ada.line_to(ben)
    os.kill(cora.pid, 9)
    soon(lambda: is_gone(cora.pid))
    with pytest.raises(AgentDied):
        ada.line_to(cora)
    with pytest.raises(AgentDied):
        cora.line_to(ada)
    assert [ada.run(pid_of) for _ in range(3)] == [ada.pid] * 3


def test_a_line_that_is_closed_takes_nothing_any_more(params: SharedParameters) -> None:
    ada, ben = params.agent("ada"), params.agent("ben")
    before = ada.run(num_open), ben.run(num_open)
    for _ in range(5):
        for end in ada.line_to(ben):
            end.close()
    assert (ada.run(num_open), ben.run(num_open)) == before


def test_a_name_that_a_dead_agent_had_leaves_no_thread(params: SharedParameters) -> None:
    def threads() -> int:
        return sum(thread.name == "inms-ada" for thread in threading.enumerate())

    before = threads()  # of agents of other tests, whose ends are on their way
    for _ in range(3):
        ada = params.agent("ada")
        os.kill(ada.pid, 9)
        soon(lambda one=ada: not one.lives)
    params.agent("ada")
    assert soon(lambda: threads() <= before + 1)


def test_memory_that_was_interrupted_in_the_making_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Memory.create(PAGE)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    "wrong",
    [{"name": 5}, {"seed": -1}, {"seed": 1 << 32}, {"seed": "x"}, {"threads": 10**12}],
    ids=str,
)
def test_what_an_agent_cannot_be_made_with_is_refused(
    params: SharedParameters, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadInput):
        params.agent(**wrong)


@pytest.mark.parametrize("beat", ["5", 1e8, -1, float("nan"), None])
def test_a_heartbeat_that_nobody_could_keep_is_refused(beat: Any) -> None:
    with pytest.raises(BadInput, match="heartbeat_interval"):
        SharedParameters(mlp(), heartbeat_interval=beat)


# a union ---------------------------------------------------------------------------------------


def test_a_union_has_all_changes_in_full(params: SharedParameters) -> None:
    before = values(params.module())
    names = ("0.weight", "2.weight", "4.bias")
    branches = [params.branch(name) for name in names]
    for branch in reversed(branches):
        change(branch.module, branch.name)
    params.merge([branches[2], branches[0], branches[1]], how="union")
    now = values(params.module())
    for name, value in before.items():
        assert torch.equal(now[name], value + 1 if name in names else value)


def test_a_union_of_changes_that_meet_is_refused_with_the_tensor(params: SharedParameters) -> None:
    first, second = params.branch("first"), params.branch("second")
    for branch in (first, second):
        change(branch.module, "2.weight")
    with pytest.raises(MergeRefused, match=r"two of them have changed 2\.weight"):
        params.merge([first, second], how="union")
    with pytest.raises(BadInput, match="average, union"):
        params.merge([first, second], how="sum")
    with pytest.raises(BadInput, match="without weights"):
        params.merge([first], [1], how="union")
    assert params.version.number == 0
    assert params.merge([first], how="union").number == 1
