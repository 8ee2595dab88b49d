"""What a merge asks before there is a new version: whose changes these are, and whether the merged
weights are valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from inms_lab.errors import BadInput, MergeRefused
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.averaging import average
from inms_lab.parameters.branch import Branch
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.versions import Delta, Version, filled, in_parts

WAYS = ("average", "union")
Changed = Branch | AgentProcess | Delta


def merged(
    base: Version,
    changed: Changed | Sequence[Changed],
    weights: Sequence[float] | None,
    layout: Layout,
    how: str = "average",
) -> Delta:
    """One delta of `base`: of what was changed alone, or several in one, as `how` says.

    Raises `MergeRefused` for changes of another version, or two of one page in a union;
    `BadInput`."""
    if how not in WAYS or (how == "union" and weights is not None):
        raise BadInput(f"how is one of {', '.join(WAYS)}, a union without weights; not {how!r}")
    several = changed if isinstance(changed, Sequence) else [changed]
    deltas = [_delta(one, base) for one in several]
    if how == "union":
        return _union(base, deltas, layout)
    if len(deltas) == 1 and weights is None:
        return deltas[0]
    return average(base, deltas, layout, weights)


def _union(base: Version, deltas: Sequence[Delta], layout: Layout) -> Delta:
    """All changes in full. Raises `MergeRefused` if two have changed one page."""
    if not deltas:
        raise BadInput("nothing is to be merged: give at least one change")
    pages = np.concatenate([one.pages for one in deltas])
    order = np.argsort(pages, kind="stable")
    pages = pages[order]
    twice = np.flatnonzero(np.diff(pages) == 0)
    if len(twice):
        name = layout.name_at(int(pages[twice[0]]) * PAGE)
        raise MergeRefused(
            f"two of them have changed {name}: a union is of changes that do not meet; take the "
            "average, or one after the other"
        )
    rows = np.concatenate([one.words() for one in deltas])
    memory = filled(pages, (rows[order[part]] for part in in_parts(np.arange(len(pages)))))
    return Delta(base.number, base.digest, pages, memory, sum(one.written for one in deltas))


def _delta(changed: Changed, base: Version) -> Delta:
    if not isinstance(changed, Changed):
        raise BadInput(f"branches, agents and deltas can be merged, not {changed!r}")
    found = changed if isinstance(changed, Delta) else changed.delta()
    if found.base != base.number:
        raise MergeRefused(
            f"it was changed from version {found.base}, and the newest is {base.number}: "
            "branch anew from the newest (an agent: move(params.version, discard=True)) and do the "
            "work again on it"
        )
    if found.of != base.digest:
        raise MergeRefused("it was changed from other weights than these: branch from these")
    return found


def judge(module: torch.nn.Module, validate: Callable[[torch.nn.Module], Any]) -> None:
    """Raises `MergeRefused` unless `validate` gives True, or nothing."""
    if not callable(validate):
        raise BadInput(f"validate is a function of a module, not {validate!r}")
    try:
        said = validate(module)
    except Exception as error:
        raise MergeRefused(f"the merged weights are not valid: {error}") from error
    if isinstance(said, np.generic) or (isinstance(said, torch.Tensor) and said.numel() == 1):
        said = said.item()
    if said is False:
        raise MergeRefused("the merged weights are not valid: the validation gave False")
    if said is not None and said is not True:
        raise MergeRefused(
            f"the validation gave {str(said)[:80]}, which is neither True nor False: let it say "
            "whether the weights are good"
        )
