"""Weights on disk, layers asked for ahead, and weights larger than what may stay in memory."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from shared_models import is_gone, linux, mlp, soon

from inms_lab.bench.prefetch import measure
from inms_lab.bench.replicas import Load
from inms_lab.errors import BadInput, CacheNotWritable
from inms_lab.parameters import kernel, prefetch
from inms_lab.parameters.prefetch import File, Prefetch, cached, forget
from inms_lab.parameters.region import PAGE, Piece, View
from inms_lab.parameters.sources import Source, source_of
from inms_lab.parameters.weights import module_on

pytestmark = linux
LAYERS = 6


@pytest.fixture(scope="module")
def source() -> Source:
    return source_of(models.llama(num_hidden_layers=LAYERS, hidden_size=256, intermediate_size=512))


@pytest.fixture
def file(source: Source, tmp_path: Path) -> File:
    made = File(tmp_path / "weights", source.layout)
    made.write(source.tensors())
    return made


@pytest.fixture
def disk(file: File) -> Path:
    """A folder whose pages can be forgotten."""
    piece = file.open()
    forget(piece)
    if cached(piece):
        pytest.skip("temporary files lie in memory here: pass --basetemp=FOLDER on a disk")
    return file.path.parent


def opened(source: Source, file: File) -> tuple[torch.nn.Module, View, Piece]:
    piece = file.open()
    view = View(source.layout.num_bytes)
    view.lay([piece])
    assert source.make is not None
    return module_on(source.make, view, source.layout), view, piece


def logits(module: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = module(torch.arange(3, 40)[None]).logits
        return out


def resident(view: View) -> int:
    states = kernel.page_states("self", view.address, view.num_bytes)
    assert states is not None
    return int((states != kernel.ABSENT).sum())


@pytest.mark.parametrize("degree", [0, 1, 2, 4, 8])
def test_the_degree_changes_no_bit(source: Source, file: File, degree: int) -> None:
    assert source.make is not None
    module, view, piece = opened(source, file)
    plain = logits(module)
    forget(piece)
    with Prefetch(module, view, source.layout, degree) as ahead:
        assert torch.equal(logits(module), plain)
        assert bool(ahead.asked) is bool(degree)
    assert not any(m._forward_pre_hooks for m in module.modules())


def test_weights_larger_than_the_budget_pass_through_it(source: Source, file: File) -> None:
    module, view, piece = opened(source, file)
    plain = logits(module)
    everything = resident(view)
    layer = sum(np.diff(Prefetch(module, view, source.layout, 0).spans[0]).flatten())
    with Prefetch(module, view, source.layout, 1, budget=2 * int(layer), piece=piece) as ahead:
        for _ in range(3):
            assert torch.equal(logits(module), plain)
        assert ahead.let_go > layer
    assert resident(view) < everything - 2 * layer // 4096


@pytest.mark.parametrize("degree", [1, 2])
def test_a_layer_that_is_read_late_does_not_come_back(
    source: Source, file: File, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a lab: reading ahead takes a while, and a layer may be let go meanwhile."""
    advise = prefetch._advise

    def slow(address: int, num_bytes: int, advice: int) -> bool:
        time.sleep(0.03 * (advice == prefetch.POPULATE_READ))
        return advise(address, num_bytes, advice)

    monkeypatch.setattr(prefetch, "_advise", slow)
    module, view, piece = opened(source, file)
    plain = logits(module)
    with Prefetch(module, view, source.layout, 0) as ahead:
        layer = int(sum(np.diff(ahead.spans[0]).flatten()))
        spans = [span for spans in ahead.spans for span in spans]
    for _ in range(3):
        forget(piece)
        with Prefetch(module, view, source.layout, degree, (1 + degree) * layer, piece) as ahead:
            assert torch.equal(logits(module), plain)
        states = kernel.page_states("self", view.address, view.num_bytes)
        assert states is not None
        here = sum(int((states[a // PAGE : b // PAGE] != kernel.ABSENT).sum()) for a, b in spans)
        assert here * PAGE < (1.2 + degree) * layer  # a fault maps neighbours too


def test_what_was_written_is_never_let_go(source: Source, file: File) -> None:
    module, view, piece = opened(source, file)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.mul_(0.5)
    changed = logits(module)
    layer = int(sum(np.diff(Prefetch(module, view, source.layout, 0).spans[0]).flatten()))
    with Prefetch(module, view, source.layout, 0, budget=layer, piece=piece) as ahead:
        assert torch.equal(logits(module), changed)
        assert torch.equal(logits(module), changed)
        assert ahead.let_go == 0
    fresh, _, _ = opened(source, file)
    assert not torch.equal(logits(fresh), changed)  # nor did it reach the file


def test_a_child_that_is_forked_while_a_layer_is_read_computes_the_same(
    source: Source, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    advise, reads = prefetch._advise, threading.Event()

    def slow(address: int, num_bytes: int, advice: int) -> bool:
        if advice == prefetch.POPULATE_READ:
            reads.set()
            time.sleep(0.2)
        return advise(address, num_bytes, advice)

    monkeypatch.setattr(prefetch, "_advise", slow)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others would be lacking in the child
    module, view, piece = opened(source, file)
    plain = logits(module)
    layer = int(sum(np.diff(Prefetch(module, view, source.layout, 0).spans[0]).flatten()))
    with Prefetch(module, view, source.layout, 2, 3 * layer, piece) as ahead:
        ahead._begin(0)
        assert reads.wait(30)
        if not (pid := os.fork()):
            asked = ahead.asked
            same = torch.equal(logits(module), plain) and ahead.let_go > 0
            ahead.close()
            os._exit(0 if same and ahead.asked == asked else 3)
        try:
            soon(lambda: is_gone(pid), 20)
        finally:
            torch.set_num_threads(threads)
            os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == 0


def test_who_computes_while_it_is_closed_is_not_disturbed(source: Source, file: File) -> None:
    module, view, piece = opened(source, file)
    plain = logits(module)
    ahead = Prefetch(module, view, source.layout, 2, piece=piece)
    ahead.close()
    ahead._begin(0)  # a hook that had begun when another thread closed it
    assert ahead.asked == 0
    assert not ahead._reading
    assert torch.equal(logits(module), plain)


@pytest.mark.parametrize("budget", ["x", float("nan"), 1e9, -1, 0, True])
def test_a_budget_is_a_number_of_bytes(source: Source, file: File, budget: Any) -> None:
    module, view, _ = opened(source, file)
    with pytest.raises(BadInput, match="budget"):
        Prefetch(module, view, source.layout, 0, budget)


def test_bad_input_is_refused(source: Source, file: File, tmp_path: Path) -> None:
    module, view, _ = opened(source, file)
    with pytest.raises(BadInput, match="0 or more layers"):
        Prefetch(module, view, source.layout, -1)
    with pytest.raises(BadInput, match=r"holds 0 layers, and 1 are"):
        Prefetch(module, view, source.layout, 0, budget=10)
    with pytest.raises(BadInput, match="no list of layers"):
        Prefetch(mlp(), view, source.layout, 1)
    for budget in (None, 1 << 20):
        with pytest.raises(BadInput, match="no list of layers"):
            Prefetch(
                torch.nn.ModuleDict({"a": torch.nn.ModuleList()}), view, source.layout, 1, budget
            )
    Prefetch(torch.nn.ModuleList([torch.nn.ReLU()]), view, source.layout, 1, 1 << 20).close()
    with pytest.raises(BadInput, match=r"nowhere .*--folder"):
        measure(source, folder=tmp_path / "nowhere")
    file.path.write_bytes(file.path.read_bytes()[:-4096])
    with pytest.raises(BadInput, match="write it anew"):
        file.open()
    with pytest.raises(CacheNotWritable, match="cannot be written"):
        File(tmp_path / "nowhere" / "weights", source.layout).write(source.tensors())


@pytest.mark.parametrize(
    "wrong", [{name: float("nan")} for name in ("skew", "writes", "bandwidth")] + [{"skew": 1e999}]
)
def test_a_load_of_no_finite_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Load(**wrong)


def test_the_measurement_compares_degrees_on_one_text(source: Source, disk: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    found = measure(source, degrees=(0, 2), tokens=8, repeat=2, folder=disk)
    assert found["equal"]
    assert [row["degree"] for row in found["rows"]] == [0, 2]
    assert found["rows"][0]["asked_bytes"] == 0 < found["rows"][1]["asked_bytes"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_majflt >= before
    assert [one.name for one in disk.iterdir()] == ["weights"]


def test_what_was_forgotten_is_cold_and_layers_ahead_are_read_before_they_are_touched(
    source: Source, file: File, disk: Path
) -> None:
    module, view, piece = opened(source, file)
    forget(piece)
    assert cached(piece) == 0
    with Prefetch(module, view, source.layout, degree=2) as ahead:
        ahead._begin(0)  # the first layer begins, and nothing is computed
        for reading in ahead._reading.values():
            reading.result(30)
    asked = [span for spans in ahead.spans[1:3] for span in spans]
    states = kernel.page_states("self", view.address, view.num_bytes)
    assert states is not None
    for first, stop in asked:
        assert (states[first // PAGE : stop // PAGE] != kernel.ABSENT).all()
    last = ahead.spans[-1][0]
    assert (states[last[0] // PAGE : last[1] // PAGE] == kernel.ABSENT).all()


def test_a_module_that_nobody_has_any_more_does_not_warm_the_next_start(
    source: Source, disk: Path
) -> None:
    """Found in the measurement itself: what is mapped stays in the system's cache."""
    found = measure(source, degrees=(0, 1), tokens=8, repeat=2, folder=disk)
    assert [row["warm_bytes"] for row in found["rows"]] == [0, 0]
