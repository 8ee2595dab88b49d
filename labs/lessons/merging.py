"""Exercise `merge`: two attention states, over a piece of a context each, become one over both.

Checked against the engine's `merge_state`: for one query and many, in either order, with pieces
that are empty for some queries, and with scores so large or small that their exponentials are not
numbers any more. Where an answer weighs the pieces in another way, its weights are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from inms_lab.attention.tiles import LOWEST, merge_state

from .charts import Bars
from .states import Case, cases, state
from .wrong import Wrong, in_a_line, shown

NEAR = 1e-4  # of the largest value; single precision is much closer
EMPTY = "an empty piece is out 0 and lse -inf"


def merge_states(function: object) -> Wrong | None:
    """`function(out_a, lse_a, out_b, lse_b)` gives the attention over both pieces."""
    if not callable(function):
        return Wrong("a function merge(out_a, lse_a, out_b, lse_b)", shown(function))
    for case in cases():
        if wrong := _compared(function, case):
            return wrong
    return _in_turn(function)


def _in_turn(function: Callable[..., Any]) -> Wrong | None:
    """Three pieces, one after the other, from either end."""
    a, b, c = (state((4,), 30, seed) for seed in (8, 9, 10))
    ab, bc = function(*a, *b), function(*b, *c)
    turns = (Case("two pieces, then a third", ab, c), Case("a piece, then two others", a, bc))
    return next((wrong for case in turns if (wrong := _compared(function, case))), None)


def _compared(function: Callable[..., Any], case: Case) -> Wrong | None:
    given = [part.clone() for part in case.parts]

    def wrong(expected: str, came: str, hint: str = "", picture: Any = None) -> Wrong:
        return Wrong(expected, came, case.words, hint, picture=picture)

    try:
        answer = function(*given)
    except Exception as error:
        shapes = isinstance(error, (RuntimeError, IndexError))
        hint = _shapes(case) if shapes else "call it by hand, with the pieces of section 4"
        return wrong("a state: out and lse", in_a_line(error), hint)
    if any(not _same(x, y) for x, y in zip(given, case.parts, strict=True)):
        hint = "other queries are still to be merged with these pieces: make new tensors"
        return wrong("the states as they were handed in, and a new one", "one was changed", hint)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        hint = "does it return both, out and lse? The next merge needs the lse as well"
        return wrong("two tensors, out and lse", _said(answer), hint)
    for name, got, like in zip(("out", "lse"), answer, case.a, strict=True):
        if not isinstance(got, torch.Tensor) or got.shape != like.shape:
            return wrong(f"{name} as a tensor {[*like.shape]}", _said(got), _shapes(case))
    out, lse = (part.detach().float() for part in answer)
    truth, truth_lse = merge_state(*(part.clone() for part in case.parts))
    right, right_lse = _near(out, truth).all(-1), _near_lse(lse, truth_lse)
    if bool((right & right_lse).all()):
        return None
    place = tuple((~(right & right_lse)).nonzero()[0].tolist())
    expected = _words(truth[place], truth_lse[place], not right[place])
    return wrong(expected, *_mistake(case, place, out, lse, bool(right[place])))


def _mistake(
    case: Case, place: tuple[int, ...], out: torch.Tensor, lse: torch.Tensor, right: bool
) -> tuple[str, str, Any]:
    """What an answer computes for the query at `place`, where to look on, and a picture."""
    parts = tuple(part[place] for part in case.parts)
    mine, mine_lse = out[place], lse[place]
    if not bool(mine.isfinite().all()) or bool(mine_lse.isnan()) or bool(mine_lse.isposinf()):
        return (*_no_number(parts, mine, mine_lse), None)
    if right:
        came = f"out is right, and the lse is {float(mine_lse):.4g}"
        for wrong, what, hint in _known_lse(parts):
            if bool(_near_lse(mine_lse, wrong)):
                return f"{came}: {what}", hint, None
        return came, "lse = log(exp(lse_a) + exp(lse_b)), however you get there", None
    picture = _weights(parts, mine)
    for weights, what, hint in _known(parts):
        if bool(_near(mine, weights[0] * parts[0] + weights[1] * parts[2]).all()):
            return what, hint, picture
    hint = "print a / total and b / total of this query: their sum is 1"
    if any(place):  # those before it are right
        what = f"the first query is right, the query at {[*place]} is not"
        hint = "each query has an lse of its own, so weights of its own"
    else:
        what = "another mixture of the two pieces"
    return what, hint, picture


def _no_number(
    parts: tuple[torch.Tensor, ...], out: torch.Tensor, lse: torch.Tensor
) -> tuple[str, str]:
    """Of an answer that is nan or inf."""
    came = f"out begins with {float(out[0]):g}, lse is {float(lse):g}"
    empty = [bool(part.isneginf()) for part in (parts[1], parts[3])]
    if all(empty):
        hint = f"{EMPTY}, and two of them are one. What is -inf minus -inf, and what is 0 / 0?"
    elif any(empty):
        hint = f"{EMPTY}: it should change nothing. Where does yours meet an inf?"
    elif float(parts[1]) > 0:
        hint = "exp(500) is no number in single precision. Only differences of the lse matter"
    else:
        hint = "exp(-500) is 0 in single precision, and so is the sum that you divide by"
    return came, hint


def _known(parts: tuple[torch.Tensor, ...]) -> Iterator[tuple[tuple[Any, Any], str, str]]:
    """(weights of the two pieces, what they are, hint) of mistakes that people make."""
    _, lse_a, _, lse_b = parts
    a, b = (lse.double() for lse in (lse_a, lse_b))
    share = torch.sigmoid(a - b)
    lengths = "how much of the softmax lies in each piece? That is what its lse says"
    yield (0.5, 0.5), "the mean of both, as if each piece counted the same", lengths
    yield (1.0, 1.0), "the sum of both", "the weights of all tokens together are 1: divide"
    swapped = "piece a counts exp(lse_a), piece b exp(lse_b)"
    yield (1 - share, share), "each piece with the weight of the other", swapped
    linear = "an lse is a logarithm: the weights are as exp(lse_a) to exp(lse_b)"
    yield (a / (a + b), b / (a + b)), "weights as lse_a to lse_b", linear
    yield (
        (a.exp(), b.exp()),
        "weights exp(lse) that were not divided by their sum",
        "divide by a + b",
    )
    top = torch.maximum(a, b)
    raw = "divide by the sum of both weights: the larger one is 1 before, not after"
    yield ((a - top).exp(), (b - top).exp()), "weights that do not add up to 1", raw
    most = "the smaller weight is not 0"
    yield (float(a >= b), float(a < b)), "the piece with the larger lse alone", most
    zero = [torch.where(x.isneginf(), 0.0, x) for x in (a, b)]
    counted = f"{EMPTY}, so its weight is exp(-inf), not exp(0)"
    kept = torch.sigmoid(zero[0] - zero[1])
    yield (kept, 1 - kept), "an empty piece counted as if its lse were 0", counted
    large = bool(top.abs() > 80)  # beyond what exp can say
    far = "exp of 500 is inf, of -500 it is 0. Only differences of the lse matter"
    known = "one of the pieces has tokens, and its out is known"
    yield (0.0, 0.0), "nothing at all", far if large else known


def _known_lse(parts: tuple[torch.Tensor, ...]) -> Iterator[tuple[torch.Tensor, str, str]]:
    _, a, _, b = parts
    both = torch.logaddexp(a, b)
    top = torch.maximum(a, b)
    yield top, "the larger of the two", "the smaller piece adds something: how much?"
    yield a + b, "their sum", "that would be the logarithm of a product"
    yield (a + b) / 2, "their mean", "more tokens make an lse larger, never smaller"
    yield both.exp(), "the sum without its logarithm", "the last step is a log"
    yield both - top, "what was subtracted is missing", "add the largest lse again"
    yield torch.full_like(a, 0.0), "as of a piece with tokens", EMPTY


def _weights(parts: tuple[torch.Tensor, ...], out: torch.Tensor) -> Bars | None:
    """How much each piece counts, and how much it does in the answer."""
    pieces = torch.stack((parts[0], parts[2]), dim=-1).double()
    if not bool(pieces.any(0).all()):
        return None  # an empty one: nothing can be told
    mine = torch.linalg.lstsq(pieces, out.double()[:, None]).solution.flatten()
    share = float(torch.sigmoid((parts[1] - parts[3]).double()))
    names = ("first piece", "first piece, yours", "second piece", "second piece, yours")
    values = (share, float(mine[0]), 1 - share, float(mine[1]))
    rows = {name: round(value, 4) + 0.0 for name, value in zip(names, values, strict=True)}
    return Bars(rows, title="how much each piece counts", across="weight")


def _near(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Element by element; False for what is not a number."""
    return (x.double() - y.double()).abs() <= NEAR * max(1.0, float(y.abs().max()))


def _near_lse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same; what is as low as the engine's lowest counts as -inf."""
    both_empty = (x <= LOWEST) & (y <= LOWEST)
    return both_empty | ((x.double() - y.double()).abs() <= 10 * NEAR)


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x, y)


def _shapes(case: Case) -> str:
    out, lse = ([*part.shape] for part in case.a)
    return f"out is {out} here, lse {lse}; w[..., None] has one dimension more than w"


def _said(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {[*value.shape]}"
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else shown(value)


def _words(out: torch.Tensor, lse: torch.Tensor, in_out: bool) -> str:
    """What is right, in words."""
    if float(lse) <= LOWEST:
        return "an empty state: out 0, lse -inf"
    begins = f"out that begins with {float(out[0]):.4f}"
    return begins if in_out else f"{begins}, lse {float(lse):.4f}"
