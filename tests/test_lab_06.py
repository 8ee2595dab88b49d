"""Lab 06's exercise `turn`: each wrong turn has its own words, its moment and its picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import tiny

from inms_lab.books.events import Shared
from inms_lab.books.gate import OPEN
from inms_lab.logs.log import Log
from inms_lab.notebook.lab import Lab
from inms_lessons import EXERCISES, Wrong, check, examine
from inms_lessons.copies import solutions_in
from inms_lessons.curves import PLOTLY
from inms_lessons.kv import kv_of
from inms_lessons.sliding import Sliding
from inms_lessons.small_labs import word_lab
from inms_lessons.turning import HEADS, OTHERS, Case, fragments, rotation, tensors

LAB = Path(__file__).resolve().parents[1] / "labs" / "06_positions.ipynb"
Turn = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    """Three agents have one record, each at a shift of its own; eve before where it was encoded."""
    with word_lab(gate=OPEN) as lab:
        lab.preload("you work in one shop and answer in one short sentence", progress=False)
        team = lab.group("shop")
        ada, ben, eve = team.agents("ada", "ben", "eve")
        team.publish("parcels leave at noon and at six every day but sunday", by=ada)
        record = team.publish(" ".join(f"word-{i}" for i in range(30)), by=ada)
        ada.read(" ".join(f"a-{i}" for i in range(19))).result()
        ben.read(" ".join(f"b-{i}" for i in range(47))).result()
        for agent in (ada, ben, eve):
            agent.attach(record).result()
        yield lab.log.copy()


def run(source: str) -> Turn:
    exec(source, names := {"torch": torch})
    return names["turn"]  # type: ignore[return-value]


def solution() -> Turn:
    return run(solutions_in(json.loads(LAB.read_text("utf-8")))["turn"])


def wrong_of(function: Any, log: Any) -> Wrong:
    found = examine("turn", function, log)
    assert found is not None
    return found


def turned(q: torch.Tensor, inv_freq: torch.Tensor, angle: float) -> torch.Tensor:
    """By hand, independent of the library: pair i by angle x inv_freq[i] radians, as one complex
    number each."""
    pairs = torch.complex(q[..., :32].double(), q[..., 32:].double())
    moved = pairs * torch.exp(1j * angle * inv_freq.double())
    return torch.cat((moved.real, moved.imag), dim=-1).float()


# what it is judged by ---------------------------------------------------------------------------


def test_the_cases_are_the_fragments_of_the_log(log: Log) -> None:
    cases = list(fragments(log))
    assert [(c.reader, c.shift) for c in cases] == [("ada", 8), ("ben", 36), ("eve", -11)]
    for case in cases:
        assert case.index is not None
        event = log.events[case.index - 1]
        assert isinstance(event, Shared)
        assert case.block == (event.pool_id, event.blocks[0])


@pytest.mark.parametrize("shift", [8, 36, -11, 300, 0])
def test_keys_are_what_they_are_said_to_be_and_each_head_looks_somewhere_else(shift: int) -> None:
    given = tensors(Case("x", 330, 40, shift))
    inv_freq = rotation().inv_freq
    assert torch.allclose(turned(given.lying, inv_freq, shift), given.moved, atol=2e-3)
    peaks = given.weights(given.q, given.moved).argmax(-1).tolist()
    assert len(set(peaks)) == HEADS
    assert peaks == sorted(peaks, reverse=True)
    met = given.weights(turned(given.q, inv_freq, -shift), given.lying)
    assert torch.allclose(met, given.weights(given.q, given.moved), atol=1e-3)


# answers ----------------------------------------------------------------------------------------


def test_the_solution_passes_and_so_does_another_way_to_write_it(log: Log) -> None:
    assert examine("turn", solution(), log) is None
    assert examine("turn", lambda q, f, s: turned(q, f, -s), log) is None


def test_the_stub_is_the_query_not_turned(log: Log) -> None:
    wrong = wrong_of(run(EXERCISES["turn"].stub), log)
    assert wrong.where == "ada has 30 tokens at a shift of +8"
    assert wrong.came == "the query as it was, not turned"


def interleaved(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    out = turned(q[:, order], f, -s)
    return out[:, torch.tensor(order).argsort()]


def one_head(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
    return torch.cat((turned(q[:1], f, -s), q[1:]))


def overwritten(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
    a, b, angle = q[:, :32].clone(), q[:, 32:].clone(), -s * f
    a = a * angle.cos() - b * angle.sin()
    b = b * angle.cos() + a * angle.sin()
    return torch.cat((a, b), dim=-1)


def half(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
    return torch.cat((turned(q, f, -s)[:, :32], q[:, 32:]), dim=-1)


def cosine(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
    return q * (s * torch.cat((f, f))).cos()


MISTAKES: dict[str, tuple[Turn, str, str, str]] = {  # function, reader, what came, the hint
    "not at all": (lambda q, f, s: q.clone(), "ada", "as it was, not turned", "never moved"),
    "the wrong sign": (lambda q, f, s: turned(q, f, s), "ada", "the other way", "before the one"),
    "without a sign": (lambda q, f, s: turned(q, f, -abs(s)), "eve", "the other way", "behind it"),
    "other pairs": (interleaved, "ada", "2i and 2i + 1", "channel i + 32"),
    "one head": (one_head, "ada", "only the first head", "every head"),
    "degrees": (lambda q, f, s: turned(q, f.deg2rad(), -s), "ada", "factor 57", "radians"),
    "one position": (lambda q, f, s: turned(q, f, -1), "ada", "one position", "where is shift"),
    "half of each pair": (half, "ada", "only the first half", "both"),
    "the new a": (overwritten, "ada", "b made of the new a", "old a"),
    "no sine": (cosine, "ada", "times as long", "keeps the length"),
    "one speed": (
        lambda q, f, s: turned(q, torch.ones(32), -s), "ada", "looks somewhere else", "the angle"
    ),
    "not a number": (lambda q, f, s: q / 0, "ada", "nan or inf", "divided"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_turn_is_told_shown_and_drawn(mistake: str, log: Log) -> None:
    function, reader, came, hint = MISTAKES[mistake]
    wrong = wrong_of(function, log)
    assert wrong.where.startswith(f"{reader} has 30 tokens at a shift of ")
    assert came in wrong.came
    assert hint in wrong.hint
    assert wrong.log is log
    event = log.events[(wrong.moment or 0) - 1]
    assert isinstance(event, Shared)
    assert wrong.block in [(event.pool_id, block) for block in event.blocks]
    head, token = (int(word) for word in wrong.expected.split() if word.isdigit())
    assert event.blocks.index(wrong.block[1]) == token // 4, "the block that the head looks for"
    drawn = wrong.picture.lines
    truth, got = drawn["on moved keys"], drawn["with your query"]
    assert max(truth, key=lambda point: point[1])[0] == token
    assert truth != got
    assert f"head {head}" in wrong.picture.title


def test_heads_that_are_right_are_said_to_be(log: Log) -> None:
    def last_two(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
        return torch.cat((turned(q[:7], f, -s), q[7:]))

    wrong = wrong_of(last_two, log)
    assert wrong.came == "head 0 is right, head 7 is not"
    assert "head 7" in wrong.picture.title


def test_a_query_that_is_changed_in_place_is_noticed(log: Log) -> None:
    def in_place(q: torch.Tensor, f: torch.Tensor, s: int) -> torch.Tensor:
        return q.copy_(turned(q, f, -s))

    wrong = wrong_of(in_place, log)
    assert wrong.came == "q itself was changed"
    assert "other tiles" in wrong.hint


def test_right_at_the_shifts_of_the_log_only(log: Log) -> None:
    known = {case.shift for case in fragments(log)}
    wrong = wrong_of(lambda q, f, s: turned(q, f, -s if s in known else 0), log)
    assert wrong.where.startswith(f"somebody has {OTHERS[0][1]} tokens at a shift of +1")
    assert wrong.log is None
    assert wrong.picture is not None


JUNK: dict[str, tuple[Any, str]] = {
    "None": (lambda q, f, s: None, "does it return"),
    "a tensor [9, 32]": (lambda q, f, s: q[:, :32], ""),
    "a tensor [64]": (lambda q, f, s: q[0], ""),
    "[1, 2]": (lambda q, f, s: [1, 2], ""),
    "RuntimeError": (lambda q, f, s: q @ f, "call it by hand"),
    "NameError": (lambda q, f, s: angle * q, "call it by hand"),  # type: ignore[name-defined]  # noqa: F821
}


@pytest.mark.parametrize("came", JUNK)
def test_what_is_no_query_is_told(came: str, log: Log) -> None:
    function, hint = JUNK[came]
    wrong = wrong_of(function, log)
    assert wrong.came.startswith(came)
    assert hint in wrong.hint
    assert wrong.moment is not None


@pytest.mark.parametrize("junk", [None, 3, "turn", {}])
def test_junk_for_a_function_or_a_log(junk: Any, log: Log) -> None:
    assert wrong_of(junk, log).expected == "a function turn(q, inv_freq, shift)"
    assert wrong_of(solution(), junk).expected == "lab.log"
    assert "have fragments" in wrong_of(solution(), Log()).expected


# what is seen -----------------------------------------------------------------------------------


def test_a_picture_comes_below_the_words(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    displayed = list[Any]()
    monkeypatch.setattr("inms_lessons.frame.shell", lambda: object())
    monkeypatch.setattr("IPython.display.display", displayed.append)
    check("turn", lambda q, f, s: q, log)
    picture, view = displayed
    assert picture.title == "where head 0 looks"
    assert view.shown is log
    check("turn", solution(), log)
    assert len(displayed) == 2
    assert view.closed


def test_curves_with_a_slider() -> None:
    stops = {
        "1": {"a": [(0, 1.0), (1, 2.0)], "b": [(0, 0.5), (1, 0.25)]},
        "8": {"a": [(0, 3.0), (1, 9.0)], "b": [(0, 1 / 3), (1, 0.0)]},
    }
    made = Sliding(stops, title="off", across="pair", slider="shift", start="8")
    figure = made.figure()
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["1", "8"]
    assert slider.active == 1
    points, title = slider.steps[0].args
    assert points == {"x": [[0, 1], [0, 1]], "y": [[1.0, 2.0], [0.5, 0.25]]}
    assert title == {"title.text": "off (shift 1)"}
    assert [trace.name for trace in figure.data] == ["a", "b"]
    assert list(figure.data[0].y) == [3.0, 9.0]
    assert figure.layout.yaxis.range[1] > 9
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, "text/html", "text/plain"}
    assert "off (shift 8)" in bundle["text/html"]
    assert "a slider for 1, 8" in bundle["text/plain"]


def test_kv_of_a_holder_is_a_copy_of_what_lies_in_its_blocks() -> None:
    with Lab(tiny(every_row=False), block_size=16, context=128, gate=None) as lab:
        ada = lab.agent("ada")
        ada.read(list(range(3, 44))).result()
        part = lab.engine.ledger.sequences[ada.seq_id].segments[0]
        kv, store = kv_of(lab, ada.seq_id), lab.engine.cache.store
        region = store.regions["private"]  # type: ignore[attr-defined]
        two, layers, heads, dim = store.shape  # type: ignore[attr-defined]
        assert kv.shape == (layers, two, heads, 41, dim)
        for index in (0, 15, 40):
            slot = part.blocks[index // 16] * 16 + index % 16
            assert torch.equal(kv[:, :, :, index], region[:, :, :, slot].transpose(0, 1))
        kv.zero_()
        assert region.any()
        lab.assert_clean()
