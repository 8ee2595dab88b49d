"""Lab 10: pictures of regions, storms as they are played, budgets that are wrong in known ways."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inms_lab.bench.fragmentation import Fate, measure, play
from inms_lab.books.events import Copied
from inms_lab.errors import BadInput
from inms_lab.studies.churn import POLICIES, Churn
from inms_lessons import budgeting, examine
from inms_lessons.budgeting import CASES, Case
from inms_lessons.charts import Bars
from inms_lessons.copies import solutions_in
from inms_lessons.exercises import EXERCISES
from inms_lessons.regions import KINDS, STUCK, Regions, deaths
from inms_lessons.results import results
from inms_lessons.storms import copied, first_step, storm
from inms_lessons.storms import play as storm_of
from inms_lessons.wrong import Wrong

LAB = Path(__file__).resolve().parents[1] / "labs" / "10_fragmentation_and_storms.ipynb"
NOTEBOOK = json.loads(LAB.read_text("utf-8"))
Budget = Callable[[int, int, int, int], Any]


def run(source: str) -> Budget:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Budget = names["budget"]
    return found


SOLUTION = run(solutions_in(NOTEBOOK)["budget"])
STUB = run(EXERCISES["budget"].stub)


def wrong_of(answer: object) -> Wrong:
    found = examine("budget", answer)
    assert found is not None
    return found


# storms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("writers", "budget"), [(1, 1), (5, 2), (12, 12), (12, 5), (12, 100)])
def test_a_storm_copies_a_block_for_each_writer_and_no_more_than_its_budget_a_step(
    writers: int, budget: int
) -> None:
    with storm(writers, budget) as lab:
        counts = copied(lab.log)
        assert counts == [budget] * (writers // budget) + [writers % budget] * (
            writers % budget > 0
        )
        told = lab.copies
        assert (told.peak, told.longest_wait) == (max(counts), len(counts) - 1)
        assert len({agent.text for agent in lab.forks}) == min(writers, 26)
        assert all(agent.text.startswith("m" * 6) for agent in lab.forks)
        before = lab.log.events[: first_step(lab.log)]
        assert sum(isinstance(event, Copied) for event in before) == counts[0]
        lab.check()


@pytest.mark.parametrize("writers", [0, -1, 201])
def test_storms_of_no_size_are_refused(writers: int) -> None:
    with pytest.raises(BadInput, match="1 to 200 writers"):
        storm(writers, 1)


# the exercise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.where)
def test_the_budgets_that_are_called_right_are_right_when_they_are_played(case: Case) -> None:
    small = replace(case, writers=min(case.writers, 20))
    for budget in range(1, small.writers + 3):
        told, _ = storm_of(small.writers, small.block_bytes, budget)
        kept = (
            told.peak * small.block_bytes <= small.most_bytes
            and told.longest_wait <= small.most_wait
        )
        assert kept == (budget in small.allowed), budget


def test_the_solution_passes_and_so_does_any_budget_that_keeps_both_bounds() -> None:
    assert examine("budget", SOLUTION) is None

    def largest(writers: int, block_bytes: int, most_bytes: int, most_wait: int) -> int | None:
        most = most_bytes // block_bytes
        return most if most >= -(-writers // (most_wait + 1)) else None

    assert examine("budget", largest) is None
    assert any(SOLUTION(*args(case)) != largest(*args(case)) for case in CASES)
    assert [SOLUTION(*args(case)) is None for case in CASES] == [not c.allowed for c in CASES]


def args(case: Case) -> tuple[int, int, int, int]:
    return case.writers, case.block_bytes, case.most_bytes, case.most_wait


WRONG: dict[str, tuple[Any, str, str]] = {  # answer -> what came, the hint
    "the stub": (STUB, "9: peak 36864 bytes", "too large: a step may copy 32768 / 4096 blocks"),
    "too large": (
        lambda w, b, m, x: w,
        "64: peak 262144 bytes",
        "the last writer waits 0 steps, 7 are allowed",
    ),
    "too small": (
        lambda w, b, m, x: 1,
        "longest wait 63 steps",
        "copies in step 8, so the steps up to that one must serve all 64 writers",
    ),
    "a wait too many": (
        lambda w, b, m, x: -(-w // (x + 2)),
        "9: peak 73728 bytes, longest wait 5",
        "too small: who waits 4 steps copies in step 5",
    ),
    "bytes": (lambda w, b, m, x: m, "65536: peak", "the budget counts blocks, not bytes"),
    "letters": (
        lambda w, b, m, x: SOLUTION(w, b, m, x) and SOLUTION(w, b, m, x) * (b // 1024),
        "32: peak",
        "a block has 4 letters: the budget counts blocks, not letters",
    ),
    "rounded down": (
        lambda w, b, m, x: max(1, w // (x + 1)),
        "5: peak 81920 bytes, longest wait 7",
        "too small: who waits 6 steps copies in step 7",
    ),
    "rounded up": (
        lambda w, b, m, x: -(-m // b) if w // (x + 1) <= m // b else None,
        "13: peak 106496",
        "rounded down",
    ),
    "never none": (lambda w, b, m, x: -(-w // (x + 1)), "16: peak", "then None is the answer"),
    "always none": (
        lambda w, b, m, x: None,
        "with 8 the peak is 32768",
        "a bound that is just met",
    ),
    "no wait at all": (
        lambda w, b, m, x: SOLUTION(w, b, m, x) if w / x else 0,
        "ZeroDivisionError",
        "of 0 is a bound too",
    ),
    "half a block": (lambda w, b, m, x: w / (x + 1), "8.0", "blocks are whole"),
    "nothing": (lambda w, b, m, x: 0, "0", "at least one block a step"),
    "words": (lambda w, b, m, x: "eight", "'eight'", ""),
    "an error": (lambda w, b, m, x: [][w], "IndexError", "call it by hand"),
    "no function": (8, "8", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_budgets_are_told_what_is_wrong_with_them(name: str) -> None:
    answer, came, hint = WRONG[name]
    found = wrong_of(answer)
    assert came in found.came
    assert hint in found.hint
    if "peak" in found.came and isinstance(found.picture, Bars):
        assert found.log is not None
        assert found.index == first_step(found.log)
        assert found.picture.limit is not None
        assert max(found.picture.rows.values()) == float(found.came.split("peak ")[1].split()[0])


def test_a_bound_on_waiting_is_what_the_hint_says_it_is() -> None:
    """The hint must not be wrong where it is given: checked for each wrong number of each case."""
    for case in CASES:
        for count in range(1, 30, 3):
            wrong = budgeting._tried(lambda *_, count=count: count, case)
            assert (wrong is None) == (count in case.allowed)
            if wrong is not None and wrong.hint.startswith("too large"):
                assert count > case.allowed[-1]
            if wrong is not None and wrong.hint.startswith("too small"):
                assert count < case.allowed[0]


# pictures ---------------------------------------------------------------------------------------


def test_a_picture_of_regions_shows_every_block_once() -> None:
    churn = Churn(operations=400)
    fates = {policy: play(churn, 1, policy) for policy in POLICIES}
    picture = Regions(fates, churn)
    for fate in fates.values():
        parts = list(picture.parts(fate))
        assert len(parts) == churn.regions
        for part in parts:
            assert sum(part.values()) in (0, churn.region)
            assert part.keys() <= KINDS.keys()
        stuck = sum(part.get(STUCK, 0) for part in parts)
        assert stuck == fate.stuck
        nobodys = sum(not part for part in parts) * churn.region
        assert stuck + nobodys == fate.free
    bundle = picture._repr_mimebundle_()
    assert bundle["text/html"].startswith("<svg")
    assert bundle["text/plain"] == "; ".join(picture.title(name) for name in fates)
    drawn = bundle["application/vnd.plotly.v1+json"]
    assert len(drawn["data"]) == len(KINDS) * len(fates)


def test_who_dies_first_is_counted_for_each_churn_by_itself() -> None:
    ends = {"one": (5, 9, 7, None), "own": (None,) * 4, "classes": (9, 5, 7, None)}
    died, first = deaths(
        {name: [Fate(name, "queue", at) for at in ats] for name, ats in ends.items()}
    )
    assert died == {"one": 3, "own": 0, "classes": 3}
    assert first == {"one": 1, "classes": 1, "one and classes": 1, "none": 1}


def test_no_single_churn_answers_who_dies_first() -> None:
    """What the lab says: both die in each of its churns, and sometimes one is first, sometimes the
    other; reserved pools die in none. The larger sample says so too."""
    died, first = deaths({p: [play(Churn(), s, p) for s in range(12)] for p in POLICIES})
    assert died == {"one": 12, "own": 0, "classes": 12}
    for found in (first, results("fragmentation")["dies_first"]):
        assert found.keys() == {"one", "classes", "one and classes"}
        assert 2 * max(found.values()) < sum(found.values())  # none is first in most of them


def test_the_view_of_compaction_shows_a_block_that_was_found_again() -> None:
    names = asyncio.run(compacted())
    lab, look = names["lab"], names["view"].view.look
    with lab:
        before, now = (lab.log.replay(look["index"] - back) for back in (1, 0))
        assert look["block"] in now.pools[look["pool"]].keys, "no fingerprint at this moment"
        assert look["block"] not in before.pools[look["pool"]].keys


async def compacted() -> dict[str, Any]:
    """What the lab's cells on compaction define."""
    names = dict[str, Any]()
    for part in ("ben.close()", "lab.compact()"):
        (cell,) = (c for c in NOTEBOOK["cells"] if part in "".join(c["source"]))
        code = compile("".join(cell["source"]), part, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if (begun := eval(code, names)) is not None:
            await begun
    return names


def test_bars_say_whole_numbers_whole() -> None:
    bars = Bars({"step 1": 36864.0, "step 2": 0.0231}, "bytes", "bytes")
    assert str(bars) == "bytes (bytes): step 1: 36864; step 2: 0.023"
    assert ">36864<" in bars.svg()


def test_the_starter_code_does_not_give_the_third_hint_away() -> None:
    assert "-(-" not in EXERCISES["budget"].stub


def test_what_the_lab_says_of_twenty_churns_is_what_was_measured() -> None:
    side, apart = results("fragmentation"), results("fragmentation_apart")
    for full in (side, apart):
        rows = {row["policy"]: row for row in full["policies"]}
        assert rows["own"]["died"] == "0 of 20"
        assert 0 < rows["own"]["more_than_peak_percent"] < 10
        assert rows["own"]["refused_percent"] > rows["one"]["refused_percent"]
        once = measure(replace(Churn(), operations=200, together=full["together"]), 0, 1, "queue")
        assert once.keys() <= full.keys()
        assert once["memory_bytes"] == full["memory_bytes"]
    died = {row["policy"]: int(row["died"].split()[0]) for row in apart["policies"]}
    assert 0 < died["one"] < 10
    assert 0 < died["classes"] < 10
    assert all(row["died"] == "20 of 20" for row in side["policies"] if row["policy"] != "own")
