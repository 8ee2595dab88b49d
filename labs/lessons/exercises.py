"""The exercises, by name: which lab each is in, how long it takes, what checks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
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

    @property
    def function(self) -> Callable[..., Wrong | None]:
        """The check itself."""
        module, _, function = self.home.partition(":")
        found: Callable[..., Wrong | None] = getattr(
            import_module(f".{module}", __package__), function
        )
        return found

    def check(self, *answer: Any) -> Wrong | None:
        """The first thing that is wrong with an answer; None: nothing was found."""
        return self.function(*answer)

    def wanted(self) -> list[str]:
        """The names of what is handed in; "..." for what may be left out."""
        parts = signature(self.function).parameters.values()
        return [part.name if part.default is part.empty else "..." for part in parts]

    @property
    def stub(self) -> str:
        """The cell as it is before anybody has worked on it."""
        return (STUBS / f"{self.name}.py").read_text("utf-8")


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise("order", "00", 10, "easy", "order:order"),
        Exercise("figure", "01", 10, "easy", "figure:figure"),
        Exercise("blocks", "02", 15, "medium", "mending:blocks"),
        Exercise("decide", "03", 15, "medium", "deciding:decide"),
        Exercise("dropped", "03", 10, "medium", "deciding:dropped"),
        Exercise("culprits", "04", 35, "hard", "culprits:culprits"),
        Exercise("labels", "05", 15, "medium", "labelling:labels"),
        Exercise("turn", "06", 15, "medium", "turning:turn"),
        Exercise("afresh", "07", 20, "hard", "afresh:afresh", seconds=90.0),
        Exercise("stages", "08", 15, "medium", "choosing:best_stage"),
        Exercise("merge", "09", 15, "medium", "merging:merge_states"),
        Exercise("budget", "10", 15, "medium", "budgeting:copy_budget", seconds=60.0),
        Exercise("suspect", "11", 20, "medium", "suspecting:suspects"),
        Exercise("protect", "12", 15, "medium", "protecting:protect", seconds=60.0),
        Exercise("unshare", "13", 15, "medium", "unsharing:unshare"),
        Exercise("accept", "14", 20, "medium", "accepting:accepts", seconds=60.0),
        Exercise("afford", "15", 15, "medium", "affording:afford"),
    )
}


def exercise(name: str) -> Exercise:
    """The exercise called `name`; raises `BadInput` if there is none."""
    if not isinstance(name, str) or name not in EXERCISES:
        raise BadInput(f"there is no exercise {name!r}; there are: {', '.join(EXERCISES)}")
    return EXERCISES[name]
