"""Lab 03: wrong answers to its exercises are told apart, and shown where they go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_ledger import Player

from inms_lab.books.events import Allocated, Shared
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.hindsight.whatif import parts_of
from inms_lab.logs.log import Log
from inms_lessons import examine
from inms_lessons.cases import Case, Known, known_cases, one_of_each, table_of
from inms_lessons.copies import solutions_in
from inms_lessons.damage import CONSEQUENCES, damage, damaged_log
from inms_lessons.deciding import LOOK_FOR, SWITCHES
from inms_lessons.exercises import EXERCISES
from inms_lessons.wrong import Wrong

LAB = Path(__file__).resolve().parents[1] / "labs" / "03_the_decision.ipynb"
NOTEBOOK = json.loads(LAB.read_text("utf-8"))
Answer = tuple[str, int]
Decide = Callable[[Case], Answer]


@pytest.fixture(scope="module")
def log() -> Log:
    """The log of the lab's own cells, up to the first exercise."""
    names = dict[str, Any]()
    for cell in NOTEBOOK["cells"]:
        source = "".join(cell["source"])
        if source.startswith("# Exercise"):
            break
        if cell["cell_type"] == "code":
            exec(source, names)
    found: Log = names["lab"].log.copy()
    names["lab"].assert_clean()
    return found


@pytest.fixture(scope="module")
def known(log: Log) -> dict[str, Known]:
    return {one.case.name: one for one in one_of_each(known_cases(log))}


def run(name: str, source: str) -> Any:
    """What the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    return names[{"decide": "decide", "dropped": "breaks"}[name]]


def solution(name: str) -> Any:
    return run(name, solutions_in(NOTEBOOK)[name])


def wrong_of(name: str, *answer: Any) -> Wrong:
    found = examine(name, *answer)
    assert found is not None
    return found


# decide -----------------------------------------------------------------------------------------


def test_the_cases_are_twelve_real_decisions_and_every_check_stops_one(
    log: Log, known: dict[str, Known]
) -> None:
    assert list(known) == list("ABCDEFGHIJKL")
    assert {one.answer[1] for one in known.values()} == {0, 1, 2, 3, 4, 5, 7}
    outcomes = {one.answer[0] for one in known.values()}
    assert outcomes == {"shared", "computed", "deferred", "refused", "no room"}
    for one in known.values():
        made = log.decisions[one.case.decision]
        (part,) = parts_of(log.replay(made.at), made)  # no other case is shown with it
        assert one.answer[0] == part.outcome
        assert "needed, " not in made.reason or f" {one.case.free} available" in made.reason
    table = table_of(one.case for one in known.values())
    assert (table.loc["label", "C"], table.loc["label", "A"]) == ("ada, checkout", "–")


def test_some_cases_fail_two_checks_at_once(known: dict[str, Known]) -> None:
    cleo, hal, dora = (known[name].case for name in "HKL")
    assert [known[name].answer[1] for name in "HKL"] == [4, 4, 7]
    assert not cleo.label <= cleo.clearance
    assert not cleo.same_before
    assert not hal.found
    assert not hal.may_write
    assert not dora.found
    assert dora.needed > dora.free


def swapped(old: str, new: str) -> Decide:
    """The solution with another line."""
    text = solutions_in(NOTEBOOK)["decide"]
    assert old in text
    found: Decide = run("decide", text.replace(old, new))
    return found


MISTAKES = {  # the solution's words: a student's, the first case that differs, what is said
    " and not case.sealed": ("", "B", "sealed: True"),
    "case.being_written": ("False", "D", "being_written: True"),
    "not case.same_before": ("case.at != case.block_at", "G", "same_before: False"),
    " or case.block_tier != case.tier": ("", "I", "block_tier: group, tier: private"),
    "not case.same_model": ("False", "J", "same_model: False"),
    "if not case.may_write": ("if False", "K", "may_write: False"),
    "case.needed > case.free": ("False", "L", "needed: 10, free: 5"),
    "case.label <= case.clearance": ("case.clearance <= case.label", "B", "checkout"),
}


@pytest.mark.parametrize("old", MISTAKES)
def test_a_wrong_rule_is_shown_at_the_first_case_that_it_gets_wrong(
    log: Log, known: dict[str, Known], old: str
) -> None:
    new, case, said = MISTAKES[old]
    answer = swapped(old, new)
    wrong, one = wrong_of("decide", answer, log), known[case]
    assert wrong.where.startswith(f"case {case}, decision {one.case.decision + 1}: ")
    assert one.case.wants in wrong.where
    assert said in wrong.hint
    assert (wrong.expected, wrong.came) == (str(one.answer), str(answer(one.case)))
    assert wrong.log is log
    assert wrong.decision == one.case.decision
    assert wrong.moment == log.decisions[wrong.decision].stop
    assert "decision" in wrong.parts


def test_the_order_of_the_checks_matters(log: Log) -> None:
    def place_first(case: Case) -> Answer:
        answer: Answer = solution("decide")(case)
        placed = case.found and not case.being_written and not case.same_before
        return ("computed", 5) if answer[0] == "computed" and placed else answer

    wrong = wrong_of("decide", place_first, log)
    assert wrong.where.startswith("case H")
    assert (wrong.expected, wrong.came) == ("('computed', 4)", "('computed', 5)")
    assert isinstance(log.events[(wrong.moment or 0) - 1], Allocated)


def test_learnt_by_heart_fails_on_the_others(log: Log, known: dict[str, Known]) -> None:
    heart = {name: one.answer for name, one in known.items()}
    wrong = wrong_of("decide", lambda case: heart.get(case.name, ("shared", 0)), log)
    assert wrong.where.startswith("a case that is not in the table, decision ")
    assert wrong.decision is not None


@pytest.mark.parametrize("junk", [None, "x", {}, 3, float("nan"), ("computed", 1)])
def test_junk_for_a_function(log: Log, junk: object) -> None:
    assert "a function decide(case)" in wrong_of("decide", junk, log).expected
    assert "lab.log" in wrong_of("decide", run("decide", EXERCISES["decide"].stub), junk).expected
    assert (
        "every check" in wrong_of("decide", run("decide", EXERCISES["decide"].stub), Log()).expected
    )
    wrong = wrong_of("decide", lambda case: junk, log)
    assert wrong.where.startswith("case A" if junk != ("computed", 1) else "case B")


FORMS = ["computed", ("computed",), ("computed", "1"), (1, "computed"), ("computed", float("nan"))]
JUNK = dict.fromkeys(map(repr, FORMS), "return an outcome and a number")
JUNK |= {"('compute', 1)": "the outcomes are: shared, computed", "('computed', 8)": "1 to 7"}


@pytest.mark.parametrize("junk", JUNK)
def test_junk_from_a_function(log: Log, junk: str) -> None:
    value = eval(junk, {"nan": float("nan")})
    assert JUNK[junk] in wrong_of("decide", lambda case: value, log).hint


def test_an_error_in_the_function_is_told_with_its_case(log: Log) -> None:
    wrong = wrong_of("decide", lambda case: case.colour, log)
    assert "AttributeError" in wrong.came
    assert wrong.where.startswith("case A")
    assert wrong.moment is not None


def test_decide_passes_with_its_solution_and_not_with_its_stub(log: Log) -> None:
    assert examine("decide", solution("decide"), log) is None
    assert wrong_of("decide", run("decide", EXERCISES["decide"].stub), log).where.startswith(
        "case C"
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_solution_is_the_engines_rule_in_any_run(seed: int) -> None:
    player, decide = Player("inms", seed), solution("decide")
    assert len(list(player.play(250))) == 250
    known = known_cases(player.toy.log)
    assert len(known) > 60
    assert all(decide(one.case) == one.answer for one in known)


# dropped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_damaged_run_shows_one_consequence_and_the_same_run_with_its_check_none(
    switch: str,
) -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    log = damaged_log(switch)
    assert list(damage(log)) == [solution("dropped")[switch]]
    assert damage(damaged_log(switch, inms)) == {}
    log.replay()  # it can still be looked at, the forced collision too


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("letter", CONSEQUENCES)
def test_a_wrong_cell_is_shown_where_the_damage_is_done(switch: str, letter: str) -> None:
    right = solution("dropped")
    if letter == right[switch]:
        return
    wrong = wrong_of("dropped", right | {switch: letter})
    assert wrong.where == f"without '{switch}'"
    assert CONSEQUENCES[letter] in wrong.came
    assert CONSEQUENCES[right[switch]] not in wrong.words()
    assert wrong.log is not None
    assert wrong.index is not None
    assert wrong.log.about["off"] == [switch]
    event = wrong.log.events[wrong.index - 1]
    assert isinstance(event, Shared)
    assert wrong.block in [(event.pool_id, block) for block in event.blocks]
    assert {"map", "detail", "decision"} <= set(wrong.parts)
    assert LOOK_FOR[switch] in wrong.hint


@pytest.mark.parametrize("junk", [None, "x", 3, ["C", "F", "D", "A"], 10**9, float("nan")])
def test_junk_for_a_table_and_in_it(junk: object) -> None:
    assert "a table" in wrong_of("dropped", junk).expected
    wrong = wrong_of("dropped", {"label": junk})
    assert wrong.where == "without 'label'"
    assert "A, B, C, D, E, F" in wrong.expected


def test_a_table_that_is_not_complete() -> None:
    assert wrong_of("dropped", {}).came == "no entry"
    assert wrong_of("dropped", {"label": "c"}).where == "without 'tokens'"


def test_dropped_passes_with_its_solution_and_not_with_its_stub() -> None:
    assert examine("dropped", solution("dropped")) is None
    breaks = run("dropped", EXERCISES["dropped"].stub)
    assert wrong_of("dropped", breaks).came == "none yet"
