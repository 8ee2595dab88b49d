"""Lab 07: choices of blocks that are wrong are told apart, and shown where most is lost by them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inms_lab.books.events import Commanded, Copied, Shared
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain import explain
from inms_lab.model import load
from inms_lessons import examine
from inms_lessons.afresh import BUDGET, EXACT, FIRST
from inms_lessons.bench import BLOCK, COSTLY, LAYERS, NUM_BLOCKS, PRACTICE, Bench, Reader
from inms_lessons.charts import Bars, Heat
from inms_lessons.copies import solutions_in
from inms_lessons.exercises import EXERCISES
from inms_lessons.results import results
from inms_lessons.wrong import Wrong
from inms_widgets.view import View

pytestmark = [pytest.mark.model, pytest.mark.slow]

LAB = Path(__file__).resolve().parents[1] / "labs" / "07_fragments_and_interference.ipynb"
NOTEBOOK = json.loads(LAB.read_text("utf-8"))
Choose = Callable[[np.ndarray, int], Any]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench(load("smollm2-135m"), progress=False)
    yield made
    made.close()


def run(source: str) -> Choose:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Choose = names["choose"]
    return found


def wrong_of(answer: object, bench: object) -> Wrong:
    found = examine("afresh", answer, bench)
    assert found is not None
    return found


SOLUTION = run(solutions_in(NOTEBOOK)["afresh"])
STUB = run(EXERCISES["afresh"].stub)


# the bench --------------------------------------------------------------------------------------


def test_readers_have_real_texts_and_nobody_is_in_both_halves(bench: Bench) -> None:
    names = [reader.name for reader in [*bench.readers, *bench.held_out()]]
    assert len(set(names)) == 8
    for reader in [*bench.readers, *bench.held_out()]:
        assert reader.deviation.shape == (LAYERS, NUM_BLOCKS)
        assert len(reader.sample.fragment) == BLOCK * NUM_BLOCKS
        assert reader.deviation[0].max() < 1e-5, "layer 0 is exact"
        assert reader.deviation[1:].min() > 1e-3, "no other layer is"
        log = int(reader.name.split("/")[1].split()[0])
        assert (log in PRACTICE) == (reader in bench.readers)


def test_the_stretches_are_those_that_cost_most() -> None:
    assert {int(k): v for k, v in results("blocks_afresh")["costly"].items()} == COSTLY


def test_everything_afresh_leaves_no_error_and_order_does_not_matter(bench: Bench) -> None:
    reader = bench.readers[0]
    assert reader.kl(range(NUM_BLOCKS)) < EXACT / 100
    assert reader.kl([7, 6, 6]) == reader.kl((6, 7)) < reader.kl() / 10


def test_a_deviation_cannot_be_changed(bench: Bench) -> None:
    with pytest.raises(ValueError, match="read-only"):
        bench.readers[0].deviation[0, 0] = 1

    def greedy(deviation: np.ndarray, budget: int) -> list[int]:
        deviation[:] = 0
        return [int(i) for i in np.argsort(-deviation.mean(axis=0))[:budget]]

    wrong_of(greedy, bench)
    assert bench.readers[0].deviation.max() > 0


# wrong answers ----------------------------------------------------------------------------------


def order(wanted: np.ndarray, budget: int) -> list[int]:
    return [int(block) for block in np.argsort(-wanted, kind="stable")[:budget]]


WRONG: dict[str, tuple[Choose, str, str]] = {  # what is chosen, what is said of it, and of why
    "first": (lambda d, k: list(range(k)), "the first 2 blocks, for every text", "Layer 0"),
    "front rows": (lambda d, k: order(d[1:3].mean(axis=0), k), "the first 2 blocks", "near the"),
    "layer 0 and its noise": (lambda d, k: order(d[0], k), "times as much", "deviates by"),
    "rows 1 to 5": (lambda d, k: order(d[1:6].mean(axis=0), k), "1.3 times as much", "deviates by"),
    "last": (lambda d, k: list(range(NUM_BLOCKS - k, NUM_BLOCKS)), "just as much", "[6, 7] are"),
    "least": (lambda d, k: order(-d.mean(axis=0), k), "deviate least", "changes little"),
    "nothing": (lambda d, k: [], "times as much", "[] are computed afresh"),
    "too many": (lambda d, k: list(range(k + 1)), "3: [0, 1, 2]", "the more blocks"),
    "all": (lambda d, k: list(range(NUM_BLOCKS)), "8: [0, 1, 2, 3, 4, 5, 6, 7]", "no art"),
    "from one": (lambda d, k: range(NUM_BLOCKS + 1 - k, NUM_BLOCKS + 1), "[7, 8]", "8 is none"),
    "negative": (lambda d, k: [-1] * min(k, 1), "[-1]", "-1 is none"),
    "twice": (lambda d, k: [4] * k, "[4, 4]", "however often"),
}
FORM = {"too many", "all", "from one", "negative", "twice"}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_choice_is_shown_at_the_reader_for_whom_most_is_lost(
    bench: Bench, what: str
) -> None:
    choose, came, hint = WRONG[what]
    wrong = wrong_of(choose, bench)
    assert came in wrong.came
    assert hint in wrong.hint
    names = [r.name for r in ([*bench.readers] if what in FORM else bench.held_out())]
    assert any(name in wrong.where for name in names)
    if what not in FORM:
        assert "on 4 texts held out" in wrong.expected
    assert wrong.log is not None
    assert wrong.block is not None
    assert wrong.block[0] == "group:team"
    assert isinstance(wrong.picture, Heat)
    made = wrong.log.decision(wrong.decision)
    assert wrong.log.replay(made.at).sequences[made.seq_id].name == "reader"
    assert {"map", "detail"} <= set(wrong.parts)
    view = View(wrong.log, parts=wrong.parts)
    view.point(wrong.index, block=wrong.block, decision=wrong.decision, note=wrong.note())
    view.close()


def test_the_view_shows_the_choice_itself(bench: Bench) -> None:
    """The blocks that are named are computed in it, the others mounted at a shift; none is copied;
    what is pinned deviates most of those that are reused."""
    wrong = wrong_of(WRONG["nothing"][0], bench)
    assert wrong.log is not None
    parts = explain(wrong.log, wrong.decision).parts
    assert [(p.outcome, p.num_blocks) for p in parts] == [("shared at a shift", NUM_BLOCKS)]
    left = wrong_of(WRONG["least"][0], bench)
    assert left.log is not None
    kept = [e for e in left.log.events if isinstance(e, Shared) and e.pool_id == "group:team"]
    assert sum(len(e.blocks) for e in kept) == NUM_BLOCKS - BUDGET
    assert not [e for e in left.log.events if isinstance(e, Copied)]
    assert left.block in [(e.pool_id, b) for e in kept for b in e.blocks]
    (reader,) = [r for r in bench.held_out() if r.name in left.where]
    (record,) = left.log.replay().records["team"]
    holder = left.log.replay().sequences[record].segments[-1].blocks
    assert left.block[1] == holder[int(reader.deviation.mean(axis=0).argmax())]


def test_what_a_server_does_not_know_is_not_told(bench: Bench) -> None:
    """By a choice that measures, or that knows the texts which are held out."""

    def measured(deviation: np.ndarray, budget: int) -> list[int]:
        reader = next(r for r in bench.readers if (r.deviation == deviation).all())
        return [min(range(NUM_BLOCKS), key=lambda block: reader.kl([block]))][:budget]

    def peeped(deviation: np.ndarray, budget: int) -> list[int]:
        return measured(deviation, budget) if bench.held_out()[0].kl([0]) else []

    for choose in (measured, peeped):
        wrong = wrong_of(choose, bench)
        assert "has the deviation only" in wrong.came
    assert bench.readers[0].kl([0]) > 0, "and outside of a check it is told again"


def test_learnt_by_heart_fails_on_other_texts(bench: Bench) -> None:
    def best(reader: Reader) -> list[int]:
        pairs = [[i, j] for i in range(NUM_BLOCKS) for j in (0, 7) if i != j]
        return min(pairs, key=reader.kl)

    heart = {reader.deviation.tobytes(): best(reader) for reader in bench.readers}

    def choose(deviation: np.ndarray, budget: int) -> list[int]:
        return heart.get(deviation.tobytes(), list(FIRST))[:budget]

    assert "the first 2 blocks" in wrong_of(choose, bench).came


@pytest.mark.parametrize("junk", [None, "x", {}, 3, float("nan"), [0, 1]])
def test_junk_for_a_function_and_for_a_bench(bench: Bench, junk: object) -> None:
    assert "a function choose" in wrong_of(junk, bench).expected
    assert "run the cells from the top" in wrong_of(STUB, junk).hint


@pytest.mark.parametrize("junk", [None, "01", {0: 1}, 3, [0.5], ["0"], [None], [True], [[0], [1]]])
def test_junk_from_a_function(bench: Bench, junk: object) -> None:
    wrong = wrong_of(lambda d, k: junk, bench)
    assert "a list of block numbers" in wrong.expected
    assert wrong.where == f"{bench.readers[0].name}, with a budget of {BUDGET}"


def test_an_error_in_the_function_is_told_with_its_text(bench: Bench) -> None:
    wrong = wrong_of(lambda d, k: d.colour, bench)
    assert "AttributeError" in wrong.came
    assert bench.readers[0].name in wrong.where


def test_numbers_of_numpy_and_any_order_will_do(bench: Bench) -> None:
    def choose(deviation: np.ndarray, budget: int) -> Any:
        return np.argsort(deviation.mean(axis=0))[::-1][:budget]

    assert examine("afresh", choose, bench) is None


def test_afresh_passes_with_its_solution_and_not_with_its_stub(bench: Bench) -> None:
    assert examine("afresh", SOLUTION, bench) is None
    assert "the first 2 blocks" in wrong_of(STUB, bench).came


def test_a_broken_engine_is_told_from_a_wrong_choice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Reader.kl
    monkeypatch.setattr(
        Reader, "kl", lambda self, blocks=(): honest(self, blocks) + 0.01 * (len(blocks) == 8)
    )
    wrong = wrong_of(SOLUTION, bench)
    assert "the engine is broken" in wrong.hint


# results and charts -----------------------------------------------------------------------------


def test_results_are_read_by_name() -> None:
    assert results("blocks_afresh")["command"].startswith("python benchmarks/blocks_afresh.py")
    with pytest.raises(BadInput, match=r"no results 'nothing'; there are: .*blocks_afresh"):
        results("nothing")


def test_the_lab_says_what_the_results_say(bench: Bench) -> None:
    """The words of sections 6 and 8 hold for the file that is committed."""
    found = results("blocks_afresh")
    assert found["num_readers"] == 24
    kl = {name: rule["kl"][0] for name, rule in found["rules"].items()}
    assert kl["best pair"] == min(kl.values())
    assert kl["none"] == max(kl.values())
    last, early = (found["rules"][name] for name in ("last", "deviating, layers 1-2"))
    assert last["better"] == last["worse"] == 12
    assert early["better"] + early["worse"] <= 4
    both = found["rules"]["first and last"]
    assert both["better"] > 2 * both["worse"]
    assert both["taken"][0] > found["rules"]["deviating, layers 1-9"]["taken"][1]
    gains = {
        (one["log"], one["start"]): one["kl"]["first"] - one["kl"]["last"]
        for one in found["readers"]
    }
    assert 0.6 < max(gains.values()) / sum(gains.values()) < 0.7, "two thirds"
    log, start = max(gains, key=gains.__getitem__)
    assert log in PRACTICE
    assert COSTLY[log] == start
    for reader in bench.readers:
        assert reader.deviation[1:3].mean(axis=0).argmax() == 0
    practice = [sum(r.kl(b) for r in bench.readers) for b in ([0, 1], [6, 7])]
    held_out = [sum(r.kl(b) for r in bench.held_out()) for b in ([0, 1], [6, 7])]
    assert practice[1] < practice[0] / 5
    assert held_out[1] > held_out[0]


def test_a_bench_that_is_closed_is_told(bench: Bench) -> None:
    shut = copy(bench)
    shut.closed = True
    assert wrong_of(SOLUTION, shut).words().count("closed") == 1
    assert examine("afresh", SOLUTION, bench) is None


@pytest.mark.parametrize("scale", ["", "log", "share"])
def test_bars_are_drawn_with_their_intervals(scale: str) -> None:
    rows = {"a < b": (0.5, 0.25, 0.75), "alone": 0.1, "nought": 0.0}
    bars = Bars(rows, "title & more", "nats", limit=0.3, scale=scale)
    bundle = bars._repr_mimebundle_()
    assert ("nought" in bars.spans) == (scale != "log")
    drawn = bundle["application/vnd.plotly.v1+json"]["data"][0]
    assert drawn["error_x"]["array"][:2] == [0.25, 0.0]
    svg = bundle["text/html"]
    assert "a &lt; b" in svg
    assert "title &amp; more" in svg
    assert svg.count("<circle" if scale == "log" else "<rect") == len(bars.spans)
    assert bundle["application/vnd.plotly.v1+json"]["data"][0].get("mode") == (
        "markers" if scale == "log" else None
    )
    said = "50% [25%, 75%]" if scale == "share" else "0.5 [0.25, 0.75]"
    assert said in svg
    assert said in str(bars) == bundle["text/plain"]


def test_a_heatmap_is_drawn_with_its_marks() -> None:
    heat = Heat([[0.0, 0.1], [0.4, 0.2]], "KV error", "block", "layer", marked=[1])
    bundle = heat._repr_mimebundle_()
    drawn = bundle["application/vnd.plotly.v1+json"]
    assert drawn["data"][0]["z"] == [[0.0, 0.1], [0.4, 0.2]]
    assert len(drawn["layout"]["shapes"]) == 1
    svg = bundle["text/html"]
    assert svg.count("<rect") == 4 + 1 + 5  # cells, a mark, the legend
    assert "#00224e" in svg
    assert "#fee838" in svg
    assert str(heat) == "KV error: 0 to 0.4 (at layer 1, block 0)"


def test_commands_of_a_view_are_those_of_an_attach(bench: Bench) -> None:
    log = wrong_of(STUB, bench).log
    assert log is not None
    verbs = [event.verb for event in log.events if isinstance(event, Commanded)]
    assert verbs.count("append") >= 4
