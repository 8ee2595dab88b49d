"""Whole decoder layers by one kernel: the bits of their parts, or their parts if in doubt."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any
from weakref import ref

import models
import pytest
import torch
from torch import nn

from inms_lab.attention.batch import Span, TileRef
from inms_lab.errors import ModelRefused, StepInterrupted
from inms_lab.kernels import build as building
from inms_lab.model import from_model
from inms_lab.model.layers import Layer
from inms_lab.model.runner import Runner

pytestmark = pytest.mark.skipif(building.compiler() is None, reason="no C++ compiler here")
# Granite scales what a layer adds, Qwen3 norms its queries, Mixtral chooses its MLPs.
WHOLE = {"llama", "llama3", "linear", "yarn", "qwen2", "mistral"}
PARTS = {"qwen3", "granite", "mixtral", "gpt_neox", "phi", "cohere"}


@cache
def runner(name: str) -> Runner:
    """A tiny model with kernels."""
    options = {"residual_multiplier": 0.5} if name == "granite" else {}
    return from_model((models.WANTED | models.OTHERS)[name](**options), compile=True)


def layers(of: Runner) -> list[Layer]:
    """Its layers that one kernel computes."""
    return [made for made in of.fused.values() if isinstance(made, Layer)]  # type: ignore[misc]


@pytest.fixture
def by_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, layers are computed part by part."""
    return lambda: monkeypatch.setattr(Layer, "serves", lambda *args: False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each layer that was computed: whether by one kernel."""
    seen: list[bool] = []
    serves = Layer.serves

    def watched(*args: Any) -> bool:
        seen.append(serves(*args))
        return seen[-1]

    monkeypatch.setattr(Layer, "serves", watched)
    return seen


def computed(of: Runner, *counts: int, shift: int = 0, cancel: Event | None = None) -> Any:
    """Logits of texts of these lengths behind 20 tokens that all share, and all KV."""
    store = of.new_store()
    store.open("p", 512)
    store.regions["p"].normal_(generator=torch.Generator().manual_seed(1))
    spans, at = [], 32
    for count in counts:
        own = [TileRef("p", at + i, 20 + i, min(16, count - i)) for i in range(0, count, 16)]
        shared = [TileRef("p", 0, 0, 16, shift=shift), TileRef("p", 16, 16, 4, shift=shift)]
        slots = [("p", at + i) for i in range(count)]
        tokens = [(7 * at + i) % 50 + 1 for i in range(count)]
        positions = list(range(20, 20 + count))
        spans.append(Span(20, tokens, positions, slots, [*shared, *own], True))
        at += -(-count // 16) * 16
    return of.forward(spans, store, 16, cancel), store.regions["p"]


@pytest.mark.parametrize("name", sorted(WHOLE | PARTS))
def test_a_layer_that_adds_something_else_is_computed_by_its_parts(name: str) -> None:
    model = runner(name)
    whole = [m for m, made in model.fused.items() if isinstance(made, Layer)]  # type: ignore[misc]
    every = model.geometry.num_layers
    assert len(whole) == (every if name in WHOLE else 0)
    assert len(layers(model)) == len(whole)


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize("counts", [(1,), (1, 1, 1), (5, 1, 30), (60, 40, 100)])
def test_one_kernel_gives_the_bits_of_the_parts(
    name: str,
    counts: tuple[int, ...],
    served: list[bool],
    by_parts: Callable[[], None],
) -> None:
    model = runner(name)
    for layer in layers(model):
        layer.following = None
    served.clear()  # of its admission
    first, mine = computed(model, *counts), computed(model, *counts)  # layer by layer, in one go
    assert all(served)
    assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))
    assert [layer.following for layer in layers(model)] == [*layers(model)[1:], None]
    by_parts()
    parts = computed(model, *counts)
    assert all(torch.equal(a, b) for a, b in zip(mine, parts, strict=True))


def test_tiles_at_another_position_are_read_by_the_parts(served: list[bool]) -> None:
    model = runner("llama")
    served.clear()
    logits, _ = computed(model, 3, 1, shift=40)
    assert served == [False] * model.geometry.num_layers
    assert torch.isfinite(logits).all()


ORDERS = [(0, 2, 1), (1, 0, 2), (2, 1, 0), (0,), (1,), (0, 1, 0, 1), (1, 2)]


@pytest.mark.parametrize("order", ORDERS)
def test_layers_may_be_called_in_any_order_from_one_step_to_the_next(
    order: tuple[int, ...], by_parts: Callable[[], None]
) -> None:
    model = from_model(models.llama(), compile=True)
    whole = [computed(model, 1, 2)[0] for _ in range(3)]
    assert all(torch.equal(x, whole[0]) for x in whole)
    inner = model.model.model
    kept, inner.layers = inner.layers, nn.ModuleList([inner.layers[i] for i in order])
    inner.config.num_hidden_layers = len(order)
    mixed = [computed(model, 1, 2)[0] for _ in range(3)]
    inner.layers, inner.config.num_hidden_layers = kept, len(kept)
    assert torch.equal(computed(model, 1, 2)[0], whole[0])
    by_parts()
    inner.layers, inner.config.num_hidden_layers = (
        nn.ModuleList([kept[i] for i in order]),
        len(order),
    )
    parts, _ = computed(model, 1, 2)
    assert all(torch.equal(x, parts) for x in mixed)


@pytest.mark.parametrize("how", ["hook", "before", "wrapper", "in place", "global"])
def test_who_looks_or_writes_between_two_layers_does_so(
    how: str, by_parts: Callable[[], None]
) -> None:
    model = from_model(models.llama(), compile=True)
    for _ in range(3):
        computed(model, 1, 2)
    first = model.model.model.layers[0]
    seen: list[torch.Tensor] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x

    if how == "hook":
        first.register_forward_hook(lambda module, args, out: look(out) * 1.5)
    elif how == "before":
        first.register_forward_pre_hook(lambda module, args: (look(args[0]) * 1.5,))
    elif how == "global":
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, out: look(out) if module is first.mlp else None  # type: ignore[arg-type]
        )
    else:
        made = first.forward
        change = torch.Tensor.mul_ if how == "in place" else torch.mul
        first.forward = lambda x, **rest: change(look(made(x, **rest)), 1.5)
    try:
        mine = [computed(model, 1, 2)[0] for _ in range(3)]
        by_parts()
        parts, _ = computed(model, 1, 2)
    finally:
        if how == "global":
            handle.remove()
    assert all(torch.equal(x, parts) for x in mine)
    assert len(seen) == 4
    assert all(torch.equal(x, seen[-1]) for x in seen)


def test_a_layer_of_other_sizes_is_refused_and_nothing_is_written(served: list[bool]) -> None:
    model = from_model(models.llama(), compile=True)
    attention = model.model.model.layers[1].self_attn
    half = attention.q_proj.out_features // 2
    attention.q_proj = nn.Linear(attention.q_proj.in_features, half, bias=False)
    attention.o_proj = nn.Linear(half, attention.o_proj.out_features, bias=False)
    served.clear()
    with pytest.raises(ModelRefused, match="query heads"):
        computed(model, 1, 2)
    assert served == [True, False, False]  # asked for the run, and by the layer's own call


def test_what_a_layer_reads_besides_its_weights_may_change(by_parts: Callable[[], None]) -> None:
    model = from_model(models.llama(), compile=True)
    before = [computed(model, 1, 2)[0] for _ in range(2)][-1]
    model.model.model.layers[1].input_layernorm.variance_epsilon = 10.0
    mine, _ = computed(model, 1, 2)
    by_parts()
    assert torch.equal(computed(model, 1, 2)[0], mine)
    assert not torch.allclose(before, mine, atol=1e-2)


def test_a_copy_and_a_file_of_a_model_have_forwards_of_their_own(tmp_path: Path) -> None:
    model = from_model(models.llama(), compile=True)
    own = model.dense([1, 2, 3])
    torch.save(model.model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (copy.deepcopy(model.model), loaded):
        assert not any(isinstance(vars(m).get("forward"), Layer) for m in other.modules())
        assert torch.equal(from_model(other).dense([1, 2, 3]), own)
    assert layers(model)


@pytest.mark.parametrize("kernels", [True, False])
def test_threads_that_compute_with_one_model_get_their_own_logits(kernels: bool) -> None:
    model = from_model(models.llama(num_hidden_layers=1), compile=kernels)
    other = from_model(model.model, compile=kernels)
    wanted = {count: computed(other, count)[0] for count in (1, 2, 3)}
    wrong: list[int] = []

    def compute(of: Runner, count: int) -> None:
        for _ in range(60):
            if not torch.equal(computed(of, count)[0], wanted[count]):
                wrong.append(count)
            of.dense([1, 2, 3])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [Thread(target=compute, args=(other, count)) for count in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_a_stopped_step_stops_before_the_layer() -> None:
    stop = Event()
    stop.set()
    with pytest.raises(StepInterrupted):
        computed(runner("llama"), 2, cancel=stop)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda layer: layer.self_attn.k_proj.register_forward_hook(lambda *a: 2 * a[-1]),
    "a hook before": lambda layer: layer.mlp.register_forward_pre_hook(lambda m, a: (2 * a[0],)),
    "a new weight": lambda layer: setattr(
        layer.mlp.up_proj, "weight", nn.Parameter(2 * layer.mlp.up_proj.weight)
    ),
    "a weight elsewhere": lambda layer: setattr(
        layer.input_layernorm.weight, "data", 2 * layer.input_layernorm.weight.data
    ),
    "a bias": lambda layer: setattr(
        layer.self_attn.o_proj, "bias", nn.Parameter(torch.ones(layer.mlp.down_proj.out_features))
    ),
    "an adapter": lambda layer: setattr(
        layer.mlp, "down_proj", nn.Sequential(layer.mlp.down_proj, nn.Dropout(0.0), nn.ReLU())
    ),
    "a forward of one's own": lambda layer: setattr(
        layer.self_attn.v_proj, "forward", lambda x: x[..., : layer.self_attn.v_proj.out_features]
    ),
    "another activation": lambda layer: setattr(layer.mlp, "act_fn", nn.Tanh()),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_what_is_changed_afterwards_is_not_overlooked(
    change: str, served: list[bool], by_parts: Callable[[], None]
) -> None:
    model = from_model(models.llama(), compile=True)
    before, _ = computed(model, 1, 4)
    layer = next(m for m, made in model.fused.items() if isinstance(made, Layer))  # type: ignore[misc]
    with torch.no_grad():
        CHANGES[change](layer)
    served.clear()
    after, _ = computed(model, 1, 4)
    assert False in served
    by_parts()
    assert torch.equal(computed(model, 1, 4)[0], after)
    model.decompile()
    truth, _ = computed(model, 1, 4)
    if change != "a forward of one's own":  # `decompile` takes it away
        assert torch.allclose(after, truth, atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-3)


def test_a_step_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_model(models.llama(), compile=True)
    gone: list[Any] = []
    run = Runner.run
    monkeypatch.setattr(
        Runner, "run", lambda of, batch: (gone.append(ref(batch.compiled)), run(of, batch))
    )
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            computed(model, 1, 2)
    finally:
        gc.enable()
    assert [made() for made in gone] == [None] * 3


def test_a_weight_written_in_place_is_used(served: list[bool]) -> None:
    model = from_model(models.llama(), compile=True)
    before, _ = computed(model, 3)
    served.clear()
    with torch.no_grad():
        model.model.model.layers[0].mlp.down_proj.weight.mul_(2)
    after, _ = computed(model, 3)
    assert all(served)
    assert not torch.allclose(before, after, atol=1e-4)
    model.decompile()
    assert torch.allclose(computed(model, 3)[0], after, atol=1e-4)
