"""Checks of lab 03: what the checks of a decision answer, and what breaks where one is dropped.

Expectations come from runs: from the decisions in the lab's own log, and from what is found in the
logs of labs that are damaged on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from inms_lab.log import Log
from inms_lab.policy import SWITCHES
from inms_lab.shadow import Site, words

from .cases import Known, known_cases, one_of_each
from .damage import CONSEQUENCES, damage, damaged_log
from .wrong import Wrong, in_a_line

OUTCOMES = ("shared", "computed", "deferred", "refused", "no room")
LOOK = ("bar", "map", "decision")
PAIR = 'an outcome and a number, as in ("computed", 1)'

# decide -----------------------------------------------------------------------------------------


def decide(function: object, log: object) -> Wrong | None:
    """`function(case)` answers as the engine did: for one case of every kind that the log has, then
    for all the others."""
    if not callable(function):
        return Wrong("a function decide(case)", f"{function!r:.60}")
    if not isinstance(log, Log):
        return Wrong(
            "the log of the lab: lab.log", f"{log!r:.60}", hint="run the cells from the top"
        )
    known = known_cases(log)
    named = list(one_of_each(known))
    stops = {number for _, number in (one.answer for one in named)}
    if missing := {1, 2, 3, 4, 5, 7} - stops:
        came = f"none that check {min(missing)} stops"
        return Wrong("a log with a case for every check", came, hint="run the cells from the top")
    for one in [*named, *known]:
        if wrong := _compared(function, one, log):
            return wrong
    return None


def _compared(function: Callable[[Any], Any], one: Known, log: Log) -> Wrong | None:
    case, expected = one.case, f"{one.answer}"
    where = f"case {case.name}" if case.name else "a case that is not in the table"
    where += f", decision {case.decision + 1}: {case.reader} wants {case.wants!r}"
    try:
        answer = function(case)
    except Exception as error:
        came, hint = in_a_line(error), "call decide by hand with this case"
    else:
        came, hint = _read(answer)
        if came == expected:
            return None
    hint = hint or _facts(one)
    return Wrong(expected, came, where, hint, log, None, one.site, case.decision, LOOK)


def _read(answer: object) -> tuple[str, str]:
    """An answer in words, and what is the matter with its form."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        return f"{answer!r:.60}", f"return {PAIR}"
    outcome, number = answer
    if isinstance(number, bool) or not (isinstance(outcome, str) and isinstance(number, Integral)):
        return f"{answer!r:.60}", f"return {PAIR}"
    if not 0 <= int(number) <= 7:
        return f"{outcome!r:.60} and another number", "checks are numbered 1 to 7; 0: none stops it"
    if outcome not in OUTCOMES:
        return f"{outcome!r:.60}", f"the outcomes are: {', '.join(OUTCOMES)}"
    return f"{(outcome, int(number))}", ""


def _facts(one: Known) -> str:
    """The facts that the check which stopped it looks at: not what follows from them."""
    c, number = one.case, one.answer[1]
    label = (
        f"its label is {words(tuple(c.label))}, {c.reader}'s clearance {words(tuple(c.clearance))}"
    )
    tiers = f"its tier is {c.block_tier}, the text's {c.tier}"
    room = f"{c.needed} blocks are needed, {c.free} can be had"
    block = f"{c.filled} of {c.size} slots are filled, sealed: {c.sealed}, being written: "
    facts = {
        0: f"{block}{c.being_written}; {label}; {tiers}; same text before it: {c.same_before}",
        1: f"a block with these tokens was found: {c.found}; {room}",
        2: f"{block}{c.being_written}",
        3: f"same model: {c.same_model}; {label}; {tiers}",
        4: f"{label}; {tiers}",
        5: f"it begins at position {c.block_at}, wanted at {c.at}; same_before: {c.same_before}",
        7: f"found: {c.found}; {room}",
    }
    if one.answer[0] == "refused":
        return f"found: {c.found}; may write text of tier {c.tier}: {c.may_write}; {room}"
    return facts[number]


# dropped ----------------------------------------------------------------------------------------


def dropped(table: object) -> Wrong | None:
    """For each switched-off check the letter of what its damaged run shows."""
    if not isinstance(table, dict):
        return Wrong("a table {check: letter}", f"{table!r:.60}")
    for switch in SWITCHES:
        where, letters = f"without {switch!r}", ", ".join(CONSEQUENCES)
        if switch not in table:
            return Wrong("a letter", "no entry", where, f"the checks are: {', '.join(SWITCHES)}")
        given = table[switch]
        if given is Ellipsis:
            return Wrong("a letter", "none yet", where, f"one of {letters}")
        letter = given.strip().upper() if isinstance(given, str) else ""
        if letter not in CONSEQUENCES:
            return Wrong(f"one of the letters {letters}", f"{given!r:.60}", where)
        log = damaged_log(switch)
        shown = damage(log)
        if letter not in shown:
            return _wrong(log, shown, letter, where)
    return None


def _wrong(log: Log, shown: dict[str, tuple[int, Site]], letter: str, where: str) -> Wrong:
    index, site = min(shown.values())
    came = f"{letter}: {CONSEQUENCES[letter]}; in this run that never happens"
    hint = (
        f"look at {site[0]}:{site[1]}, which is mounted there: whose is it, what is in it, "
        "what stood before it, was it written?"
    )
    expected = f"what this run shows at event {index - 1}"
    return Wrong(expected, came, where, hint, log, index, site, parts=(*LOOK, "detail"))
