"""The experiment: tasks, what each mode lets a reader see, scores, tables; the benefit model."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import models
import pandas as pd
import psutil
import pytest
import torch
from harness import one_thread
from typer.testing import CliRunner

from inms_lab import cli
from inms_lab.books.gate import OPEN, Calibration, Gate
from inms_lab.decisions.policy import Independent
from inms_lab.errors import BadInput
from inms_lab.experiment import benefit as benefits
from inms_lab.experiment import figures, report, run, score
from inms_lab.experiment.int8 import SCALE_BYTES, Int8, roundtrip
from inms_lab.experiment.labs import Settings, open_lab
from inms_lab.experiment.modes import MODES, RECORDS, STAGES, TOLD, Mode, chosen
from inms_lab.experiment.play import Played, play
from inms_lab.experiment.reading import WAYS, Copies
from inms_lab.experiment.rehearsal import by_readers, rehearse, share_of
from inms_lab.experiment.results import COSTS, Experiment, mean, ratio
from inms_lab.experiment.sandbox import Limits, run_tests
from inms_lab.experiment.tasks import (
    DECIDERS,
    READER,
    SETTLED,
    UPDATED,
    Task,
    family,
    teams_of,
)
from inms_lab.model import Runner, from_model
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.text import Text
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS, registry
from inms_lab.terminal import experiment_command

__all__ = ["one_thread"]

OPENED = Settings(gate=OPEN)
ANY_MODE = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))


class Words(Text):
    """A token a word, with the blank before it; what was put together can be read again."""

    def __init__(self) -> None:
        super().__init__(None)
        self.known: dict[str, int] = {"": 0}

    def encode(self, text: Any, role: str | None = None) -> list[int]:
        return [self.known.setdefault(w, len(self.known)) for w in re.findall(r" ?\w+|\W", text)]

    def decode(self, tokens: Any) -> str:
        names = list(self.known)
        return "".join(names[token] for token in tokens)


WORDS = Words()


@cache
def drawn(count: int = 12, seed: int = 0) -> list[Task]:
    return family(WORDS, count, seed)


@cache
def runner() -> Runner:
    return from_model(models.llama(num_hidden_layers=2, vocab_size=1024))


@cache
def played(name: str, **options: Any) -> Played:
    """The first team in a mode, on the tiny model."""
    return play(runner(), drawn()[:6], MODES[name], replace(OPENED, **options))


def story_of(mode: Mode, tasks: Sequence[Task], room: int = 0) -> tuple[Lab, Copies]:
    """A team's story on a lab without weights, up to its end."""
    dry = DryModel(len(WORDS.known) + 1, 4096, 1)
    lab = open_lab(dry, mode, OPENED)
    lab.preload(tasks[0].team.prompt, progress=False)
    story = WAYS[mode.texts](lab, tasks[0].team, 3, room or share_of(dry, tasks[0].team, OPENED))
    for step in (story.begin, story.hear):
        step(DECIDERS)
        step([READER])
    return lab, story


# --- tasks ------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_tasks() -> None:
    first, again, other = drawn(120), family(WORDS, 120, 0), family(WORDS, 120, 1)
    assert [t.digest for t in first] == [t.digest for t in again]
    assert len({t.digest for t in [*first, *other]}) == 240
    assert [len(team) for team in teams_of(first)] == [6] * 20
    assert family(WORDS, 8, 0) == first[:8]


def test_half_of_the_facts_change_and_every_option_is_what_it_is_said_to_be() -> None:
    tasks = drawn(120)
    assert [t.kind for t in tasks].count(UPDATED) == 60
    for task in tasks:
        team = task.team
        assert len({len(option) for option in task.options}) == 1
        assert len(set(task.options)) == len(task.options) == 4
        right, guess = (task.said[i] for i in (task.right, task.guess))
        now = [WORDS.decode(text) for text in team.current]
        before = WORDS.decode([i for d in team.decisions for i in d.text])
        private = [WORDS.decode(text) for text in team.private]
        fact = WORDS.decode(task.question).split("?")[1]
        assert any(f"{fact}{right[-1] if fact.endswith(' 808') else ' ' + right}" in text
                   or right in text for text in now)  # fmt: skip
        assert sum(f" {guess}." in text or f" {guess} " in text for text in private) == 1
        if task.kind == UPDATED:
            stale = task.said[task.stale]
            assert f" {stale}" in before
            assert len({task.right, task.guess, task.stale}) == 3
        else:
            assert task.stale == -1
            assert f" {right}" in before
        assert len(task.others) == (1 if task.kind == UPDATED else 2)


def test_options_stand_in_every_place_equally_often() -> None:
    """Else a model that prefers the first option would look informed."""
    tasks = family(WORDS, 600, 3)
    for what in ("right", "guess"):
        places = [getattr(task, what) for task in tasks]
        assert all(110 < places.count(i) < 190 for i in range(4)), what


def test_a_tokenizer_without_options_of_equal_length_is_refused() -> None:
    class Uneven(Words):
        def encode(self, text: Any, role: str | None = None) -> list[int]:
            return super().encode(text) * (1 + sum(map(ord, text)) % 97)

    with pytest.raises(BadInput, match="equal length"):
        family(Uneven(), 6)
    with pytest.raises(BadInput, match="at least one task"):
        family(WORDS, 0)


# --- who sees what ----------------------------------------------------------------------------


@ANY_MODE
def test_the_reader_s_context_holds_what_the_mode_says(mode: Mode) -> None:
    lab, story = story_of(mode, drawn()[:6])
    with lab:
        team, context = drawn()[0].team, tuple(story.reader.tokens)

        def has(text: Sequence[int]) -> bool:
            n = len(text)
            return any(context[i : i + n] == tuple(text) for i in range(len(context) - n + 1))

        (news,) = [d.changed for d in team.decisions if d.changed]
        assert has(team.prompt)
        assert has(team.private[READER])
        assert has(news) is (mode.name != "independent") or mode.name == "truncate"
        for number in DECIDERS:
            assert has(team.private[number]) is (mode.name == "pooled")
        olds = [has(d.text) for d in team.decisions]
        assert all(olds) is (mode.name not in ("truncate", "recompute"))


def test_kv_of_decisions_is_the_author_s_in_global_and_nobody_s_in_inms() -> None:
    """The two ways to share the same text: computed behind private thoughts, or behind public."""
    for name, private in (("global", True), ("inms", False)):
        lab, story = story_of(MODES[name], drawn()[:6])
        with lab:
            books = lab.engine.ledger
            mounted = [s for s in books.sequences[story.reader.seq_id].segments if s.is_fragment]
            assert mounted
            for segment in mounted:
                source = books.sequences[segment.source]
                assert (source.kind == "agent") is private
                seen = source.segments[1].tokens.tolist()
                assert (tuple(seen) in drawn()[0].team.private[:2]) is private


def test_truncated_contexts_fit_the_memory_of_inms_and_lose_the_oldest_text() -> None:
    for tasks in teams_of(drawn()):
        team = tasks[0].team
        whole = rehearse(runner(), team, MODES["inms"], OPENED)
        cut = rehearse(runner(), team, MODES["truncate"], OPENED)
        assert cut.num_blocks <= whole.num_blocks
    team = drawn()[0].team
    texts = [*(d.text for d in team.decisions), *(d.changed for d in team.decisions)]
    shared = [token for text in texts for token in text]
    own = len(team.prompt) + len(team.private[READER])
    for room in (20, len(shared), 4096):
        lab, story = story_of(MODES["truncate"], drawn()[:6], room=own + room)
        with lab:  # the newest comes last of the shared text, and is kept
            context = story.reader.tokens[len(team.prompt) : -len(team.private[READER])]
            assert context == shared[-room:]


def test_modes_are_chosen_by_name() -> None:
    assert [m.name for m in chosen()] == list(MODES)
    assert chosen("inms") == chosen(["inms"]) == [MODES["inms"]]
    own = Mode("mine", "told", Independent(), TOLD)
    assert chosen([own, "global"]) == [own, MODES["global"]]
    with pytest.raises(BadInput, match="no mode is called 'none'"):
        chosen(["none"])


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["independent", "inms global", "pooled"])
def test_likelihoods_are_those_of_a_dense_forward(name: str) -> None:
    """Through forks, copies on write and the engine's tiles; options of two tokens too."""
    tasks = drawn()[:2]
    longer = replace(tasks[1], options=tuple((9, 8 + i % 2, i) for i in range(4)))
    found = play(runner(), [tasks[0], longer], MODES[name], OPENED)
    lab = open_lab(runner(), MODES[name], OPENED)
    with lab:
        lab.preload(tasks[0].team.prompt, progress=False)
        story = WAYS[MODES[name].texts](lab, tasks[0].team, 3)
        for step in (story.begin, story.hear):
            step([*DECIDERS])
            step([READER])
        context = [*story.reader.tokens]
    for task in (tasks[0], longer):
        for option, got in zip(task.options, found.answer(task).scores, strict=True):
            whole = [*context, *task.question, *option]
            rows = runner().dense(whole).double().log_softmax(-1)
            at = len(whole) - len(option)
            want = sum(float(rows[at + n - 1, token]) for n, token in enumerate(option))
            assert got == pytest.approx(want, abs=1e-3)
    best = max(found.answer(longer).scores)
    assert found.answer(longer).scores[found.answer(longer).chosen] == best


def test_sharing_in_place_changes_no_bit_and_a_fragment_does() -> None:
    """`inms global` computes every text in its place; what `inms group` adds is exact."""
    scores = {name: [a["scores"] for a in played(name).answers.values()] for name in STAGES}
    assert scores["inms group"] == scores["inms global"]
    assert scores["inms"] != scores["inms global"]
    assert played("inms").shifted_tokens > 0
    assert played("inms group").shifted_tokens == 0


def test_told_contexts_are_computed_alike_whether_packed_or_in_records() -> None:
    told = play(runner(), drawn()[:6], Mode("told", "", Independent(), TOLD), OPENED)
    pairs = zip(told.answers.values(), played("inms global").answers.values(), strict=True)
    for one, other in pairs:
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-3)


def test_one_question_leaves_no_trace_in_the_next() -> None:
    tasks = drawn()[:6]
    alone = play(runner(), tasks[3:4], MODES["inms"], OPENED).answer(tasks[3])
    assert alone == played("inms").answer(tasks[3])


# --- memory and time --------------------------------------------------------------------------


@ANY_MODE
def test_a_rehearsal_without_weights_counts_the_very_blocks(mode: Mode) -> None:
    counted = rehearse(runner(), drawn()[0].team, mode, OPENED)
    found = played(mode.name)
    assert found.kv_blocks == counted.num_blocks
    assert found.computed_tokens == counted.computed_tokens + len(drawn()[0].question)
    per_token = (Int8(runner()) if mode.int8 else runner()).new_store().bytes_per_token
    assert found.kv_bytes == found.kv_blocks * 16 * per_token
    assert 0 < found.ttft_ms < found.wall_ms
    assert found.metadata_bytes > 10_000


def test_fragments_save_blocks_and_prefill() -> None:
    alone, stage, whole = (played(n) for n in ("independent", "inms global", "inms"))
    assert whole.kv_blocks < alone.kv_blocks < stage.kv_blocks  # the stage hears the news, too
    assert whole.prefill_tokens < alone.prefill_tokens < stage.prefill_tokens
    assert played("int8 inms").kv_bytes < whole.kv_bytes < played("int8").kv_bytes * 2


@pytest.mark.parametrize("name", ["independent", "pooled", "truncate", "int8", "inms"])
def test_quick_runs_give_the_same_without_what_nobody_else_can_use(name: str) -> None:
    full, quick = played(name), played(name, quick=True)
    for what in ("answers", "kv_bytes", "kv_blocks", "prefill_tokens", "computed_tokens",
                 "shifted_tokens", "context_tokens"):  # fmt: skip
        assert getattr(quick, what) == getattr(full, what), what
    assert (quick.wall_ms is None) is (name != "inms")


def test_more_readers_take_more_blocks_where_nothing_is_shared() -> None:
    table = by_readers(runner(), drawn()[:6], ["inms global", "inms group", "inms"])
    assert list(table.columns) == [1, 2, 4, 8]
    grown = table[8] - table[1]
    assert grown["inms global"] > grown["inms group"] > grown["inms"] > 0
    assert (
        table.loc["inms", 1]
        == rehearse(runner(), drawn()[0].team, MODES["inms"], OPENED).num_blocks
    )


# --- int8 -------------------------------------------------------------------------------------


def test_int8_is_within_half_a_step_of_the_largest_channel() -> None:
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)) * 7
    x[0, 0] = 0
    got, step = roundtrip(x), x.abs().amax(-1, keepdim=True) / 127
    assert ((got - x).abs() <= step / 2 + 1e-6).all()
    assert (got[0, 0] == 0).all()
    assert not torch.equal(got, x)
    assert torch.allclose(roundtrip(got), got, atol=1e-5)
    assert torch.unique((got / step.clamp_min(1e-30)).round()).numel() <= 255
    assert roundtrip(x.half()).dtype == torch.float16


def test_a_lab_in_int8_holds_only_what_int8_can_say() -> None:
    plain, small = runner().new_store(), Int8(runner()).new_store()
    two, layers, heads, dim = small.shape
    assert small.bytes_per_token == two * layers * heads * (dim + SCALE_BYTES)
    assert plain.bytes_per_token == two * layers * heads * dim * 4
    text = list(range(3, 60))
    logits = []
    for model in (runner(), Int8(runner())):
        with Lab(model, mode="independent", block_size=16) as lab:  # type: ignore[arg-type]
            agent = lab.agent("a")
            agent.read(text, role=None).result()
            logits.append(agent.next_logits().result())
            region = lab.engine.cache.store.regions["private"][:, :, :, : len(text)]
            assert torch.allclose(roundtrip(region), region, atol=1e-5) is (model is not runner())
    assert not torch.equal(*logits)
    assert torch.allclose(*logits, atol=0.2)


# --- a run ------------------------------------------------------------------------------------


def test_a_run_is_taken_up_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tasks, names = tmp_path / "run.jsonl", drawn(), ["independent", "inms"]
    count = itertools.count()

    def falters(*what: Any) -> Played:
        if next(count) == 2:
            raise KeyboardInterrupt
        return play(*what)

    options: dict[str, Any] = {"gate": OPEN, "progress": False}
    monkeypatch.setattr(run, "play", falters)
    with pytest.raises(KeyboardInterrupt):
        run.run(runner(), tasks, names, path, **options)
    assert len(path.read_text().splitlines()) == 1 + 2
    whole = run.run(runner(), tasks, names, path, **options)
    assert next(count) == 5  # two that were known were not played again
    again = run.run(runner(), tasks, names, path, **options)
    assert next(count) == 6
    assert again.decisions().equals(whole.decisions())
    assert again.table().equals(whole.table())
    with pytest.raises(BadInput, match="other settings"):
        run.run(runner(), tasks, names, path, block_size=32, **options)


def test_a_small_run_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = run.run_modes(runner(), drawn()[:3], ["independent", "inms"], progress=False)
    assert list(table.index) == ["independent", "inms"]
    assert set(table.columns) >= {"correct", "guess", "stale", "leak", "kv_mib", "ttft_ms"}
    assert all(len(text) == 3 for text in table.choices)
    assert capsys.readouterr().err == ""
    run.run_modes(runner(), drawn()[:1], ["inms"])
    assert "no fragments of this model: gate: this model is not calibrated" in (
        capsys.readouterr().err
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(BadInput, match="there is no task"):
        run.run(runner(), [])
    with pytest.raises(BadInput, match="several teams"):
        play(runner(), drawn(), MODES["inms"], OPENED)
    with pytest.raises(BadInput, match="no scorer is called 'taste'"):
        run.run(runner(), drawn()[:1], ["inms"], scorer="taste", progress=False)


def test_the_gate_decides_on_fragments() -> None:
    told = Calibration(runner().digest, 0.5, (0.4, 0.6), 0.5, (0.4, 0.6), 9, 1.0, 0.0, "made up")
    shut = replace(OPENED, gate=Gate(calibration=told))
    found = play(runner(), drawn()[:6], MODES["inms"], shut)
    assert found.shifted_tokens == 0
    assert found.answers == played("inms group").answers


# --- tables -----------------------------------------------------------------------------------


def made_up(choices: dict[str, str], cost: dict[str, float]) -> Experiment:
    """An experiment with these choices (letters as in `marks`), a team of six after the other."""
    tasks = drawn(len(next(iter(choices.values()))))
    outcomes: dict[str, list[Played]] = {name: [] for name in choices}
    for name, text in choices.items():
        letters = iter(text)
        for team in teams_of(tasks):
            answers = {}
            for task in team:
                wanted = {"R": task.right, "G": task.guess, "S": task.stale, "o": task.others[0]}
                pick = wanted.get(next(letters), -1)
                scores = [-1.0 if i == pick else -2.0 - i for i in range(4)] if pick >= 0 else []
                answers[task.digest] = {"chosen": pick, "scores": scores}
            size = int(cost[name])
            outcomes[name].append(Played(size, 1, 1, 1, 1.0, None, 1, 0, 9, answers))
    return Experiment(tasks, [MODES[name] for name in choices], outcomes)


def test_quality_is_counted_as_it_is_defined() -> None:
    tasks = drawn()
    late = next(i for i, task in enumerate(tasks) if task.kind == UPDATED)
    text = "RRRRRRGGGooo"
    text = text[:late] + "S" + text[late + 1 :]
    found = made_up({"inms global": text, "inms": "RRRRRRRRRRR-"}, {"inms global": 40, "inms": 10})
    assert found.marks() == {"inms global": text, "inms": "RRRRRRRRRRR-"}
    table = found.table()
    num_late = sum(task.kind == UPDATED for task in tasks)
    row = table.loc["inms global"]
    assert row.correct == text.count("R") / 12
    assert row.guess == text.count("G") / 12
    assert row.stale == pytest.approx(1 / num_late)
    assert row.correct_low <= row.correct <= row.correct_high
    assert table.loc["inms"].stale == 0
    assert found.table(kind=SETTLED).loc["inms"].tasks == 12 - num_late
    (stage,) = found.stages().to_dict(orient="records")
    assert stage["correct"] == pytest.approx(11 / 12 - text.count("R") / 12)
    assert stage["changed"] == pytest.approx((text.count("G") + text.count("o") + 1) / 12)
    assert (stage["kv_bytes"], stage["kv_bytes_low"]) == (0.25, 0.25)
    with pytest.raises(BadInput, match="'pooled' is not among these"):
        found.compared("pooled")


def test_leak_is_the_share_of_unnamed_options_that_the_guess_beats() -> None:
    tasks = [task for task in drawn() if task.kind == SETTLED][:1]
    (task,) = tasks
    one, two = task.others
    for guess, first, second, want in (
        (0.0, -1.0, -1.0, 1.0),
        (-3.0, -1.0, -4.0, 0.5),
        (-1.0, -1.0, -1.0, 0.5),
        (-5.0, -1.0, -1.0, 0.0),
    ):
        scores = [0.0] * 4
        scores[task.guess], scores[one], scores[two] = guess, first, second
        outcome = replace(played("inms"), answers={task.digest: {"chosen": 0, "scores": scores}})
        found = Experiment(tasks, [MODES["inms"]], {"inms": [outcome]})
        assert found.decisions().leak[0] == want
        assert found.decisions().pull[0] == guess - (first + second) / 2


def test_teams_are_drawn_and_not_tasks() -> None:
    """Ten equal tasks of a team are one observation: as tasks they would look certain."""
    values, teams = [1.0] * 10 + [0.0] * 10, [0] * 10 + [1] * 10
    clustered, single = mean(values, teams), mean(values, range(20))
    assert clustered.mean == single.mean == 0.5
    assert (clustered.low, clustered.high) == (0, 1)
    assert single.low > 0.2
    assert single.high < 0.8
    assert mean(values, teams, 3) == mean(values, teams, 3)
    assert mean([1.0, float("nan")], [0, 1]).mean == 1
    assert ratio([1.0, 3.0], [2.0, 6.0]) == ratio([2.0, 2.0], [4.0, 4.0])
    assert mean([float("nan")], [0]).mean != mean([float("nan")], [0]).mean  # NaN


def test_results_go_into_a_file_and_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = "".join("S" if task.kind == UPDATED else "R" for task in drawn())
    texts = {"independent": stale, "inms global": "RRRRRo" * 2, "inms": "RRRGRo" * 2}
    found = made_up(texts, {"independent": 40, "inms global": 45, "inms": 10})
    readers = by_readers(runner(), drawn()[:6], list(texts))
    result = report.as_result(found, readers, {"command": "inms-lab experiment"}, seed=4)
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(result))
    back = report.tables(path)
    assert set(back) == set(report.TABLES)
    for name, table in (("modes", found.table(4)), (UPDATED, found.table(4, UPDATED))):
        assert back[name].correct.to_dict() == pytest.approx(table.correct.to_dict(), abs=1e-4)
    assert back["stages"].index.to_list() == ["inms"]
    assert back["compared"].loc["independent"].kv_bytes == pytest.approx(40 / 45, abs=1e-4)
    assert (result["machine"], result["seed"], result["num_teams"]) != ("", 4, 0)
    assert result["choices"] == found.marks()
    assert len(result["kinds"]) == result["num_tasks"] == 12
    report.render(result)
    assert "inms" in capsys.readouterr().out
    figure = figures.choices(result["choices"])
    assert [bar.name for bar in figure.data] == [figures.MARKS[m][0] for m in "RGSo"]
    assert sum(sum(bar.x) for bar in figure.data) == pytest.approx(3)
    assert list(figures.trade(back["modes"]).data[0].text) == list(texts)
    for nothing in (tmp_path / "none.json", {"tables": 3}, {}):
        with pytest.raises(BadInput, match="no result"):
            report.tables(nothing)


def test_leak_rank_figures_are_quoted_where_there_are_any(tmp_path: Path) -> None:
    assert report.risk_of(tmp_path) is None
    row = {"variant": "private", "reader": "logits", "trials": 9}
    row |= {f"{what}{end}": 0.5 for what in ("top1", "auc") for end in ("", "_low", "_high")}
    told = {"chance": {"top1": 0.1}, "rows": [row, {**row, "reader": "vectors"}]}
    (tmp_path / "leak_rank.json").write_text(json.dumps(told))
    found = report.risk_of(tmp_path)
    assert found is not None
    assert len(found["rows"]) == 1
    (tmp_path / "leak_rank.json").write_text("{}")
    assert report.risk_of(tmp_path) is None


# --- generated code ---------------------------------------------------------------------------

QUICK = Limits(seconds=10, cpu=1)


def task_of(*said: str) -> Task:
    return replace(drawn()[0], said=said)


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("```python\ndef answer():\n    return 'Oslo'\n```\nThat is all.", 1),
        ("Here you are:\n```\nanswer = lambda: ' Rome. '\n```", 2),
        ("def answer(): return 'oslo'", 1),
        ("def answer(): return 8083", 3),
        ("def answer(): return 'Paris'", -1),
        ("def answer(: return", -1),
        ("I think that it is Oslo.", -1),
        ("", -1),
        ("raise SystemExit(0)", -1),
        ("import os\nos._exit(0)", -1),
        ("def answer(): return 'Oslo'\nraise ValueError('late')", -1),
        ("import sys\nsys.stdout.write('x' * 10**7)\ndef answer(): return 'Oslo'", 1),
    ],
)
def test_code_is_judged_by_what_it_returns(written: str, want: int) -> None:
    assert score.judge(task_of("Lima", "Oslo", "Rome", "8083"), written, QUICK).chosen == want


def test_code_that_does_not_end_or_eats_memory_or_disk_is_stopped(tmp_path: Path) -> None:
    tests = {"ok": "assert done"}
    assert run_tests("done = True", tests) == run_tests("done = 1", tests)
    assert run_tests("done = True", tests).passed == {"ok": True}
    slow = run_tests("import time\ntime.sleep(60)\ndone = True", tests, Limits(seconds=0.7))
    assert (slow.passed, slow.error) == ({"ok": False}, "stopped after 0.7 s")
    busy = run_tests("while True: pass", tests, Limits(seconds=20, cpu=1))
    assert "ended by itself" in busy.error
    big = run_tests("x = bytearray(2 << 30)\ndone = True", tests)
    assert (big.passed, big.error[:11]) == ({"ok": False}, "MemoryError")
    wide = "open('f', 'wb').write(bytes(1 << 22))\ndone = True"
    assert run_tests(wide, tests).passed == {"ok": False}
    looks = "import os\ndone = 'HOME' not in os.environ and 'PATH' not in os.environ"
    assert run_tests(looks, tests).passed == {"ok": True}
    assert run_tests(f"import os\ndone = os.getcwd() != {str(Path.cwd())!r}", tests).passed["ok"]


def test_what_generated_code_started_ends_with_it() -> None:
    mark = "inms-lab-left-over-73521"
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(50)', {mark!r}])\n"
        "done = True"
    )
    assert run_tests(code, {"ok": "assert done"}).passed == {"ok": True}
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or ())]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive


class Canned:
    """A reader that writes what it was given: no model here can be asked to write code."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts, self.read_texts = list(texts), list[str]()

    def fork(self) -> Any:
        return Done(CannedFork(self))


class CannedFork:
    def __init__(self, reader: Canned) -> None:
        self.reader, self.requests = reader, [type("R", (), {"first_token_at": 1.5})()]

    def read(self, text: str, role: str) -> None:
        self.reader.read_texts.append(text)

    def write(self, max_tokens: int) -> Any:
        return Done(self.reader.texts.pop(0))

    def close(self) -> Any:
        return Done(None)


class Done:
    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value


def test_the_scorer_of_written_code_asks_and_runs() -> None:
    tasks = drawn()[:2]
    right = f"```python\ndef answer():\n    return {tasks[0].said[tasks[0].right]!r}\n```"
    wrong = f"def answer(): return {tasks[1].said[tasks[1].guess]!r}"
    reader: Any = Canned([right, wrong])
    asked = score.scorer_of("tests")(reader, tasks)
    assert [a.chosen for a in asked.answers] == [tasks[0].right, tasks[1].guess]
    assert asked.first_at == 1.5
    assert all(a.scores == [] for a in asked.answers)
    for task, text in zip(tasks, reader.read_texts, strict=True):
        assert text.startswith(task.asked)
        assert "answer()" in text


# --- the benefit model ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inms", "independent", "global"])
@pytest.mark.parametrize("block_size", [1, 16, 48, 512, 600])
@pytest.mark.parametrize("share", [0, Fraction(1, 10), 0.35, Fraction(4, 5), 1])
def test_measured_is_the_formula_and_the_explained_waste(
    mode: str, block_size: int, share: float
) -> None:
    """To the byte: a partly filled last block for each segment, and nothing else."""
    n, tokens, size = 5, 600, 7
    found = benefits.benefit(
        share, block_size, mode=mode, num_agents=n, tokens=tokens, bytes_per_token=size
    )
    common = int(Fraction(str(share)) * tokens)
    halves = [length for length in (common // 2, common - common // 2) if length]
    own = [tokens - common] * n if tokens > common else []
    held = [*halves * (n if mode == "independent" else 1), *own]
    blocks = sum(-(-length // block_size) for length in held)
    assert found.kv == blocks * block_size * size
    assert found.formula == sum(held) * size
    assert found.waste == sum(-length % block_size for length in held) * size
    assert found.unexplained == 0
    assert found.total == found.kv + found.metadata


def test_end_points_one_token_wastes_nothing_and_a_whole_context_saves_nothing() -> None:
    table = benefits.measure((0, Fraction(3, 5)), (1, 16), num_agents=4, tokens=400, progress=False)
    assert set(table.block_size) == {1, 16, 400}
    mine = table[(table["mode"] == "inms") & (table.share == 0.6)].set_index("block_size")
    assert mine.waste[1] == 0
    assert mine.metadata[1] > mine.metadata[16] > mine.metadata[400] > 0
    assert mine.kv[400] > mine.kv[16]
    alone = table[(table["mode"] == "independent") & (table.share == 0)].set_index("block_size")
    assert mine.kv[400] > alone.kv[400]  # a block a segment: two more than there are agents
    assert (table.unexplained == 0).all()
    assert len(figures.held(table).data) == 4
    assert figures.overhead(table).data[0].y[-1] == pytest.approx(mine.waste[400] / 2**20)


@pytest.mark.parametrize(
    ("least", "verdict"), [(256, HOLDS), (128, DOES_NOT_HOLD), (512, DOES_NOT_HOLD)]
)
def test_the_claim_about_block_sizes_holds_if_the_size_takes_least(
    least: int, verdict: str
) -> None:
    """Empty slots and metadata count, the KV of tokens does not; it must hold in every table."""
    rows = [
        {"mode": mode, "share": share, "block_size": size, "num_agents": 8, "tokens": 2000,
         "kv": 10**9 // size, "waste": 2**20 * (1 + (size != at) + share), "metadata": 2**19}
        for at, mode in ((least, "inms"), (256, "independent"))
        for share in (0.0, 1.0) for size in (*benefits.COMPARED, 2000)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    told = benefits.claimed(table)[benefits.CLAIM]
    assert told["verdict"] == verdict
    assert f"2.0 MiB with {least}" in told["measured"]
    assert told["measured"].count("3.0 MiB with") == 2
    assert benefits.claimed(table, table.assign(waste=table.block_size))[benefits.CLAIM][
        "verdict"] == DOES_NOT_HOLD  # fmt: skip


@pytest.mark.parametrize(
    ("share", "options"),
    [(0.333, {}), (1.5, {}), (-0.1, {}), (0.5, {"num_agents": 0}), (0.5, {"tokens": 0})],
)
def test_a_case_that_makes_no_sense_is_refused(share: float, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        benefits.benefit(share, 16, **({"tokens": 500} | options))


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The command on the tiny model, six tasks of words, a cache of its own."""
    monkeypatch.setattr("inms_lab.model.load", lambda *_, **__: runner())
    monkeypatch.setattr("inms_lab.experiment.tasks.family", lambda *_: drawn()[:6])
    monkeypatch.setattr("inms_lab.notebook.calibrations.cache_root", lambda: tmp_path)
    return tmp_path / "out" / "experiment.json"


def test_the_command_writes_a_file_that_the_reports_read(small: Path) -> None:
    asked = ["experiment", "--mode", "inms global", "--mode", "inms group", "--results", str(small)]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    assert "inms group" in done.output
    result = json.loads(small.read_text())
    assert result["num_tasks"] == 6
    assert result["model"] == runner().digest
    found = report.tables(small)
    assert found["stages"].loc["inms group"].changed == 0
    assert found["modes"].loc["inms group"].kv_blocks == played("inms group").kv_blocks
    done = CliRunner().invoke(cli.app, [*asked[:3], "--json"])
    assert json.loads(done.stdout)["choices"]["inms global"] == result["choices"]["inms global"]


def test_the_command_prints_the_benefit_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, shares, sizes = benefits.measure, (0, Fraction(1, 2)), (16, *benefits.COMPARED)
    small = {"tokens": 200, "progress": False}
    monkeypatch.setattr(benefits, "measure", lambda **_: whole(shares, sizes, **small))
    out = tmp_path / "benefit.json"
    done = CliRunner().invoke(cli.app, ["experiment", "--benefit", "--results", str(out)])
    assert done.exit_code == 0, done.output
    assert "explain: 0 at most" in done.output
    rows = json.loads(out.read_text())["rows"]
    assert {row["block_size"] for row in rows} == {16, 128, 200, 256, 512}
    (claim,) = (claim for claim in registry(tmp_path) if claim.claim_id == benefits.CLAIM)
    assert claim.verdict == DOES_NOT_HOLD
    assert claim.measured.count("200 tokens: ") == 2


RESULT = experiment_command.RESULTS / "experiment.json"


@pytest.mark.skipif(not RESULT.exists(), reason="no results of `inms-lab experiment` here")
def test_the_committed_results_are_of_the_modes_that_there_are() -> None:
    told = json.loads(RESULT.read_text())
    found = report.tables(told)
    assert list(told["choices"]) == list(MODES)
    assert told["num_tasks"] >= 100
    for name, text in told["choices"].items():
        assert found["modes"].loc[name].correct == pytest.approx(
            text.count("R") / len(text), abs=1e-4
        )
        assert set(COSTS) <= set(found["modes"].columns)
    same = told["choices"]
    assert same["inms group"] == same["inms global"]  # sharing in place is exact
    assert set(asdict(played("inms"))) >= set(COSTS)
    assert MODES["inms"].texts == RECORDS
