"""Several deltas of one version as one: the weighted average of the pages that anybody touched.

For those pages it is what the plain way gives, sum of weight times parameter, in the same order of
clients; a client that did not touch a page has the version's there. Pages that nobody touched stay
as they are, which the plain way only nearly does. Weights are made to sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inms_lab.errors import BadInput
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.versions import (
    AT_ONCE,
    Delta,
    Pages,
    Version,
    filled,
    joined,
    rows_of,
    words,
)


def average(
    base: Version, deltas: Sequence[Delta], layout: Layout, weights: Sequence[float] | None = None
) -> Delta:
    """One delta of `base`. Whole numbers take the heaviest client's values, complex ones are
    averaged as they are.

    Raises `BadInput` for deltas of different versions, weights that are not one a delta, all
    finite, none negative, their sum above 0, and for tensors that torch does not compute with.
    """
    shares = _shares(deltas, weights)
    if any(one.base != base.number for one in deltas):
        numbers = sorted({one.base for one in deltas})
        raise BadInput(f"deltas of versions {numbers} cannot be averaged onto {base.number}")
    touched = [one.pages for one in deltas]
    pages = joined(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *touched])))
    parts = _by_kind(pages, layout)
    before, rows = words(base.view(layout.num_bytes)), [one.words() for one in deltas]

    def of(client: int, part: Pages) -> torch.Tensor:
        """A client's pages as bytes [pages, PAGE]."""
        at = np.searchsorted(touched[client], part)
        has = at < len(touched[client])
        has[has] = touched[client][at[has]] == part[has]
        if has.all():
            return torch.from_numpy(rows_of(rows[client], at).view(np.uint8))
        out = before[part].view(np.uint8)
        out[has] = rows[client][at[has]].view(np.uint8)
        return torch.from_numpy(out)

    mixed = (
        _mix([of(client, part) for client in range(len(deltas))], shares, kind)
        for part, kind in parts
    )
    written = sum(one.written for one in deltas)
    return Delta(base.number, base.digest, pages, filled(pages, mixed), written)


def _mix(clients: list[torch.Tensor], shares: list[float], kind: torch.dtype) -> Pages:
    if not (kind.is_floating_point or kind.is_complex):
        heaviest: Pages = clients[max(range(len(shares)), key=shares.__getitem__)].numpy()
        return heaviest
    total = clients[0].view(kind) * shares[0]
    for client, share in zip(clients[1:], shares[1:], strict=True):
        total += client.view(kind) * share
    mixed: Pages = total.view(torch.uint8).numpy()
    return mixed


def _by_kind(pages: Pages, layout: Layout) -> list[tuple[Pages, torch.dtype]]:
    """The pages, some at a time, in order, each part of one element type. Raises `BadInput` if
    there are pages of one that cannot be averaged."""
    parts: list[tuple[Pages, torch.dtype]] = []
    for name, spot in layout.spots.items():
        first, stop = np.searchsorted(pages, (spot.start // PAGE, spot.stop // PAGE))
        kind = getattr(torch, spot.dtype)
        if stop > first and not _computes(kind):
            raise BadInput(
                f"{name} is {spot.dtype}, which cannot be averaged: leave it as it is on the "
                "branches, merge one of them alone, or share the weights with a wider dtype="
            )
        parts += [(pages[at : min(stop, at + AT_ONCE)], kind) for at in range(first, stop, AT_ONCE)]
    return parts


def _computes(kind: torch.dtype) -> bool:
    """Whether torch computes with it (not with 8 bits and less)."""
    try:
        torch.zeros(kind.itemsize, dtype=torch.uint8).view(kind).mul(0.5)
    except NotImplementedError:
        return False
    return True


def _shares(deltas: Sequence[Delta], weights: Sequence[float] | None) -> list[float]:
    given = [1.0] * len(deltas) if weights is None else numbers(weights)
    if not deltas or len(given) != len(deltas):
        raise BadInput(f"{len(deltas)} deltas want as many weights, at least one, not {len(given)}")
    if not all(math.isfinite(w) and w >= 0 for w in given) or not sum(given):
        raise BadInput(f"weights are finite, none negative, not all 0; not {given}")
    return [w / sum(given) for w in given]


def weights_of(data: Sequence[Any], weights: Sequence[float] | None) -> list[float]:
    """How much each client counts: the number of its samples, unless weights are given. Raises
    `BadInput`."""
    if weights is None:
        if not all(hasattr(one, "__len__") for one in data):
            raise BadInput("this data has no len(): pass weights=, the number of samples of each")
        weights = [len(one) for one in data]
    found = numbers(weights)
    if len(found) != len(data) or not all(math.isfinite(w) and w > 0 for w in found):
        raise BadInput(f"weights are one a client, finite and above 0; not {found}")
    return found


def numbers(weights: Any) -> list[float]:
    """Weights as numbers. Raises `BadInput` if they are none."""
    try:
        return [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise BadInput(f"weights are numbers, one for each; not {weights!r}") from None
