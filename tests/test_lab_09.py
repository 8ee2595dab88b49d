"""Lab 09: what a step of many readers reads, and exercise `merge` with its wrong answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inms_lab.attention.tiles import merge_state
from inms_lessons import EXERCISES, Wrong, check, examine
from inms_lessons.copies import solutions_in
from inms_lessons.reading import BLOCK, GEOMETRY, Lengths, Readers, milliseconds
from inms_lessons.results import results
from inms_lessons.states import Case, cases

LAB = Path(__file__).resolve().parents[1] / "labs" / "09_read_once.ipynb"
A_TOKEN = 2 * 3 * 64 * 4  # bytes of KV a layer
SMALL = Lengths(prompt=256, shared=512, own=300)
Tensors = tuple[torch.Tensor, torch.Tensor]
Merge = Callable[..., Any]


# a step -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teams() -> dict[str, Readers]:
    return {mode: Readers(mode, 4, SMALL) for mode in ("inms", "independent", "global")}


@pytest.mark.parametrize("mode", ["inms", "independent", "global"])
@pytest.mark.parametrize("num", [1, 3, 4])
def test_the_plan_reads_a_shared_text_once_and_scores_it_for_everyone(
    mode: str, num: int, teams: dict[str, Readers]
) -> None:
    step = teams[mode].step(num)
    copies = num if mode == "independent" else 1
    own = 2 * BLOCK  # 300 tokens: the last tile is read at its full size
    assert step.bytes == A_TOKEN * (copies * 768 + num * own)
    assert step.scores == 9 * num * (768 + own)


def test_what_is_computed_and_held_is_what_is_read(teams: dict[str, Readers]) -> None:
    assert teams["inms"].computed == 768 + 4 * 300
    assert teams["independent"].computed == 4 * SMALL.context
    assert teams["inms"].held == 768 + 4 * 512
    assert teams["independent"].held == 4 * (768 + 512)


def test_every_mode_gives_the_same_and_it_is_plain_attention(teams: dict[str, Readers]) -> None:
    first = teams["inms"].step().attend()
    for mode, team in teams.items():
        step = team.step()
        out, q = step.attend(), step.queries()
        assert torch.allclose(out, first, atol=1e-6), mode
        for reader in range(4):
            keys, values = (x.double() for x in team.context(reader))
            assert keys.shape == (3, SMALL.context, 64)
            asked = q[reader].double().view(3, 3, 64)
            dense = (asked @ keys.mT / 8).softmax(-1) @ values
            assert torch.allclose(dense.view(9, 64).float(), out[reader], atol=1e-5), mode


def test_each_reader_has_kv_of_its_own_text_and_layers_differ() -> None:
    team = Readers("inms", 2, SMALL, layers=2)
    one, other = team.context(0), team.context(1)
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine[:, :768], theirs[:, :768])
        assert not torch.isclose(mine[:, 768:], theirs[:, 768:]).all(dim=(0, 2)).any()
    step = team.step()
    assert not torch.allclose(step.attend(0), step.attend(1), atol=1e-2)
    assert all(taken > 0 for taken in milliseconds([step, team.step(1)], repeat=2))


def test_what_the_lab_says_to_try() -> None:
    lengths = Lengths(512, 4096, 256)
    once, copied = (Readers(mode, lengths=lengths).step() for mode in ("inms", "independent"))
    assert once.bytes == A_TOKEN * (512 + 4096 + 8 * 256)
    assert copied.bytes == A_TOKEN * 8 * (512 + 4096 + 256)


def test_the_full_size_is_the_lab_s() -> None:
    """82 MB become 32."""
    lengths = Lengths()
    assert GEOMETRY.kv_bytes_per_token == 30 * A_TOKEN
    assert round(A_TOKEN * 8 * lengths.context / 1e6) == 82
    assert round(A_TOKEN * (lengths.prompt + lengths.shared + 8 * lengths.own) / 1e6) == 32


def test_the_results_are_of_the_lab_s_readers_and_complete() -> None:
    full = results("read_once")
    lengths = Lengths(**full["lengths"])
    assert lengths == Lengths()
    text = lengths.prompt + lengths.shared
    seen = set()
    for row in full["attention"]:
        num = row["readers"]
        copies = num if row["held"] == "copies" else 1
        assert row["kv_bytes"] == A_TOKEN * (copies * text + num * lengths.own)
        assert row["scores"] == 9 * num * lengths.context
        assert 0 < row["ms"]["min"] <= row["ms"]["median"] <= row["ms"]["max"]
        seen.add((row["kernels"], row["held"], num))
    counts = (1, 2, 4, 8, 16)
    assert len(seen) == len(full["attention"]) == 2 * 2 * len(counts)
    assert {num for _, _, num in seen} == set(counts)
    assert len(full["products"]) == 2 * len(counts)
    assert full["weight_bytes"] == 4 * (2 * 576**2 + 2 * 576 * 192 + 3 * 576 * 1536)


# answers ----------------------------------------------------------------------------------------


def run(source: str) -> Merge:
    exec(source, names := {"torch": torch})
    return names["merge"]  # type: ignore[return-value]


def solution() -> Merge:
    return run(solutions_in(json.loads(LAB.read_text("utf-8")))["merge"])


def wrong_of(function: Any) -> Wrong:
    found = examine("merge", function)
    assert found is not None
    return found


def right(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    """Another way to write it: the lse first."""
    lse = torch.logaddexp(lse_a, lse_b)
    a, b = ((one - lse).exp().nan_to_num()[..., None] for one in (lse_a, lse_b))
    return out_a * a + out_b * b, lse


def weighing(weigh: Callable[[torch.Tensor, torch.Tensor], Any]) -> Merge:
    """Right but for the weights."""

    def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
        a, b = (torch.as_tensor(w).expand_as(lse_a)[..., None] for w in weigh(lse_a, lse_b))
        return out_a * a + out_b * b, right(out_a, lse_a, out_b, lse_b)[1]

    return merge


def adding(add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Merge:
    """Right but for the lse."""
    return lambda *state: (right(*state)[0], add(state[1], state[3]))


def from_top(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    """Without a thought of two empty pieces."""
    top = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    out = (out_a * a[..., None] + out_b * b[..., None]) / (a + b)[..., None]
    return out, top + (a + b).log()


def plain(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    a, b = lse_a.exp(), lse_b.exp()
    return (out_a * a[..., None] + out_b * b[..., None]) / (a + b)[..., None], (a + b).log()


def plain_but_empty(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    out, lse = plain(out_a, lse_a, out_b, lse_b)
    none = (lse_a.isneginf() & lse_b.isneginf())[..., None]
    return torch.where(none, 0.0, out), lse


def one_weight(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    first, second = (lse.flatten()[0].expand_as(lse) for lse in (lse_a, lse_b))
    return right(out_a, first, out_b, second)[0], right(out_a, lse_a, out_b, lse_b)[1]


def no_empty(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
    zero = [torch.where(one.isneginf(), 0.0, one) for one in (lse_a, lse_b)]
    return right(out_a, zero[0], out_b, zero[1])


def kept_nan(*state: torch.Tensor) -> Tensors:
    out, lse = plain(*state)
    return out.nan_to_num(), lse.nan_to_num(neginf=-torch.inf)


def test_the_solution_passes_and_so_do_other_ways_to_write_it() -> None:
    for function in (solution(), right, lambda *state: [*merge_state(*state)]):
        assert examine("merge", function) is None


def test_the_stub_is_section_4_and_stops_at_several_queries() -> None:
    stub = run(EXERCISES["merge"].stub)
    out, lse = stub(*cases()[0].parts)
    assert torch.allclose(out, right(*cases()[0].parts)[0], atol=1e-6)
    assert torch.allclose(lse, right(*cases()[0].parts)[1])
    wrong = wrong_of(stub)
    assert wrong.where == "4 queries at once"
    assert wrong.came.startswith("RuntimeError: The size of tensor a (64)")
    assert wrong.hint == "out is [4, 64] here, lse [4]; w[..., None] has one dimension more than w"


ONE = "one query, pieces of 40 and 24 tokens"
NONE = "both pieces are empty"
MISTAKES: dict[str, tuple[Merge, str, str, str]] = {  # function, where, what came, the hint
    "mean": (weighing(lambda a, b: (0.5, 0.5)), ONE, "the mean of both", "in each piece"),
    "sum": (weighing(lambda a, b: (1.0, 1.0)), ONE, "the sum of both", "together are 1"),
    "swapped": (
        weighing(lambda a, b: torch.stack((b, a)).softmax(0)), ONE, "of the other", "exp(lse_a)"
    ),
    "linear": (
        weighing(lambda a, b: (a / (a + b), b / (a + b))), ONE, "as lse_a to lse_b", "logarithm"
    ),
    "not divided": (weighing(lambda a, b: (a.exp(), b.exp())), ONE, "not divided", "a + b"),
    "top not divided": (
        weighing(lambda a, b: ((a - torch.maximum(a, b)).exp(), (b - torch.maximum(a, b)).exp())),
        ONE, "do not add up to 1", "larger one is 1 before",
    ),
    "larger": (weighing(lambda a, b: (a >= b, a < b)), ONE, "larger lse alone", "is not 0"),
    "nothing": (weighing(lambda a, b: (0.0, 0.0)), ONE, "nothing at all", "has tokens"),
    "mixture": (weighing(lambda a, b: (0.9, 0.1)), ONE, "another mixture", "their sum is 1"),
    "lse: larger": (adding(torch.maximum), ONE, "the larger of the two", "adds something"),
    "lse: sum": (adding(lambda a, b: a + b), ONE, "their sum", "of a product"),
    "lse: mean": (adding(lambda a, b: (a + b) / 2), ONE, "their mean", "never smaller"),
    "lse: no log": (
        adding(lambda a, b: a.exp() + b.exp()), ONE, "without its logarithm", "is a log"
    ),
    "lse: no top": (
        adding(lambda a, b: torch.logaddexp(a, b) - torch.maximum(a, b)),
        ONE, "subtracted is missing", "again",
    ),
    "lse: other": (adding(lambda a, b: a * 0 + 77), ONE, "the lse is 77", "log(exp(lse_a)"),
    "one weight for all": (one_weight, "4 queries at once", "the first query is right", "own"),
    "empty as 0": (no_empty, "the first piece is empty", "as if its lse were 0", "not exp(0)"),
    "two empty, exp": (plain, NONE, "out begins with nan, lse is -inf", "0 / 0"),
    "two empty, top": (from_top, NONE, "out begins with nan, lse is nan", "-inf minus -inf"),
    "two empty, lse 0": (
        lambda *s: (right(*s)[0], right(*s)[1].clamp_min(-9)), NONE, "the lse is -9", "log(exp"
    ),
    "500": (plain_but_empty, "scores near 500", "out begins with nan, lse is inf", "differences"),
    "500, hidden": (kept_nan, "scores near 500", "nothing at all", "differences"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_merge_is_told_where_it_shows_first(mistake: str) -> None:
    function, where, came, hint = MISTAKES[mistake]
    wrong = wrong_of(function)
    assert wrong.where == where
    assert came in wrong.came
    assert hint in wrong.hint
    assert wrong.log is None


def test_scores_that_are_too_low_are_told_apart_from_those_that_are_too_large() -> None:
    def below(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
        low = (lse_a < -100) & ~lse_a.isneginf()
        good, bad = right(out_a, lse_a, out_b, lse_b), plain(out_a, lse_a, out_b, lse_b)
        return torch.where(low[..., None], bad[0], good[0]), torch.where(low, bad[1], good[1])

    wrong = wrong_of(below)
    assert wrong.where == "scores near -500"
    assert "exp(-500) is 0" in wrong.hint


def test_one_order_only() -> None:
    first = weighing(lambda a, b: torch.stack((a, b)).softmax(0))

    def picky(*state: torch.Tensor) -> Any:
        a, b = state[0], state[2]
        return first(*state) if float(a.sum()) >= float(b.sum()) or a.dim() == 1 else (a, state[1])

    assert wrong_of(picky).where in ("4 queries at once", "the same pieces in the other order")


@pytest.mark.parametrize("mistake", ["mean", "swapped", "linear", "larger", "mixture"])
def test_wrong_weights_are_drawn_beside_the_right_ones(mistake: str) -> None:
    picture = wrong_of(MISTAKES[mistake][0]).picture
    rows = picture.rows
    assert list(rows) == [
        *("first piece", "first piece, yours", "second piece", "second piece, yours")
    ]
    parts = cases()[0].parts
    shares = torch.stack((parts[1], parts[3])).softmax(0)
    assert rows["first piece"] == pytest.approx(float(shares[0]), abs=1e-3)
    assert rows["second piece"] == pytest.approx(float(shares[1]), abs=1e-3)
    assert rows["first piece, yours"] != pytest.approx(rows["first piece"], abs=1e-2)
    if mistake == "mixture":
        assert (rows["first piece, yours"], rows["second piece, yours"]) == (0.9, 0.1)
    assert "how much each piece counts" in picture._repr_mimebundle_()["text/html"]


def test_states_that_are_changed_in_place_are_noticed() -> None:
    def in_place(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Tensors:
        merged = right(out_a, lse_a, out_b, lse_b)
        return out_a.copy_(merged[0]), merged[1]

    wrong = wrong_of(in_place)
    assert wrong.came == "one was changed"
    assert "other queries" in wrong.hint


JUNK: dict[str, tuple[Any, str]] = {
    "None": (lambda *s: None, "does it return both"),
    "a tensor [64]": (lambda *s: right(*s)[0], "needs the lse as well"),
    "3 values": (lambda *s: (*right(*s), 1), "does it return both"),
    "a tensor [1]": (lambda *s: (right(*s)[0], right(*s)[1][None]), "lse []"),
    "1": (lambda *s: (right(*s)[0], 1), "lse []"),
    "NameError": (lambda *s: undefined * s[0], "call it by hand"),  # type: ignore[name-defined]  # noqa: F821
    "IndexError": (lambda *s: right(s[0], s[1][:, None], s[2], s[3]), "w[..., None]"),
}


@pytest.mark.parametrize("came", JUNK)
def test_what_is_no_state_is_told(came: str) -> None:
    function, hint = JUNK[came]
    wrong = wrong_of(function)
    assert wrong.came.startswith(came)
    assert hint in wrong.hint


@pytest.mark.parametrize("junk", [None, 3, "merge", {}])
def test_junk_for_a_function(junk: Any) -> None:
    assert wrong_of(junk).expected == "a function merge(out_a, lse_a, out_b, lse_b)"


def test_a_rounding_is_no_mistake() -> None:
    def rounded(*state: torch.Tensor) -> Any:
        out, lse = right(*state)
        return out * (1 + 2e-5), lse + 2e-4

    assert examine("merge", rounded) is None


# what it is judged by ---------------------------------------------------------------------------


def test_the_engine_s_merge_is_a_softmax_over_both_pieces() -> None:
    for case in cases():
        out, lse = merge_state(*(part.clone() for part in case.parts))
        lses = torch.stack((case.a[1], case.b[1])).double()
        weights = lses.softmax(0).nan_to_num()
        truth = weights[0, ..., None] * case.a[0] + weights[1, ..., None] * case.b[0]
        assert torch.allclose(out.double(), truth, atol=1e-5), case.words
        there = ~lses.isneginf().all(0)
        assert torch.allclose(lse.double()[there], lses.logsumexp(0)[there], atol=1e-4), case.words
        assert bool((lse[~there] <= -1e30).all())
        assert not bool(out[~there].any())


def test_there_are_cases_of_every_kind() -> None:
    def empty(case: Case) -> tuple[bool, bool]:
        return bool(case.a[1].isneginf().all()), bool(case.b[1].isneginf().all())

    kinds = {empty(case) for case in cases()}
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
    assert {case.a[1].dim() for case in cases()} == {0, 1, 3}
    assert max(float(case.a[1].max()) for case in cases()) > 500
    assert len({case.words for case in cases()}) == len(cases()) >= 12


def test_a_picture_comes_below_the_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    displayed = list[Any]()
    monkeypatch.setattr("inms_lessons.frame.shell", lambda: object())
    monkeypatch.setattr("IPython.display.display", displayed.append)
    check("merge", MISTAKES["mean"][0])
    assert [one.title for one in displayed] == ["how much each piece counts"]
    check("merge", solution())
    assert len(displayed) == 1
    assert capsys.readouterr().out.endswith("merge: public checks passed\n")
