"""Exercise `accept`: a rule that lets merged weights become the next version, or keeps them out.

The rule is asked about merges that really happen (`merge_stories`); the check names the first one
that it gets wrong, and shows its losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .merge_stories import MOST, Found, Story, is_good, stories
from .wrong import Wrong, in_a_line, shown


def accepts(rule: object) -> Wrong | None:
    """`rule(found, most)` is True for merged weights that everybody may have."""
    if not callable(rule):
        return Wrong("a function accept(found, most)", shown(rule))
    for story in stories():
        if wrong := _judged(rule, story):
            return wrong
    return None


def _judged(rule: Callable[..., Any], story: Story) -> Wrong | None:
    found = story.found
    try:
        answer = rule(found, MOST)
    except Exception as error:
        hint = "found has base, newest, new, before, branches, after; losses are by task: "
        hint += f"found.after[found.new] is {found.after[found.new]:.3g} here"
        return Wrong("True or False", in_a_line(error), story.what, hint)
    if type(answer).__name__ not in ("bool", "bool_"):
        hint = "return True if everybody may have them, else False"
        if answer is None:
            hint = "does every way through your function end in a return?"
        return Wrong("True or False", shown(answer), story.what, hint)
    if bool(answer) == (good := is_good(found)):
        return None
    expected = f"{good}: " + ("everybody may have them" if good else "nobody may have them")
    came = f"{bool(answer)}, where {_figures(found)}"
    return Wrong(expected, came, story.what, story.hint, picture=story.picture())


def _figures(found: Found) -> str:
    losses = ", ".join(
        f"{task} {found.before[task]:.1f} -> {found.after[task]:.1f}" for task in found.before
    )
    return f"losses went {losses}; changed from version {found.base}, newest is {found.newest}"
