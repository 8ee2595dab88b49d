"""Exercise `turn`: a query is turned so that it meets keys that stay as they are.

Checked against dense attention on keys that were moved to their place, at every shift at which a
reader of the lab has a fragment, and at others. The heads of the query look for a token at a
certain distance, so that a wrong turn can be seen: they look somewhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from inms_lab.attention.rope import Rotation
from inms_lab.books.events import Shared
from inms_lab.books.sequence import Sequence
from inms_lab.logs.log import Log

from .curves import Curves
from .told import names_of
from .wrong import Wrong, in_a_line, shown

HEADS, KV_HEADS, DIM, THETA = 9, 3, 64, 100_000.0  # as in SmolLM2-135M
LENGTH = 4.0  # of each pair's arrow, squared: how sharply a head looks
NEAR = 1e-3  # of the largest value; turns in float32 are much closer
OTHERS = ((1, 40), (-7, 40), (300, 40), (0, 40))  # (shift, tokens) beside those of the log


@cache
def rotation(interleaved: bool = False) -> Rotation:
    """The rotation of the exercise."""
    steps = torch.arange(0, DIM, 2, dtype=torch.float64) / DIM
    return Rotation((THETA**-steps).float(), interleaved, DIM)


@dataclass(frozen=True, slots=True)
class Case:
    """A reader has `count` tokens at `place` whose keys are rotated for `place - shift`. `index`
    and `block`: where a log shows it."""

    reader: str
    place: int
    count: int
    shift: int
    index: int | None = None
    block: tuple[str, int] | None = None

    @property
    def words(self) -> str:
        """As a check says it."""
        return f"{self.reader} has {self.count} tokens at a shift of {self.shift:+d}"


@dataclass(frozen=True, slots=True)
class Tensors:
    """Of a case: query [H, D], keys [K, S, D] as they lie, and at their place; values [K, S, D]."""

    q: torch.Tensor
    lying: torch.Tensor
    moved: torch.Tensor
    values: torch.Tensor

    def weights(self, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """How much each head of q looks at each token [H, S]."""
        heads = keys.repeat_interleave(HEADS // KV_HEADS, dim=0)
        return torch.einsum("hd,hsd->hs", q, heads).div(DIM**0.5).softmax(-1)

    def out(self, weights: torch.Tensor) -> torch.Tensor:
        """The attention of these weights [H, D]."""
        heads = self.values.repeat_interleave(HEADS // KV_HEADS, dim=0)
        return torch.einsum("hs,hsd->hd", weights, heads)


def turn(function: object, log: object) -> Wrong | None:
    """`function(q, inv_freq, shift)` meets the keys of every fragment in the lab's log."""
    if not callable(function):
        return Wrong("a function turn(q, inv_freq, shift)", shown(function))
    cases = list(fragments(log)) if isinstance(log, Log) else []
    if not cases:
        what = "a log in which readers have fragments" if isinstance(log, Log) else "lab.log"
        return Wrong(what, shown(log), hint="run the cells from the top")
    others = [Case("somebody", max(0, s) + 30, count, s) for s, count in OTHERS]
    for case in [*cases, *others]:
        if wrong := _compared(function, case, log if case.block else None):  # type: ignore[arg-type]
            return wrong
    return None


def fragments(log: Log) -> Iterator[Case]:
    """Every fragment that a reader was given, when it was mounted."""
    books, names, seen = log.replay(log.first), names_of(log), set[tuple[int, int]]()
    for index, event in enumerate(log.events, log.first):
        books.apply(event)
        if not isinstance(event, Shared) or event.cause == "fork":
            continue
        seq: Sequence = books.sequences[event.seq_id]
        part = seq.segments[event.segment]
        known = (event.seq_id, part.shift) in seen
        if part.is_fragment and seq.kind == "agent" and part.shift and not known:
            seen.add((event.seq_id, part.shift))
            where = event.pool_id, event.blocks[0]
            size = part.first_position, len(part.tokens), part.shift
            yield Case(names[event.seq_id], *size, index + 1, where)


@cache
def tensors(case: Case) -> Tensors:
    """Heads that look for the token at a distance of their own; else all tokens are alike."""
    turned, rng = rotation().turn, torch.Generator().manual_seed(case.shift)
    content = torch.zeros(DIM)
    content[: DIM // 2] = LENGTH**0.5
    places = torch.arange(case.count) + case.place
    alike = content + 0.05 * torch.randn(KV_HEADS, case.count, DIM, generator=rng)
    at = case.place + case.count  # of the query, directly behind the fragment
    back = torch.linspace(0.2, 0.8, HEADS) * case.count
    q = turned(content.expand(HEADS, DIM), at - back.round().long())
    values = torch.randn(KV_HEADS, case.count, DIM, generator=rng)
    lying = turned(alike, places - case.shift)
    return Tensors(q, lying, turned(alike, places), values)


def _compared(function: Callable[..., Any], case: Case, log: Log | None) -> Wrong | None:
    given, inv_freq = tensors(case), rotation().inv_freq.clone()
    q = given.q.clone()

    def wrong(expected: str, came: str, hint: str = "", picture: Any = None) -> Wrong:
        where = log, case.index, case.block
        return Wrong(expected, came, case.words, hint, *where, picture=picture)

    try:
        answer = function(q, inv_freq, case.shift)
    except Exception as error:
        return wrong("a query", in_a_line(error), "call it by hand: turn(q, inv_freq, 8)")
    if not torch.equal(q, given.q) or not torch.equal(inv_freq, rotation().inv_freq):
        hint = "other tiles, at other shifts, are still to be read with the query as it was"
        return wrong("q as it was handed in, and a new query", "q itself was changed", hint)
    if not isinstance(answer, torch.Tensor) or answer.shape != q.shape:
        came = f"a tensor {[*answer.shape]}" if isinstance(answer, torch.Tensor) else shown(answer)
        hint = "does it return what it computed?" if answer is None else ""
        return wrong(f"a tensor [{HEADS}, {DIM}]", came, hint)
    answer = answer.detach().float()
    truth, got = given.weights(given.q, given.moved), given.weights(answer, given.lying)
    apart = (given.out(truth) - given.out(got)).abs().amax(-1) / given.values.abs().max()
    if bool((apart <= NEAR).all()):  # False for what is not a number
        return None
    head = int((~(apart <= NEAR)).nonzero()[0])
    peak = int(truth[head].argmax())
    came, hint = _mistake(answer, given, case, head)
    if log is not None and case.index is not None and case.block is not None:
        case = _at(case, log, peak)
    return wrong(
        f"head {head} looks at token {peak} of the fragment, as on keys moved to their place",
        came,
        hint,
        _picture(truth[head], got[head], head),
    )


def _at(case: Case, log: Log, token: int) -> Case:
    """The case with the block in which a token lies."""
    assert case.block is not None
    books = log.replay(case.index)
    for seq in books.holders():
        for part in seq.segments:
            same = part.first_position == case.place and part.shift == case.shift
            if same and part.pool_id == case.block[0] and case.block[1] in part.blocks:
                block = part.blocks[token // part.block_size]
                return Case(case.reader, *_size(case), case.index, (part.pool_id, block))
    return case


def _size(case: Case) -> tuple[int, int, int]:
    return case.place, case.count, case.shift


def _picture(truth: torch.Tensor, got: torch.Tensor, head: int) -> Curves:
    lines = {"on moved keys": truth, "with your query": got.nan_to_num()}
    # Rounded: the last bits are the machine's, and the cell's output is compared.
    points = {
        name: [(n, round(float(y), 4)) for n, y in enumerate(line)] for name, line in lines.items()
    }
    return Curves(points, f"where head {head} looks", "token of the fragment", shares="y")


def _mistake(answer: torch.Tensor, given: Tensors, case: Case, head: int) -> tuple[str, str]:
    """What an answer computes, and where to look on."""
    if not bool(answer.isfinite().all()):
        return "numbers that are none (nan or inf)", "what is divided by what?"
    for wrong, came, hint in _known(given.q, case.shift):
        if torch.allclose(answer, wrong, atol=1e-2):
            return came, hint
    if head and torch.allclose(answer[0], rotation().turn(given.q[0], -case.shift), atol=1e-2):
        return f"head 0 is right, head {head} is not", "each head is turned by the same angles"
    lengths = answer.norm(dim=-1) / given.q.norm(dim=-1)
    if not torch.allclose(lengths, torch.ones(HEADS), atol=1e-2):
        came = f"a query {float(lengths[head]):.2f} times as long"
        return came, "a turn keeps the length: of two channels a, b both cos and sin of the angle"
    hint = "which channels are a pair, and what is the angle of each? Try a shift of 1 by hand"
    return "it looks somewhere else", hint


def _known(q: torch.Tensor, shift: int) -> Iterator[tuple[torch.Tensor, str, str]]:
    """(query, what it is, hint) of mistakes that people make."""
    right = rotation().turn
    yield q, "the query as it was, not turned", "its scores are those of keys that never moved"
    yield right(q, -1), "the query turned by one position, whatever the shift", "where is shift?"
    way = "are the keys rotated for a place before the one where the reader has them, or behind it?"
    yield right(q, shift), "the query turned the other way", way
    layout = "in this model channel i belongs to channel i + 32: look at section 3"
    yield rotation(True).turn(q, -shift), "channels 2i and 2i + 1 taken as pairs", layout
    yield rotation(True).turn(q, shift), "channels 2i and 2i + 1 taken as pairs", layout
    degrees = Rotation(rotation().inv_freq * torch.pi / 180, False, DIM)
    unit = "inv_freq is in radians for each position, and so are cos and sin"
    yield degrees.turn(q, -shift), "angles that are too small by the factor 57", unit
    one = "every head has its own pairs, and all are turned by the same angles"
    yield torch.cat((right(q[:1], -shift), q[1:])), "only the first head turned", one
    a, b = q[:, : DIM // 2], q[:, DIM // 2 :]
    angle = -shift * rotation().inv_freq
    half = torch.cat((a * angle.cos() - b * angle.sin(), b), dim=-1)
    yield half, "only the first half of each pair turned", "a and b both change, and both need both"
    twice = torch.cat(
        (x := a * angle.cos() - b * angle.sin(), b * angle.cos() + x * angle.sin()), -1
    )
    yield twice, "b made of the new a", "the new b is made of the old a: keep it"
