"""Leak rank and judge consistency: what a reader can tell from reused KV, and what it decides."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
from harness import one_thread

from inms_lab.errors import BadInput
from inms_lab.interference import judge, leak, leak_figures
from inms_lab.interference.contexts import Scratch
from inms_lab.interference.likelihood import log_likelihoods
from inms_lab.interference.resume import Lines
from inms_lab.interference.variants import ALONE, FULL, MISSING, PRIVATE, PUBLIC
from inms_lab.model import Runner, from_model, load
from inms_lab.notebook.text import Text

__all__ = ["one_thread"]

K = 5  # candidates


@pytest.fixture(scope="module")
def runner() -> Runner:
    return from_model(models.llama())


@pytest.fixture
def scratch(runner: Runner) -> Iterator[Scratch]:
    made = Scratch(runner, num_slots=4096)
    yield made
    made.close()


class Letters(Text):
    """One token a character, no turn marks: what was put together can be read again."""

    def __init__(self) -> None:
        super().__init__(None)

    def encode(self, text: Any, role: str | None = None) -> list[int]:
        return [ord(letter) for letter in text]


def read(tokens: tuple[int, ...]) -> str:
    return "".join(map(chr, tokens))


def words(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(3, 320), k=count))


def trial(seed: int, truth: int = 0) -> leak.Trial:
    rng = random.Random(seed)
    mind = words(rng, 9)
    secrets = [words(rng, rng.randint(1, 3)) for _ in range(K)]
    return leak.Trial(
        public=words(rng, 8),
        private=tuple((*mind, *secret) for secret in secrets),
        shared=words(rng, 30),
        own=words(rng, 20),
        probe=words(rng, 4),
        options=tuple(secrets),
        truth=truth,
    )


# --- likelihoods ----------------------------------------------------------------------------------


def test_likelihoods_equal_those_of_the_stock_model(runner: Runner, scratch: Scratch) -> None:
    rng = random.Random(0)
    contexts = [words(rng, 20), words(rng, 33)]
    answers = [(7,), (7, 8, 9), (7, 8), (11, 8)]
    parts = [[scratch.encode(context)] for context in contexts]
    for context, found in zip(contexts, log_likelihoods(scratch, parts, answers), strict=True):
        for answer, value in zip(answers, found, strict=True):
            log_p = runner.dense([*context, *answer]).log_softmax(-1)
            rows = range(len(context) - 1, len(context) + len(answer) - 1)
            expected = sum(float(log_p[row, t]) for row, t in zip(rows, answer, strict=True))
            assert value == pytest.approx(expected, abs=2e-3)
    with pytest.raises(BadInput, match="at least one token"):
        log_likelihoods(scratch, parts, [()])


# --- leak rank ------------------------------------------------------------------------------------


def test_ranks_count_from_zero_and_equals_share() -> None:
    assert leak.rank([1.0, 3.0, 2.0], 1) == (0, 1)
    assert leak.rank([1.0, 3.0, 2.0], 0) == (2, 0)
    assert leak.rank([3.0, 3.0, 2.0], 0) == (0.5, 0.5)
    assert leak.rank([0.0] * 10, 4) == (4.5, 0.1)


def test_a_reader_of_vectors_is_certain_where_they_saw_the_secret(scratch: Scratch) -> None:
    for seed in range(4):
        scores = leak.examine(scratch, trial(seed, truth=seed))
        of_truth = scores[PRIVATE][leak.VECTORS][seed]
        assert of_truth == 0  # the same bits
        assert all(s < -1e-3 for i, s in enumerate(scores[PRIVATE][leak.VECTORS]) if i != seed)


def test_only_kv_that_saw_the_secret_depends_on_it(scratch: Scratch) -> None:
    """Behind public context, and computed by the reader, every score has the same bits."""
    one, other = (leak.examine(scratch, trial(1, truth)) for truth in (0, 3))
    assert one[PUBLIC] == other[PUBLIC]
    assert one[FULL] == other[FULL]
    for reader in (leak.LOGITS, leak.LESS_OWN, leak.VECTORS):
        assert one[PRIVATE][reader] != other[PRIVATE][reader]


def test_over_all_secrets_a_clean_record_leaves_chance(runner: Runner) -> None:
    trials = [trial(seed, truth) for seed in range(3) for truth in range(K)]
    table = leak.measure(runner, trials, progress=False).table()
    clean = table[table.index.get_level_values("variant") != PRIVATE]
    assert len(clean) == 4
    assert clean["top1"].to_list() == pytest.approx([1 / K] * 4)
    assert clean["rank"].to_list() == pytest.approx([(K - 1) / 2] * 4)
    assert clean["auc"].to_list() == pytest.approx([0.5] * 4)
    leaky = table.loc[PRIVATE, leak.VECTORS]
    assert (leaky["top1"], leaky["rank"], leaky["auc"]) == (1, 0, 1)
    assert (leaky["top1_low"], leaky["top1_high"]) == (1, 1)


def test_less_own_is_a_difference_of_logits(scratch: Scratch) -> None:
    scores = leak.examine(scratch, trial(2))
    for way in (PRIVATE, PUBLIC):
        both = zip(scores[way][leak.LOGITS], scores[FULL][leak.LOGITS], strict=True)
        assert scores[way][leak.LESS_OWN] == [a - b for a, b in both]


def test_a_measurement_is_taken_up_again(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trials = tmp_path / "leak.jsonl", [trial(seed, seed) for seed in range(3)]
    leak.measure(runner, trials[:2], path, progress=False)
    with path.open("a") as file:
        file.write('{"name": "half a li')
    examined = []

    def examine(scratch: Scratch, one: leak.Trial, head: int) -> leak.Scores:
        examined.append(one)
        return original(scratch, one, head)

    original = leak.examine
    monkeypatch.setattr(leak, "examine", examine)
    again = leak.measure(runner, trials, path, progress=False)
    assert examined == trials[2:]
    assert again == leak.measure(runner, trials, progress=False)
    with pytest.raises(BadInput, match="another model or with other settings"):
        leak.measure(runner, trials, path, head=3, progress=False)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("not a result\n")
    with pytest.raises(BadInput, match="no results"):
        Lines(path, {})


def test_trials_keep_the_secret_out_of_what_is_shared() -> None:
    trials = leak.of_package(Letters(), 60, seed=1)
    assert trials == leak.of_package(Letters(), 60, seed=1) != leak.of_package(Letters(), 60)
    assert len({t.truth for t in trials}) == 10
    for t in trials:
        secret = read(t.options[t.truth])
        assert secret in read(t.private[t.truth])
        seen = f"{read(t.public)} {read(t.shared)} {read(t.own)} {read(t.probe)}"
        assert not any(f"{read(option)} " in seen for option in t.options if option != secret)
        assert len(set(t.options)) == len(t.options) == 10
    with pytest.raises(BadInput, match="candidates"):
        leak.of_package(Letters(), 1, num_candidates=99)


# --- judge consistency ----------------------------------------------------------------------------


def item(seed: int) -> judge.Item:
    rng = random.Random(seed)
    options = tuple(words(rng, rng.randint(1, 2)) for _ in range(4))
    public, private, shared, own = (words(rng, n) for n in (8, 12, 30, 20))
    return judge.Item("made", public, private, shared, own, words(rng, 5), options, 1, 2)


def test_decisions_are_counted_against_full_prefill() -> None:
    scores = {FULL: [0.0, 1.0, 0.0], PUBLIC: [0.0, 2.0, 0.0], PRIVATE: [0.0, 1.0, 2.0]}
    flipped = {FULL: [1.0, 0.0, 0.0], PUBLIC: [0.0, 1.0, 0.0], PRIVATE: [1.0, 0.0, 0.0]}
    table = judge.Decisions([item(0), item(0)], [scores, flipped]).table().loc["made"]
    assert table["changed"].to_dict() == {FULL: 0, PUBLIC: 0.5, PRIVATE: 0.5}
    assert table["correct"].to_dict() == {FULL: 0.5, PUBLIC: 1, PRIVATE: 0}
    assert table["swayed"].to_dict() == {FULL: 0, PUBLIC: 0, PRIVATE: 0.5}
    assert (table.loc[PUBLIC, "changed_low"], table.loc[PUBLIC, "changed_high"]) == (0, 1)


def test_scores_are_those_of_each_context(runner: Runner, scratch: Scratch) -> None:
    """Full prefill and a missing text against the stock model; every way gives something else."""
    one = item(3)
    scores = judge.examine(scratch, one)
    before = [*one.public, *one.own]
    for way, context in ((FULL, [*before, *one.shared]), (MISSING, before)):
        context = [*context, *one.question]
        for option, value in zip(one.options, scores[way], strict=True):
            log_p = runner.dense([*context, *option]).log_softmax(-1)
            rows = range(len(context) - 1, len(context) + len(option) - 1)
            expected = sum(float(log_p[row, t]) for row, t in zip(rows, option, strict=True))
            assert value == pytest.approx(expected, abs=2e-3)
    assert len({tuple(scores[way]) for way in judge.WAYS}) == 5


def test_only_the_leaky_way_depends_on_the_authors_mind(scratch: Scratch) -> None:
    one, other = (judge.examine(scratch, replace(item(4), private=p)) for p in ((9, 8), (7, 6, 5)))
    assert one[PRIVATE] != other[PRIVATE]
    assert {w: one[w] for w in (FULL, PUBLIC, ALONE)} == {
        w: other[w] for w in (FULL, PUBLIC, ALONE)
    }


def test_items_say_the_truth_and_keep_the_doubt_private() -> None:
    items = judge.of_package(Letters(), 40, num_options=4, seed=2)
    assert items == judge.of_package(Letters(), 40, num_options=4, seed=2)
    assert [i.kind for i in items] == ["lookup"] * 40 + ["choice"] * 40
    for one in items:
        options = [read(option) for option in one.options]
        assert len(set(options)) == 4
        assert one.truth != one.doubt
        assert options[one.truth] in read(one.shared)
        assert options[one.doubt] in read(one.private)
        assert options[one.truth] not in read(one.private)
        assert all(o in read(one.shared) for o in options) == (one.kind == "choice")
    with pytest.raises(BadInput, match="options"):
        judge.of_package(Letters(), 1, num_options=1)


def test_figures_show_the_tables(runner: Runner) -> None:
    table = leak.measure(runner, [trial(0), trial(1, 2)], progress=False).table()
    (bars,) = leak_figures.leaks(table, K).data
    assert list(bars.x) == table["top1"].to_list()
    assert bars.y[2] == "private, vectors"
    assert leak_figures.leaks(table, K, "rank").layout.shapes[0].x0 == (K - 1) / 2
    decided = judge.measure(runner, [item(0), item(1)], progress=False).table()
    (bars,) = leak_figures.decisions(decided).data
    assert list(bars.x) == decided["changed"].to_list()
    for figure in (leak_figures.leaks, leak_figures.decisions):
        with pytest.raises(BadInput, match="none of"):
            figure(table, what="colour")


# --- the default model ----------------------------------------------------------------------------


@pytest.mark.model
def test_on_the_default_model_vectors_tell_the_secret_and_lookups_hold() -> None:
    runner = load("smollm2-135m", progress=False)
    text = Text(runner.tokenizer, runner.stop_tokens)
    found = leak.measure(runner, leak.of_package(text, 3), progress=False).table()
    assert found.loc[(PRIVATE, leak.VECTORS), "top1"] == 1
    items = judge.of_package(text, 2)[:2]
    table = judge.measure(runner, items, progress=False).table().loc["lookup"]
    assert table.loc[PUBLIC, "correct"] == 1
    assert table.loc[PUBLIC, "changed"] == 0


# --- the committed results ------------------------------------------------------------------------

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def test_measured_leaks_are_at_chance_where_kv_is_clean_and_above_it_where_not() -> None:
    told = json.loads((RESULTS / "leak_rank.json").read_text())
    rows = {(row["variant"], row["reader"]): row for row in told["rows"]}
    assert len(rows) == 7
    for (variant, _), row in rows.items():
        assert row["trials"] >= 200
        if variant != PRIVATE:
            for what, chance in told["chance"].items():
                assert row[f"{what}_low"] <= chance <= row[f"{what}_high"], (variant, what)
    assert rows[PRIVATE, leak.LESS_OWN]["top1_low"] > 2 * told["chance"]["top1"]
    assert rows[PRIVATE, leak.VECTORS]["top1"] == 1


def test_measured_decisions_change_less_behind_public_context() -> None:
    told = json.loads((RESULTS / "judge_consistency.json").read_text())
    changed = {(row["kind"], row["variant"]): row["changed"] for row in told["rows"]}
    assert all(row["items"] >= 60 for row in told["rows"])
    assert changed["lookup", PUBLIC] <= changed["lookup", PRIVATE] < changed["lookup", MISSING]
    assert changed["choice", PUBLIC] < changed["choice", PRIVATE] < changed["choice", MISSING]
