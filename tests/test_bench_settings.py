"""`inms-lab bench settings`: what it counts is right, and times where settings decide them."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from shared_models import linux, others, soon

from inms_lab.bench import settings
from inms_lab.bench.settings import EVERY, LAYERS, Sweep
from inms_lab.errors import AgentDied, BadInput
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.host import KIB
from inms_lab.parameters.settings import Settings

pytestmark = linux
NARROW, WIDE = 32, 256  # weights of 16 KiB and 1 MiB in all
INTERVAL = 0.3
SMALL = Sweep(
    chunks=(64 * KIB, 256 << 20),
    thresholds=(4 * KIB, 128 * KIB),
    intervals=(INTERVAL,),
    widths=(NARROW, WIDE),
    repeat=2,
    seconds=1.5,
    hold=5 * INTERVAL,
)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return settings.measure(SMALL, progress=False)


def test_each_value_has_a_row_for_each_module(result: dict[str, Any]) -> None:
    for name, values, key in (
        ("shm_chunk_size", SMALL.chunks, "bytes"),
        ("cow_threshold", SMALL.thresholds, "bytes"),
        ("heartbeat_interval", SMALL.intervals, "interval"),
    ):
        rows = [(row["width"], row[key]) for row in result[name]]
        assert rows == [(width, value) for width in SMALL.widths for value in values]
    assert result.keys() >= set(Settings.__slots__) - {"auto_recovery", "preload"}
    assert set(result["recommended"]) == set(Settings.__slots__)
    assert json.loads(json.dumps(result))["repeat"] == 2


def test_smaller_chunks_are_more_memories(result: dict[str, Any]) -> None:
    memories = {(row["width"], row["bytes"]): row["memories"] for row in result["shm_chunk_size"]}
    assert memories == {
        (NARROW, 64 * KIB): 1,
        (NARROW, 256 << 20): 1,
        (WIDE, 64 * KIB): 16,
        (WIDE, 256 << 20): 1,
    }


def test_what_is_copied_goes_up_to_whole_chunks_with_a_changed_row(result: dict[str, Any]) -> None:
    copied = {
        (row["width"], row["bytes"]): row["copied_to_changed"] for row in result["cow_threshold"]
    }
    row = WIDE * 4  # bytes; one of EVERY is changed, 32 KiB from the next
    assert EVERY * row == 32 * KIB
    assert copied[WIDE, 4 * KIB] == 4 * KIB / row
    assert copied[WIDE, 128 * KIB] == EVERY, "all that there is"
    assert copied[NARROW, 4 * KIB] == NARROW * NARROW * LAYERS / (LAYERS * NARROW) == EVERY


def test_the_usual_value_is_what_others_are_compared_with(result: dict[str, Any]) -> None:
    for name in ("shm_chunk_size", "cow_threshold"):
        usual = getattr(Settings(), name)
        for row in result[name]:
            assert all(row[part] > 0 for part in row if part.endswith("_s"))
            exact = (row["to_usual"], row["low"], row["high"]) == (1, 1, 1)
            assert exact == (row["bytes"] == usual)


def test_pages_of_frozen_agents_are_back_when_their_leases_end(result: dict[str, Any]) -> None:
    for row in result["heartbeat_interval"]:
        assert row["back_s"] >= 2 * INTERVAL - 0.05, "a lease is three intervals from the last beat"
        assert row["back_s"] <= row["back_max_s"] < 20
        assert row["lives_through_hold"] is False, "nobody beat for five intervals"
        assert 0 < row["agent_us_per_s"] < 1e6
        assert 0 < row["nursery_us_per_s"] < 1e6


def test_an_agent_lives_through_a_call_shorter_than_its_lease() -> None:
    with SharedParameters(settings.module(NARROW), heartbeat_interval=30.0) as params:
        assert settings._lives(params.agent(), 0.2)


def test_agents_that_nobody_ends_are_told_and_not_waited_for() -> None:
    with SharedParameters(settings.module(NARROW), auto_recovery=False) as params:
        agent = params.agent()
        agent.run(settings._write_all)
        with pytest.raises(AgentDied, match=r"not ended within 0\.2 s"):
            settings._back([agent.pid], 0.2)
        os.kill(agent.pid, signal.SIGKILL)


def test_nothing_is_left_behind(result: dict[str, Any]) -> None:
    assert result
    mine = [str(os.getpid())]
    soon(lambda: not any(settings._stat(pid)[1:] == mine for pid in others()))


@pytest.mark.parametrize("wrong", [{"chunks": ()}, {"intervals": ()}, {"repeat": 0}])
def test_a_sweep_without_values_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Sweep(**wrong)
