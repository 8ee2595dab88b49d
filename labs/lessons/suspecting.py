"""Exercise `suspect`: a rule that finds the forgotten forks and accuses nobody else.

The rule is asked about every held block of several runs, every few steps. A block is falsely
accused if somebody uses it later or is there for others; a leak that is not accused in time is
missed. The check names the first such block, and why that was to be known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .leaking import AWAY, SEEDS, Held, Moment, Run, run, state
from .wrong import Wrong, in_a_line, shown

IN_TIME = 60  # steps after which a leak must be found


def suspects(rule: object) -> Wrong | None:
    """`rule(held)` is True for the blocks of forgotten holders, in time, and for no others."""
    if not callable(rule):
        return Wrong("a function suspect(held)", shown(rule))
    for seed in SEEDS:
        if wrong := _judged(rule, run(seed)):
            return wrong
    return None


def _judged(rule: Callable[..., Any], found: Run) -> Wrong | None:
    for moment in found.moments:
        for held in moment.blocks:
            answer = _answer(rule, found, moment, held)
            if isinstance(answer, Wrong):
                return answer
            leaks = found.leaks(moment, held)
            if answer and not leaks:
                return _accused(found, moment, held)
            if leaks and not answer and moment.step - found.forgotten >= IN_TIME:
                return _missed(rule, found, moment, held)
    return None


def _answer(rule: Callable[..., Any], found: Run, moment: Moment, held: Held) -> bool | Wrong:
    try:
        answer = rule(_nameless(held))
    except Exception as error:
        hint = "held has pool, block, tier, refcount, unmoved, holders; each holder has kind, "
        hint += "has_work, idle"
        return _wrong(found, moment, held, "True or False", in_a_line(error), hint)
    try:
        truth = bool(answer)
    except Exception:
        truth = None
    if truth is None or answer is None or type(answer).__name__ not in ("bool", "bool_"):
        hint = "return True for a block that nobody will come back for, and False for others"
        return _wrong(found, moment, held, "True or False", shown(answer), hint)
    return truth


def _nameless(held: Held) -> Held:
    """As a rule is shown it: names are no evidence."""
    return replace(held, holders=tuple(replace(holder, name="") for holder in held.holders))


def _accused(found: Run, moment: Moment, held: Held) -> Wrong:
    """A block that is no leak."""
    kinds = {holder.kind for holder in held.holders}
    working = next((h for h in held.holders if h.has_work), None)
    back = min((h for h in held.holders if h.name not in found.leaked), key=_idle, default=None)
    if "prompt" in kinds:
        why = "it is of the sealed prompt: whoever comes next begins with it"
        hint = "no refcount of it moves for a long time, and that is as it should be: look at kind"
    elif "record" in kinds:
        why = "it is of a record that holds: a member may attach it at any time"
        hint = "a record has no work to do: it is there to be read. Look at the kind of its holders"
    elif working is not None:
        why = f"{working.name} is at work, and reads all of its context in every step"
        hint = "a refcount moves when a holder comes or goes, not when a block is read"
        if any(holder.name in found.leaked for holder in held.holders):
            hint = "one holder that needs a block is enough: what must be true of all of them?"
    elif back is not None:
        why = f"{back.name} is {state(back)} steps and comes back: it waits for a tool"
        hint = f"in these runs tools take up to {AWAY[1]} steps. How long is `idle`?"
        if back.idle < held.unmoved and held.unmoved > AWAY[1]:
            hint = "how long the block's count has not moved is not how long its holder rests"
    else:
        why = "its holders were at work until now"
        hint = "who has just finished is not forgotten yet: wait some steps"
    return _wrong(found, moment, held, "False", f"True, but {why}", hint)


def _idle(holder: Any) -> int:
    return int(holder.idle)


def _missed(rule: Callable[..., Any], found: Run, moment: Moment, held: Held) -> Wrong:
    """A leak that was not found in time."""
    who = " and ".join(f"{h.name}, {state(h)}," for h in held.holders)
    hint = f"nobody comes back after {IN_TIME} steps. Which of its facts makes your rule say no?"
    last = [b for b in found.moments[-1].blocks if (b.pool, b.block) == (held.pool, held.block)]
    if last and rule(_nameless(last[0])):
        hint = (
            f"later your rule finds it: it is too patient. A leak is to be found in {IN_TIME} steps"
        )
    elif held.refcount > 1 and any(
        rule(_nameless(other))
        for other in moment.blocks
        if other.refcount == 1 and found.leaks(moment, other)
    ):
        hint = f"its refcount is {held.refcount}: several holders can all be forgotten"
    came = f"False, {moment.step - found.forgotten} steps after {who} did anything"
    return _wrong(found, moment, held, "True: a leak", came, hint)


def _wrong(found: Run, moment: Moment, held: Held, expected: str, came: str, hint: str) -> Wrong:
    where = f"step {moment.step} of run {found.seed}, block {held.block} of {held.pool}"
    block = (held.pool, held.block)
    return Wrong(expected, came, where, hint, found.log, moment.index, block)
