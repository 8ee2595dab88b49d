"""The page map of weights: what it sends, what it says, and that nobody waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared_models import change, linux, mlp, read, shared, soon

from inms_lab import Lab
from inms_lab.errors import BadInput
from inms_lab.model.forward import DryModel
from inms_lab.parameters import SharedParameters, kernel
from inms_lab.parameters.layout import Layout, Spot
from inms_lab.parameters.region import PAGE
from inms_widgets import Dashboard, WeightsMap
from inms_widgets.weights import MOST_CELLS, Cells

pytestmark = linux


@pytest.fixture
def params() -> Iterator[SharedParameters]:
    with shared() as made:
        yield made


def holders(view: WeightsMap) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in view.now["holders"]}


def counts(view: WeightsMap, holder: str) -> dict[str, tuple[int, int]]:
    """Pages of each tensor: own, shared."""
    data = np.frombuffer(holders(view)[holder]["counts"], np.uint32).reshape(-1, 2)
    names = (row[0] for row in view.tensors)
    return {name: (int(own), int(both)) for name, (own, both) in zip(names, data, strict=True)}


def test_a_page_lights_up_in_the_one_who_wrote_it_and_in_nobody_else(
    params: SharedParameters,
) -> None:
    ada, ben = params.agent("ada"), params.agent("ben")
    for agent in (ada, ben):
        agent.run(read)
    view = WeightsMap(params, period=0.05)
    name, size = next((row[0], row[3]) for row in view.tensors if row[3] > 1)
    assert counts(view, "ada")[name] == (0, size)
    ada.run(change, name)
    soon(lambda: counts(view, "ada")[name] == (size, 0))
    assert counts(view, "ben")[name] == (0, size)
    assert holders(view)["ada"]["own"] == size * PAGE
    assert holders(view)["ben"]["own"] == 0
    cells = np.frombuffer(holders(view)["ada"]["cells"], np.uint8)
    _, first, number, _ = next(row for row in view.tensors if row[0] == name)
    assert (cells[first : first + number] == 15 << 4).all()
    assert (np.delete(cells, range(first, first + number)) == 15).all()
    view.close()


def test_it_ends_with_the_parameters_and_says_who_has_died(params: SharedParameters) -> None:
    ada = params.agent("ada")
    branch = params.branch("ada")
    view = WeightsMap(params, branch, period=0.05)
    assert list(holders(view)) == ["ada", "ada #2"]
    assert [one["kind"] for one in view.now["holders"]] == ["agent", "branch"]
    os.kill(ada.pid, signal.SIGKILL)
    soon(lambda: holders(view)["ada"]["state"] == "ended")
    params.close()
    soon(lambda: not view.now["open"])
    assert list(holders(view)) == ["ada", "ada #2"], "the last picture stays"
    view.refresh()
    view.close()
    late = WeightsMap(params)
    assert late.now == {"version": 0, "holders": [], "problem": "", "open": False}
    assert "nobody has the weights" in late.fallback()["text/html"]
    late.close()


def test_a_fault_while_looking_is_said_and_reaches_nobody(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = WeightsMap(params, period=0.02)

    def broken() -> dict[str, Any]:
        raise RuntimeError("the eye is shut")

    monkeypatch.setattr(view, "look_now", broken)
    soon(lambda: view.now["problem"] == "RuntimeError: the eye is shut")
    monkeypatch.undo()
    soon(lambda: view.now["problem"] == "")
    view.close()


def test_cells_hold_every_page_once_and_large_weights_have_few() -> None:
    sizes = [1, 3, 64, 1000, 130_000]
    spots, at = {}, 0
    for number, pages in enumerate(sizes):
        spots[f"layers.{number}.weight"] = Spot(
            "float32", (pages * PAGE // 4,), at * PAGE, pages * PAGE
        )
        at += pages
    layout = Layout(spots, {})
    cells = Cells(layout)
    assert [row[3] for row in cells.tensors] == sizes
    assert sum(row[2] for row in cells.tensors) <= MOST_CELLS
    rng = np.random.default_rng(0)
    states = rng.choice([kernel.ABSENT, kernel.SHARED, kernel.PRIVATE, kernel.SWAPPED], at).astype(
        np.uint8
    )
    packed, counted = cells.of(states)
    data = np.frombuffer(counted, np.uint32).reshape(-1, 2)
    first = 0
    for number, pages in enumerate(sizes):
        mine = states[first : first + pages]
        own, shared = int((mine >= kernel.PRIVATE).sum()), int((mine == kernel.SHARED).sum())
        assert tuple(data[number]) == (own, shared)
        step = cells.pages_per_cell
        values = packed[cells.tensors[number][1] :][: cells.tensors[number][2]]
        for cell, value in enumerate(values):
            here = mine[cell * step : (cell + 1) * step]
            assert bool(value >> 4) == bool((here >= kernel.PRIVATE).any())
            assert bool(value & 15) == bool((here == kernel.SHARED).any())
            assert (value == 15 << 4) == bool((here >= kernel.PRIVATE).all())
        first += pages


@pytest.mark.parametrize(
    ("holder", "tensor", "said"),
    [("bob", "", "there is no holder 'bob'"), ("", "nothing", "there is no tensor 'nothing'")],
)
def test_it_points_only_at_what_there_is(
    params: SharedParameters, holder: str, tensor: str, said: str
) -> None:
    params.agent("ada")
    view = WeightsMap(params)
    with pytest.raises(BadInput, match=said):
        view.point(holder, tensor)
    view.point("ada", view.tensors[0][0], "look <here>")
    assert "look &lt;here&gt;" in view.fallback()["text/html"]
    view.close()


def test_what_cannot_be_shown_is_refused(params: SharedParameters) -> None:
    wrong: Any = mlp()
    with pytest.raises(BadInput, match="shared parameters are wanted"):
        WeightsMap(wrong)
    with pytest.raises(BadInput, match="branches of them"):
        WeightsMap(params, wrong)
    with pytest.raises(BadInput, match="more than 0 s"):
        WeightsMap(params, period=0)
    for period in (float("inf"), float("nan"), 1e12, "a", None, -1):
        with pytest.raises(BadInput, match="more than 0 s, at most 3600 s"):
            WeightsMap(params, period=period)  # type: ignore[arg-type]
    with shared() as others:
        branch = others.branch("foreign")
        with pytest.raises(BadInput, match=r"foreign .* is of other parameters"):
            WeightsMap(params, branch)
    with pytest.raises(BadInput, match="speak en and zh"):
        WeightsMap(params, lang="fr")


def test_holders_of_one_name_are_told_apart(params: SharedParameters) -> None:
    params.agent("x #2")
    view = WeightsMap(params, params.branch("x"), params.branch("x"), params.branch("x #2"))
    assert list(holders(view)) == ["x #2", "x", "x #3", "x #2 #2"]
    view.close()


def test_what_fails_half_way_needs_no_closing(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WeightsMap] = []

    def broken(self: WeightsMap) -> dict[str, Any]:
        made.append(self)
        raise RuntimeError("the eye is shut")

    monkeypatch.setattr(WeightsMap, "look_now", broken)
    with pytest.raises(RuntimeError, match="the eye is shut"):
        WeightsMap(params)
    assert made[0].closed
    made[0].close()


def test_a_dashboard_shows_the_weights_too(params: SharedParameters) -> None:
    with Lab(DryModel(100, 256, 1024)) as lab:
        board = Dashboard(lab, weights=params)
        maps = [one for one in board.children if isinstance(one, WeightsMap)]
        assert len(maps) == 1
        board.close()
        assert maps[0].closed
