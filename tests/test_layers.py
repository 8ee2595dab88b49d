"""Whole decoder layers by one kernel: the bits of their parts, or their parts if in doubt."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Event
from typing import Any

import models
import pytest
import torch
from torch import nn

from inms_lab.attention.batch import Span, TileRef
from inms_lab.errors import StepInterrupted
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


def test_layers_in_one_go_are_given_up_when_the_model_calls_them_otherwise(
    by_parts: Callable[[], None],
) -> None:
    model = from_model(models.llama(), compile=True)
    for _ in range(2):
        computed(model, 1, 2)
    inner = model.model.model
    kept = inner.layers
    inner.layers = nn.ModuleList([kept[0], kept[2], kept[1]])
    mixed, _ = computed(model, 1, 2)
    inner.layers = nn.ModuleList([kept[0]])
    fewer, _ = computed(model, 1, 2)
    inner.layers = kept
    seen: list[torch.Tensor] = []
    hook = kept[1].register_forward_hook(lambda module, args, out: seen.append(out))
    hooked, _ = computed(model, 1, 2)
    hook.remove()
    whole, _ = computed(model, 1, 2)
    by_parts()
    assert torch.equal(computed(model, 1, 2)[0], whole)
    assert torch.equal(hooked, whole)
    kept[1].register_forward_hook(lambda module, args, out: seen.append(out))
    assert torch.equal(computed(model, 1, 2)[0], whole)
    assert torch.equal(seen[0], seen[1])
    inner.layers = nn.ModuleList([kept[0], kept[2], kept[1]])
    assert torch.equal(computed(model, 1, 2)[0], mixed)
    inner.layers = nn.ModuleList([kept[0]])
    assert torch.equal(computed(model, 1, 2)[0], fewer)


def test_what_happens_between_two_layers_is_seen(by_parts: Callable[[], None]) -> None:
    model = from_model(models.llama(), compile=True)
    for _ in range(2):
        computed(model, 1, 2)
    layer = model.model.model.layers[1]
    chosen = layer.forward
    layer.forward = lambda x, **rest: chosen(x * 2, **rest)
    mine, _ = computed(model, 1, 2)
    by_parts()
    assert torch.equal(computed(model, 1, 2)[0], mine)


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
