"""What a check answers: the first thing that is wrong, and where it can be seen."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from inms_lab.log import Log

HERE = Path(__file__).parent
PARTS = ("bar", "map", "detail")


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first thing that is wrong with an answer.

    `where` it is, what was `expected` there and what `came`; `hint`: where to look on. `log` shows
    it when `index` of its events have happened (None: all), with `block` (pool, number) pinned, or
    at the decision with this number; `parts`: of a view that is opened for it.
    """

    expected: str
    came: str
    where: str = ""
    hint: str = ""
    log: Log | None = None
    index: int | None = None
    block: tuple[str, int] | None = None
    decision: int | None = None
    parts: tuple[str, ...] = PARTS

    @property
    def moment(self) -> int | None:
        """The log index at which it can be seen."""
        if self.log is None:
            return None
        if self.index is not None:
            return self.index
        return len(self.log) if self.decision is None else self.log.decisions[self.decision].stop

    def words(self) -> str:
        """In lines, as a notebook prints it."""
        rows = [("at", self.where), ("expected", self.expected), ("came", self.came)]
        lines = [f"  {name:<9} {text}" for name, text in rows if text]
        return "\n".join([*lines, *([f"  hint      {self.hint}"] if self.hint else [])])

    def note(self) -> str:
        """In one line, as a view says it."""
        where = f"{self.where}: " if self.where else ""
        return f"{where}expected {self.expected}; came {self.came}"


def in_a_line(error: Exception) -> str:
    """An error in a line, with the line of the student's own code that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(HERE)]
    line = f", in `{own[-1].line}`" if own and own[-1].line else ""
    return f"{type(error).__name__}: {error}{line}"
