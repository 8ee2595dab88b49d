"""Lab 08: what reaches the reader in each mode, what was measured, and choices that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from inms_lab.books.events import Allocated, Shared
from inms_lab.errors import BadInput
from inms_lab.experiment.modes import MODES, STAGES
from inms_lab.experiment.reading import NAMES
from inms_lab.experiment.report import tables
from inms_lab.experiment.tasks import READER, family
from inms_lessons import examine
from inms_lessons.charts import Bars
from inms_lessons.choosing import NUM_MADE_UP, best_stage, cases, made_up
from inms_lessons.copies import solutions_in
from inms_lessons.exercises import EXERCISES
from inms_lessons.results import results
from inms_lessons.small_labs import Words
from inms_lessons.staging import READERS, risks, scene, stages
from inms_lessons.wrong import Wrong
from inms_widgets.view import View

LAB = Path(__file__).resolve().parents[1] / "labs" / "08_modes.ipynb"
NOTEBOOK = json.loads(LAB.read_text("utf-8"))
TEAM = family(Words(), 1)[0].team  # that of the scenes
Choose = Callable[[pd.DataFrame, float, float], Any]


def run(source: str) -> Choose:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Choose = names["choose"]
    return found


def wrong_of(answer: object) -> Wrong:
    found = examine("stages", answer)
    assert found is not None
    return found


SOLUTION = run(solutions_in(NOTEBOOK)["stages"])
STUB = run(EXERCISES["stages"].stub)


# scenes -----------------------------------------------------------------------------------------


def holds(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    starts = range(len(tokens) - len(part) + 1)
    return any(tokens[i : i + len(part)] == part for i in starts)


@pytest.mark.parametrize("name", MODES)
def test_a_scene_stops_where_a_text_reaches_the_reader(name: str) -> None:
    look = scene(name)
    event = look.log.events[look.index - 1]
    assert isinstance(event, (Allocated, Shared))
    pool, block = look.block
    books = look.log.replay(look.index)
    assert books.sequences[event.seq_id].name == NAMES[READER]
    segments = books.sequences[event.seq_id].segments
    (segment,) = [s for s in segments if s.pool_id == pool and block in s.blocks]
    start = segment.block_size * segment.blocks.index(block)
    text = tuple(segment.tokens[start : start + segment.block_size])
    assert len(text) == segment.block_size
    changed = next(d for d in TEAM.decisions if d.changed)
    whole = {"pooled": TEAM.private[0], "independent": changed.text}.get(name, changed.changed)
    assert holds(whole, text), "it holds nothing else"
    shares = name in ("global", "inms", "recompute", "int8 inms")
    assert isinstance(event, Shared) == shares
    assert look.what.startswith(("what ada thinks", "a decision that")) == (
        name in ("pooled", "independent")
    )
    view = View(look.log, parts=("bar", "map", "detail"))
    view.point(look.index, block=look.block, note=look.what)
    assert look.what in view.fallback()["text/html"]
    view.close()


def test_what_the_lab_says_of_its_two_scenes() -> None:
    """In `pooled` the reader has ada's text; in `global` it has nobody's, but a block that ben has
    computed behind his own."""
    ada, ben, _ = TEAM.private
    for name in MODES:
        books = scene(name).log.replay()
        reader = next(s for s in books.sequences.values() if s.name == NAMES[READER] and s.is_live)
        seen = [holds(tuple(reader.tokens()), text) for text in (ada, ben)]
        assert seen == [name == "pooled"] * 2, name
    look = scene("global")
    books = look.log.replay(look.index)
    pool, block = look.block
    first = next(
        e
        for e in look.log.events
        if isinstance(e, Allocated) and e.pool_id == pool and block in e.blocks
    )
    author = books.sequences[first.seq_id]
    assert author.name == "ben"
    tokens = tuple(author.tokens())
    (segment,) = [s for s in author.segments if block in s.blocks and s.pool_id == pool]
    assert segment.shift == 0
    assert holds(tokens[: segment.first_position], ben), "his guesses stand before it"
    assert not segment.label, "the mode keeps no labels"


@pytest.mark.parametrize("junk", ["", "INMS", None, 3])
def test_an_unknown_mode_is_named(junk: Any) -> None:
    with pytest.raises(BadInput, match="no mode is called"):
        scene(junk)


# what was measured ------------------------------------------------------------------------------


def test_memory_is_that_of_the_experiment() -> None:
    told = tables(results("experiment"))["modes"]
    assert risks(1).memory.to_numpy() == pytest.approx((told.kv_bytes / 2**20).to_numpy(), rel=2e-3)
    assert list(risks(1).index) == list(MODES)
    assert list(stages(2).index) == list(STAGES)
    for readers in READERS:
        assert risks(readers).memory.is_unique, "then the answer is one name"


@pytest.mark.parametrize("readers", [0, 3, "2", None, 1.5])
def test_what_was_not_counted_is_said(readers: Any) -> None:
    with pytest.raises(BadInput, match="it was counted for 1, 2, 4, 8 readers"):
        stages(readers)


def test_leaks_are_those_of_the_kv_that_the_mode_shares() -> None:
    rows = {(r["variant"], r["reader"]): r for r in results("leak_rank")["rows"]}
    told = tables(results("experiment"))["modes"]
    wanted = dict.fromkeys(MODES, ("full prefill", "logits")) | {"global": ("private", "less own")}
    wanted |= dict.fromkeys(
        ("inms group", "inms", "recompute", "int8 inms"), ("public", "less own")
    )
    for name, row in risks(4).iterrows():
        ends = [row[f"leak{end}"] for end in ("", "_low", "_high")]
        if name == "pooled":
            assert ends == [told.loc[name, f"leak{end}"] for end in ("", "_low", "_high")]
        else:
            assert ends == [rows[wanted[str(name)]][f"auc{end}"] for end in ("", "_low", "_high")]


def test_the_lab_says_what_the_results_say() -> None:
    """Its words, beyond what its own cells assert."""
    found = results("experiment")
    told, moved = tables(found), tables(found)["compared"]
    assert (found["num_tasks"], found["num_teams"], len(told["modes"])) == (120, 20, 10)
    every, late = told["modes"], told["updated"]
    assert 0.3 < every.guess["pooled"] < 0.37, "every third answer"
    assert late.stale_low["independent"] > 0.8, "who hears no news answers what held before"
    assert every.correct_high["independent"] < every.correct_low["inms"]
    steps = told["stages"]
    assert 0.45 < steps.kv_bytes["inms"] < 0.55, "halves memory"
    assert 0.45 < steps.prefill_tokens["inms"] < 0.55, "and prefill once more"
    for readers in READERS:
        group, prompt = (stages(readers).memory[name] for name in ("inms group", "inms global"))
        assert (group > prompt) == (readers == 1)
    assert moved.correct_low["recompute"] < 0 < moved.correct_high["recompute"]
    assert every.kv_bytes["recompute"] < every.kv_bytes["inms global"]
    ratio = moved.computed_tokens["recompute"] / moved.computed_tokens["inms"]
    assert 1.7 < ratio < 2, "nearly twice as much"
    assert moved.computed_tokens["recompute"] > 1
    assert 0.25 < risks(1).memory["int8"] / risks(1).memory["inms global"] < 0.3, "about a quarter"
    assert risks(1).memory["truncate"] <= risks(1).memory["inms"]
    assert found["choices"]["inms"][13 * 6 : 14 * 6] == "RRSRRR", "the 14th team"
    (vectors,) = (
        row
        for row in results("leak_rank")["rows"]
        if (row["variant"], row["reader"]) == ("private", "vectors")
    )
    assert vectors["auc"] == vectors["auc_low"] == 1, "with certainty"
    assert vectors["trials"] == 400


# wrong answers ----------------------------------------------------------------------------------


def least(
    leak: str = "leak_high", quality: str = "quality_low", by: str = "memory", most: bool = False
) -> Choose:
    """A choice like the right one, but for these columns."""

    def choose(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
        kept = (table[leak] <= max_leak) & (table[quality] >= min_quality)
        column = table[kept][by]
        return None if column.empty else column.idxmax() if most else column.idxmin()

    return choose


def strict(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    kept = table[(table.leak_high < max_leak) & (table.quality_low > min_quality)]
    return None if kept.empty else kept.memory.idxmin()


def strict_or_none(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    """So that the only row that is left is lost."""
    right = SOLUTION(table, max_leak, min_quality)
    return right if strict(table, max_leak, min_quality) is not None else None


def not_broken(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    kept = table[~(table.leak_high > max_leak) & ~(table.quality_low < min_quality)]
    return None if kept.empty else kept.memory.idxmin()


def only(bound: str) -> Choose:
    """As if the other bound were not there."""
    free = {"leak": (None, 0.0), "quality": (1.0, None)}[bound]
    return lambda table, *bounds: SOLUTION(
        table.fillna({"leak_high": 0, "quality_low": 1}),
        *(given if at is None else at for given, at in zip(bounds, free, strict=True)),
    )


def filled(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    return SOLUTION(table.fillna({"leak_high": 0}), max_leak, min_quality)


def never_none(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    return SOLUTION(table, max_leak, min_quality) or table.memory.idxmin()


def raises_on_nothing(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
    kept = table[(table.leak_high <= max_leak) & (table.quality_low >= min_quality)]
    return kept.memory.idxmin()


# What is chosen; which mode is shown; what the picture is of; what is said of it.
WRONG: dict[str, tuple[Choose, str, str, str]] = {
    "means": (least("leak", "quality"), "inms", "quality", "its mean keeps the bound of 0.85, but"),
    "mean leak": (least("leak"), "inms", "leak", "its mean keeps the bound of 0.53, but its leak"),
    "the better end": (
        least(quality="quality_high", leak="leak_high"),
        "inms",
        "quality",
        "its quality may be as low as 0.808",
    ),
    "the best of the better ends": (
        least(quality="quality_high", by="quality_low", most=True),
        "inms global",
        "memory",
        "so that memory decides",
    ),
    "never none": (
        never_none,
        "inms",
        "quality",
        "only the favourable end of its quality, 0.942, keeps the bound of 0.9",
    ),
    "leak not asked": (
        only("quality"),
        "global",
        "leak",
        "the whole interval of its leak is over the bound of 0.6: was that asked?",
    ),
    "quality not asked": (only("leak"), "inms", "quality", "its mean keeps the bound of 0.85"),
    "strict": (strict, "", "", "A bound that is just met is kept"),
    "strict where it leaves nothing": (strict_or_none, "", "", "A bound that is just met is kept"),
    "most memory": (least(most=True), "inms group", "memory", "so that memory decides: inms holds"),
    "best quality": (least(by="quality", most=True), "inms global", "memory", "inms global 28.3"),
    "least leak": (least(by="leak"), "inms global", "memory", "so that memory decides"),
    "what breaks no bound": (not_broken, "", "", "nobody has measured its"),
    "filled": (filled, "", "leak", "nobody has measured its leak"),
    "always none": (lambda t, a, b: None, "inms", "leak", "its leak is at most 0.537"),
    "always inms": (lambda t, a, b: "inms", "inms", "quality", "may be as low as 0.808"),
    "the first": (lambda t, a, b: t.index[0], "inms global", "memory", "memory decides"),
    "nothing of nothing": (raises_on_nothing, "", "quality", "asked of a table without rows?"),
    "no such column": (lambda t, a, b: t.colour, "inms", "quality", "it was called as choose("),
    "two arguments": (lambda t, a: None, "inms", "quality", "it was called as choose("),  # type: ignore[dict-item,misc,arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_choice_is_shown_in_the_mode_that_was_chosen(what: str) -> None:
    choose, mode, measure, said = WRONG[what]
    wrong = wrong_of(choose)
    assert said in wrong.hint
    if mode:
        assert (wrong.log, wrong.index, wrong.block) == (
            scene(mode).log,
            scene(mode).index,
            scene(mode).block,
        )
    assert isinstance(wrong.picture, Bars)
    assert wrong.picture.title.startswith(measure)
    assert (wrong.picture.limit is None) == wrong.picture.title.startswith("memory")
    assert {"map", "decision"} <= set(wrong.parts)
    view = View(wrong.log, parts=wrong.parts)
    view.point(wrong.index, block=wrong.block, note=wrong.note())
    view.close()
    assert max(map(len, wrong.words().splitlines())) <= 100


def test_there_are_many_kinds_of_wrong_choices_and_each_is_told_apart() -> None:
    hints = {wrong_of(choose).hint.split(",")[0].split(": ")[-1] for choose, *_ in WRONG.values()}
    assert len(hints) >= 8


@pytest.mark.parametrize("junk", [None, "inms", {}, 3, float("nan"), [0, 1], stages])
def test_junk_for_a_function(junk: object) -> None:
    wrong = wrong_of(junk)
    if junk is stages:  # a function, but another one
        assert "it was called as choose(" in wrong.hint
    else:
        assert wrong.expected == "a function choose(table, max_leak, min_quality)"


class Rude:
    def __repr__(self) -> str:
        raise ValueError

    __str__ = __eq__ = __hash__ = __repr__  # type: ignore[assignment]


JUNK: dict[str, tuple[Any, str]] = {  # what comes, what is said of it
    "a number": (0, "a number is no name"),
    "a place": (np.int64(2), "a number is no name"),
    "a share": (0.5, "the name of a row"),
    "nan": (float("nan"), "return None itself"),
    "NA": (pd.NA, "return None itself"),
    "a word for it": ("None", "return None itself"),
    "no word": ("", "return None itself"),
    "no": (False, "return None itself"),
    "yes": (True, "the name of a row"),
    "another mode": ("pooled", "not in the table that was given"),
    "another word": ("inms ", "the name of a row"),
    "bytes": (b"inms", "the name of a row"),
    "a list": (["inms"], "one name is wanted"),
    "a tuple": (("inms",), "one name is wanted"),
    "nothing in a list": ([], "one name is wanted"),
    "a table": (stages(), "one name is wanted"),
    "no rows": (stages().iloc[:0], "one name is wanted"),
    "a row": (stages().loc["inms"], "one name is wanted"),
    "the names": (stages().index, "one name is wanted"),
    "an array": (np.array(["inms"]), "the name of a row"),
    "a rude one": (Rude(), "the name of a row"),
    "none yet": (..., "the name of a row"),
}


@pytest.mark.parametrize("what", JUNK)
def test_junk_from_a_function(what: str) -> None:
    junk, said = JUNK[what]
    wrong = wrong_of(lambda table, max_leak, min_quality: junk)
    assert wrong.expected == "one of: inms global, inms group, inms; or None"
    assert said in wrong.hint
    assert wrong.where == "stages(readers=1), max_leak=0.6, min_quality=0"


def test_tables_are_said_in_a_line() -> None:
    assert wrong_of(lambda t, a, b: t).came == "DataFrame of inms global, inms group, inms"
    assert wrong_of(lambda t, a, b: t[:0]).came == "DataFrame of no rows"
    assert wrong_of(lambda t, a, b: ...).came == "none yet"


def test_an_error_in_the_function_is_told_with_its_text() -> None:
    wrong = wrong_of(raises_on_nothing)
    assert "ValueError" in wrong.came
    assert "kept.memory.idxmin()" in wrong.came
    assert wrong.where == "stages(readers=1), max_leak=0.6, min_quality=0.9"


def test_names_of_numpy_will_do_and_a_table_can_be_changed() -> None:
    def choose(table: pd.DataFrame, max_leak: float, min_quality: float) -> Any:
        found = SOLUTION(table, max_leak, min_quality)
        table[:] = 0
        return None if found is None else np.str_(found)

    assert best_stage(choose) is None


def test_stages_passes_with_its_solution_and_not_with_its_stub() -> None:
    assert examine("stages", SOLUTION) is None
    wrong = wrong_of(STUB)
    assert wrong.came == "'inms'"
    assert "its mean keeps the bound" in wrong.hint


def test_learnt_by_heart_fails_on_made_up_tables() -> None:
    heart = {
        (case.table.to_json(), case.max_leak, case.min_quality): case.best
        for case in cases()
        if not case.name.startswith("made_up")
    }
    wrong = wrong_of(lambda t, a, b: heart.get((t.to_json(), a, b)))
    assert wrong.where.startswith("made_up(")


# made-up tables ---------------------------------------------------------------------------------


def test_a_made_up_table_is_the_one_that_is_named_in_a_message() -> None:
    wrong = wrong_of(not_broken)
    name, _ = wrong.where.split(".table")
    case = eval(name, {"made_up": made_up})
    assert case.where == wrong.where
    assert not_broken(case.table, case.max_leak, case.min_quality) != case.best


def test_made_up_tables_hold_what_makes_choices_differ() -> None:
    made = [made_up(seed) for seed in range(NUM_MADE_UP)]
    nothing = [case for case in made if case.best is None]
    unknown = [case for case in made if case.table.isna().to_numpy().any()]
    met = [c for c in made if c.max_leak in c.allowed.leak_high.values]
    for some in (nothing, unknown, met):
        assert NUM_MADE_UP / 10 < len(some) < NUM_MADE_UP * 9 / 10
    for case in made:
        assert case.table.memory.is_unique
        assert set(case.table.index) <= set(MODES)
        known = case.table.dropna()
        assert ((known.leak_low <= known.leak) & (known.leak <= known.leak_high)).all()
        assert case.table.drop(columns="memory").max().max() <= 1


def test_rows_that_nobody_measured_are_named_in_the_picture() -> None:
    picture = wrong_of(not_broken).picture
    assert "(not measured: " in picture.title
    assert not any(np.isnan(span).any() for span in picture.spans.values())


def test_a_bound_can_be_seen() -> None:
    """plotly's template has lines without width."""
    picture = wrong_of(STUB).picture
    assert picture.limit == 0.85
    drawn = picture._repr_mimebundle_()
    (line,) = drawn["application/vnd.plotly.v1+json"]["layout"]["shapes"]
    assert line["x0"] == line["x1"] == 0.85
    assert line["line"]["width"] >= 2
    assert line["opacity"] == 1
    assert 'stroke-width="2"' in drawn["text/html"]
