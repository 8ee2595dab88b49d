"""What agents that share weights cost, measured against processes that load their own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import models
import psutil
import pytest
import torch

from inms_lab.bench import own_weights, parameters
from inms_lab.bench.own_weights import PATTERNS, Starter, change
from inms_lab.bench.parameters import Trial, measure, ten_agents
from inms_lab.errors import AgentDied, BadInput, NotEnoughMemory
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.region import PAGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="figures of pages are Linux' own")

SHARE, AGENTS = 0.25, 2
PROGRAMS = ("inms_lab.bench.own_weights", "inms_lab.parameters.nursery")


def small() -> Any:
    """A Llama of 16 MiB with drawn weights: large enough that pages at the edges do not count."""
    sizes = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "head_dim": 64}
    return models.llama(**sizes, num_hidden_layers=4)


def below() -> set[int]:
    """Processes that this one, or one that it started, has started."""
    found = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if any(name in one.cmdline() for name in PROGRAMS):
                found.add(one.pid)
    return found


def held_here() -> int:
    """How many shared memories of weights this process maps or has open."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("/memfd:inms" in one for one in (*maps, *opened))


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    trial = Trial(agents=(AGENTS,), changed=SHARE, tokens=4, further_tokens=8)
    seen: set[int] = set()
    held = held_here()

    def end(agents: Sequence[Any]) -> None:
        seen.update(agent.pid for agent in agents)
        own_weights_end(agents)

    own_weights_end = own_weights.end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_weights, "end", end)
        found = measure(small(), trial, progress=False)
    left = [pid for pid in seen if psutil.pid_exists(pid)], below(), held_here() - held
    return found | {"seen": seen, "left": left}


def row(result: dict[str, Any], pattern: str) -> dict[str, Any]:
    (found,) = [one for one in result["rows"] if one["pattern"] == pattern]
    return dict(found)


def differences(pattern: str) -> tuple[float, float, float, int]:
    """The shares of tensors' bytes, of pages and of values that differ afterwards, and the bytes
    that `change` says."""
    model = small()
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        told = change(model, SHARE, pattern, seed=0)
    differ = [(now != was).view(-1) for now, was in zip(model.parameters(), before, strict=True)]
    total = sum(len(one) for one in differ)
    whole = sum(len(one) for one in differ if bool(one.all()))
    pages = [part for one in differ for part in one.split(PAGE // 4)]
    touched = sum(bool(part.any()) for part in pages)
    values = sum(int(one.sum()) for one in differ)
    return whole / total, touched / len(pages), values / total, told


def test_whole_tensors_change_and_never_more_than_the_share() -> None:
    tensors, pages, values, told = differences("tensors")
    assert SHARE - 0.05 < tensors <= SHARE
    assert tensors == pytest.approx(values, abs=1e-4)
    assert pages == pytest.approx(values, abs=0.01)
    assert told == pytest.approx(values * 16786432)


def test_whole_pages_change_and_are_the_share() -> None:
    tensors, pages, values, told = differences("pages")
    assert pages == pytest.approx(SHARE, abs=1e-3)
    assert values == pytest.approx(pages, abs=5e-3)  # each of them wholly
    assert tensors < 0.01
    assert told == pytest.approx(values * 16786432)


def test_single_values_change_and_touch_every_page() -> None:
    tensors, pages, values, told = differences("scattered")
    assert values == pytest.approx(SHARE, abs=5e-3)
    assert pages > 0.99
    assert tensors == 0
    assert told == pytest.approx(values * 16786432)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agents_change_other_places_and_one_again_the_same(pattern: str) -> None:
    three = [small() for _ in range(3)]
    with torch.no_grad():
        for model, seed in zip(three, (1, 1, 2), strict=True):
            change(model, SHARE, pattern, seed)
    one, again, other = ([p.detach() for p in model.parameters()] for model in three)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_all_kinds_of_processes_have_the_same_model(result: dict[str, Any]) -> None:
    assert result["same_output"]
    first = row(result, PATTERNS[0])
    assert {key: result[key] for key in first} == first
    assert result["weights_bytes"] == sum(p.nbytes for p in small().parameters())


def test_pages_and_tensors_save_what_the_formula_says(result: dict[str, Any]) -> None:
    for pattern in ("pages", "tensors"):
        one = row(result, pattern)
        assert one["saved_by_formula"] == pytest.approx(1 - (1 + AGENTS * SHARE) / AGENTS)
        assert one["saved"] == pytest.approx(one["saved_by_formula"], abs=0.03)
        assert one["weights_held"] - result["weights_bytes"] == pytest.approx(
            AGENTS * SHARE * result["weights_bytes"], rel=0.1
        )


def test_scattered_values_save_nothing(result: dict[str, Any]) -> None:
    assert row(result, "scattered")["saved"] < 0.05


def test_independent_processes_have_a_copy_each(result: dict[str, Any]) -> None:
    other = row(result, "pages")["independent"]
    assert other["weights_held"] == pytest.approx(AGENTS * result["weights_bytes"], rel=0.01)
    assert len(other["private_by_agent"]) == AGENTS
    assert min(other["private_by_agent"]) > 100 << 20  # Python and torch


def test_without_changes_there_is_one_copy_while_all_generate(result: dict[str, Any]) -> None:
    (one,) = result["unchanged"]
    assert one["saved"] == pytest.approx(1 - 1 / AGENTS, abs=0.01)
    assert 0.99 < one["copies"] <= 1.02
    assert 0 < one["further_idle_private"] <= 10 << 20
    assert one["further_idle_private"] < one["further_generating_private"] <= 40 << 20


def test_files_that_are_mapped_share_until_they_are_written(result: dict[str, Any]) -> None:
    (one,) = result["mapped"]
    size = result["weights_bytes"]
    assert size < one["pss_sum"] < 0.95 * AGENTS * size
    assert one["whole"] > row(result, "pages")["whole"]  # each has Python and torch of its own


def test_nobody_and_no_memory_is_left(result: dict[str, Any]) -> None:
    assert len(result["seen"]) == AGENTS * 6  # two kinds that load, unchanged ones, three patterns
    assert result["left"] == ([], set(), 0)


def test_a_process_that_cannot_load_is_told_and_nobody_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Elsewhere(Starter):
        def __init__(self, folder: str, *rest: str) -> None:
            super().__init__(str(tmp_path), *rest)

    held = held_here()
    monkeypatch.setattr(parameters, "Starter", Elsewhere)
    with pytest.raises(AgentDied, match="independent-0"):
        measure(small(), Trial(agents=(1,), tokens=1), progress=False)
    assert not below()
    assert held_here() == held


def test_agents_are_not_left_when_a_measurement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []

    def fails(self: object, agents: list[Any]) -> dict[str, Any]:
        alive.extend(agent.pid for agent in agents)
        raise ZeroDivisionError

    monkeypatch.setattr(parameters.Sharing, "row", fails)
    trial = Trial(agents=(1,), tokens=1)
    with SharedParameters(small()) as params:
        kinds = parameters.Kinds(trial, lambda n: None)
        sharing = parameters.Sharing(params, trial)
        with pytest.raises(ZeroDivisionError):
            kinds.grown(sharing.agent, sharing.row, "pages")
        assert alive
        assert not any(psutil.pid_exists(pid) for pid in alive)
        sharing.close()
    assert not below()


def test_too_little_memory_is_said_before_anything_starts() -> None:
    with pytest.raises(NotEnoughMemory, match="fewer agents"):
        own_weights.require_memory(10, psutil.virtual_memory().total)
    own_weights.require_memory(1, 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"agents": ()}, "--agents"),
        ({"agents": (0,)}, "--agents"),
        ({"agents": (4, 2)}, "--agents"),
        ({"changed": 1.5}, "--changed"),
        ({"changed": float("nan")}, "--changed"),
        ({"patterns": ("rows",)}, "--pattern"),
        ({"patterns": ()}, "--pattern"),
        ({"tokens": 0}, "token"),
    ],
)
def test_a_wrong_trial_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Trial(**wrong)


def test_what_transformers_cannot_load_is_refused() -> None:
    with pytest.raises(BadInput, match="module of transformers"):
        measure(torch.nn.Linear(2, 2), Trial(agents=(1,)), progress=False)


def test_ten_agents_of_a_7b_model_have_room_for_hardly_any_kv() -> None:
    bill = ten_agents(0.15)
    by_length = {one["tokens"]: one for one in bill["rows"]}
    assert by_length[0]["shared"] == bill["weights_bytes"] == 13_476_831_232
    assert by_length[1024]["kv"] == 10 * 1024 * 512 * 1024  # 512 KiB a token
    assert by_length[1024]["left"] > 0 > by_length[2048]["left"]
    fit = bill["tokens_that_fit"]
    assert 0 <= 24e9 - bill["weights_bytes"] - fit * 10 * 2**19 < 10 * 2**19
    claim = bill["claims"]["ten-7b-agents"]
    assert claim["verdict"] == "does not hold"
    assert "33.7 GB" in claim["measured"]  # 13.48 GB x (1 + 10 x 0.15)
