"""Check of lab 08: the stage that holds least memory within two bounds, and what is uncertain.

Expectations are a rule of three lines, asked of the tables that were measured and of made-up ones
in which the ends of intervals decide. The view shows how text reaches the reader in the mode that
was chosen, the picture the measure that speaks against it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from inms_lab.experiment.modes import MODES

from .charts import Bars
from .staging import ENDS, READERS, risks, scene, stages
from .wrong import Wrong, in_a_line, one_line, shown, whole

LEAKS, QUALITIES = (0.6, 0.53, 0.8, 1.0, 0.5), (0.0, 0.6, 0.85, 0.9, 0.95)
NUM_MADE_UP = 200
LEAK, QUALITY, MEMORY = "leak", "quality", "memory"
ACROSS = {
    LEAK: "0.5 is chance; dotted: the bound",
    QUALITY: "share of right answers; dotted: the bound",
    MEMORY: "MiB, of all that keep both bounds",
}
LOOK = ("bar", "map", "decision", "detail")
FORM = "the name of a row, or None"
TABLES = (pd.DataFrame, pd.Series, pd.Index)
NOTHING = ("none", "nan", "<na>", "", "false")


@dataclass(frozen=True, slots=True)
class Case:
    """A table and two bounds; `name` is the call that makes the table."""

    name: str
    table: pd.DataFrame
    max_leak: float
    min_quality: float

    @property
    def where(self) -> str:
        """In words."""
        return f"{self.name}, max_leak={self.max_leak:g}, min_quality={self.min_quality:g}"

    @property
    def allowed(self) -> pd.DataFrame:
        """The rows that keep both bounds at the unfavourable ends of their intervals."""
        return self.table[_keep(self, LEAK) & _keep(self, QUALITY)]

    @property
    def best(self) -> str | None:
        """The one of them that holds least memory."""
        return None if self.allowed.empty else str(self.allowed.memory.idxmin())


def best_stage(function: object) -> Wrong | None:
    """`function(table, max_leak, min_quality)` gives the name of a row, or None."""
    if not callable(function):
        return Wrong("a function choose(table, max_leak, min_quality)", shown(function))
    for case in cases():
        if wrong := _compared(function, case):
            return wrong
    return None


def cases() -> Iterator[Case]:
    """Stages and all modes as measured, one bound of leaks after the other; then made-up tables."""
    measured = {
        f"{made.__name__}(readers={readers})": made(readers)
        for made, readers in product((stages, risks), READERS)
    }
    for max_leak, (name, table), min_quality in product(LEAKS, measured.items(), QUALITIES):
        yield Case(name, table, max_leak, min_quality)
    for seed in range(NUM_MADE_UP):
        yield made_up(seed)


def made_up(seed: int) -> Case:
    """A made-up table with the names of modes, its bounds at the mean or at an end of one of its
    intervals; one interval in eight is missing."""
    rng = random.Random(seed)
    names = rng.sample(list(MODES), rng.randint(2, 6))
    rows = {}
    for name, memory in zip(names, rng.sample(range(20, 800), len(names)), strict=True):
        row = {"memory": memory / 10}
        for what, least, most in (("quality", 0.4, 0.95), ("leak", 0.5, 0.9)):
            middle, half = rng.uniform(least, most), rng.uniform(0.01, 0.1)
            ends = middle, middle - half, middle + half
            known = rng.random() > 1 / 8
            for end, value in zip(ENDS, ends, strict=True):
                row[f"{what}{end}"] = round(min(value, 1.0), 3) if known else float("nan")
        rows[name] = row
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("mode")
    near = table.loc[rng.choice(names)].fillna(0.7)
    max_leak = near.leak_high if seed % 3 else near.leak
    min_quality = near.quality_low if seed % 2 else near.quality
    return Case(f"made_up({seed}).table", table, float(max_leak), float(min_quality))


# what is said of an answer ----------------------------------------------------------------------


def _compared(function: Callable[..., Any], case: Case) -> Wrong | None:
    try:
        answer = function(case.table.copy(), case.max_leak, case.min_quality)
    except Exception as error:
        wrong = Wrong(FORM, in_a_line(error), case.where, _of_error(case, error))
        return _at(wrong, case, case.best, QUALITY if _keep(case, LEAK).any() else LEAK)
    if answer is not None and not (isinstance(answer, str) and answer in case.table.index):
        names = ", ".join(map(str, case.table.index))
        came = "none yet" if answer is Ellipsis else _in_words(answer)
        return Wrong(f"one of: {names}; or None", came, case.where, _of_form(case, answer))
    name = None if answer is None else str(answer)
    if name == case.best:
        return None
    if case.best is None:
        expected = "None: no row keeps both bounds"
    else:
        expected = f"{case.best!r}, which keeps both bounds"
    hint, what = _why_not_none(case) if name is None else _why_not(case, name)
    return _at(Wrong(expected, shown(name), case.where, hint), case, name or case.best, what)


def _of_error(case: Case, error: Exception) -> str:
    if isinstance(error, ValueError) and case.best is None:
        return "no row keeps both bounds here: is something asked of a table without rows?"
    columns = ", ".join(map(str, case.table.columns))
    called = f"choose(table, {case.max_leak:g}, {case.min_quality:g})"
    return f"it was called as {called}; columns of the table are {columns}"


def _in_words(answer: object) -> str:
    if not isinstance(answer, TABLES):
        return shown(answer)
    rows = list(map(str, answer if isinstance(answer, pd.Index) else answer.index))
    return one_line(f"{type(answer).__name__} of {', '.join(rows) or 'no rows'}", 80)


def _of_form(case: Case, answer: object) -> str:
    """What is said of an answer that is no name of a row."""
    if isinstance(answer, (*TABLES, list, tuple, set, dict)):
        return "one name is wanted: that of the row with least memory among those allowed"
    if whole(answer) is not None:
        return "a number is no name: rows are called by what stands at their left"
    if isinstance(answer, str) and answer in MODES:
        return "this mode is not in the table that was given"
    if shown(answer).lower().strip("'") in NOTHING:
        return "where no row is allowed, return None itself"
    return "return the name of a row, as it stands at the left of the table"


def _why_not_none(case: Case) -> tuple[str, str]:
    """What speaks for the best row, where none was chosen."""
    row = case.table.loc[case.best]
    most = f"its leak is at most {row.leak_high:.3f}, its quality at least {row.quality_low:.3f}"
    return _just_met(case) or (f"{case.best}: {most}", LEAK)


def _just_met(case: Case) -> tuple[str, str] | None:
    """Said where the best row is only kept because a bound that is met is kept."""
    row = case.table.loc[case.best]
    ends = {
        LEAK: ("at most", row.leak_high, case.max_leak),
        QUALITY: ("at least", row.quality_low, case.min_quality),
    }
    for what, (much, end, bound) in ends.items():
        if end == bound:
            just = f"its {what} is {much} {end:.3f}, just as the bound is"
            return f"{case.best}: {just}. A bound that is just met is kept", what
    return None


def _why_not(case: Case, name: str) -> tuple[str, str]:
    """What speaks against this row, and the measure that it is about."""
    row = case.table.loc[name]
    if what := next((one for one in (LEAK, QUALITY) if not _keep(case, one)[name]), ""):
        if pd.isna(row[what]):
            why = f"nobody has measured its {what}: what is not known keeps no bound"
        elif what == LEAK:
            ends = row.leak, row.leak_low, row.leak_high
            why = _over(what, ends, case.max_leak, 1)
        else:
            ends = row.quality, row.quality_high, row.quality_low
            why = _over(what, ends, case.min_quality, -1)
        return f"{name}: {why}", what
    least = f"{case.best} holds {case.table.loc[case.best].memory:.1f} MiB, {name} {row.memory:.1f}"
    return _just_met(case) or (f"both keep the bounds, so that memory decides: {least}", MEMORY)


def _over(what: str, ends: tuple[float, float, float], bound: float, sign: int) -> str:
    """`ends`: mean, favourable end, unfavourable end; `sign` 1: the larger, the worse."""
    mean, kind = sign * ends[0], sign * ends[1]
    much, over = ("high", "over") if sign > 0 else ("low", "under")
    may_be = f"its {what} may be as {much} as {ends[2]:.3f}"
    if mean <= sign * bound:
        return f"its mean keeps the bound of {bound:g}, but {may_be}"
    if kind <= sign * bound:
        better = f"only the favourable end of its {what}, {ends[1]:.3f}, keeps the bound"
        return f"{better} of {bound:g}; {may_be}"
    return f"the whole interval of its {what} is {over} the bound of {bound:g}: was that asked?"


def _keep(case: Case, what: str) -> pd.Series:
    """Which rows keep the bound of this measure for certain."""
    table = case.table
    if what == LEAK:
        return table.leak_high <= case.max_leak
    return table.quality_low >= case.min_quality


def _at(wrong: Wrong, case: Case, name: str | None, what: str) -> Wrong:
    """With the run of this mode, where a text reaches the reader; and with `what` drawn, by mode
    and with its bound."""
    look = scene(name or str(case.table.index[0]))
    missing = [str(mode) for mode, row in case.table.iterrows() if pd.isna(row[what])]
    title = f"{what}: {case.name}" + (f" (not measured: {', '.join(missing)})" if missing else "")
    values: dict[str, float | tuple[float, float, float]] = {}
    for mode, row in (case.allowed if what == MEMORY else case.table).iterrows():
        if what == MEMORY:
            values[str(mode)] = float(row.memory)
        elif str(mode) not in missing:
            values[str(mode)] = row[what], row[f"{what}_low"], row[f"{what}_high"]
    limit = {LEAK: case.max_leak, QUALITY: case.min_quality, MEMORY: None}[what]
    picture = Bars(values, title, ACROSS[what], limit) if values else None
    return replace(
        wrong, log=look.log, index=look.index, block=look.block, parts=LOOK, picture=picture
    )
