"""Lab 03's `decide`: whatever differs from the engine's rule in any run is found by its check."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from enum import Enum
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lab_03 import log as log  # a fixture
from test_ledger import Player

from inms_lab.logs.log import Log
from inms_lessons import examine
from inms_lessons.cases import Case, Known, known_cases
from inms_lessons.copies import solutions_in
from inms_lessons.stories import STORIES, stories

LAB = Path(__file__).resolve().parents[1] / "labs" / "03_the_decision.ipynb"
SOLUTION = solutions_in(json.loads(LAB.read_text("utf-8")))["decide"]
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
FACTS = ("found", "sealed", "being_written", "same_model", "label", "may_write", "same_before")
Decide = Callable[[Case], tuple[str, int]]


def mutants() -> dict[str, Decide]:
    """The solution with one comparison, condition, fact or number changed, or in another order."""
    tree = ast.parse(SOLUTION)
    sources = {ast.unparse(changed) for changed in (*_changed(tree), *_reordered(tree))}
    return {source: _defined(source) for source in sorted(sources - {ast.unparse(tree)})}


def _defined(source: str) -> Decide:
    names: dict[str, Any] = {}
    exec(source, names)
    decide: Decide = names["decide"]
    return decide


def _changed(tree: ast.Module) -> Iterator[ast.Module]:
    for number, node in enumerate(ast.walk(tree)):
        for instead in _instead(node):
            copy = deepcopy(tree)
            there = list(ast.walk(copy))[number]
            vars(there).update(instead)
            yield copy


def _instead(node: ast.AST) -> Iterator[dict[str, Any]]:
    """What the fields of a node could be instead."""
    if isinstance(node, ast.Compare):
        yield from ({"ops": [op()]} for op in COMPARISONS)
    elif isinstance(node, ast.UnaryOp):
        yield {"op": ast.UAdd()}  # without its `not`
    elif isinstance(node, ast.BoolOp):
        yield from ({"op": op()} for op in (ast.And, ast.Or))
        yield from ({"values": [value, value]} for value in node.values)
    elif isinstance(node, ast.If):
        yield from ({"test": ast.Constant(value)} for value in (True, False))
        yield {"test": ast.UnaryOp(ast.Not(), node.test)}
    elif isinstance(node, ast.Attribute) and node.attr in FACTS:
        yield from ({"attr": fact} for fact in FACTS)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield from ({"value": value} for value in range(8))


def _reordered(tree: ast.Module) -> Iterator[ast.Module]:
    """The branches of its first `if` in any order, and the statements in any order that ends."""
    branches, (function,) = [], tree.body
    assert isinstance(function, ast.FunctionDef)
    chain, *rest = function.body
    while isinstance(chain, ast.If):
        branches.append((chain.test, chain.body))
        chain, *_ = chain.orelse
    for order in permutations(branches):
        tail: list[ast.stmt] = [chain]
        for test, body in reversed(order):
            tail = [ast.If(test, body, tail)]
        yield _with(function, [*tail, *rest])
    first, (refused, no_room, last) = function.body[0], rest
    for body in permutations((first, refused, no_room)):
        yield _with(function, [*body, last])


def _with(function: ast.FunctionDef, body: list[ast.stmt]) -> ast.Module:
    copy = deepcopy(function)
    copy.body = deepcopy(body)
    return ast.fix_missing_locations(ast.Module([copy], []))


@pytest.fixture(scope="module")
def asked(log: Log) -> list[Known]:
    """All cases that the check asks about."""
    return [one for each in (log, *stories()) for one in known_cases(each)]


@pytest.fixture(scope="module")
def met() -> list[Known]:
    """The cases of random runs of the engine."""
    out = []
    for seed in range(6):
        player = Player("inms", seed)
        for _ in player.play(300):
            pass
        out += known_cases(player.toy.log)
    return out


def _differs(decide: Decide, known: list[Known]) -> bool:
    return any(_answer(decide, one.case) != one.answer for one in known)


def _answer(decide: Decide, case: Case) -> object:
    try:
        return decide(case)
    except Exception as error:
        return error


def test_a_mutant_that_differs_in_any_random_run_does_in_what_the_check_asks(
    asked: list[Known], met: list[Known]
) -> None:
    solution, found = _defined(SOLUTION), mutants()
    assert not _differs(solution, [*asked, *met])
    wrong = [source for source, decide in found.items() if _differs(decide, met)]
    assert (len(found), len(wrong)) > (800, 800)
    missed = [source for source in wrong if not _differs(found[source], asked)]
    assert not missed, missed[0]
    assert sum(not _differs(decide, asked) for decide in found.values()) <= 2  # they are the rule


ROOM = "    if case.needed > case.free:\n        return ('no room', 7)\n"
ROOM_FIRST = SOLUTION.replace("    if not case.may_write:", ROOM + "    if not case.may_write:")
SUBTLE = {  # where the lab's own log cannot tell them from the rule
    "as many as are free are too many": ("case.needed > case.free", "case.needed >= case.free"),
    "room before the right to write": (SOLUTION, ROOM_FIRST),
    "no label means no block": ("not case.found", "not case.label"),
    "a tier is not less": ("case.block_tier != case.tier", "case.block_tier < case.tier"),
}


@pytest.mark.parametrize("what", SUBTLE)
def test_a_subtle_mistake_is_shown_in_another_run(log: Log, what: str) -> None:
    old, new = SUBTLE[what]
    assert old != new
    assert old in SOLUTION
    decide = _defined(SOLUTION.replace(old, new))
    assert not _differs(decide, known_cases(log))
    wrong = examine("decide", decide, log)
    assert wrong is not None
    assert wrong.where.startswith("another run, decision ")
    assert wrong.log in stories()
    assert wrong.decision is not None
    made = wrong.log.decisions[wrong.decision - wrong.log.first_decision]
    assert wrong.moment == made.stop
    one = next(
        k
        for k in known_cases(wrong.log)
        if k.case.decision == wrong.decision and _answer(decide, k.case) != k.answer
    )
    assert (wrong.expected, wrong.came) == (str(one.answer), str(_answer(decide, one.case)))
    assert one.case.wants in wrong.where


class Outcome(str, Enum):  # noqa: UP042
    """What a careful student may write."""

    SHARED, COMPUTED = "shared", "computed"
    DEFERRED, REFUSED, NO_ROOM = "deferred", "refused", "no room"


@pytest.mark.parametrize(
    ("word", "number"), [(np.str_, int), (Outcome, np.int8), (str, np.uint64), (str, np.array)]
)
def test_answers_count_by_their_value(log: Log, word: Any, number: Any) -> None:
    solution = _defined(SOLUTION)

    def decide(case: Case) -> Any:
        outcome, stop = solution(case)
        return word(outcome), number(stop)

    assert examine("decide", decide, log) is None
    wrong = examine("decide", lambda case: (word("computed"), number(1)), log)
    assert wrong is not None
    assert wrong.came == "('computed', 1)"


def test_the_numbers_of_decisions_count_from_the_logs_birth(log: Log) -> None:
    cut = log.copy()
    cut.forget(log.decisions[2].at)
    assert cut.first_decision == 2
    whole = {(one.case.decision, one.answer) for one in known_cases(log)}
    kept = {(one.case.decision, one.answer) for one in known_cases(cut)}
    assert kept == {(number, answer) for number, answer in whole if number >= 2}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_has_a_case_that_the_lab_has_not(log: Log, story: Any) -> None:
    kinds = {(one.case.kind, one.answer) for one in known_cases(log)}
    its = known_cases(stories()[STORIES.index(story)])
    assert any((one.case.kind, one.answer) not in kinds for one in its)
    assert len(its) < 15
