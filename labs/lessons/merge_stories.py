"""Merges for the exercise `accept`: small networks are trained on branches, merged, and measured
before anybody can have them. In each story there is something that some rule gets wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from inms_lab.errors import MergeRefused
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.branch import Branch

from .branching import Pictures, learn, loss_of, network, pictures
from .charts import Bars

MOST = 0.5  # an old task's loss may rise by so much
LEAST = 0.1  # loss that is told apart in a picture
Losses = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of merged weights before anybody can have them.

    `base`: the version they were changed from; `newest`: the newest one there is. `new`: the task
    that was to be learnt. Losses by task, old and new: `before` on the version that everybody has,
    `branches` of each branch on its own, `after` of the merged weights.
    """

    base: int
    newest: int
    new: str
    before: Losses
    branches: tuple[Losses, ...]
    after: Losses


def measured(
    params: SharedParameters,
    branches: Sequence[Branch],
    new: str,
    held_out: Mapping[str, Pictures],
    weights: Sequence[float] | None = None,
) -> Found:
    """Merge branches, measure what comes out, and let nobody have it."""

    def losses(module: torch.nn.Module) -> Losses:
        return {name: loss_of(module, data) for name, data in held_out.items()}

    after: dict[str, float] = {}

    def look(module: torch.nn.Module) -> bool:
        after.update(losses(module))
        return False

    with suppress(MergeRefused):
        params.merge(list(branches), weights, validate=look)
    alone = tuple(losses(branch.module) for branch in branches)
    base, newest = branches[0].base.number, params.version.number
    return Found(base, newest, new, losses(params.module()), alone, after)


def is_good(found: Found, most: float = MOST) -> bool:
    """The rule that the exercise asks for."""
    gains = found.after[found.new] < found.before[found.new]
    keeps = all(
        found.after[task] <= found.before[task] + most for task in found.before if task != found.new
    )
    return gains and keeps and found.base == found.newest


@dataclass(frozen=True, slots=True)
class Story:
    """A merge: what happened, what was found, and what to think of if a rule gets it wrong."""

    what: str
    hint: str
    found: Found

    def picture(self) -> Bars:
        """Its losses, those that are numbers."""
        found = self.found
        who = {"before": found.before}
        who |= {f"branch {number}": alone for number, alone in enumerate(found.branches, start=1)}
        who["merged"] = found.after
        rows = {
            f"{task}, {name}": max(LEAST, round(losses[task], 1))
            for task in found.before
            for name, losses in who.items()
            if math.isfinite(losses[task])
        }
        title, across = f"losses; {found.new} is new", f"less is better ({LEAST}: or less)"
        return Bars(rows, title, across, scale="log")


WIDTH = 64  # of these networks: small, to be trained in a moment
HELD_OUT = {
    "low digits": pictures("digits", 200, 2, range(5)),
    "high digits": pictures("digits", 200, 3, range(5, 10)),
    "letters": pictures("letters", 300, 4),
}
NEW = "letters"


@lru_cache(maxsize=1)
def stories() -> tuple[Story, ...]:
    """All of them, trained and measured when they are first asked for."""
    known = pictures("digits", 600, seed=1)
    half = pictures("digits", 400, seed=1, only=range(5, 10))
    with _main(known) as params, _main(half) as other:
        return (*_by_branches(params), _of_two_old_tasks(other), *_by_accident(params))


def _main(data: Pictures) -> SharedParameters:
    module = network(width=WIDTH)
    learn(module, data, steps=400)
    return SharedParameters(module, preload=())


def _branch(params: SharedParameters, data: Pictures, steps: int = 400, **how: Any) -> Branch:
    branch = params.branch("task")
    learn(branch.module, data, steps, **how)
    return branch


def _mixed(count: int, seed: int) -> Pictures:
    """New pictures and some to rehearse what is known."""
    return pictures("digits", count, seed) + pictures("letters", count, seed + 100)


def _by_branches(params: SharedParameters) -> Iterator[Story]:
    rehearsed = _branch(params, _mixed(600, 10))
    yield Story(
        "a branch that has rehearsed the digits",
        "an old loss may rise by `most`: that is a difference, no factor, and not nothing",
        measured(params, [rehearsed], NEW, HELD_OUT),
    )
    anew = params.branch("anew")
    anew.module.load_state_dict(network(seed=13, width=WIDTH).state_dict())
    learn(anew.module, _mixed(600, 12), steps=400)
    yield Story(
        "the average of two branches; one of them began with weights of its own",
        "what everybody gets are the merged weights. Which of your numbers are theirs?",
        measured(params, [rehearsed, anew], NEW, HELD_OUT),
    )
    yield Story(
        "a branch that has seen letters only",
        "the new task is not the only one: somebody reads digits with these weights",
        measured(params, [_branch(params, pictures("letters", 600, 10))], NEW, HELD_OUT),
    )
    few = [_branch(params, _mixed(60, 20 + number), steps=150) for number in range(4)]
    yield Story(
        "the average of four branches with few pictures each",
        "no branch has to be good if their average is: nobody ever gets a branch",
        measured(params, few, NEW, HELD_OUT),
    )


def _of_two_old_tasks(params: SharedParameters) -> Story:
    low, high = pictures("digits", 400, 10, range(5)), pictures("digits", 20, 12, range(5, 10))
    task = _branch(params, low + pictures("letters", 400, 11) + high)
    return Story(
        "a branch that has learnt low digits as well, with few high ones",
        "what one old task wins is no comfort to who needs the other: look at each of them",
        measured(params, [task], NEW, HELD_OUT),
    )


def _by_accident(params: SharedParameters) -> Iterator[Story]:
    yield Story(
        "a branch that was trained much too fast",
        "a comparison with nan is False, whichever it is: ask for what is good, not what is bad",
        measured(params, [_branch(params, _mixed(60, 10), steps=20, rate=1e20)], NEW, HELD_OUT),
    )
    task = _branch(params, _mixed(600, 14))
    yield Story(
        "somebody has lost the pictures of high digits, so their loss is nan",
        "what nobody has measured nobody knows: ask for what is good, not for what is bad",
        measured(params, [task], NEW, HELD_OUT | {"high digits": pictures("digits", 0, 3)}),
    )
    yield Story(
        "a branch on which nothing was done",
        "it is as good as what there is, and no better: why should all readers move?",
        measured(params, [params.branch("idle")], NEW, HELD_OUT),
    )
    found = measured(params, [task], NEW, HELD_OUT)
    params.merge(_branch(params, _mixed(600, 16)))
    yield Story(
        "a good branch; while it was judged, another one has become the newest version",
        "was it measured on the weights that everybody has by now?",
        replace(found, newest=params.version.number),
    )
    once_more = _branch(params, pictures("digits", 600, 18))
    yield Story(
        "a branch that was to read letters better; by mistake it got digits",
        "no old task has lost anything. What was the branch for?",
        measured(params, [once_more], NEW, HELD_OUT),
    )
