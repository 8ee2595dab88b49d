"""Lab 05's exercise `labels`: what wrong functions let happen is shown at the first wrong mount."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inms_lab.books import checks, label
from inms_lab.books.events import Allocated, Commanded, Shared
from inms_lab.decisions.policy import Inms
from inms_lab.errors import BadInput
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.copies import solutions_in
from inms_lessons.labelling import STORIES, reference
from inms_lessons.results import results
from inms_lessons.teams import NOTE, PLAN, RULE

LAB = Path(__file__).resolve().parents[1] / "labs" / "05_tiers_labels_leaks.ipynb"
Names = frozenset[str]
NUMBERS = range(len(STORIES))


def functions(code: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    exec(code, names := dict[str, Any]())
    return names["join"], names["may_hold"]


def solution() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return functions(solutions_in(json.loads(LAB.read_text("utf-8")))["labels"])


def wrong_of(join: Any = label.join, may_hold: Any = label.may_hold) -> Wrong:
    found = examine("labels", join, may_hold)
    assert found is not None
    return found


def seen_and_known(wrong: Wrong) -> tuple[Names, Names]:
    """The label of the pinned block, and the clearance of who is told of, at the moment shown."""
    assert wrong.log is not None
    assert wrong.block is not None
    books = wrong.log.replay(wrong.moment)
    pool_id, block = wrong.block
    event = wrong.log.events[(wrong.moment or 0) - 1]
    reader = books.sequences[event.seq_id]  # type: ignore[union-attr]
    return frozenset(books.pools[pool_id].labels[block]), reader.clearance


# what it is judged by ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
def test_with_the_engines_own_functions_every_block_carries_its_true_label(number: int) -> None:
    """Those in the log are made by the policy, of all that the context holds."""
    run = reference(number)
    pools = run.engine.ledger.pools
    assert len(run.engine.carried) > 20
    for (pool_id, block), made in run.engine.carried.items():
        assert made.label == frozenset(pools[pool_id].labels[block])
    assert run.log.about["off"] == ["label"]
    assert run.log.replay().snapshot() == run.engine.ledger.snapshot()


@pytest.mark.parametrize("number", NUMBERS)
def test_and_nobody_holds_a_block_beyond_its_clearance(number: int) -> None:
    books = reference(number).engine.ledger
    for seq in books.holders():
        for part in seq.segments:
            for block in part.blocks:
                assert frozenset(books.pools[part.pool_id].labels[block]) <= seq.clearance


@pytest.mark.parametrize("number", NUMBERS)
def test_the_runs_are_not_vacuous(number: int) -> None:
    """In place, at a shift; and there was something to refuse."""
    run = reference(number)
    mounts = [event for event in run.log.events if isinstance(event, Shared)]
    pieces = [e for e in run.log.events if isinstance(e, Commanded) and e.piece >= 0]
    assert len(mounts) > 8
    assert pieces
    answers = list(run.engine.answers.values())
    assert answers.count(False) >= 4
    assert answers.count(True) > 8


def test_an_engine_with_its_label_check_off_leaks_in_the_story() -> None:
    """So it is the two functions that hold it back."""
    wrong = wrong_of(may_hold=lambda seen, known: True)
    seen, known = seen_and_known(wrong)
    assert not seen <= known
    assert Inms().without("label").off == {"label"}


def test_nothing_is_left_behind_in_the_process() -> None:
    wrong_of(lambda before, own: frozenset(), lambda seen, known: True)
    assert checks.may_hold is label.may_hold
    assert not label.may_hold({"agent:ada"}, frozenset({"agent:ben"}))


# answers ----------------------------------------------------------------------------------------


def test_the_solution_passes_and_so_does_the_engines_own_pair() -> None:
    assert examine("labels", *solution()) is None
    assert examine("labels", label.join, label.may_hold) is None
    assert examine("labels", lambda b, o: {*b, *o}, lambda s, k: not s - k) is None


def test_the_stub_gives_ben_what_ada_has_read() -> None:
    wrong = wrong_of(*functions(EXERCISES["labels"].stub))
    assert wrong.where == f"operation 6: ben reads {NOTE!r}"
    assert wrong.came == "ben mounts block 0 of private, which has seen {ada, checkout}"
    assert wrong.expected == "not this block: the reader's clearance is {ben, checkout}"
    seen, known = seen_and_known(wrong)
    assert (seen, known) == ({"agent:ada", "group:checkout"}, {"agent:ben", "group:checkout"})


def some(names: Names, kind: str) -> Names:
    return frozenset(name for name in names if name.startswith(kind))


LEAKS = {  # a mistake: (join, may_hold), the operation where it shows, what the hint says
    "the last text only": (
        (lambda before, own: own, label.may_hold),
        f"operation 17: dana at support reads {PLAN!r}",
        "join({checkout}, {dana}) gave {dana}",
    ),
    "the first text only": (
        (lambda before, own: before, label.may_hold),
        f"operation 6: ben reads {NOTE!r}",
        "join({}, {ada}) gave {}",
    ),
    "what both have in common": (
        (lambda before, own: before & own, label.may_hold),
        f"operation 6: ben reads {NOTE!r}",
        "join({}, {ada}) gave {}",
    ),
    "what only one of them has": (
        (lambda before, own: before ^ own, label.may_hold),
        f"operation 15: dana at checkout reads {PLAN!r}",
        "join({ada, checkout}, {ada}) gave {checkout}",
    ),
    "everybody may": (
        (label.join, lambda seen, known: True),
        f"operation 6: ben reads {NOTE!r}",
        "may_hold({ada, checkout}, {ben, checkout}) gave True",
    ),
    "one name in common is enough": (
        (label.join, lambda seen, known: not seen or bool(seen & known)),
        f"operation 6: ben reads {NOTE!r}",
        "may_hold({ada, checkout}, {ben, checkout}) gave True",
    ),
    "agents alone are looked at": (
        (label.join, lambda seen, known: some(seen, "agent") <= known),
        f"operation 12: cleo reads {RULE!r}",
        "may_hold({checkout}, {cleo, support}) gave True",
    ),
    "groups alone are looked at": (
        (label.join, lambda seen, known: some(seen, "group") <= known),
        f"operation 6: ben reads {NOTE!r}",
        "may_hold({ada, checkout}, {ben, checkout}) gave True",
    ),
}


@pytest.mark.parametrize("mistake", LEAKS)
def test_a_leak_is_shown_where_the_block_is_mounted(mistake: str) -> None:
    pair, where, hint = LEAKS[mistake]
    wrong = wrong_of(*pair)
    assert wrong.where == where
    assert wrong.hint.startswith(hint)
    assert "mounts" in wrong.came
    assert wrong.log is not None
    event = wrong.log.events[(wrong.moment or 0) - 1]
    assert isinstance(event, Shared)
    assert wrong.block in [(event.pool_id, block) for block in event.blocks]
    seen, known = seen_and_known(wrong)
    assert not seen <= known
    assert {"map", "detail"} <= set(wrong.parts)


MISSED = {  # too strict: where it shows, what is not mounted, what the hint says
    "nobody may": (lambda seen, known: False, "operation 0: ada comes", "gave False"),
    "the wrong way round": (
        lambda seen, known: known <= seen,
        "operation 0: ada comes",
        "may_hold({}, {ada, checkout}) gave False",
    ),
    "the same names only": (
        lambda seen, known: known == seen,
        "operation 0: ada comes",
        "may_hold({}, {ada, checkout}) gave False",
    ),
    "a name in common, public or not": (
        lambda seen, known: bool(seen & known),
        "operation 0: ada comes",
        "may_hold({}, {ada, checkout}) gave False",
    ),
    "not all that one knows": (
        lambda seen, known: seen < known,
        f"operation 9: ada fork reads {PLAN!r}",
        "may_hold({ada, checkout}, {ada, checkout}) gave False",
    ),
}


@pytest.mark.parametrize("mistake", MISSED)
def test_what_is_kept_from_somebody_who_may_is_shown_too(mistake: str) -> None:
    may_hold, where, hint = MISSED[mistake]
    wrong = wrong_of(may_hold=may_hold)
    assert wrong.where == where
    assert hint in wrong.hint
    assert wrong.expected.startswith("ada mounts block ")
    assert wrong.log is not None
    assert wrong.block is not None
    books = wrong.log.replay(wrong.moment)
    pool = books.pools[wrong.block[0]]
    assert wrong.block[1] in pool.keys, "it could be found"
    last = wrong.log.events[(wrong.moment or 0) - 1]
    assert isinstance(last, Allocated) == ("once more" in wrong.came)


def test_a_label_with_names_that_nobody_has_keeps_all_from_all() -> None:
    wrong = wrong_of(lambda before, own: before | own | {"agent:nobody"})
    assert wrong.where == "operation 0: ada comes"
    assert "join({}, {}) gave {nobody}" in wrong.hint


JUNK = {
    "may_hold gives nothing": ((label.join, lambda seen, known: None), "True or False", "None"),
    "may_hold gives a set": (
        (label.join, lambda seen, known: seen & known),
        "True or False",
        "fro",
    ),
    "join gives nothing": ((lambda before, own: None, label.may_hold), "a set of names", "None"),
    "join gives a list": ((lambda b, o: [*b, *o], label.may_hold), "a set of names", "[]"),
    "join gives numbers": ((lambda b, o: {1}, label.may_hold), "a set of names", "{1}"),
    "join changes what it is given": (
        (lambda before, own: before.update(own), label.may_hold),
        "an answer",
        "AttributeError",
    ),
    "join takes one": ((lambda before: before, label.may_hold), "an answer", "TypeError"),
}


@pytest.mark.parametrize("what", JUNK)
def test_what_is_no_answer_is_told_with_the_call(what: str) -> None:
    pair, expected, came = JUNK[what]
    wrong = wrong_of(*pair)
    assert wrong.expected == expected
    assert wrong.came.startswith(came)
    assert wrong.where.startswith("operation 0: ")
    assert ("join(" in wrong.where) == what.startswith("join")
    assert wrong.log is not None
    wrong.log.replay(wrong.moment)


@pytest.mark.parametrize("junk", [None, 3, "join", {}, frozenset()])
def test_what_is_no_function_is_told(junk: Any) -> None:
    assert wrong_of(junk).expected == "a function join"
    assert wrong_of(may_hold=junk).expected == "a function may_hold"


def test_one_that_changes_its_mind_and_one_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn = iter(range(10**9))
    assert "mounts" in wrong_of(may_hold=lambda seen, known: next(turn) % 2 == 0).words()

    def forever(before: Names, own: Names) -> Names:
        while own:
            pass
        return before

    quick = replace(EXERCISES["labels"], seconds=0.3)
    monkeypatch.setitem(EXERCISES, "labels", quick)
    assert wrong_of(forever).expected == "an answer in time"


# the measurements that the lab reads ------------------------------------------------------------


def test_results_name_their_command_and_what_is_not_there_is_told() -> None:
    assert results("leak_rank")["command"].startswith("python benchmarks/leak_rank.py")
    with pytest.raises(BadInput, match=r"no results 'nothing'.*leak_rank"):
        results("nothing")
