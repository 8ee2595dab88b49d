"""What a check answers: the first thing that is wrong, and where it can be seen; and how what a
student hands in is put into words: on one line, not too long, whatever it does to hinder that."""

from __future__ import annotations

import operator
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import inms_lab
import inms_widgets
from inms_lab.logs.log import Log

PARTS = ("bar", "map", "detail")
MOST, WIDTH = 200, 88  # characters of one thing; of a line
_PATHS = sysconfig.get_paths()
NOT_OWN = (  # where code lies that no student wrote
    *(_PATHS[name] for name in ("stdlib", "purelib", "platlib")),
    *(module.__path__[0] for module in (inms_lab, inms_widgets)),
    str(Path(__file__).parent),
    "<frozen",
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first thing that is wrong with an answer.

    `where` it is, what was `expected` there and what `came`; `hint`: where to look on. `log` shows
    it when `index` of its events have happened (None: all), with `block` (pool, number) pinned, or
    at the decision with this number; `parts`: of a view that is opened for it. `picture`: what is
    drawn below the words, where there is more to see than the log has (a `Curves`, for one).
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
    picture: Any = None

    @property
    def moment(self) -> int | None:
        """The log index at which it can be seen."""
        if self.log is None:
            return None
        if self.index is not None:
            return self.index
        return len(self.log) if self.decision is None else self.log.decision(self.decision).stop

    def words(self) -> str:
        """In lines, as a notebook prints it."""
        rows = {"at": self.where, "expected": self.expected, "came": self.came, "hint": self.hint}
        lines = []
        for name, text in rows.items():
            first, *more = wrap(one_line(text, 4 * MOST), WIDTH) or [""]
            if text:
                lines += [f"  {name:<9} {first}", *(f"  {'':<9} {line}" for line in more)]
        return "\n".join(lines)

    def note(self) -> str:
        """In one line, as a view says it."""
        where = f"{self.where}: " if self.where else ""
        return one_line(f"{where}expected {self.expected}; came {self.came}", 2 * MOST)


def one_line(text: str, most: int = MOST) -> str:
    """A text on one line, cut off if it is long."""
    line = " ".join(text[: 2 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shown(value: object, most: int = 60) -> str:
    """A value as Python writes it, on one line and short; whatever its own methods do."""
    try:
        return one_line(repr(value), most)
    except BaseException:
        return f"a value of type {type(value).__name__} that cannot be shown"


def whole(value: Any) -> int | None:
    """A whole number, also one of numpy's; None: it is none. (True and False are not meant so.)"""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def in_a_line(error: BaseException) -> str:
    """An error in a line, with the line of the student's own code that it came from."""
    try:
        said = one_line(f"{type(error).__name__}: {error}".removesuffix(": "))
    except BaseException:
        said = f"an error of type {type(error).__name__} that cannot be shown"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(NOT_OWN)]
    line = f", in `{one_line(own[-1].line, 80)}`" if own and own[-1].line else ""
    return said + line
