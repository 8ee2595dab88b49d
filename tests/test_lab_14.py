"""Lab 14: branches of a small network, merges that are measured, and exercise `accept`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shared_models import is_gone, linux, soon

from inms_lab.parameters import SharedParameters
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.branching import (
    along,
    assert_clean,
    bits,
    holding,
    learn,
    loss_of,
    network,
    pictures,
    right,
)
from inms_lessons.copies import solutions_in
from inms_lessons.merge_stories import MOST, Found, is_good, stories
from inms_lessons.results import results

pytestmark = linux
LAB = Path(__file__).resolve().parents[1] / "labs" / "14_branches.ipynb"
Accept = Callable[[Found, float], Any]


def run(source: str) -> Accept:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Accept = names["accept"]
    return found


def wrong_of(answer: object) -> Wrong:
    found = examine("accept", answer)
    assert found is not None
    return found


# the network and its tasks ----------------------------------------------------------------------


def test_pictures_are_drawn_always_alike_and_can_be_looked_at() -> None:
    some = pictures("letters", 40, seed=3, only=(0, 9))
    assert set(some.signs.tolist()) == {10, 19}
    assert set(some.pixels.flatten().tolist()) == {0.0, 1.0}
    again = pictures("letters", 40, seed=3, only=(0, 9))
    assert torch.equal(some.pixels, again.pixels)
    assert not torch.equal(some.pixels, pictures("letters", 40, seed=4, only=(0, 9)).pixels)
    assert len(some + again) == 80
    lines = str(pictures("digits", 9, seed=0, only=[1], flipped=0.0)).splitlines()
    assert lines[0] == "   ".join(["··█··"] * 8)
    assert len(lines) == 7


def test_a_tenth_of_the_pixels_is_flipped() -> None:
    clean, drawn = (pictures("digits", 500, 1, flipped=share) for share in (0.0, 0.1))
    assert torch.equal(clean.signs, drawn.signs)
    assert (clean.pixels != drawn.pixels).float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_the_network_learns_a_task_and_forgets_it_for_another() -> None:
    digits, letters = (pictures(kind, 200, seed=2) for kind in ("digits", "letters"))
    module = network()
    assert loss_of(module, digits) == pytest.approx(math.log(20), abs=0.1)
    learn(module, pictures("digits", 600, seed=1))
    assert right(module, digits) > 0.9
    learn(module, pictures("letters", 600, seed=1))
    assert right(module, letters) > 0.85
    assert right(module, digits) < 0.3


def test_only_the_layer_that_is_named_is_trained() -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    learn(module, pictures("digits", 64, seed=1), steps=3, only="say")
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"say.weight", "say.bias"}
    assert bits(before) != bits(after)
    assert bits(before) == bits(network())


@pytest.fixture
def params() -> Iterator[SharedParameters]:
    with SharedParameters(network(width=64), preload=()) as made:
        yield made


def test_the_line_between_two_branches_is_looked_at_and_nobody_gets_it(
    params: SharedParameters,
) -> None:
    digits = pictures("digits", 100, seed=2)
    idle, task = params.branch("idle"), params.branch("task")
    learn(task.module, digits)
    version, before = params.version, bits(params.tensors())
    line = along(params, [idle, task.delta()], digits, count=4)
    assert [share for share, _ in line] == [0, 0.25, 0.5, 0.75, 1]
    assert line[0][1] == pytest.approx(loss_of(idle.module, digits), abs=1e-5)
    assert line[-1][1] == pytest.approx(loss_of(task.module, digits), abs=1e-5)
    half = network(width=64)
    pairs = zip(idle.module.parameters(), task.module.parameters(), strict=True)
    with torch.no_grad():
        for mine, (a, b) in zip(half.parameters(), pairs, strict=True):
            mine.copy_((a + b) / 2)
    assert line[2][1] == pytest.approx(loss_of(half, digits), abs=1e-4)
    assert params.version is version
    assert bits(params.tensors()) == before


def test_what_is_left_is_found(params: SharedParameters) -> None:
    agent = params.agent("ada")
    waits = agent.start(soon_nothing)
    with pytest.raises(AssertionError, match="still hold"):
        assert_clean(params, patience=0.2)
    assert agent.pid in holding()
    agent.kill()
    assert soon(lambda: is_gone(agent.pid))
    assert_clean(params)
    assert waits.exception() is not None


def soon_nothing(model: torch.nn.Module) -> None:
    """Wait for long."""
    import time

    time.sleep(60)


# what is shown ----------------------------------------------------------------------------------


def test_the_figures_shown_beside_the_claim_say_what_was_trained() -> None:
    rows = {row["part"]: row for row in results("federated")["rows"]}
    assert rows.keys() == {"layer", "rows", "everything", "scattered"}
    for row in rows.values():
        assert row["saved_low"] <= row["saved"] <= row["saved_high"]
        assert row["shared_bytes"] < row["full_bytes"]
        assert row["losses_differ_by"] < 1e-5


# the stories ------------------------------------------------------------------------------------


def test_some_merges_are_good_and_each_bad_one_is_bad_in_its_own_way() -> None:
    good = [story for story in stories() if is_good(story.found)]
    assert len(good) == 2
    assert len({story.hint for story in stories()}) == len(stories()) == 10
    for story in stories():
        assert story.picture().spans


def test_no_story_is_decided_by_a_hair() -> None:
    """So that it goes the same way on every machine."""
    for story in stories():
        found = story.found
        for task, before in found.before.items():
            limit = before if task == found.new else before + MOST
            after = found.after[task]
            idle = after == before  # nothing was done
            assert math.isnan(after) or idle or abs(after - limit) > 0.1, (story.what, task)


def test_the_figures_of_the_first_answer_are_the_same_everywhere() -> None:
    """They are committed with the lab, rounded, so none of them may be near to an edge."""
    found = next(story.found for story in stories() if "weights of its own" in story.what)
    for losses in (found.before, *found.branches, found.after):
        for loss in losses.values():
            assert abs(10 * loss % 1 - 0.5) > 0.05, losses


def test_branches_differ_from_their_average() -> None:
    """Good ones with a bad average, and some that are not good with a good one."""
    told = {story.what: story.found for story in stories()}
    (anew,) = [found for what, found in told.items() if "weights of its own" in what]
    assert all(is_good(one(anew, alone)) for alone in anew.branches)
    assert not is_good(anew)
    (few,) = [found for what, found in told.items() if "four branches" in what]
    assert not all(is_good(one(few, alone)) for alone in few.branches)
    assert is_good(few)


def one(found: Found, alone: Any) -> Found:
    """As if a branch were what is merged."""
    return Found(found.base, found.newest, found.new, found.before, (alone,), alone)


# the exercise -----------------------------------------------------------------------------------


def old(found: Found) -> list[str]:
    return [task for task in found.before if task != found.new]


def gains(found: Found) -> bool:
    return found.after[found.new] < found.before[found.new]


def keeps(found: Found, most: float) -> bool:
    return all(found.after[task] <= found.before[task] + most for task in old(found))


def fresh(found: Found) -> bool:
    return found.base == found.newest


def mean(losses: Any, tasks: list[str]) -> float:
    return sum(losses[task] for task in tasks) / len(tasks)


def test_the_solution_passes_and_the_stub_does_not() -> None:
    solution = solutions_in(json.loads(LAB.read_text("utf-8")))["accept"]
    assert examine("accept", run(solution)) is None
    assert examine("accept", is_good) is None
    assert examine("accept", lambda f, most: np.bool_(is_good(f, most))) is None
    wrong = wrong_of(run(EXERCISES["accept"].stub))
    assert "weights of its own" in wrong.where
    assert "the merged weights" in wrong.hint


WRONG: dict[str, tuple[Accept, str, str]] = {  # the answer, where it fails, and what is said of why
    "everything": (lambda f, most: True, "weights of its own", "the merged weights"),
    "nothing": (lambda f, most: False, "has rehearsed", "not nothing"),
    "branches alone": (
        lambda f, most: fresh(f) and all(is_good(one(f, alone), most) for alone in f.branches),
        "weights of its own",
        "Which of your numbers are theirs",
    ),
    "no loss may rise": (
        lambda f, most: gains(f) and keeps(f, 0.0) and fresh(f),
        "has rehearsed",
        "not nothing",
    ),
    "a factor": (
        lambda f, most: (
            gains(f) and fresh(f) and all(f.after[t] <= f.before[t] * (1 + most) for t in old(f))
        ),
        "has rehearsed",
        "no factor",
    ),
    "the new task only": (
        lambda f, most: gains(f) and fresh(f) and f.after[f.new] < 0.5,
        "letters only",
        "not the only one",
    ),
    "old tasks only": (
        lambda f, most: keeps(f, most) and fresh(f),
        "nothing was done",
        "no better",
    ),
    "old ones, and not the same": (
        lambda f, most: keeps(f, most) and fresh(f) and f.after != f.before,
        "by mistake",
        "What was the branch for",
    ),
    "branches have to be good too": (
        lambda f, most: (
            is_good(f, most) and all(is_good(one(f, alone), most) for alone in f.branches)
        ),
        "four branches",
        "no branch has to be good",
    ),
    "the mean of old tasks": (
        lambda f, most: (
            gains(f) and fresh(f) and mean(f.after, old(f)) <= mean(f.before, old(f)) + most
        ),
        "few high ones",
        "look at each of them",
    ),
    "nan passes": (
        lambda f, most: (
            fresh(f)
            and not f.after[f.new] >= f.before[f.new]
            and not any(f.after[t] > f.before[t] + most for t in old(f))
        ),
        "much too fast",
        "nan is False",
    ),
    "nan passes where nobody has measured": (
        lambda f, most: (
            fresh(f) and gains(f) and not any(f.after[t] > f.before[t] + most for t in old(f))
        ),
        "lost the pictures",
        "nobody has measured",
    ),
    "equal is enough": (
        lambda f, most: f.after[f.new] <= f.before[f.new] and keeps(f, most) and fresh(f),
        "nothing was done",
        "why should all readers move",
    ),
    "stale": (lambda f, most: gains(f) and keeps(f, most), "newest version", "by now"),
    "no return": (lambda f, most: None, "has rehearsed", "end in a return"),
    "a number": (lambda f, most: f.after[f.new], "has rehearsed", "return True if"),
    "an error": (lambda f, most: f.after["words"], "has rehearsed", "losses are by task"),
    "one argument": (lambda f: True, "has rehearsed", "found has base"),  # type: ignore[misc]
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_rules_are_told_apart(what: str) -> None:
    answer, where, hint = WRONG[what]
    wrong = wrong_of(answer)
    assert where in wrong.where
    assert hint in wrong.hint
    assert (wrong.picture is not None) == wrong.came.startswith(("True, where", "False, where"))
    if wrong.picture is not None:
        assert "letters is new" in wrong.picture.title
        assert "NaN" not in json.dumps(wrong.picture._repr_mimebundle_())


def test_a_rule_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(found: Found, most: float) -> bool:
        while True:
            pass

    stories()  # they take their time once
    monkeypatch.setitem(EXERCISES, "accept", replace(EXERCISES["accept"], seconds=0.3))
    assert "stopped after 0.3 seconds" in wrong_of(endless).came


@pytest.mark.parametrize("answer", [None, 3, "accept"])
def test_what_is_no_function_is_said_to_be_none(answer: object) -> None:
    assert "a function accept" in wrong_of(answer).expected
