"""What every lab uses: predictions, checks that move a view to the first wrong event, resets.

    guess = None                             # a prediction: a plain assignment, nothing waits
    reveal(guess, 8, "blocks")               # beside what came
    check("order", apart, together)          # says what was expected and what came, and shows it
    reset("order")                           # puts the exercise's cell back as it was
Imported as `inms_lessons`. A check is a plain function with a name (`exercises.py`); it answers
None, or with the first thing that is wrong.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "EXERCISES": "exercises",
    "Wrong": "wrong",
    "check": "frame",
    "examine": "frame",
    "reset": "frame",
    "reveal": "frame",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
