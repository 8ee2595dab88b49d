"""Continual learning on branches: a new task reaches everybody only if the old ones survive it.

A task is trained on a branch, merged, and the *merged* weights are asked for the loss of every task
that was ever learnt, and of the new one. Who fails is thrown away with its branch: nobody but the
validation has ever had those weights.

known = Continual(params, train, loss_of, {"letters": old_texts}, most_forgetting=0.1)
known.learn(Task("numbers", new_texts, held_out))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inms_lab.errors import BadInput, MergeRefused
from inms_lab.model.progress import bar
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.versions import Delta


@dataclass(frozen=True, slots=True)
class Task:
    """`data` is what training gets, `held_out` what the loss is asked of: keep them apart."""

    name: str
    data: Any
    held_out: Any


@dataclass(frozen=True, slots=True)
class Learned:
    """What became of some tasks that were learnt together.

    Losses by task, old and new: `before` on the weights that everybody has, `after` on the merged
    ones (empty if they were not even tried). `alone`: of each new task on its own branch.
    `refused`: why they were thrown away, or nothing. `version`: the newest one afterwards.
    `num_bytes`: pages that differ on the branches.
    """

    names: tuple[str, ...]
    refused: str
    version: int
    before: dict[str, float]
    alone: dict[str, float]
    after: dict[str, float]
    num_bytes: int

    @property
    def merged(self) -> bool:
        """Whether everybody can have them."""
        return not self.refused

    @property
    def forgetting(self) -> dict[str, float]:
        """How much the loss of each old task rose (below 0: it fell)."""
        return {
            name: loss - self.before[name]
            for name, loss in self.after.items()
            if name not in self.names
        }


class Continual:
    """Tasks that are learnt one after the other, on shared parameters.

    `train(module, data)` changes the module in place; `loss_of(module, held_out)` gives a number,
    less is better, and is asked without gradients. `known`: held-out data of what the weights can
    already do, by name. Merged weights are good if the loss of no old task is more than
    `most_forgetting` above what it was, and that of every new one more than `least_gain` below.
    Raises `BadInput`.
    """

    def __init__(
        self,
        params: SharedParameters,
        train: Callable[[torch.nn.Module, Any], Any],
        loss_of: Callable[[torch.nn.Module, Any], float],
        known: Mapping[str, Any] | None = None,
        *,
        most_forgetting: float = 0.1,
        least_gain: float = 0.0,
    ) -> None:
        if not isinstance(params, SharedParameters):
            raise BadInput(f"tasks are learnt on SharedParameters, not on {params!r}")
        if not callable(train) or not callable(loss_of):
            raise BadInput(f"train and loss_of are functions, not {train!r} and {loss_of!r}")
        if known is not None and not isinstance(known, Mapping):
            raise BadInput(f"known is held-out data by the name of its task, not {known!r}")
        for name, value in (("most_forgetting", most_forgetting), ("least_gain", least_gain)):
            number = _number(value, f"{name} is a difference of losses, 0 or more")
            if not (math.isfinite(number) and number >= 0):
                raise BadInput(f"{name} is a difference of losses, 0 or more, not {value!r}")
        self.params, self.train, self.loss_of = params, train, loss_of
        self.known = dict(known or {})
        self.most_forgetting, self.least_gain = most_forgetting, least_gain
        self.history: list[Learned] = []

    def learn(
        self, *tasks: Task, weights: Sequence[float] | None = None, progress: bool = True
    ) -> Learned:
        """Train each task on a branch of its own, and merge their average if it is good (one task:
        its branch as it is). `weights` of the average: equal unless given. If `train` raises, so
        does this, and nothing is merged."""
        names = self._names(tasks)
        held_out = self.known | {task.name: task.held_out for task in tasks}
        alone: dict[str, float] = {}
        after: dict[str, float] = {}
        deltas: list[Delta] = []
        refused = ""
        with bar(len(tasks) + 2, "learning", unit="step", enabled=progress) as shown:
            branches = [self.params.branch(name) for name in names]
            before = self._losses(self.params.module(), held_out)
            shown.update()
            for task, branch in zip(tasks, branches, strict=True):
                self.train(branch.module, task.data)
                alone |= self._losses(branch.module, {task.name: task.held_out})
                deltas.append(branch.delta())
                shown.update()

            def judge(module: torch.nn.Module) -> None:
                after.update(self._losses(module, held_out))
                if worse := self._worse(before, after, names):
                    raise MergeRefused(worse)

            try:
                self.params.merge(deltas, weights, validate=judge)
            except MergeRefused as error:
                refused = str(error)
            else:
                self.known = held_out
            shown.update()
        version, num_bytes = self.params.version.number, sum(delta.num_bytes for delta in deltas)
        learned = Learned(names, refused, version, before, alone, after, num_bytes)
        self.history.append(learned)
        return learned

    def _names(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        for task in tasks:
            if not (isinstance(task, Task) and isinstance(task.name, str) and task.name):
                raise BadInput(f"tasks are Task(name, data, held_out), the name text; not {task!r}")
        names = tuple(task.name for task in tasks)
        if not names or len(set(names)) < len(names):
            raise BadInput(f"give one task or several with different names, not {list(names)}")
        if old := [name for name in names if name in self.known]:
            raise BadInput(f"{old[0]!r} is known already: give the new task another name")
        return names

    def _losses(self, module: torch.nn.Module, held_out: Mapping[str, Any]) -> dict[str, float]:
        with torch.no_grad():
            return {
                name: _number(self.loss_of(module, data), "loss_of gives a number, less is better")
                for name, data in held_out.items()
            }

    def _worse(
        self, before: Mapping[str, float], after: Mapping[str, float], new: Sequence[str]
    ) -> str:
        """What is wrong with the merged weights, or nothing; a loss that is no number is wrong."""
        wrong = []
        for name, loss in after.items():
            was = before[name]
            most = was - self.least_gain if name in new else was + self.most_forgetting
            if not (loss < most if name in new else loss <= most):
                wrong.append(f"the loss of {name} is {loss:.4g}, was {was:.4g}, may be {most:.4g}")
        return "; ".join(wrong)


def _number(value: Any, wanted: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{wanted}; not {value!r}") from None
