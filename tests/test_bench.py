"""`inms-lab bench`: what the measurements count is right; what they print has its names.

Times themselves are not tested: this machine does other things.
"""

from __future__ import annotations

import json
import mmap
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from inms_lab.attention.batch import Batch, Span, TileRef
from inms_lab.bench import (
    contexts,
    crossover,
    decode,
    gap,
    growth,
    intervals,
    locks,
    parts,
    placement,
    tenants,
    threads,
    ttft,
    view,
)
from inms_lab.bench.clock import Clock
from inms_lab.bench.contexts import WARM_UP, Contexts, Steps, Work, cut, room_for
from inms_lab.bench.header import Others
from inms_lab.errors import BadInput
from inms_lab.kernels.build import compiler
from inms_lab.model import from_model
from inms_lab.model.forward import DryModel
from inms_lab.model.runner import Runner
from inms_widgets import View

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is measured on little memory."""
    monkeypatch.setattr(parts.read_bandwidth, "__defaults__", (1 << 20, 2))


@pytest.fixture(scope="module")
def plain() -> Runner:
    return from_model(models.llama(num_hidden_layers=2))


@pytest.fixture(scope="module", params=["torch", "compiled"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "compiled" and compiler() is None:
        pytest.skip("no C++ compiler here")
    return from_model(models.llama(num_hidden_layers=2), compile=request.param == "compiled")


# contexts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [False, True])
def test_contexts_share_what_they_are_to_share(plain: Runner, drawn: bool) -> None:
    work = Work(64, 40, 3, room_for(2), drawn=drawn)
    with Contexts(plain, work) as lab:
        assert [len(agent.tokens) for agent in lab.agents] == [104, 104, 104]
        assert len({tuple(agent.tokens[:64]) for agent in lab.agents}) == 1
        assert len({tuple(agent.tokens[64:]) for agent in lab.agents}) == 3
        assert lab.lab.engine.num_computed == 64 + 3 * 40, "what is drawn is booked like the rest"
        steps = lab.write(2, rounds=2)
        assert [len(steps) for steps in steps.rounds] == [WARM_UP + 2] * 2
        assert [len(agent.tokens) for agent in lab.agents] == [104, 104, 104], "and forgotten"
        lab.lab.check()


def test_drawn_contexts_hold_numbers_in_every_slot(plain: Runner) -> None:
    with Contexts(plain, Work(64, 40, 2, room_for(1), drawn=True)) as lab:
        engine = lab.lab.engine
        for agent in lab.agents:
            for segment in engine.ledger.sequences[agent.seq_id].segments:
                region = engine.cache.store.regions[segment.pool_id]
                for at in range(segment.length):
                    slot = segment.blocks[at // 16] * 16 + at % 16
                    assert (region[:, :, :, slot] != 0).all()


def test_alone_everybody_has_a_copy(plain: Runner) -> None:
    work = Work(64, 32, 3, room_for(1), drawn=True)
    held = {}
    for mode in ("inms", "independent"):
        with Contexts(plain, work, mode=mode) as lab:
            held[mode] = lab.write(1).held
    block = 16 * plain.new_store().bytes_per_token
    assert held["independent"] - held["inms"] == 2 * 64 // 16 * block


def test_a_context_can_be_cut_into_segments(plain: Runner) -> None:
    with Contexts(plain, Work(32, 40, 1, room_for(1), drawn=True), pieces=3) as lab:
        sequence = lab.lab.engine.ledger.sequences[lab.agents[0].seq_id]
        assert [s.length for s in sequence.segments] == [32, *cut(40, 3)]
        lab.write(1)
    assert cut(7, 3) == [2, 2, 3]
    assert cut(2, 9) == [1, 1]


def test_contexts_that_cannot_be_are_refused(plain: Runner) -> None:
    with pytest.raises(BadInput, match="the model takes 1024"):
        Contexts(plain, Work(1000, 40, 1))
    with pytest.raises(BadInput, match="at least one agent"):
        Work(10, 10, 0)
    with (
        Contexts(plain, Work(16, 16, 1, 5, drawn=True)) as lab,
        pytest.raises(BadInput, match="room for 5"),
    ):
        lab.write(2)


# what a step reads ------------------------------------------------------------------------------


def tile(slot: int, first: int, length: int) -> TileRef:
    return TileRef("pool", slot, first, length)


def row(start: int, *tiles: TileRef, count: int = 1) -> Span:
    tokens = list(range(count))
    return Span(start, tokens, tokens, [], list(tiles), True)


def test_slots_are_counted_by_reader_and_once() -> None:
    spans = [row(73, tile(0, 0, 64), tile(64 * n, 64, 10)) for n in (1, 2, 3)]
    assert parts.slots_seen(spans) == (3 * 74, 64 + 3 * 10)
    assert parts.slots_read(spans, 32) == 64 + 3 * 10
    assert parts.slots_read(spans, 2) == 2 * 64 + 3 * 10, "two pieces of work read it twice"


def test_a_chunk_sees_its_own_tile_row_by_row() -> None:
    spans = [row(64, tile(0, 0, 64), tile(64, 64, 3), count=3)]
    assert parts.slots_seen(spans) == (3 * 64 + 1 + 2 + 3, 64 + 3)


def test_bytes_of_a_step_add_up(runner: Runner) -> None:
    work = Work(128, 64, 4, room_for(2), drawn=True)
    with Contexts(runner, work) as lab:
        lab.write(2)
        moved = parts.traffic(lab)
    each = runner.new_store().bytes_per_token
    length = 64 + work.room - 1  # the last step reads all but the token that it gives
    assert moved.logical == 4 * (128 + length) * each
    assert moved.unique == (128 + 4 * length) * each
    whole = 128 + 4 * -(-length // 64) * 64  # torch's operators read a masked tile as a whole
    assert moved.read == (moved.unique if runner.native is not None else whole * each)
    assert moved.total == moved.read + moved.weights
    embedding = runner.model.get_input_embeddings().weight
    assert moved.weights == runner.weights_bytes()[0] - embedding.numel() * 4


def test_a_tied_embedding_is_read_as_the_last_layer() -> None:
    tied = from_model(models.llama(num_hidden_layers=1, tie_word_embeddings=True))
    assert parts.weights_read(tied) == tied.weights_bytes()[0]


def test_the_clock_leaves_everything_as_it_was(runner: Runner) -> None:
    before = nn.Linear.forward, Batch.attend
    with Contexts(runner, Work(64, 32, 2, room_for(2), drawn=True)) as lab:
        with parts.clocked(by_parts=True) as clock:
            lab.write(2)
        assert clock.products > 0 < clock.attention
        assert clock.layers == 0
        with parts.clocked() as whole:
            lab.write(2)
        assert (whole.layers > 0) == (runner.native is not None) == (whole.attention == 0)
        spent = clock.products, clock.attention
        lab.write(2)
        assert (clock.products, clock.attention) == spent
    assert (nn.Linear.forward, Batch.attend) == before


# each measurement -------------------------------------------------------------------------------


def test_decode_says_what_a_step_is_made_of(runner: Runner) -> None:
    found = decode.measure(runner, Work(64, 32, 3), 4, 2)
    assert (found["contexts"], found["agents"]) == ("computed", 3)
    assert found["compiled"] is (runner.native is not None)
    assert found["tokens_per_s"] == pytest.approx(3e3 / found["step_ms"], rel=0.01)
    spread = found["step_ms_spread"]
    assert spread["p5"] <= spread["median"] <= spread["p95"] <= found["worst_gap_ms"]
    assert found["unique_bytes"] <= found["kv_bytes_read"] < found["logical_bytes"]
    assert found["bytes_read"] == found["kv_bytes_read"] + found["weights_bytes"]
    share = found["read_gb_per_s"] / found["bandwidth_gb_per_s"]
    assert found["bandwidth_share"] == pytest.approx(share, abs=0.01)
    assert (found["parts_ms"]["layers"] > 0) is found["compiled"] is ("by_parts_ms" in found)
    by_parts = found.get("by_parts_ms", found["parts_ms"])
    assert by_parts["products"] > 0 < by_parts["attention"]
    for made_of in (dict(found["parts_ms"]), dict(by_parts)):
        assert made_of["other"] > 0, "parts are of the steps that they are set beside"
        assert made_of.pop("step") == pytest.approx(sum(made_of.values()), abs=0.01)


def test_percentiles_are_of_the_values() -> None:
    values = [float(n) for n in range(101)]
    assert decode.percentiles(values[::-1]) == {"median": 50.0, "p5": 5.0, "p95": 95.0}


def test_warm_up_steps_count_as_gaps_only() -> None:
    steps = Steps(((9.0, 1.0, 1.0, 2.0, 3.0),), (0.1, 0.1), 0)
    assert (steps.counted, steps.worst) == ([2.0, 3.0], 9.0)


def test_first_tokens_compute_what_is_not_there(plain: Runner) -> None:
    found = ttft.measure(plain, Work(96, 32, 1), 2, progress=False)
    computed = [found[f"{kind}_computed"] for kind in ("first", "next", "fragment")]
    assert computed == [128, 32, 33], "a fragment's last token is computed for its logits"
    assert found["compiled"] is False
    assert all(found[f"{kind}_s"] > 0 for kind in ("first", "next", "fragment"))
    assert found["next_ratio"] > 0 < found["fragment_ratio"]


def test_growth_sets_steps_beside_bytes(plain: Runner) -> None:
    found = growth.measure(plain, Work(64, 32, 2), [1, 4], [128, 256], 1, (1, 4))
    one, four = found["by_agents"]
    assert found["compiled"] is False
    assert four["logical_bytes"] == 4 * one["logical_bytes"]
    own = one["unique_bytes"] - 64 * plain.new_store().bytes_per_token
    assert four["unique_bytes"] == one["unique_bytes"] + 3 * own
    assert [row["shared"] + 32 + room_for(growth.STEPS) for row in found["by_context"]] == [
        128,
        256,
    ]
    assert found["memory"]["by_formula"] == four["held_bytes"] - one["held_bytes"]
    assert found["memory"]["measured"] == four["peak_bytes"] - one["peak_bytes"]


def test_growth_is_a_ratio_of_ratios() -> None:
    def of(agents: int, step: float, unique: int) -> dict[str, Any]:
        more = {"logical_bytes": 100 * agents, "weights_bytes": 300}
        return {"agents": agents, "step_ms": step, "unique_bytes": unique, **more}

    found = growth.growth([of(8, 10.0, 100), of(32, 20.0, 400)], (8, 32))
    assert (found["step"], found["unique"], found["logical"]) == (2.0, 4.0, 4.0)
    assert found["unique_with_weights"] == 1.75
    assert (found["step_to_unique"], found["step_to_unique_with_weights"]) == (0.5, 1.143)
    assert growth.growth([of(8, 10.0, 100)], (8, 32)) == {}


def test_the_peak_is_of_what_was_held_meanwhile() -> None:
    if not growth.CLEAR.exists():
        pytest.skip("no peak of a process here")
    growth.reset_peak()
    before = growth.peak_bytes()
    with mmap.mmap(-1, 64 << 20) as fresh:  # not what the heap has already
        fresh.write(b"\1" * len(fresh))
    assert growth.peak_bytes() - before > 8 << 20
    growth.reset_peak()
    assert growth.peak_bytes() - before < 8 << 20


def test_crossover_is_where_sharing_is_faster_from_then_on(plain: Runner) -> None:
    def of(agents: int, shared: int, ratio: float) -> dict[str, Any]:
        return {"agents": agents, "shared": shared, "ratio_median": ratio}

    rows = [of(2, 64, 0.9), of(2, 128, 1.1), of(2, 256, 0.8), of(2, 512, 0.5)]
    rows += [of(1, 64, 1.0), of(1, 128, 1.2), of(8, 128, 0.3), of(8, 64, 0.7)]
    assert crossover.crossings(rows) == {"2": 256, "1": None, "8": 64}
    assert crossover.break_even(0.002, 0.004)["break_even_tokens"] == 500
    assert crossover.break_even(-0.002, 0.004)["break_even_tokens"] == 0
    found = crossover.measure(plain, Work(64, 32, 2), [64], [2], 1)
    (row,) = found["steps"]
    assert row["ratio_median"] == pytest.approx(row["inms_ms"] / row["independent_ms"], abs=0.01)
    assert set(found["shared_from"]) == {"2"}
    assert found["compiled"] is False


def test_gaps_are_told_for_each_budget(plain: Runner) -> None:
    found = gap.measure(plain, Work(64, 32, 3), 100, [64, 16], 1)
    wide, narrow = found["budgets"]
    assert wide["gaps"] < narrow["gaps"]
    assert found["compiled"] is False
    for one in found["budgets"]:
        assert 0 < one["median_gap_ms"] <= one["worst_gap_ms"]


def test_a_view_is_compared_with_none() -> None:
    found = view.measure(View, 20, 1)
    for kind in ("bare", "paced"):
        one = found[kind]
        assert one["view_ratio"] > 0 < one["log_ratio"]
        assert one["events"] > 20
        assert one["messages"] >= 1
    assert found["paced"]["seconds"] >= 5 * view.STEP_SECONDS


def test_placement_moves_blocks_and_nothing_else() -> None:
    assert placement.blocks_of("by turns", 2, 3, 0) == [[0, 2, 4], [1, 3, 5]]
    for order in placement.ORDERS:
        placed = placement.blocks_of(order, 3, 4, 0)
        assert sorted(block for blocks in placed for block in blocks) == list(range(12))
    spans = [placement.span_of(b, 16, 64) for b in placement.blocks_of("by turns", 2, 8, 0)]
    assert parts.slots_seen(spans) == (256, 256)
    found = placement.measure(2, 64, 16, 0, 1)
    for name in found["ms"]:
        assert found["ratio"][name].keys() == {"by turns", "shuffled"}


def test_placement_reads_no_further_than_a_context_goes() -> None:
    spans = [placement.span_of(b, 16, 64) for b in placement.blocks_of("shuffled", 2, 5, 0)]
    assert [[tile.length for tile in span.tiles] for span in spans] == [[64, 16]] * 2
    assert placement.measure(1, 1, 1, 0, 1)["tile"] == 64
    assert placement.measure(1, 256, 128, 0, 1)["tile"] == 128


# the command ------------------------------------------------------------------------------------


def test_the_command_prints_tables_and_json() -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "inms_lab.cli", "bench", *arguments]
        command[1:3] = ["-c", "from inms_lab.cli import main; main()"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    found = json.loads(run("view", "--tokens", "4", "--repeat", "1", "--json"))
    assert (found["bench"], found["repeat"], found["seed"]) == ("view", 1, 0)
    assert "view_ratio" in found["bare"]
    assert 0 <= found["others_cores"] <= found["machine"]["cores"]


@pytest.mark.parametrize(
    "arguments",
    [
        *("decode --tokens 0", "decode --agents 0", "decode --own 0", "decode --shared -1"),
        *("ttft --shared 0", "ttft --own -4", "ttft --repeat 0", "ttft --seed -1"),
        *("gap --budgets 0", "gap --budgets 1,x", "gap --read 0", "gap --agents 0"),
        *("growth --agents 0", "growth --contexts 200", "growth --contexts x"),
        *("crossover --shared 0", "crossover --agents x", "crossover --own 0", "view --tokens 0"),
        *("placement --block 0", "placement --tokens -4", "placement --agents 0"),
        *("placement --block 7", "placement --tokens 100", "placement --block 96"),
    ],
)
def test_a_wrong_option_is_named_before_a_model_is_loaded(
    arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inms_lab.cli import app
    from inms_lab.terminal import bench_command

    def load(*_: object) -> None:
        raise AssertionError("loaded for nothing")

    monkeypatch.setattr(bench_command, "_runner", load)
    _, option, *_ = arguments.split()
    with pytest.raises(BadInput, match=rf"^{option} .*(give|write|at least)"):
        CliRunner().invoke(app, ["bench", *arguments.split()], catch_exceptions=False)


def test_rows_are_printed_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    from inms_lab.terminal.bench_command import show

    rows = [{"agents": 1, "step_ms": 2.5}, {"agents": 16, "step_ms": 10.25}]
    spread = {"ms": 3, "spread": {"min": 1, "max": 4}}
    show("growth", lambda: {"own": spread, "by_agents": rows}, (False, 0, 1))
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "                own ms  3",
        "            own spread  min 1, max 4",
        "             by_agents",
        "agents  step_ms",
        "     1      2.5",
        "    16    10.25",
    ]


def test_what_others_use_leaves_this_process_out() -> None:
    others = Others()
    others._own -= 100.0  # as if all that was used, and more, had been used here
    ends = time.monotonic() + 0.2
    while time.monotonic() < ends:
        pass
    assert others.cores() == 0


def test_texts_are_nobody_elses() -> None:
    work = contexts.Work(8, 8, 2)
    texts = [work.text(kind, n, 8, 1000) for kind in ("own", "read") for n in (0, 1)]
    assert len({tuple(text) for text in texts}) == 4
    assert texts[0] == contexts.Work(9, 1, 5).text("own", 0, 8, 1000)


# locks -------------------------------------------------------------------------------------------


def test_locks_are_compared_over_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ALONE", 0.01)
    monkeypatch.setattr(locks, "TRIES", 2)
    found = locks.measure(threads.Load(3, 32, 32, 0), [0, 1], 0.1, 2)
    assert [row["layers"] for row in found["rows"]] == [0, 1]
    for row in found["rows"]:
        assert row["low"] <= row["fine_to_coarse"] <= row["high"]
        for name in ("coarse profile", "fine profile"):
            assert set(row[name]) == set(threads.PARTS)
            assert sum(row[name].values()) == pytest.approx(1, abs=0.01)
    assert [part["part"] for part in found["alone"]] == ["books", "hash", "copy", "forward"]
    claim = found["claims"]["fine-locks"]
    assert claim["measured"].startswith("fine against coarse lock, 3 agents: ")
    assert claim["measured"].count("layers' products") == 2


def test_agent_threads_end_with_nothing_held_and_hold_the_lock_as_they_say() -> None:
    for coarse in (False, True):
        agents = threads.Agents(threads.Load(3, 32, 32, 0), coarse)
        assert agents.run(0.1) > 0
        agents.cache.check()
        assert agents.cache.ledger.pools["private"].num_held == 0
        slots = agents.cache.store.regions["global"][:, :, :, :32]
        both = torch.cat((agents.kv, agents.kv), dim=3)
        assert torch.equal(slots, both), "the prompt's KV is what was put there"


def test_the_clock_counts_a_part_within_another_once() -> None:
    clock = Clock(("outer", "inner"))
    with clock.part("outer"), clock.part("inner"):
        time.sleep(0.02)
    assert clock.seconds["inner"] > 0.015
    assert clock.seconds["outer"] < 0.01
    assert clock.shares()["inner"] > 0.6


def test_a_ratio_of_pairs_has_its_interval() -> None:
    mean, low, high = intervals.ratio_of([2, 4, 8], [1, 2, 4])
    assert (mean, low, high) == pytest.approx((2, 2, 2))
    mean, low, high = intervals.ratio_of([1.1, 1.3], [1, 1])
    assert mean == pytest.approx((1.1 * 1.3) ** 0.5)
    assert low < 1 < high
    for freedom, wanted in ((1, 12.706), (2, 4.303), (9, 2.262), (30, 2.042)):
        assert intervals.t_95(freedom) == pytest.approx(wanted, abs=0.001)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.1, 1.4, "holds"), (0.9, 1.4, "does not hold"), (1.1, 1.2, "does not hold")],
)
def test_the_claim_needs_its_size_and_more_than_chance(
    low: float, high: float, verdict: str
) -> None:
    rows = [
        {"layers": 0, "fine_to_coarse": 2.0, "low": 1.9, "high": 2.1},
        {"layers": 30, "fine_to_coarse": 1.15, "low": low, "high": high},
    ]
    assert locks.claimed(rows, threads.Load())["verdict"] == verdict


# tenants -----------------------------------------------------------------------------------------


def pairwise_auc(slow: list[float], fast: list[float]) -> float:
    """The slower truth: every pair."""
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in slow for b in fast]
    return sum(wins) / len(wins)


def test_the_auc_is_that_of_all_pairs_and_its_interval_covers_what_it_says() -> None:
    draw = random.Random(0)
    covered = 0
    for _ in range(300):
        fast = [draw.gauss(0, 1) for _ in range(40)]
        slow = [draw.gauss(1, 1) for _ in range(40)]
        value, low, high = intervals.auc(slow, fast)
        assert value == pytest.approx(pairwise_auc(slow, fast))
        covered += low <= 0.7602 <= high  # Phi(1 / sqrt(2)), of these two normal distributions
    assert 0.90 <= covered / 300 <= 0.99
    assert intervals.auc([3, 4], [1, 2]) == (1, 1, 1)
    assert intervals.auc([1, 1], [1, 1])[0] == 0.5


@pytest.mark.parametrize("mode", ["inms", "global"])
def test_a_probe_costs_a_tenant_the_same_whatever_its_neighbour_holds(mode: str) -> None:
    """And in one pool for everybody it does not: the measurement can tell."""
    model = DryModel(2048, 4096, 64)
    probes = tenants.run(model, mode, tenants.Attack(12, 64, 1))
    row = tenants.row(mode, probes)
    assert {p.held for p in probes} == {True, False}
    assert row["equal_work"] is (mode == "inms")
    assert row["work not held"]["computed_tokens"] == 64
    assert row["work held"]["computed_tokens"] == (64 if mode == "inms" else 0)
    assert row["work not held"]["allocated_blocks"] == 4


def test_times_that_tell_are_found_and_others_are_not() -> None:
    work, draw = tenants.Work(64, 4, 0), random.Random(0)
    same = [tenants.Probe(n % 2 == 0, draw.random(), work) for n in range(100)]
    told = [tenants.Probe(p.held, p.seconds + 2 * (not p.held), work) for p in same]
    assert tenants.row("inms", same)["contains_half"]
    row = tenants.row("inms", told)
    assert (row["auc"], row["contains_half"], row["equal_work"]) == (1.0, False, True)
