"""Interference is measured against full prefill: parts at any place, recompute, variants."""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from typer.testing import CliRunner

from inms_lab import cli
from inms_lab.books.gate import Calibration, Gate
from inms_lab.errors import BadInput, CacheNotWritable, ContextTooLong, TextTooLarge, UnsafeShift
from inms_lab.interference import compare, figures
from inms_lab.interference.calibrate import MAX_KL, MIN_AGREEMENT, calibrate
from inms_lab.interference.contexts import Part, Scratch
from inms_lab.interference.measure import measure
from inms_lab.interference.samples import (
    Sample,
    Sizes,
    chosen,
    of_file,
    of_logs,
    of_package,
    public_text,
)
from inms_lab.interference.variants import FULL, PUBLIC, Settings, examine, most_deviating
from inms_lab.model import Runner, from_model, load
from inms_lab.notebook.calibrations import SHIPPED, calibration_of, keep
from inms_lab.notebook.text import Text
from inms_lab.terminal.standin import ByteText

TILE = 16


@pytest.fixture(scope="module")
def runner() -> Runner:
    return from_model(models.llama())


@pytest.fixture
def scratch(runner: Runner) -> Iterator[Scratch]:
    made = Scratch(runner, TILE, 2048)
    yield made
    made.close()


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=count)


SYSTEM, OWN, RECORD, ANSWER = (words(n, seed) for seed, n in enumerate((20, 33, 50, 12)))
PLACE = len(SYSTEM) + len(OWN)  # where the reader has the record


def truth(runner: Runner) -> torch.Tensor:
    """Stock transformers over the reader's whole context, from the record's last token on."""
    return runner.dense(SYSTEM + OWN + RECORD + ANSWER)[PLACE + len(RECORD) - 1 :]


def context(scratch: Scratch) -> tuple[list[Part], Part]:
    """The reader's own context, and the record as encoded behind the public part of it."""
    public = scratch.lay(SYSTEM)
    record, own = scratch.lay(RECORD, [public]), scratch.lay(OWN, [public])
    return [public, own], record


# --- contexts ---------------------------------------------------------------------------------


def test_a_part_that_is_a_prefix_is_exact(runner: Runner, scratch: Scratch) -> None:
    before, _ = context(scratch)
    record = scratch.encode(RECORD, before)
    assert (scratch.logits(ANSWER, [*before, record]) - truth(runner)).abs().max() < 1e-4
    more = scratch.logits(
        ANSWER[5:], [*before, record, scratch.encode(ANSWER[:5], [*before, record])]
    )
    assert (more - truth(runner)[5:]).abs().max() < 1e-4


@pytest.mark.parametrize("build", models.WANTED.values(), ids=models.WANTED)
def test_everything_recomputed_equals_full_prefill(build: models.Builder) -> None:
    runner = from_model(build())
    scratch = Scratch(runner, TILE, 2048)
    before, record = context(scratch)
    runs = scratch.recompute(record, range(len(RECORD)), before)
    scratch.ask(ANSWER, [*before, *runs])
    (got,) = scratch.compute()
    assert (got - truth(runner)).abs().max() < 1e-4 * truth(runner).abs().max()


def test_a_record_behind_another_context_is_not_exact_but_its_first_layer_is(
    runner: Runner, scratch: Scratch
) -> None:
    before, record = context(scratch)
    full = scratch.lay(RECORD, before)
    scratch.compute()
    reused, fresh = scratch.kv(record, at=PLACE), scratch.kv(full)
    error = (reused - fresh).abs().amax(dim=(1, 2, 3, 4))
    assert error[0] < 1e-4
    assert error[1:].min() > 0.1
    assert (scratch.logits(ANSWER, [*before, record]) - truth(runner)).abs().max() > 0.1


@pytest.mark.parametrize("picks", [(), (0, 1, 17, 49), range(3, 40), (48,)])
def test_kept_runs_between_recomputed_ones_stand_in_their_own_slots(
    runner: Runner, scratch: Scratch, picks: tuple[int, ...]
) -> None:
    """Recomputing tokens of a part that is exact changes nothing, whichever they are."""
    before, record = context(scratch)
    full = scratch.encode(RECORD, [*before])
    there = scratch.kv(record), scratch.kv(full)
    runs = scratch.recompute(full, picks, before)
    assert sum((run.tokens for run in runs), ()) == full.tokens
    kept = [run for run in runs if full.slot <= run.slot < full.slot + len(full)]
    assert sum(map(len, kept)) == len(RECORD) - len(picks)
    assert all(run.slot - full.slot == run.first - full.first for run in kept)
    assert (scratch.logits(ANSWER, [*before, *runs]) - truth(runner)).abs().max() < 1e-4
    runs = scratch.recompute(record, picks, before)
    assert (scratch.logits(ANSWER, [*before, *runs]) - truth(runner)).abs().max() > 0.1
    for part, bits in zip((record, full), there, strict=True):
        assert torch.equal(scratch.kv(part), bits)  # recompute writes elsewhere


def test_a_part_anywhere_has_the_same_kv_up_to_the_turn_of_its_keys(scratch: Scratch) -> None:
    here, there = scratch.lay(RECORD), scratch.lay(RECORD, at=900)
    scratch.compute()
    assert (scratch.kv(there, at=0) - scratch.kv(here)).abs().max() < 1e-3
    assert (scratch.kv(there) - scratch.kv(here)).abs().max() > 0.1


def test_a_copy_has_the_same_kv_in_slots_of_its_own(scratch: Scratch) -> None:
    part = scratch.encode(RECORD)
    copy = scratch.copy(part)
    assert copy.slot >= part.slot + len(part)
    assert torch.equal(scratch.kv(copy), scratch.kv(part))


def test_several_questions_of_one_forward_equal_single_ones(scratch: Scratch) -> None:
    before, record = context(scratch)
    scratch.compute()
    contexts = [before, [*before, record], [*before, record.turned(0)], [before[0], record]]
    single = [scratch.logits(ANSWER[:n], c) for n, c in zip((3, 0, 7, 12), contexts, strict=True)]
    for n, c in zip((3, 0, 7, 12), contexts, strict=True):
        scratch.ask(ANSWER[:n], c)
    together = scratch.compute()
    assert [len(rows) for rows in together] == [4, 1, 8, 13]
    assert all(torch.equal(a, b) for a, b in zip(single, together, strict=True))
    assert not torch.equal(together[1][0], together[2][0])


def test_bad_input_is_named(runner: Runner, scratch: Scratch) -> None:
    part = scratch.encode(RECORD)
    with pytest.raises(BadInput, match="at least one token"):
        scratch.lay([])
    with pytest.raises(BadInput, match="at least one token"):
        scratch.ask(ANSWER, [])
    with pytest.raises(BadInput, match="leaves no room"):
        scratch.lay(OWN, [part], at=10)
    with pytest.raises(BadInput, match="0 to 49"):
        scratch.recompute(part, [50])
    with pytest.raises(ContextTooLong, match="takes 1024"):
        scratch.lay(OWN, at=1000)
    with pytest.raises(TextTooLarge, match="num_slots"):
        scratch.lay(words(2048, 9))
    with scratch.room():
        scratch.lay(words(500, 9))
        taken = scratch.used
    assert scratch.used == taken - 512
    unsafe = Scratch(from_model(models.hunyuan()), TILE, 256)
    part = unsafe.encode(RECORD)
    assert unsafe.logits(ANSWER, [part]).shape == (13, 320)
    with pytest.raises(UnsafeShift):
        unsafe.logits(ANSWER, [unsafe.encode(OWN), part])
    with pytest.raises(UnsafeShift):
        unsafe.kv(part, at=7)


# --- compare ----------------------------------------------------------------------------------


def test_numbers_against_hand_computed_ones() -> None:
    truth, got = (
        torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]])),
        torch.log(torch.tensor([[0.25, 0.75], [0.9, 0.1]])),
    )
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert compare.kl(truth, got).tolist() == pytest.approx([expected, 0.0])
    assert compare.agreement(truth, got).tolist() == [False, True]
    surprise = compare.surprise(got, [1, 0])
    assert surprise.tolist() == pytest.approx([-math.log(0.75), -math.log(0.9)])
    assert compare.perplexity_change(math.log(1.25)) == pytest.approx(0.25)
    kv = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(0))
    assert compare.kv_error(kv, 1.5 * kv) == pytest.approx(torch.full((3, 2, 5), 0.5))


def test_the_bootstrap_is_seeded_and_covers_what_it_should() -> None:
    values = [float(x) for x in torch.randn(60, generator=torch.Generator().manual_seed(0))]
    interval = compare.bootstrap(values, seed=3)
    assert interval == compare.bootstrap(values, seed=3)
    assert interval != compare.bootstrap(values, seed=4)
    half = 1.96 * statistics.pstdev(values) / math.sqrt(60)  # what normal theory says
    assert interval.mean == pytest.approx(statistics.mean(values))
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    assert compare.bootstrap([2.0], seed=0) == compare.Interval(2.0, 2.0, 2.0)
    with pytest.raises(BadInput):
        compare.bootstrap([])


# --- variants ---------------------------------------------------------------------------------

SAMPLE = Sample("one", *(tuple(words(n, 10 + n)) for n in (20, 33, 31, 64, 12)))
SETTINGS = Settings(first=16, share=0.2, block=8, bucket=16, tile=TILE)


def test_variants_against_full_prefill(runner: Runner, scratch: Scratch) -> None:
    used = scratch.used
    got = examine(scratch, SAMPLE, SETTINGS)
    assert scratch.used == used
    assert tuple(got) == SETTINGS.names
    full, public = got[FULL], got[PUBLIC]
    assert max(full.kl) == 0
    assert all(full.agrees)
    dense = runner.dense([*SAMPLE.public, *SAMPLE.own, *SAMPLE.fragment, *SAMPLE.continuation])
    start = SAMPLE.place + len(SAMPLE.fragment) - 1
    surprise = compare.surprise(dense[start:-1], SAMPLE.continuation)
    assert full.surprise == pytest.approx(surprise.tolist(), abs=1e-4)
    assert [len(o.kl) for o in got.values()] == [12] * len(got)
    for name in (PUBLIC, "alone", "private", *SETTINGS.recomputed):
        error = got[name].kv_error
        assert max(error[0]) < 1e-5, "layer 0 is exact"
        assert min(map(max, error[1:])) > 0.01
    for name in ("not shifted", "wrong way"):
        assert min(got[name].kv_error[0]) > 0.1
    assert got["missing"].kv_error == []
    assert [got[name].num_recomputed for name in SETTINGS.recomputed] == [16, 13, 16]
    assert got["first 16"].kv_error[1][0] < 1e-5 < public.kv_error[1][0]


@pytest.mark.parametrize("settings", [Settings(first=64, tile=TILE), Settings(share=1, tile=TILE)])
def test_everything_recomputed_is_the_truth(scratch: Scratch, settings: Settings) -> None:
    got = examine(scratch, SAMPLE, settings)
    exact = settings.recomputed[:1] if settings.share < 1 else settings.recomputed[1:]
    for name in exact:
        assert got[name].num_recomputed == 64
        assert max(got[name].kl) < 1e-6
        assert max(map(max, got[name].kv_error)) < 1e-4
        assert got[name].surprise == pytest.approx(got[FULL].surprise, abs=1e-4)


def test_error_falls_as_more_is_recomputed(scratch: Scratch) -> None:
    def error(share: float) -> float:
        outcome = examine(scratch, SAMPLE, replace(SETTINGS, share=share))
        rows = outcome[replace(SETTINGS, share=share).recomputed[1]].kv_error
        return statistics.mean(x for row in rows for x in row)

    errors = [error(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-4 < errors[0]


def test_a_fragment_that_is_a_prefix_is_exact(scratch: Scratch) -> None:
    """Whose own prompt is the public one: `public` and `private` stand where they are used."""
    sample = replace(SAMPLE, other=SAMPLE.own)
    got = examine(scratch, sample, SETTINGS)["private"]
    assert max(got.kl) < 1e-9
    assert max(map(max, got.kv_error)) < 1e-6


def test_the_most_deviating_tokens_and_blocks() -> None:
    deviation = torch.tensor([0.1, 0.9, 0.2, 0.3, 0.8, 0.7, 0.0, 0.5])
    assert most_deviating(deviation, 0.25) == [1, 4]
    assert most_deviating(deviation, 0.3) == [1, 4, 5]
    assert most_deviating(deviation, 0.25, block=2) == [4, 5]
    assert most_deviating(deviation, 0.5, block=3) == [0, 1, 2, 3, 4, 5]
    assert most_deviating(deviation, 0.0) == []
    assert most_deviating(deviation, 1.0, block=3) == list(range(8))


# --- measure ----------------------------------------------------------------------------------


def samples(count: int) -> list[Sample]:
    return [
        Sample(f"s{i}", *(tuple(words(n, 100 * i + n)) for n in (20, 33 + i, 31, 48, 12)))
        for i in range(count)
    ]


def test_a_measurement_resumes_where_it_stopped(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    first = measure(runner, samples(2), SETTINGS, path, progress=False)
    with path.open("a") as file:
        file.write('{"sample": "s2", "dig')  # an interrupt
    seen: list[str] = []

    def counted(scratch: Scratch, sample: Sample, settings: Settings) -> Any:
        seen.append(sample.name)
        return examine(scratch, sample, settings)

    monkeypatch.setattr("inms_lab.interference.measure.examine", counted)
    whole = measure(runner, samples(3), SETTINGS, path, progress=False)
    assert seen == ["s2"]
    assert len(path.read_text().splitlines()) == 4
    again = measure(runner, samples(3), SETTINGS, path, progress=False)
    assert seen == ["s2"]
    assert again == whole == measure(runner, samples(3), SETTINGS, progress=False)
    assert list(first.outcomes) == ["s0", "s1"]


def test_a_file_of_something_else_is_refused(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    measure(runner, samples(1), SETTINGS, path, progress=False)
    with pytest.raises(BadInput, match="other settings"):
        measure(runner, samples(1), replace(SETTINGS, first=17), path, progress=False)
    with pytest.raises(BadInput, match="another model"):
        measure(from_model(models.llama(seed=1)), samples(1), SETTINGS, path, progress=False)
    changed = replace(samples(1)[0], own=SAMPLE.own)
    with pytest.raises(BadInput, match="another sample"):
        measure(runner, [changed], SETTINGS, path, progress=False)
    path.write_text("no json\n")
    with pytest.raises(BadInput, match="holds no results"):
        measure(runner, samples(1), SETTINGS, path, progress=False)
    with pytest.raises(BadInput, match="same name"):
        measure(runner, [SAMPLE, SAMPLE], SETTINGS, progress=False)


def test_a_model_without_safe_rotation_is_refused(scratch: Scratch) -> None:
    with pytest.raises(UnsafeShift):
        measure(from_model(models.hunyuan()), [SAMPLE], SETTINGS, progress=False)


def test_tables_and_figures(runner: Runner) -> None:
    measured = measure(runner, samples(3), SETTINGS, progress=False)
    table = measured.table()
    assert list(table.index) == list(SETTINGS.names)
    kls = [statistics.mean(o[PUBLIC].kl) for o in measured.outcomes.values()]
    assert table.kl[PUBLIC] == pytest.approx(statistics.mean(kls))
    assert (table.kl_low <= table.kl).all()
    assert (table.kl <= table.kl_high).all()
    errors = measured.kv_error(PUBLIC)
    assert errors.shape == (3, 3)
    assert list(errors.columns) == [0, 16, 32]
    assert len(measured.samples()) == 3 * len(SETTINGS.names)
    assert measured.kl_by_token().shape == (12, len(SETTINGS.names))
    heat = figures.kv_error(measured).data[0]
    assert heat.z.tolist() == errors.to_numpy().tolist()
    bars = figures.by_variant(measured).data[0]
    assert list(bars.y) == list(SETTINGS.names[1:])
    assert bars.x.tolist() == table.kl[1:].tolist()
    assert len(figures.kl_by_token(measured).data) == len(SETTINGS.names) - 1
    with pytest.raises(BadInput, match="no KV error"):
        measured.kv_error("missing")
    with pytest.raises(BadInput, match="no variant"):
        measured.interval("nonsense", "kl")


# --- samples ----------------------------------------------------------------------------------

LOGS: list[dict[str, Any]] = [
    {
        "file": f"{i}",
        "system_prompt": {
            "Ann": f"I am Ann {i}.\n\n## Rules\nBe brief.\n\n## More\nBe kind.",
            "Bob": f"I am Bob {i}.\n\n## Rules\nBe brief.\n\n## More\nBe kind.",
            "Cleo": "",
        },
        "history": [{"name": "Ann", "content": "word " * 30}, {"name": "Bob", "content": "yes"}],
    }
    for i in range(3)
]
SMALL = Sizes(own=5, fragment=20, continuation=8)


def test_samples_from_logs_of_a_team() -> None:
    text = ByteText(320)
    assert (
        public_text(LOGS[0]["system_prompt"].values()) == "## Rules\nBe brief.\n\n## More\nBe kind."
    )
    made = of_logs(LOGS, text, SMALL)
    assert [sample.name for sample in made] == ["0", "1", "2"]
    sample = made[1]
    assert sample.public == tuple(text.encode("## Rules\nBe brief.\n\n## More\nBe kind."))
    assert sample.own == tuple(text.encode("Ann\nI am Ann 1.")[:5])
    assert sample.other == tuple(text.encode("Bob\nI am Bob 1.")[:5])
    history = text.encode("Ann: " + "word " * 30) + text.encode("Bob: yes")
    assert sample.fragment == tuple(history[:20])
    assert sample.continuation == tuple(history[20:28])
    assert sample.digest != made[0].digest
    alone = [{**LOGS[0], "system_prompt": {"Ann": "I am Ann."}}]
    short = [{**LOGS[0], "history": LOGS[0]["history"][1:]}]
    assert len(of_logs([*LOGS, *alone, *short], text, SMALL)) == 3
    for none in (alone, short, []):
        with pytest.raises(BadInput, match="smaller fragment"):
            of_logs(none, text, SMALL)


def test_a_draw_is_seeded_and_keeps_the_order() -> None:
    every = samples(9)
    drawn = chosen(every, 5, seed=1)
    assert drawn == chosen(every, 5, seed=1) != chosen(every, 5, seed=2)
    assert [s for s in every if s in drawn] == drawn
    assert chosen(every, None, 0) == every
    with pytest.raises(BadInput, match="there are 9"):
        chosen(every, 10, 0)


def test_the_packages_own_logs_are_enough_for_whole_samples() -> None:
    made = of_package(ByteText(320))
    assert len(made) >= 6
    assert {len(sample.fragment) for sample in made} == {Sizes().fragment}
    assert len({sample.digest for sample in made}) == len(made)


@pytest.mark.parametrize("name", ["logs.jsonl", "logs.jsonl.gz"])
def test_files_of_logs(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = "".join(json.dumps(log) + "\n" for log in LOGS).encode()
    path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert of_file(path, ByteText(320), SMALL) == of_logs(LOGS, ByteText(320), SMALL)
    for damaged in (b"{}\n", b"[1]\n", b"no json\n", b"\xff\xfe\n", path.read_bytes()[:40]):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match="holds no logs"):
            of_file(path, ByteText(320), SMALL)
    with pytest.raises(BadInput, match="there is no"):
        of_file(tmp_path / "nowhere", ByteText(320), SMALL)


def test_the_captain_agent_logs_give_fifty_samples() -> None:
    path = Path(__file__).parents[2] / "shared/data/transcripts/whoandwhen_captainagent.jsonl.gz"
    if not path.exists():
        pytest.skip("no ../shared/data beside this checkout")
    made = of_file(path, ByteText(49152))
    assert len(made) >= 50
    assert len({sample.public for sample in made}) == 1


# --- calibrate --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_calibration_is_measured_kept_and_found(runner: Runner, cache: Path) -> None:
    assert calibration_of(runner.digest) is None
    made = calibrate(runner, samples(3), SETTINGS, what="random words", progress=False)
    measured = measure(runner, samples(3), SETTINGS, progress=False)
    kl, same = (measured.interval(PUBLIC, what) for what in ("kl", "agreement"))
    assert (made.kl, made.kl_interval) == (kl.mean, (kl.low, kl.high))
    assert (made.agreement, made.agreement_interval) == (same.mean, (same.low, same.high))
    assert (made.model, made.num_samples, made.what) == (runner.digest, 3, "random words")
    assert made.prefill_ms > 0
    assert made.tile_ms >= 0
    assert calibration_of(runner.digest) == made
    (file,) = (cache / "calibrations").iterdir()
    file.write_text("{")
    assert calibration_of(runner.digest) is None
    assert Gate(calibration=made, max_kl=1e-9).excess() != ""
    assert Gate(calibration=made, max_kl=99, min_agreement=0).excess() == ""


def test_the_users_own_calibration_goes_before_the_packages(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Calibration("d1", 0.1, (0.0, 0.2), 0.9, (0.8, 1.0), 5, 1.0, 0.1, "shipped")
    monkeypatch.setattr("inms_lab.notebook.calibrations.SHIPPED", tmp_path / "shipped")
    keep(shipped, tmp_path / "shipped")
    assert calibration_of("d1") == shipped
    keep(replace(shipped, what="own"))
    found = calibration_of("d1")
    assert found is not None
    assert found.what == "own"
    keep(replace(shipped, model="d2")).rename(cache / "calibrations" / "d3.json")
    assert calibration_of("d3") is None, "a file under another model's name"
    with pytest.raises(CacheNotWritable, match="another folder"):
        keep(shipped, cache / "calibrations" / "d1.json")


def test_looking_up_a_calibration_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from inms_lab.notebook.calibrations import calibration_of\n"
        "calibration_of('none')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_prints_every_variant_and_writes_results(
    runner: Runner, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, results = tmp_path / "logs.jsonl", tmp_path / "new" / "r.json"
    long = [{**log, "history": log["history"] * 14} for log in LOGS]
    data.write_text("".join(json.dumps(log) + "\n" for log in long))
    monkeypatch.setattr("inms_lab.model.load", lambda *_, **__: runner)
    monkeypatch.setattr("inms_lab.notebook.text.Text", lambda *_: ByteText(320))
    args = ["calibrate", "tiny", "--data", str(data), "--samples", "2"]
    more = ["--results", str(results), "--into", str(tmp_path / "here")]
    out = CliRunner().invoke(cli.app, [*args, *more], env={"COLUMNS": "200"})
    assert out.exit_code == 0, out.output
    result = json.loads(results.read_text())
    for name in Settings().names:
        assert name in out.stdout
        assert f"{result['variants'][name]['kl']:.4f}" in out.stdout
    assert "do NOT hold" in out.stdout
    assert result["bounds"]["hold"] is False
    assert result["num_samples"] == 2
    assert result["variants"]["missing"]["kv_error"] is None
    assert len(result["kv_error_by_layer"]["public"]) == 3
    assert [p.stem for p in (tmp_path / "here").iterdir()] == [runner.digest]
    assert calibration_of(runner.digest) is None
    again = CliRunner().invoke(cli.app, [*args, "--json"])
    assert json.loads(again.stdout)["variants"] == result["variants"]
    assert len(list((cache / "measurements").iterdir())) == 1


# --- the default model ------------------------------------------------------------------------

RESULTS = Path(__file__).parents[1] / "benchmarks/results/interference_captainagent.json"


def test_the_shipped_calibration_is_the_measured_one_and_within_the_bounds() -> None:
    result = json.loads(RESULTS.read_text())
    (file,) = SHIPPED.glob("*.json")
    shipped = json.loads(file.read_text())
    assert shipped == result["calibration"]
    assert file.stem == shipped["model"] == result["model"]
    assert result["num_samples"] == shipped["num_samples"] >= 50
    public = result["variants"]["public"]
    assert public["kl"] == pytest.approx(shipped["kl"], rel=1e-5)
    assert public["kl_low"] <= public["kl"] <= public["kl_high"]
    assert public["kl"] <= MAX_KL == 0.035
    assert public["agreement"] >= MIN_AGREEMENT == 0.92
    assert Gate(calibration=Calibration.of(shipped)).excess() == ""


@pytest.mark.model
@pytest.mark.slow
def test_on_the_default_model_the_first_layer_is_exact_and_the_order_is_as_shipped() -> None:
    runner = load("smollm2-135m", progress=False)
    assert calibration_of(runner.digest) is not None
    text = Text(runner.tokenizer, runner.stop_tokens)
    sample = of_package(text, Sizes(own=300, fragment=128, continuation=31))[1]
    scratch = Scratch(runner, 64, 4096)
    got = examine(scratch, sample, Settings())
    scratch.close()
    assert max(got[PUBLIC].kv_error[0]) < 1e-5
    kl = {name: statistics.mean(outcome.kl) for name, outcome in got.items()}
    assert kl[PUBLIC] < kl["not shifted"] < kl["missing"]
    dense = runner.dense([*sample.public, *sample.own, *sample.fragment, *sample.continuation])
    rows = dense[sample.place + len(sample.fragment) - 1 : -1]
    surprise = compare.surprise(rows, sample.continuation).tolist()
    assert got[FULL].surprise == pytest.approx(surprise, abs=1e-3)
