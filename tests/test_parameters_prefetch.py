"""Weights on disk, layers asked for ahead, and weights larger than what may stay in memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from shared_models import linux, mlp

from inms_lab.bench.prefetch import measure
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


def test_bad_input_is_refused(source: Source, file: File, tmp_path: Path) -> None:
    module, view, _ = opened(source, file)
    with pytest.raises(BadInput, match="0 or more layers"):
        Prefetch(module, view, source.layout, -1)
    with pytest.raises(BadInput, match=r"holds 0 layers, and 1 are"):
        Prefetch(module, view, source.layout, 0, budget=10)
    with pytest.raises(BadInput, match="no list of layers"):
        Prefetch(mlp(), view, source.layout, 1)
    file.path.write_bytes(file.path.read_bytes()[:-4096])
    with pytest.raises(BadInput, match="write it anew"):
        file.open()
    with pytest.raises(CacheNotWritable, match="cannot be written"):
        File(tmp_path / "nowhere" / "weights", source.layout).write(source.tensors())


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
