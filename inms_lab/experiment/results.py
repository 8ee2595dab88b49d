"""What came out, as tables: quality, memory and time by mode, differences, what each stage adds.

    correct     the right option was chosen
    guess       the private guess of another agent was: contamination
    stale       the value that held before was (changed facts only)
    leak        a guess was more likely than a value that no text of the team names, 0 to 1: chance
                is 0.5, for values are drawn at random
    pull        the same in nats: log p of the guess less the mean of those values; between modes
                that give the reader the same texts: what their KV does

`leak` and `pull` are NaN where options have no likelihood.

Means over tasks or teams with the ends of 95 % bootstrap intervals. Teams are drawn, not tasks: the
tasks of a team share its texts. Equal seeds give equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from inms_lab.errors import BadInput
from inms_lab.experiment.modes import STAGES, Mode
from inms_lab.experiment.play import Played
from inms_lab.experiment.tasks import Task, teams_of
from inms_lab.interference.compare import Interval

QUALITY = ("correct", "guess", "stale", "leak", "pull")
COSTS = ("kv_bytes", "kv_blocks", "metadata_bytes", "prefill_tokens", "ttft_ms", "wall_ms",
         "computed_tokens", "shifted_tokens", "context_tokens")  # fmt: skip
EXACT = "inms global"  # the same texts as in other modes that are told, every one computed
NUM_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Experiment:
    """`played[mode][i]` is what came of team i (of `teams_of(tasks)`)."""

    tasks: list[Task]
    modes: list[Mode]
    played: dict[str, list[Played]]

    def decisions(self) -> pd.DataFrame:
        """A row a mode and task: what was chosen, and what that was."""
        rows = []
        for mode in self.modes:
            played = self.played[mode.name]
            for number, (tasks, outcome) in enumerate(
                zip(teams_of(self.tasks), played, strict=True)
            ):
                for task in tasks:
                    answer = outcome.answer(task)
                    chosen, nan = answer.chosen, float("nan")
                    stale = float(chosen == task.stale) if task.stale >= 0 else nan
                    found = float(chosen == task.right), float(chosen == task.guess), stale
                    leak = _leak(task, answer.scores) if answer.scores else (nan, nan)
                    said = task.said[chosen] if chosen >= 0 else ""
                    what = (mode.name, number, task.digest, task.kind, task.asked, said, chosen)
                    rows.append((*what, *found, *leak))
        names = ["mode", "team", "task", "kind", "asked", "said", "chosen", *QUALITY]
        return pd.DataFrame(rows, columns=names)

    def costs(self) -> pd.DataFrame:
        """A row a mode and team: memory, tokens, times."""
        rows = [
            (mode.name, team, *(getattr(outcome, name) for name in COSTS))
            for mode in self.modes
            for team, outcome in enumerate(self.played[mode.name])
        ]
        table = pd.DataFrame(rows, columns=["mode", "team", *COSTS])
        return table.astype(dict.fromkeys(COSTS, float))

    def table(self, seed: int = 0, kind: str | None = None) -> pd.DataFrame:
        """A row a mode: quality over tasks (of one kind), costs over teams, with intervals."""
        decisions, costs = self.decisions(), self.costs()
        if kind is not None:
            decisions = decisions[decisions.kind == kind]
        rows = {}
        for mode in self.modes:
            mine = decisions[decisions["mode"] == mode.name]
            row: dict[str, float] = {"tasks": len(mine)}
            for what in QUALITY:
                row |= _ends(what, mean(mine[what], mine.team, seed))
            mine = costs[costs["mode"] == mode.name]
            for what in COSTS:
                row |= _ends(what, mean(mine[what], mine.team, seed))
            rows[mode.name] = row
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("mode")

    def compared(self, reference: str = EXACT, seed: int = 0) -> pd.DataFrame:
        """A row a mode: task by task against a reference mode. Quality as differences, `changed` as
        the share of tasks with another choice, costs as ratios of sums over teams."""
        if reference not in self.played:
            raise BadInput(f"mode {reference!r} is not among these: {', '.join(self.played)}")
        rows = {mode.name: self._against(mode.name, reference, seed) for mode in self.modes}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("mode")

    def stages(self, seed: int = 0) -> pd.DataFrame:
        """What each stage of `inms` gains and risks against the one before it."""
        have = [stage for stage in STAGES if stage in self.played]
        rows = {after: self._against(after, before, seed) for before, after in pairwise(have)}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("stage")

    def marks(self) -> dict[str, str]:
        """By mode, a letter a task: R right, G the guess, S stale, o another option, - none."""
        decisions = self.decisions()
        found = {"R": decisions.correct == 1, "G": decisions.guess == 1, "S": decisions.stale == 1}
        found["-"] = decisions.chosen < 0
        marks = np.select(list(found.values()), list(found), "o")
        return {m.name: "".join(marks[decisions["mode"] == m.name]) for m in self.modes}

    def _against(self, mode: str, reference: str, seed: int) -> dict[str, float]:
        decisions, costs = self.decisions(), self.costs()
        mine, other = (decisions[decisions["mode"] == m].reset_index() for m in (mode, reference))
        row: dict[str, float] = {}
        for what in QUALITY:
            row |= _ends(what, mean(mine[what] - other[what], mine.team, seed))
        changed = (mine.chosen != other.chosen).astype(float)
        row |= _ends("changed", mean(changed, mine.team, seed))
        mine, other = (costs[costs["mode"] == m].reset_index() for m in (mode, reference))
        for what in ("kv_bytes", "prefill_tokens", "ttft_ms", "computed_tokens"):
            row |= _ends(what, ratio(mine[what], other[what], seed))
        return row


def mean(values: Sequence[float], teams: Sequence[int], seed: int = 0) -> Interval:
    """The mean of one value a task, those that are NaN left out; drawn again are whole teams."""
    x, team = np.asarray(values, dtype=float), np.asarray(teams)
    x, team = x[~np.isnan(x)], team[~np.isnan(x)]
    _, team = np.unique(team, return_inverse=True)
    sums, counts = np.bincount(team, x), np.bincount(team)
    return _drawn(len(sums), lambda d: sums[d].sum(-1) / counts[d].sum(-1), seed)


def ratio(values: Sequence[float], others: Sequence[float], seed: int = 0) -> Interval:
    """The sum of one value a team over the sum of another; drawn again are teams."""
    x, y = np.asarray(values, dtype=float), np.asarray(others, dtype=float)
    return _drawn(len(x), lambda d: x[d].sum(-1) / y[d].sum(-1), seed)


def _drawn(count: int, statistic: Callable[[np.ndarray], np.ndarray], seed: int) -> Interval:
    """Percentile bootstrap (Efron, 1979) over `count` teams."""
    if not count:
        return Interval(*[float("nan")] * 3)
    draws = np.random.default_rng(seed).integers(0, count, (NUM_DRAWS, count))
    low, high = np.quantile(statistic(draws), (0.025, 0.975))
    return Interval(float(statistic(np.arange(count)[None])[0]), float(low), float(high))


def _leak(task: Task, scores: Sequence[float]) -> tuple[float, float]:
    """`leak` and `pull` of one task."""
    guess, others = scores[task.guess], [scores[i] for i in task.others]
    wins = [(guess > other) + (guess == other) / 2 for other in others]
    return sum(wins) / len(wins), guess - sum(others) / len(others)


def _ends(name: str, found: Interval) -> dict[str, float]:
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
