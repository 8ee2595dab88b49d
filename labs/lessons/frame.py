"""`check`, `reset` and `reveal`: what the cells of an exercise call.

A check does not raise, whatever it is handed, and never prints a solution. It runs for a limited
time, says what was expected and what came at the first wrong event, and moves a view there: the one
that it is given if that shows the same log, else one of its own, below its words.
"""

from __future__ import annotations

from typing import Any

from inms_lab.shell import shell
from inms_widgets.dashboard import Dashboard
from inms_widgets.view import View

from .exercises import exercise
from .limit import Stopped, TookTooLong, few_words, limited
from .wrong import Wrong, in_a_line, one_line, shown

_opened: dict[str, View] = {}  # by exercise: the view that its last check opened


def reveal(guess: object, actual: object, what: str) -> None:
    """A prediction beside what came; `what` it is, as in "blocks that the fork takes"."""
    if guess is None or guess is Ellipsis:
        said = " (no guess was written down)"
    else:
        said = ", as you expected" if _equal(guess, actual) else f"; you expected {_plain(guess)}"
    print(f"{what}: {_plain(actual)}{said}")


def examine(name: str, *answer: Any) -> Wrong | None:
    """The first thing that is wrong with an answer; None: nothing was found. Raises `BadInput` for
    an exercise that there is not, and what the stop button raises."""
    found = exercise(name)
    wanted = found.wanted()
    if not answer or any(part is Ellipsis for part in answer):
        return Wrong("an answer", "none yet", hint="replace each ... in the cell of the exercise")
    if not len(wanted) - wanted.count("...") <= len(answer) <= len(wanted):
        call = f'check("{name}", {", ".join(wanted)})'.replace(", ...", "")
        return Wrong(call, f"{len(answer)} answers", hint="run the cell of the check as it was")
    try:
        with few_words():
            return limited(found.seconds, found.check, *answer)
    except Stopped:
        raise
    except TookTooLong as error:
        return Wrong("an answer in time", str(error), hint="is there a loop that never ends?")
    except BaseException as error:
        return Wrong("code that runs", in_a_line(error), hint="call it by hand and look")


def check(name: str, *answer: Any, view: View | Dashboard | None = None) -> None:
    """Check an exercise's answer and show the first thing that is wrong with it.

    `view`: it is moved there if it shows the log in question; else a view is opened below.
    """
    wrong = examine(name, *answer)
    _close(name)
    if wrong is None:
        print(f"{name}: public checks passed")
        return
    lines, given = [f"{name}: not yet", wrong.words()], _view_of(view)
    if wrong.log is None:
        given = None
    elif given is not None and given.shown is wrong.log and not given.closed:
        lines.append(f"  look      the view above stands at event {wrong.moment}")
    else:
        lines.append(f"  look      below: the view stands at event {wrong.moment}")
        given = _opened[name] = View(wrong.log, parts=wrong.parts)
    print("\n".join(lines))
    if given is not None:
        given.point(wrong.index, block=wrong.block, decision=wrong.decision, note=wrong.note())
    if shell() is not None:
        from IPython.display import display

        for shown_below in (wrong.picture, _opened.get(name)):
            if shown_below is not None:
                display(shown_below)


def reset(name: str, view: View | Dashboard | None = None) -> None:
    """Put the cell of an exercise as it was below this one, and the view to what is now."""
    found, given = exercise(name), _view_of(view)
    _close(name)
    if given is not None and not given.closed:
        given.point()
    notebook = shell()
    if notebook is not None:
        notebook.set_next_input(found.stub.rstrip())
        print(
            f"{name}: the new cell below is the exercise as it was. Run it, then its check above;"
        )
        print("and put the # back, or running all cells brings a new one each time")
    else:
        print(found.stub)


def _close(name: str) -> None:
    if name in _opened:
        _opened.pop(name).close()


def _view_of(view: object) -> View | None:
    if isinstance(view, Dashboard):
        return view.view
    return view if isinstance(view, View) else None


def _equal(guess: object, actual: object) -> bool:
    try:
        return bool(guess == actual)
    except Exception:  # of tables and arrays, for one
        return False


def _plain(value: object) -> str:
    return one_line(value) if isinstance(value, str) else shown(value, 200)
