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
from inms_lab.parameters.versions import Delta, Version

Changed = Branch | AgentProcess | Delta


def merged(
    base: Version,
    changed: Changed | Sequence[Changed],
    weights: Sequence[float] | None,
    layout: Layout,
) -> Delta:
    """One delta of `base`: of what was changed alone, or the average of several.

    Raises `MergeRefused` for changes of another version, `BadInput`."""
    several = changed if isinstance(changed, Sequence) else [changed]
    deltas = [_delta(one, base) for one in several]
    if len(deltas) == 1 and weights is None:
        return deltas[0]
    return average(base, deltas, layout, weights)


def _delta(changed: Changed, base: Version) -> Delta:
    if not isinstance(changed, Changed):
        raise BadInput(f"branches, agents and deltas can be merged, not {changed!r}")
    found = changed if isinstance(changed, Delta) else changed.delta()
    if found.base != base.number:
        raise MergeRefused(
            f"it was changed from version {found.base}, and the newest is {base.number}: "
            "branch anew from the newest and do the work again on it"
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
