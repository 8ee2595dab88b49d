"""The exercises, by name: which lab each is in, how long it takes, what checks it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput

from .wrong import Wrong

STUBS = Path(__file__).parent / "stubs"


@dataclass(frozen=True, slots=True)
class Exercise:
    """`home`: module and function of the check; `seconds`: how long it may take."""

    name: str
    lab: str
    minutes: int
    level: str
    home: str
    seconds: float = 20.0

    def check(self, *answer: Any) -> Wrong | None:
        """The first thing that is wrong with an answer; None: nothing was found."""
        module, _, function = self.home.partition(":")
        found: Wrong | None = getattr(import_module(f".{module}", __package__), function)(*answer)
        return found

    @property
    def stub(self) -> str:
        """The cell as it is before anybody has worked on it."""
        return (STUBS / f"{self.name}.py").read_text("utf-8")


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise("order", "00", 5, "easy", "order:order"),
        Exercise("figure", "01", 8, "easy", "figure:figure"),
        Exercise("blocks", "02", 15, "medium", "mending:blocks"),
        Exercise("decide", "03", 12, "medium", "deciding:decide"),
        Exercise("dropped", "03", 8, "medium", "deciding:dropped"),
        Exercise("culprits", "04", 20, "hard", "culprits:culprits"),
    )
}


def exercise(name: str) -> Exercise:
    """The exercise called `name`; raises `BadInput` if there is none."""
    if name not in EXERCISES:
        raise BadInput(f"there is no exercise {name!r}; there are: {', '.join(EXERCISES)}")
    return EXERCISES[name]
