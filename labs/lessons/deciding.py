"""Checks of lab 03: what the checks of a decision answer, and what breaks where one is dropped.

Expectations come from runs: from the decisions in the lab's own log and in a few small ones, and
from what is found in the logs of labs that are damaged on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inms_lab.decisions.policy import MODES, Inms
from inms_lab.hindsight.shadow import Site
from inms_lab.logs.log import Log

from .cases import Known, known_cases, one_of_each, short
from .damage import CONSEQUENCES, damage, damaged_log
from .stories import stories
from .wrong import Wrong, in_a_line, shown, whole

OUTCOMES = ("shared", "computed", "deferred", "refused", "no room")
LOOK = ("bar", "map", "decision")
PAIR = 'an outcome and a number, as in ("computed", 1)'
LOOK_FOR = {  # in the run of a dropped check
    "label": "who wrote what is in it, and who holds it now?",
    "tokens": "which words are in it, and which words does its new holder read?",
    "position": "what stood before it when it was written, and what stands before it now?",
    "pending": "how many of its four slots were written at that event, how many are read?",
}

# decide -----------------------------------------------------------------------------------------


def decide(function: object, log: object) -> Wrong | None:
    """`function(case)` answers as the engine did: for one case of every kind that the log has, then
    for all the others, then for those of other runs."""
    if not callable(function):
        return Wrong("a function decide(case)", shown(function))
    if not isinstance(log, Log):
        return Wrong("the log of the lab: lab.log", shown(log), hint="run the cells from the top")
    known = known_cases(log)
    named = list(one_of_each(known))
    stops = {number for _, number in (one.answer for one in named)}
    if missing := {1, 2, 3, 4, 5, 7} - stops:
        came = f"none that check {min(missing)} stops"
        return Wrong("a log with a case for every check", came, hint="run the cells from the top")
    others = ((one, other) for other in stories() for one in known_cases(other))
    for one, its in [*((one, log) for one in (*named, *known)), *others]:
        if wrong := _compared(function, one, its, "" if its is log else "another run"):
            return wrong
    return None


def _compared(function: Callable[[Any], Any], one: Known, log: Log, run: str) -> Wrong | None:
    case, expected = one.case, f"{one.answer}"
    where = f"case {case.name}" if case.name else run or "a case that is not in the table"
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
        return shown(answer), f"return {PAIR}"
    outcome, number = answer[0], whole(answer[1])
    if not isinstance(outcome, str) or number is None:
        return shown(answer), f"return {PAIR}"
    outcome = str.__str__(outcome)  # its value, also of a text of numpy's or of an enum
    if not 0 <= number <= 7:
        return (
            f"{shown(outcome)} and another number",
            "checks are numbered 1 to 7; 0: none stops it",
        )
    if outcome not in OUTCOMES:
        return shown(outcome), f"the outcomes are: {', '.join(OUTCOMES)}"
    return f"{(outcome, number)}", ""


def _facts(one: Known) -> str:
    """The facts that the check which stopped it looks at, by their names in a case: not what
    follows from them."""
    c, number = one.case, one.answer[1]
    block = f"filled: {c.filled} of {c.size}, sealed: {c.sealed}, being_written: {c.being_written}"
    label = f"label: {{{short(c.label)}}}, clearance: {{{short(c.clearance)}}}"
    held = f"{label}; block_tier: {c.block_tier}, tier: {c.tier}"
    place = f"block_at: {c.block_at}, at: {c.at}, same_before: {c.same_before}"
    room = f"may_write: {c.may_write}; needed: {c.needed}, free: {c.free}"
    facts = {
        0: f"{block}; {held}; {place}",
        1: f"found: {c.found}; {room}",
        2: block,
        3: f"same_model: {c.same_model}; {held}",
        4: held,
        5: place,
        7: f"found: {c.found}; {room}",
    }
    if one.answer[0] == "refused":
        return "; ".join([f"found: {c.found}", *([held] if c.found else []), room])
    return facts[number]


# dropped ----------------------------------------------------------------------------------------


SWITCHES = ("label", "tokens", "position", "pending")  # of a prefix; the gate comes with fragments


def dropped(table: object) -> Wrong | None:
    """For each switched-off check the letter of what its damaged run shows."""
    if not isinstance(table, dict):
        return Wrong("a table {check: letter}", shown(table))
    for switch in SWITCHES:
        where, letters = f"without {switch!r}", ", ".join(CONSEQUENCES)
        if switch not in table:
            return Wrong("a letter", "no entry", where, f"the checks are: {', '.join(SWITCHES)}")
        given = table[switch]
        if given is Ellipsis:
            return Wrong("a letter", "none yet", where, f"one of {letters}")
        letter = given.strip().upper() if isinstance(given, str) else ""
        if letter not in CONSEQUENCES:
            return Wrong(f"one of the letters {letters}", shown(given), where)
        log = damaged_log(switch)
        found = damage(log)
        if letter not in found:
            return _wrong(switch, log, found, letter)
    return _unsound()


def _wrong(switch: str, log: Log, found: dict[str, tuple[int, Site]], letter: str) -> Wrong:
    moment, site = min(found.values())
    came = f"{letter}: {CONSEQUENCES[letter]}; in this run that never happens"
    hint = f"look at {site[0]}:{site[1]}, which is mounted there: {LOOK_FOR[switch]}"
    expected = f"what this run shows at event {moment - 1}"
    where = f"without {switch!r}"
    return Wrong(expected, came, where, hint, log, moment, site, parts=(*LOOK, "detail"))


def _unsound() -> Wrong | None:
    """The same runs with all checks on show nothing of the kind; else it is not the table that is
    wrong, but the engine."""
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    for switch in SWITCHES:
        log = damaged_log(switch, inms)
        for letter, (moment, site) in damage(log).items():
            where = f"the run for {switch!r} with all checks on"
            came = f"{letter}: {CONSEQUENCES[letter]}"
            hint = "your table is right, the engine is broken: inms_lab/books/checks.py was changed"
            parts = (*LOOK, "detail")
            return Wrong("nothing of A to F", came, where, hint, log, moment, site, parts=parts)
    return None
