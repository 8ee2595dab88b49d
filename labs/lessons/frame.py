"""`check`, `reset` and `reveal`: what the cells of an exercise call.

A check never raises and never prints a solution. It runs for a limited time, says what was expected
and what came at the first wrong event, and moves a view there: the one that it is given if that
shows the same log, else one of its own, below its words.
"""

from __future__ import annotations

import sys
from typing import Any

from inms_widgets.dashboard import Dashboard
from inms_widgets.view import View

from .exercises import exercise
from .limit import TookTooLong, limited
from .wrong import Wrong, in_a_line

_opened: dict[str, View] = {}  # by exercise: the view that its last check opened


def reveal(guess: object, actual: object, what: str) -> None:
    """A prediction beside what came; `what` it is, as in "blocks that the fork takes"."""
    if guess is None or guess is Ellipsis:
        said = " (no guess was written down)"
    else:
        said = ", as you expected" if guess == actual else f"; you expected {guess}"
    print(f"{what}: {actual}{said}")


def examine(name: str, *answer: Any) -> Wrong | None:
    """The first thing that is wrong with an answer; None: nothing was found. Raises `BadInput` for
    an exercise that there is not, and nothing else."""
    found = exercise(name)
    if not answer or any(part is Ellipsis for part in answer):
        return Wrong("an answer", "none yet", hint="replace each ... in the cell of the exercise")
    try:
        return limited(found.seconds, found.check, *answer)
    except TookTooLong as error:
        return Wrong("an answer in time", str(error), hint="is there a loop that never ends?")
    except Exception as error:
        return Wrong("code that runs", in_a_line(error), hint="run that line by hand")


def check(name: str, *answer: Any, view: View | Dashboard | None = None) -> None:
    """Check an exercise's answer and show the first thing that is wrong with it.

    `view`: it is moved there if it shows the log in question; else a view is opened below.
    """
    wrong = examine(name, *answer)
    _close(name)
    if wrong is None:
        print(f"{name}: public checks passed")
        return
    lines = [f"{name}: not yet", wrong.words()]
    shown = view.view if isinstance(view, Dashboard) else view
    if wrong.log is None:
        shown = None
    elif shown is not None and shown.shown is wrong.log and not shown.closed:
        lines.append(f"  look      the view above stands at event {wrong.moment}")
    else:
        lines.append(f"  look      below: the view stands at event {wrong.moment}")
        shown = _opened[name] = View(wrong.log, parts=wrong.parts)
    print("\n".join(lines))
    if shown is not None:
        where = {"block": wrong.block, "decision": wrong.decision, "note": wrong.note()}
        shown.point(wrong.index, **where)
    if name in _opened and _in_notebook():
        from IPython.display import display

        display(shown)


def reset(name: str, view: View | Dashboard | None = None) -> None:
    """Put the cell of an exercise as it was below this one, and the view to what is now."""
    found = exercise(name)
    _close(name)
    if view is not None and not view.closed:
        view.point()
    if _in_notebook():
        from IPython import get_ipython

        get_ipython().set_next_input(found.stub.rstrip())
        print(f"{name}: the cell below is the exercise as it was")
    else:
        print(found.stub)


def _close(name: str) -> None:
    if name in _opened:
        _opened.pop(name).close()


def _in_notebook() -> bool:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None
