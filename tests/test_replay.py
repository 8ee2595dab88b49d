"""Replays: the real books find what an independent least-recently-used cache finds."""

from __future__ import annotations

import json
import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inms_lab.bench import bookkeeping
from inms_lab.books.events import Aborted, Evicted, Published, Stepped
from inms_lab.cli import app
from inms_lab.errors import BadInput
from inms_lab.logs import audit
from inms_lab.logs.log import Log
from inms_lab.studies.replay import Player, curve, replay, tokens_of
from inms_lab.studies.trace import Request, read_trace

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real traces in {SHARED}")


def request(blocks: Sequence[int], agent: str = "", session: str = "s", first: int = 0) -> Request:
    return Request(session if agent else "", agent, array("i", blocks), first)


def brute_force(requests: Sequence[Request], capacity: int) -> list[int]:
    """Hits of each request: leading blocks in the cache; deepest touched first, evicted after."""
    cache: OrderedDict[int, None] = OrderedDict()
    out = []
    for one in requests:
        hits = 0
        while hits < len(one.blocks) and one.blocks[hits] in cache:
            hits += 1
        out.append(hits)
        for block in reversed(one.blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return out


def grown(seed: int, count: int) -> list[Request]:
    """Made-up conversations: each goes on, forks, or begins anew behind one of two prompts."""
    rng, fresh = random.Random(seed), iter(range(2, 1 << 20))
    texts = [[0], [1]]
    out = []
    for _ in range(count):
        text = rng.choice(texts[:2] if rng.random() < 0.2 else texts[-12:])
        text = text[: rng.randrange(1, len(text) + 1)] if rng.random() < 0.3 else text
        text = [*text, *(next(fresh) for _ in range(rng.randrange(4)))]
        texts.append(text)
        out.append(request(text))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_hits_are_those_of_an_independent_cache_at_every_capacity(seed: int) -> None:
    requests = grown(seed, 150)
    for capacity in (1, 3, 10, 40, 1000):
        player = Player(capacity, max(len(r.blocks) for r in requests))
        hits = [len(player.play("r", tokens_of(r))[0]) for r in requests]
        assert hits == brute_force(requests, capacity)
        assert audit.faults(player.books) == []
        assert player.pool.num_held == 0
        assert len(player.pool.cached) <= capacity


def test_a_replay_is_a_log_like_any_other() -> None:
    requests = grown(1, 60)
    played, log = replay(requests, 12, keep_log=True)
    assert log.replay().snapshot() == Log.replay(log).snapshot()
    assert audit.impossible(log) is None
    kinds = [type(event) for event in log.events]
    assert kinds.count(Evicted) > 5
    assert Aborted not in kinds
    assert kinds.count(Stepped) == kinds.count(Published) > 30
    assert log.decisions
    assert sum(t.hits for t in played.agents.values()) == played.all.hits
    assert replay(requests, 12)[1].events == log.events


def test_a_request_larger_than_the_cache_is_played_all_the_same() -> None:
    big = request(range(50))
    played, _ = replay([big, big, request(range(5)), big], 10)
    assert played.all.hits == sum(brute_force([big, big, request(range(5)), big], 10)) == 25


def test_a_whole_hit_computes_nothing() -> None:
    played, log = replay([request([1, 2, 3])] * 3)
    assert (played.all.hits, played.all.blocks, played.unique) == (6, 9, 3)
    assert sum(isinstance(event, Stepped) for event in log.events) == 1


def test_hits_are_told_by_whose_text_it_was_and_first_requests_apart() -> None:
    requests = [
        request([0, 1, 10], "main", "s", 2),
        request([0, 1, 10, 11], "main", "s", 2),  # global 2, private 1
        request([0, 1, 10, 12], "helper", "s", 2),  # global 2, group 1
        request([0, 1, 10, 12, 13], "helper", "s", 2),  # global 2, group 1, private 1
        request([0, 1, 10, 14], "main", "t", 1),  # global 1, foreign 2
    ]
    played, _ = replay(requests)
    assert played.tiers == {"global": 7, "private": 2, "group": 2, "foreign": 2}
    assert {name: (t.requests, t.hits) for name, t in played.agents.items()} == {
        "s/main": (2, 3),
        "s/helper": (2, 7),
        "t/main": (1, 3),
    }
    assert (played.first.requests, played.first.blocks, played.first.hits) == (3, 11, 6)
    assert (played.joining.requests, played.joining.hits, played.joining.with_hits) == (1, 3, 1)
    unknown, _ = replay([request([0, 1])] * 2)
    assert unknown.tiers == {"unknown": 2}


def test_text_is_played_with_its_own_tokens() -> None:
    texts = [array("i", range(count)) for count in (21, 23, 9)]
    requests = [Request("s", "a", array("i", range(len(text) // 4)), tokens=text) for text in texts]
    played, log = replay(requests, block_size=4)
    assert (played.all.blocks, played.all.hits) == (5 + 5 + 2, 7)
    assert log.about["block_size"] == 4
    assert list(log.tokens[:21]) == list(range(21))


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one"):
        replay([request([1])], 0)


def test_a_capacity_beyond_the_trace_changes_nothing(trace: Path) -> None:
    requests = [request([0, 1, 2]), request([2, 1]), request([0, 1, 5])]
    played, log = replay(requests, 1 << 70)
    assert played.capacity == 1 << 70
    assert log.replay().pools["common"].spec.num_blocks == 8 + 3
    assert played.all.hits == replay(requests, 8)[0].all.hits == 2
    assert curve(requests, [1 << 70])[1 << 70] == curve(requests, [8])[8]
    assert bookkeeping.Rounds(trace, 1 << 70).play()[1] == 9 / 15


def test_a_curve_has_a_point_for_each_capacity() -> None:
    requests = grown(2, 80)
    total = sum(len(r.blocks) for r in requests)
    assert curve(requests, (2, 20)) == {
        capacity: round(sum(brute_force(requests, capacity)) / total, 4) for capacity in (2, 20)
    }


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = ([0, 1, 2], [0, 1, 2, 3], [0, 1, 5], [0, 1, 2, 3, 4])
    path.write_text("".join(json.dumps({"hash_ids": row}) + "\n" for row in rows))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_command_prints_one_object_and_a_table(trace: Path) -> None:
    said = json.loads(run("replay", trace, "--capacity", 4, "--curve", "2,100", "--json"))
    requests = read_trace(trace)
    assert said["hits"] == sum(brute_force(requests, 4)) == 8
    assert said["curve"] == {"2": 0.4, "100": 0.6}
    assert (said["requests"], said["blocks"], said["unique_blocks"]) == (4, 15, 6)
    assert said["first_requests"]["requests"] == 1
    table = run("replay", trace, "--requests", 2)
    assert "all requests" in table
    assert "0.4286" in table
    with pytest.raises(BadInput, match="list of capacities"):
        run("replay", trace, "--curve", "2,x")
    with pytest.raises(BadInput, match=r"--requests.*at least 1"):
        run("replay", trace, "--requests", 0)
    assert "0.6000" in run("replay", trace, "--requests", 10**23, "--capacity", 10**23)
    with pytest.raises(BadInput, match="--capacity 0"):
        run("replay", trace, "--capacity", 0)
    with pytest.raises(BadInput, match=r"--curve.*list of capacities"):
        run("replay", trace, "--curve", "2,0")


@pytest.mark.parametrize("command", ["replay", "bench bookkeeping --trace"])
def test_a_folder_or_no_file_is_refused_with_what_to_give(command: str, trace: Path) -> None:
    with pytest.raises(BadInput, match="is a folder: give one file"):
        run(*command.split(), trace.parent)
    with pytest.raises(BadInput, match=r"there is no .*nowhere: give a trace \(.jsonl"):
        run(*command.split(), trace.parent / "nowhere")


def test_the_log_opens_in_the_view(trace: Path, tmp_path: Path) -> None:
    from inms_lab.logs.open_log import open_log

    saved, page = tmp_path / "replay.log", tmp_path / "replay.html"
    run("replay", trace, "--save", saved, "--html", page)
    log = open_log(saved)
    assert log.about["mode"] == "replay"
    assert log.replay().pools["common"].num_held == 0
    assert log.decisions
    assert "<canvas" in page.read_text() or "inms" in page.read_text()


def test_a_measurement_of_bookkeeping_names_its_machine(trace: Path) -> None:
    said = json.loads(
        run(*f"bench bookkeeping --capacity 4 --repeat 2 --json --trace {trace}".split())
    )
    assert (said["bench"], said["repeat"], said["seed"], said["blocks"]) == (
        "bookkeeping",
        2,
        0,
        15,
    )
    assert said["hit_rate"] == 0.5333
    assert said["us_per_block"] > 0
    assert {"cpu", "cores", "python", "torch"} <= said["machine"].keys()
    assert "us_per_block" in run("bench", "bookkeeping", "--trace", trace, "--repeat", 1)
    for wrong in (("--repeat", "0"), ("--capacity", "0")):
        with pytest.raises(BadInput, match="at least on"):
            run("bench", "bookkeeping", "--trace", trace, *wrong)
    with pytest.raises(BadInput, match="at least one"):
        bookkeeping.measure(trace, 0, 1)


# --- real traces --------------------------------------------------------------------------------

KNOWN = {  # the reference figures of the data's README, computed outside this project's code
    "mooncake_conversation": {1_000: 0.0433, 10_000: 0.2056, 100_000: 0.3409},
    "mooncake_synthetic": {1_000: 0.0193, 3_000: 0.0531, 10_000: 0.1720, 50_000: 0.3282},
}


@needs_traces
@pytest.mark.parametrize("name", KNOWN)
def test_real_traces_have_the_hit_rates_that_are_known(name: str) -> None:
    """All traces and capacities: `python benchmarks/replay_rates.py`."""
    requests = read_trace(SHARED / f"{name}.jsonl.gz")
    assert curve(requests, KNOWN[name]) == KNOWN[name]


@needs_traces
def test_sub_agents_find_what_the_session_has_computed() -> None:
    """The first sessions only, against the independent cache."""
    requests = read_trace(SHARED / "claude_code_subagents.jsonl.gz", share_tools=True)[:250]
    played, _ = replay(requests, 2_000)
    assert played.all.hits == sum(brute_force(requests, 2_000))
    assert played.joining.with_hits > 3
