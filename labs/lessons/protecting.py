"""Exercise `protect`: quotas and a floor that hold against a seeded attack, and refuse no more.

Each answer is played: a loud tenant floods the machine while the quiet one works, in a lab without
weights with these settings. The quiet tenant's agents may compute nothing again and be refused
nothing that it was promised; and the loud one is not to be refused more than it must be.
"""

from __future__ import annotations

from collections.abc import Callable

from inms_lab.errors import BadInput

from .neighbours import Attack, Fate, Needs, Setup
from .small_labs import BLOCK
from .wrong import Wrong, in_a_line, shown, whole

LOOK = ("bar", "map", "detail")
CASES = (
    Needs(40, 3, 4, 6),
    Needs(60, 4, 3, 12),  # a long batch job
    Needs(32, 2, 5, 3),  # a short one: it is promised a floor like everybody
    Needs(24, 1, 6, 6),
)
FORM = "three whole numbers of blocks: quiet, floor, loud"


def protect(function: object) -> Wrong | None:
    """`function(blocks, agents, keeps, burst)` gives (quiet, floor, loud), in blocks."""
    if not callable(function):
        return Wrong("a function protect(blocks, agents, keeps, burst)", shown(function))
    for needs in CASES:
        setup = _answer(function, needs)
        wrong = setup if isinstance(setup, Wrong) else _played(needs, setup)
        if wrong is not None:
            return wrong
    return None


def _answer(function: Callable[..., object], needs: Needs) -> Setup | Wrong:
    try:
        answer = function(needs.blocks, needs.agents, needs.keeps, needs.burst)
    except Exception as error:
        return Wrong(FORM, in_a_line(error), needs.where, "call it by hand and look")
    try:
        numbers = [whole(part) for part in answer]  # type: ignore[attr-defined]
    except TypeError:
        numbers = []
    if len(numbers) != 3 or None in numbers:
        hint = "return quiet, floor, loud"
        if any(isinstance(part, float) for part in (answer if numbers else ())):  # type: ignore[attr-defined]
            hint = "blocks are whole: // divides without a rest"
        return Wrong(FORM, shown(answer), needs.where, hint)
    setup = Setup(*(int(number) for number in numbers if number is not None))
    said = f"{setup.quiet}, {setup.floor}, {setup.loud}"
    if min(setup.quiet, setup.loud) < 1 or setup.floor < 0:
        hint = "a tenant has at least one block, and a floor is not below 0"
        return Wrong("numbers that a tenant can have", said, needs.where, hint)
    if setup.quiet + setup.loud > needs.blocks:
        came = f"{said}: {setup.quiet + setup.loud} blocks in all"
        hint = "pools are reserved and never lend, so both quotas have to be there at once"
        return Wrong(f"no more than the machine's {needs.blocks} blocks", came, needs.where, hint)
    return setup


def _played(needs: Needs, setup: Setup) -> Wrong | None:
    said = f"with {setup.quiet}, {setup.floor}, {setup.loud}"
    try:
        fate = Attack(needs, setup).run()
    except BadInput as error:
        return Wrong("settings that a tenant can have", in_a_line(error), needs.where)
    if fate.denied:
        return _denied(needs, setup, fate, said)
    if fate.harmed:
        return _harmed(needs, setup, fate, said)
    best = Attack(needs, needs.best()).run()
    if fate.refused > best.refused:
        came = f"{said} the loud one is refused {fate.refused} of {fate.asked} texts"
        hint = f"{best.refused} are enough: what can the quiet tenant do without?"
        if setup.quiet + setup.loud < needs.blocks:
            hint = f"{needs.blocks - setup.quiet - setup.loud} blocks are nobody's"
        what = f"no more than {best.refused} refusals"
        return Wrong(what, came, needs.where, hint, fate.log, parts=LOOK)
    return None


def _denied(needs: Needs, setup: Setup, fate: Fate, said: str) -> Wrong:
    """The quiet tenant was refused something."""
    everybody = (needs.agents + 1) * setup.floor
    if setup.floor >= needs.keeps * BLOCK:
        hint = f"a floor of {setup.floor}? A block has {BLOCK} words: all three numbers are blocks"
    elif everybody > setup.quiet and setup.floor > needs.keeps:
        hint = "no agent comes back to that much: a floor that nobody needs is room for nobody"
    elif everybody > setup.quiet:
        hint = "a batch job is an agent, and has the floor like all others of its tenant"
    else:
        hint = "while a batch job reads, what the agents keep has to be there beside it"
    what = "a quiet tenant that gets what it was promised"
    return Wrong(what, f"{said}, {fate.denied}", needs.where, hint, fate.log, fate.at, parts=LOOK)


def _harmed(needs: Needs, setup: Setup, fate: Fate, said: str) -> Wrong:
    """An agent of the quiet tenant had to compute something again."""
    came = f"{said} {fate.harmed} computed {fate.again} words again"
    hint = "a larger batch job of its own tenant took its blocks: quotas do not help against that"
    if 0 < setup.floor < needs.keeps:
        hint = f"it keeps {setup.floor} blocks, and comes back to {needs.keeps}"
    what = "agents that find all of their context"
    where = (needs.where, hint, fate.log, fate.at, fate.block)
    return Wrong(what, came, *where, parts=LOOK)
