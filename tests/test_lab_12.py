"""Lab 12: neighbours that disturb and listen, attacks against settings, and exercise `protect`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inms_lab.books.events import Freed
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.copies import solutions_in
from inms_lessons.neighbours import (
    SECRETS,
    UNIT,
    Attack,
    Needs,
    Setup,
    offices,
    turn,
    words,
)
from inms_lessons.protecting import CASES
from inms_lessons.results import results
from inms_lessons.small_labs import BLOCK, word_lab
from inms_widgets.view import View

LAB = Path(__file__).resolve().parents[1] / "labs" / "12_tenants.ipynb"
Protect = Callable[[int, int, int, int], Any]


def run(source: str) -> Protect:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Protect = names["protect"]
    return found


def wrong_of(answer: object) -> Wrong:
    found = examine("protect", answer)
    assert found is not None
    return found


def good(blocks: int, agents: int, keeps: int, burst: int) -> tuple[int, int, int]:
    quiet = agents * keeps + max(burst, keeps)
    return quiet, keeps, blocks - quiet


# scenes -----------------------------------------------------------------------------------------


def test_a_turn_counts_what_was_done_for_its_agent_only() -> None:
    with word_lab(num_blocks=16, token_budget=16) as lab:
        loud, quiet = lab.agent("loud"), lab.agent("quiet")
        loud.read(words("flood", 40), role=None)
        took = turn(lab, quiet, words("mine", 6))
        assert (took.computed, took.blocks, took.steps) == (6, 2, 3)
        assert turn(lab, quiet, "more").computed == 1
    assert len(words("x", 5).split()) == 5


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", ["global", "inms"])
def test_a_probe_tells_which_sentence_was_read_in_one_pool_and_not_between_tenants(
    mode: str, seed: int
) -> None:
    lab, attacker, secret = offices(mode, seed)
    with lab:
        costs = []
        for text in SECRETS:
            costs.append(turn(lab, attacker, text).computed)
            attacker.rollback(len(text.split())).result()
    others = [cost for number, cost in enumerate(costs) if number not in (0, secret)]
    if mode == "global":
        assert costs[secret] < min(others)
        assert costs.count(costs[secret]) == 1
    else:
        assert costs == [9, 5, 5, 5]
    assert len({text.split()[0] for text in SECRETS}) == 1
    assert {len(text.split()) for text in SECRETS} == {9}


def test_another_seed_draws_another_secret() -> None:
    for mode in ("global", "inms"):
        drawn = []
        for seed in range(16):
            lab, _, secret = offices(mode, seed)
            lab.close()
            drawn.append(secret)
        assert set(drawn) == set(range(len(SECRETS)))
    lab, _, again = offices(mode, 15)
    lab.close()
    assert again == secret


def test_the_figures_shown_are_of_an_attack_that_can_tell() -> None:
    rows = {row["mode"]: row for row in results("tenants")["modes"]}
    assert results("tenants")["probes"] == 200
    assert rows["inms"]["low"] <= 0.5 <= rows["inms"]["high"]
    assert rows["inms"]["equal_work"]
    assert rows["global"]["low"] > 0.9
    assert not rows["global"]["equal_work"]


# attacks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", CASES)
def test_the_best_settings_hold_and_a_block_less_does_not(needs: Needs) -> None:
    best = needs.best()
    fate = Attack(needs, best).run()
    assert (fate.denied, fate.harmed) == ("", "")
    assert 0 < fate.refused < fate.asked
    for quiet in range(max(needs.keeps, best.quiet - 4), best.quiet):
        less = Attack(needs, Setup(quiet, best.floor, needs.blocks - quiet)).run()
        assert less.denied or less.harmed, quiet
    for floor in range(best.floor):
        lower = Attack(needs, Setup(best.quiet, floor, best.loud)).run()
        assert lower.harmed, floor
    more = Attack(needs, Setup(best.quiet + 2, best.floor, best.loud - 2)).run()
    assert more.refused > fate.refused, "what the loud one gets counts"


def test_an_attack_is_the_same_each_time_and_differs_by_its_seed() -> None:
    needs = CASES[0]
    first, again = (Attack(needs, needs.best()).run() for _ in range(2))
    assert first.log.events == again.log.events
    assert Attack(needs, needs.best(), seed=1).run().log.events != first.log.events


def test_the_loud_tenant_takes_no_part_in_what_the_quiet_one_does() -> None:
    """The quiet tenant's plans are the same whatever the loud one may have."""
    needs, best = CASES[0], CASES[0].best()
    runs = [Attack(needs, Setup(best.quiet, best.floor, loud)) for loud in (best.loud, 1)]
    freed = []
    for attack in runs:
        events = attack.run().log.events
        freed.append([
            (e.blocks, e.length, e.cause)
            for e in events
            if isinstance(e, Freed) and e.pool_id == "quiet/private"
        ])  # fmt: skip
    assert freed[0] == freed[1]
    assert freed[0]


# the exercise -----------------------------------------------------------------------------------


def test_the_solution_passes_and_the_stub_does_not() -> None:
    solution = solutions_in(json.loads(LAB.read_text("utf-8")))["protect"]
    assert examine("protect", run(solution)) is None
    assert examine("protect", good) is None
    wrong = wrong_of(run(EXERCISES["protect"].stub))
    assert "words again" in wrong.came
    assert "quotas do not help" in wrong.hint


WRONG: dict[str, tuple[Protect, str, str]] = {  # the answer, what is said of it, and of why
    "no floor": (
        lambda b, a, k, u: (good(b, a, k, u)[0], 0, good(b, a, k, u)[2]),
        "words again",
        "a larger batch job of its own tenant",
    ),
    "a floor that is too low": (
        lambda b, a, k, u: (good(b, a, k, u)[0], k - 1, good(b, a, k, u)[2]),
        "words again",
        "it keeps 3 blocks, and comes back to 4",
    ),
    "a floor in words": (
        lambda b, a, k, u: (good(b, a, k, u)[0], k * BLOCK, good(b, a, k, u)[2]),
        "cannot have a floor of 16 blocks",
        "all three numbers are blocks",
    ),
    "a floor that nobody needs": (
        lambda b, a, k, u: (good(b, a, k, u)[0], k + 1, good(b, a, k, u)[2]),
        "cannot have a floor of 5 blocks",
        "room for nobody",
    ),
    "no room for a job": (
        lambda b, a, k, u: (a * k + k, k, b - a * k - k),
        "its batch job of 6 blocks",
        "has to be there beside it",
    ),
    "a job without a floor": (
        lambda b, a, k, u: (a * k + u, k, b - a * k - u),
        "its batch job of 3 blocks",
        "has the floor like all others",
    ),
    "half for each": (
        lambda b, a, k, u: (b // 2, k, b // 2),
        "is refused 17 of 30 texts",
        "15 are enough",
    ),
    "all for the quiet one": (lambda b, a, k, u: (b - 1, k, 1), "is refused 30 of 30", "enough"),
    "blocks that nobody has": (
        lambda b, a, k, u: (good(b, a, k, u)[0], k, good(b, a, k, u)[2] // 2),
        "is refused",
        "11 blocks are nobody's",
    ),
    "twice the machine": (lambda b, a, k, u: (b, k, b), "80 blocks in all", "never lend"),
    "nothing for the loud one": (lambda b, a, k, u: (b, k, 0), "40, 4, 0", "at least one block"),
    "halves of blocks": (lambda b, a, k, u: (b / 2, k, b / 2), "(20.0, 4, 20.0)", "without a rest"),
    "two numbers": (lambda b, a, k, u: (k, b), "(4, 40)", "return quiet, floor, loud"),
    "nothing": (lambda b, a, k, u: None, "None", "return quiet, floor, loud"),
    "an error": (lambda b, a, k, u: (b // 0, 0, 0), "ZeroDivisionError", "by hand"),
}
PLAYED = set(list(WRONG)[:9])


@pytest.mark.parametrize("what", WRONG)
def test_wrong_settings_are_told_apart_and_shown(what: str) -> None:
    answer, came, hint = WRONG[what]
    wrong = wrong_of(answer)
    assert came in wrong.came
    assert hint in wrong.hint
    assert wrong.where.startswith("protect(")
    assert (wrong.log is not None) == (what in PLAYED)
    if wrong.log is not None:
        view = View(wrong.log, parts=wrong.parts)
        view.point(wrong.index, block=wrong.block, note=wrong.note())
        view.close()


def test_what_was_taken_is_pinned_at_the_moment_when_it_was_let_go() -> None:
    wrong = wrong_of(WRONG["no floor"][0])
    assert wrong.log is not None
    assert wrong.index is not None
    event = wrong.log.events[wrong.index - 1]
    assert isinstance(event, Freed)
    assert event.cause == "preempted"
    assert wrong.block is not None
    assert wrong.block[0] == event.pool_id == "quiet/private"
    assert wrong.block[1] in event.blocks


@pytest.mark.parametrize("answer", [None, 3, "protect"])
def test_what_is_no_function_is_said_to_be_none(answer: object) -> None:
    assert "a function protect" in wrong_of(answer).expected


def test_a_block_of_the_lesson_is_a_block_of_its_labs() -> None:
    with word_lab(num_blocks=3) as lab:
        tenant = lab.tenant("one", private_bytes=3 * UNIT)
        assert lab.engine.ledger.pools["one/private"].spec.num_blocks == 3
        assert tenant.config.private_bytes == 3 * UNIT
