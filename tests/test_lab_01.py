"""Lab 01: what a student may take for the wrong figure, and what the check makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from inms_lab import Lab
from inms_lab.books.events import Allocated
from inms_lab.config import Config
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook import usage
from inms_lab.studies import claims
from inms_lessons import examine
from inms_lessons.curves import PLOTLY, Curves
from inms_lessons.exercises import exercise
from inms_lessons.figure import FIGURES, PER_TOKEN, Figure
from inms_lessons.wrong import Wrong

GIB = 1024**3
LAB = Path(__file__).resolve().parents[1] / "labs" / "01_the_bill.ipynb"
(WRONG,) = (figure for figure in FIGURES.values() if not figure.follows)
RIGHT = [figure for figure in FIGURES.values() if figure.follows]


@pytest.fixture(scope="module")
def log() -> Log:
    """The lab's own run: as in its cells, eight agents of 16k tokens, 60 % common."""
    return run(WRONG, block_size=256)


@pytest.fixture(scope="module")
def heights(log: Log) -> list[int]:
    """Bytes held after each number of events."""
    return [usage.held_bytes(log.replay(index), PER_TOKEN) for index in range(len(log) + 1)]


def run(figure: Figure, block_size: int, agents: int | None = None) -> Log:
    sizes = {"global_bytes": 8 * GIB, "private_bytes": 66 * GIB, "token_budget": figure.tokens}
    config = Config(block_size=block_size, context=2 * figure.tokens, **sizes)
    model = DryModel(32_000, 2 * figure.tokens, PER_TOKEN)
    with Lab(model, config=config) as lab:
        lab.preload([0] * figure.common, progress=False)
        for number in range(1, (agents or figure.agents) + 1):
            lab.agent(f"agent {number}").read([number] * (figure.tokens - figure.common))
            lab.run_to()
        return lab.log


def wrong(*answer: Any) -> Wrong:
    found = examine("figure", *answer)
    assert found is not None
    assert f"{WRONG.gib():.1f}" not in found.words(), "it gives the solution away"
    return found


def held(found: Wrong) -> int:
    """Bytes held at the moment that the view is moved to."""
    assert found.log is not None
    return usage.held_bytes(found.log.replay(found.moment), PER_TOKEN)


# --- right ---------------------------------------------------------------------------------------


def test_the_solution_passes_rounded_or_not(log: Log) -> None:
    p, n = WRONG.share, WRONG.agents
    exact = ((1 - p) * n + p) * WRONG.tokens * PER_TOKEN / GIB
    assert WRONG.row == 5
    for gib in (exact, round(exact, 1), round(exact, 2)):
        assert examine("figure", WRONG.row, gib, log) is None
        assert examine("figure", float(WRONG.row), gib) is None


def test_it_is_the_figure_that_the_claims_do_not_bear_out() -> None:
    found = {claim.claim_id: claim for claim in claims.registry()}
    assert found["kv-eight-agents"].verdict == claims.DOES_NOT_HOLD
    assert f"{WRONG.gib():.1f} GiB" in found["kv-eight-agents"].measured
    assert found["kv-three-agents"].verdict == found["kv-token-7b"].verdict == claims.HOLDS


def test_the_table_in_the_lab_is_the_one_that_is_checked() -> None:
    text = "\n".join(cell.source for cell in nbformat.read(LAB, as_version=4).cells)
    rows = re.findall(r"^\| (\d) \| (.+?) \| (.+?) \| (?:about )?([\d.]+) (\wiB) \|", text, re.M)
    words = {"one": 1, "three": 3, "eight": 8}
    assert [int(row) for row, *_ in rows] == [*FIGURES]
    for row, what, inputs, number, unit in rows:
        figure = FIGURES[int(row)]
        assert words[what.split()[0]] == figure.agents
        assert figure.printed == float(number) * {"KiB": 1024, "GiB": GIB}[unit] / GIB
        if figure.tokens > 1:
            assert inputs.startswith(f"{figure.tokens // 1024}k tokens")
        if part := re.search(r"(\d+) % common|([\d.]+)k of them common", inputs):
            share = int(part[1]) / 100 if part[1] else float(part[2]) * 1024 / figure.tokens
            assert figure.share == share


# --- a right row taken for a wrong one -----------------------------------------------------------


@pytest.mark.parametrize("figure", RIGHT, ids=lambda figure: f"row {figure.row}")
def test_a_row_that_is_right_is_shown_where_it_can_be_read(figure: Figure, log: Log) -> None:
    found = wrong(figure.row, 30, log)
    assert found.where == f"row {figure.row}"
    assert "as is printed" in found.came
    assert found.log is not None
    assert (found.log is log) == (figure.row in (1, 4))
    books = found.log.replay(found.moment)
    if figure.tokens == 1:  # the first event that holds KV: so many bytes for so many slots
        assert isinstance(found.log.events[found.index - 1], Allocated)
        assert not usage.held_bytes(found.log.replay(found.index - 1), PER_TOKEN)
        slots = sum(pool.num_held * pool.block_size for pool in books.pools.values())
        assert held(found) == slots * PER_TOKEN
        return
    blocks = figure.blocks(256).independent_blocks
    if figure.row == 4:  # read off the dashed line of the shared run, a block more for each agent
        assert usage.independent_blocks(books) == blocks + figure.agents
        assert "dashed line" in found.hint
    else:
        assert usage.independent_blocks(books) == blocks
        assert held(found) == pytest.approx(figure.gib() * GIB, rel=1e-12)


# --- the right row, another value ----------------------------------------------------------------

MISTAKES = {
    34: "the printed figure itself",
    64: "nothing shared",
    33.6: "what sharing saves",
    52.5: "in percent",
    0.525: "as a share",
    25.6: "own parts alone",
    38.4: "the common parts alone, one for each",
    4.8: "the common part alone",
    41.6: "60% as each agent's own part",
    27.2: "the bill of 7 agents",
    33.599: "what sharing saves",
    3.8: "one agent's share",
    7.6: "with grouped queries",
    30.9: "whole blocks of 256",
    29.7: "a k counted as 1000",
    32.6: "gigabytes of 1000^3",
    31129.6: "in MiB",
    32641751449.6: "in bytes",
    500: "which cannot be",
    -1: "which cannot be",
    0: "which cannot be",
    0.0297: "in TiB",
    45: "45",
}


@pytest.mark.parametrize(("value", "words"), MISTAKES.items(), ids=str)
def test_a_wrong_value_is_told_what_it_is_at_the_fullest_moment(
    value: float, words: str, log: Log, heights: list[int]
) -> None:
    found = wrong(WRONG.row, value, log)
    assert words in found.came
    assert found.hint
    assert found.where == f"row {WRONG.row}, gib"
    assert found.log is log
    assert found.moment == heights.index(max(heights))
    assert found.block is not None
    pool, block = found.block  # one of the common part: the prompt holds it, and every agent
    assert log.replay(found.moment).pools[pool].refs[block] == WRONG.agents + 1


def test_smaller_blocks_of_the_students_own_are_recognised() -> None:
    own = run(WRONG, block_size=64)
    found = wrong(WRONG.row, 30.53, own)
    assert found.log is own
    assert "whole blocks of 64" in found.came


def test_a_log_of_another_run_is_left_alone() -> None:
    for other in (run(WRONG, 256, agents=3), Log(), None, "log", 7):
        found = wrong(WRONG.row, 64, other)
        assert found.log is not None
        assert found.log is not other
        assert held(found) == WRONG.blocks(256).shared_bytes


# --- anything at all -----------------------------------------------------------------------------

JUNK = [None, "x", "5", {}, [], True, float("nan"), float("inf"), 10**400, 10**5000, 2.5, object]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:9] if junk != 10**5000 else "")
def test_junk_is_answered_in_words(junk: Any, log: Log) -> None:
    assert wrong(junk, 30, log).expected == "the number of a row, 1 to 7"
    for row in (0, 8, -5):
        assert "1 to 7" in wrong(row, junk).expected
    found = wrong(WRONG.row, junk, log)
    assert "GiB" in found.expected
    assert len(found.words()) < 400


def test_the_stub_fails_politely() -> None:
    names: dict[str, Any] = {}
    exec(exercise("figure").stub, names)
    assert wrong(names["row"], names["gib"], None).came == "none yet"
    assert wrong(WRONG.row, ...).came == "none yet"


# --- its curves ----------------------------------------------------------------------------------


def test_curves_have_a_picture_without_scripts_and_a_line_in_words() -> None:
    lines = {"<60 %>": [(1, 0.0), (2, 0.3), (32, 0.58)], "flat": [(1, 0.0), (32, 0.0)]}
    curves = Curves(lines, title="saved", across="agents", shares="y", limits=[0.6])
    bundle = curves._repr_mimebundle_()
    picture = bundle["text/html"]
    assert picture.count("<polyline") == len(lines) + 2  # the axes, and the limit
    assert "&lt;60 %&gt;" in picture
    assert "<script" not in picture
    assert bundle["text/plain"] == "saved, by agents: <60 %>: 0% to 58%; flat: 0% to 0%"
    assert len(json.dumps(bundle[PLOTLY])) < 20_000
    drawn = [(*line["y"],) for line in bundle[PLOTLY]["data"]]
    assert drawn == [(0.0, 0.3, 0.58), (0.0, 0.0), (0.6, 0.6)]
