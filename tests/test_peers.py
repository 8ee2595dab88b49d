"""The comparison with other engines: its arithmetic, and what it says when one is missing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
sys.path.append(str(BENCHMARKS / "peer_workers"))

import peers  # noqa: E402
import protocol  # noqa: E402
from peers import Spread, Worker, ratios, tokens_per_s  # noqa: E402

ECHO = """
import json, sys
print(json.dumps({"ready": True, "about": {}, "setup_s": 1.0, "peak_bytes": 1}), flush=True)
for line in sys.stdin:
    if line.strip() == "die":
        sys.exit("no room left")
    print(json.dumps({"steps_s": [0.5, 0.25, 9.0], "seconds": 3.0, "peak_bytes": 2}), flush=True)
"""


def started(name: str, folder: Path) -> Worker:
    """A worker that answers without an engine."""
    return Worker.start(name, [sys.executable, "-c", ECHO], 1, folder)


def test_a_round_counts_by_its_median_step() -> None:
    assert tokens_per_s(8, [0.5, 0.25, 9.0]) == 16


def test_a_spread_is_a_median_with_its_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)
    assert f"{Spread.of([3.0, 1.0, 2.0]):.1f}" == "2.0 (1.0 - 3.0)"


def test_a_ratio_is_one_of_the_same_round() -> None:
    assert ratios([20.0, 30.0], [10.0, 60.0]) == [2.0, 0.5]
    with pytest.raises(ValueError, match="shorter"):
        ratios([20.0, 30.0], [10.0])


def test_ratios_are_ours_through_each_peers(tmp_path: Path) -> None:
    names = ("inms", "inms-compiled", "vllm")
    workers = [started(name, tmp_path) for name in names]
    try:
        peers.measure(workers, rounds=2, firsts=1, lock=tmp_path / "lock")
        found = peers.summary(workers, agents=8)
    finally:
        for worker in workers:
            worker.end()
    assert found["workers"]["vllm"]["tokens_per_s"] == [16, 16]
    assert found["workers"]["vllm"]["first_token_s"] == {"next": [3.0], "fragment": [3.0]}
    assert found["workers"]["vllm"]["peak_bytes"] == 2
    assert {our: list(rows) for our, rows in found["ratios"].items()} == {
        "inms": ["vllm"],
        "inms-compiled": ["vllm"],
    }
    one = {"median": 1.0, "least": 1.0, "most": 1.0}
    assert found["ratios"]["inms"]["vllm"] == dict.fromkeys(
        ("tokens_per_s", "next_s", "fragment_s"), one
    )
    peers.render(json.loads(json.dumps(found)))


def test_an_interrupted_run_counts_its_whole_rounds(tmp_path: Path) -> None:
    workers = [started(name, tmp_path) for name in ("inms", "vllm")]
    try:
        with pytest.raises(SystemExit, match="before the first round"):
            peers.whole_rounds(workers)
        peers.measure(workers, rounds=2, firsts=1, lock=None)
        assert all(others >= 0 for worker in workers for others in worker.others)
        peers.measure(workers[:1], rounds=1, firsts=1, lock=None)
        peers.whole_rounds(workers)
    finally:
        for worker in workers:
            worker.end()
    assert [len(worker.steps) for worker in workers] == [2, 2]
    assert [worker.firsts for worker in workers] == [{"fragment": [3.0], "next": [3.0]}] * 2


def test_who_is_not_asked_is_stopped(tmp_path: Path) -> None:
    worker = started("idle", tmp_path)
    try:
        worker.ask("decode")
        status = Path(f"/proc/{worker.process.pid}/status")
        until = time.monotonic() + 20  # a signal arrives when the process is scheduled
        while "State:\tT" not in status.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        assert "State:\tT" in status.read_text()
    finally:
        worker.end()


def test_a_worker_that_ends_is_quoted(tmp_path: Path) -> None:
    worker = started("brittle", tmp_path)
    try:
        with pytest.raises(SystemExit, match=r"brittle ended; the end of .*\n.*no room left"):
            worker.ask("die")
    finally:
        worker.end()


def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    options = peers.options_of(["--workers", "inms,vllm"])
    with pytest.raises(SystemExit, match=r"environment of vllm was not made: run `make peers`"):
        peers.commands(options, Path("model"), tmp_path)
    with pytest.raises(SystemExit, match="no worker 'vlm'"):
        peers.commands(peers.options_of(["--workers", "vlm"]), Path("model"), tmp_path)


def test_ours_args_reach_only_ours(tmp_path: Path) -> None:
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    options = peers.options_of(["--workers", "inms,vllm", "--ours-args=--compile --block 128"])
    made = peers.commands(options, Path("model"), tmp_path)
    assert made["inms"][-3:] == ["--compile", "--block", "128"]
    assert "--compile" not in made["vllm"]
    assert made["vllm"][0] == str(python)


def test_contexts_are_the_same_for_every_engine_and_share_their_prefix() -> None:
    work = protocol.Work(shared=32, own=8, agents=2, tokens=4)
    assert work == protocol.Work(shared=32, own=8, agents=2, tokens=4)
    first, second = work.context(0), work.context(1)
    assert first == protocol.Work(32, 8, 2, 4).context(0)
    assert first[:32] == second[:32] == work.prefix()
    assert first[32:] != second[32:]
    assert work.behind(1)[8:] == work.prefix()
    others = [work.newcomer(1)[32:], work.behind(1)[:8], work.newcomer(2)[32:]]
    assert len({tuple(text) for text in (*others, first[32:], second[32:])}) == 5
    assert protocol.Work(32, 8, 2, 4, seed=1).prefix() != work.prefix()
