"""The compiled kernels: equal to the plain operators, and each row's bits depend on nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from layouts import Layout
from torch import nn
from torch.nn import functional

from inms_lab.attention.batch import Span, TileRef, build
from inms_lab.errors import BadInput, CompilerMissing
from inms_lab.kernels import build as building
from inms_lab.kernels.native import Native
from inms_lab.model import from_model, fused
from inms_lab.model.runner import Geometry, Runner, attend
from inms_lab.notebook.lab import Lab

pytestmark = pytest.mark.skipif(building.compiler() is None, reason="no C++ compiler here")
ROWS = (1, 2, 3, 5, 11, 12, 13, 24, 25, 40, 191, 192, 193, 230)


@pytest.fixture(scope="module")
def native() -> Native:
    return Native()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# matrix products --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(48, 576), (16, 16), (99, 577), (7, 3), (65, 200), (33, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_right_and_its_rows_do_not_depend_on_their_number(
    native: Native, shape: tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    outputs, columns = shape
    x, w = torch.randn(max(ROWS), columns), torch.randn(outputs, columns)
    add = torch.randn(outputs) if bias else None
    truth = functional.linear(x.double(), w.double(), None if add is None else add.double())
    full = native.linear(w, add, x)
    assert (full - truth).abs().max() < 1e-6 * columns**0.5 * 10
    for count in ROWS:
        assert torch.equal(native.linear(w, add, x[:count]), full[:count]), count
        assert torch.equal(native.linear(w, add, x[-count:]), full[-count:]), count


def test_a_product_takes_any_number_of_dimensions_and_none_of_rows(native: Native) -> None:
    x, w = torch.randn(2, 3, 32), torch.randn(5, 32)
    assert native.linear(w, None, x).shape == (2, 3, 5)
    assert native.linear(w, None, x[:0]).shape == (0, 3, 5)
    turned = torch.randn(32, 6).t()
    assert torch.allclose(native.linear(w, None, turned), turned @ w.t(), atol=1e-5)


def layer(model: nn.Module, native: Native) -> dict[nn.Module, Any]:
    """The forwards that the kernels give a model, put in their place."""
    chosen = fused.forwards(native, model, attend, Geometry(1, 1, 1, 16))
    fused.install(chosen)
    return chosen


def test_what_the_kernel_does_not_do_torch_does(native: Native) -> None:
    model = nn.Sequential(nn.Linear(32, 5))
    assert layer(model, native)
    x = torch.randn(3, 32)
    with torch.enable_grad():
        model(x).sum().backward()
    assert model[0].weight.grad is not None
    own = functional.linear(x, model[0].weight, model[0].bias)
    model[0].weight = nn.Parameter(model[0].weight.t().contiguous().t())  # strided
    assert torch.allclose(model(x), own, atol=1e-5)
    with pytest.raises(RuntimeError):
        model(x[:, :31])
    assert model.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_a_layer_uses_the_weights_that_it_holds_now(native: Native) -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    chosen, x = layer(model, native), torch.randn(2, 32)
    before = model(x)
    model[0].weight = nn.Parameter(model[0].weight * 2)
    model[0].bias = None
    after = model(x)
    assert fused.uninstall(model) == chosen
    assert "forward" not in vars(model[0])
    assert torch.allclose(after, model(x), atol=1e-5)
    assert not torch.allclose(before, after)


class Gated(nn.Module):
    """An MLP with names as decoders use them."""

    def __init__(self, act: Any, bias: bool = False) -> None:
        super().__init__()
        self.act = act
        self.gate_proj, self.up_proj = (nn.Linear(48, 100, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(100, 48, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.Module):
    """A norm whose weight may be counted from 1, and which may have no eps."""

    def __init__(self, offset: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.offset, self.eps = nn.Parameter(torch.rand(50)), offset, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight + self.offset) * x * torch.rsqrt(x.pow(2).mean(-1, True) + self.eps)


@pytest.mark.parametrize(
    ("module", "is_fused"),
    [
        (Gated(functional.silu), True),
        (Gated(functional.gelu), False),
        (Gated(functional.silu, bias=True), False),
        (RMSNorm(0.0), True),
        (RMSNorm(1.0), False),
    ],
)
def test_a_module_is_fused_only_if_the_kernel_gives_what_it_gives(
    native: Native, module: nn.Module, is_fused: bool
) -> None:
    chosen = fused.forwards(native, module, attend, Geometry(1, 1, 1, 16))
    assert (module in chosen) == is_fused
    width = 48 if isinstance(module, Gated) else 50
    for size in (1e-3, 1.0, 40.0):
        x = torch.randn(5, width) * size
        own = module(x)
        fused.install(chosen)
        full = module(x)
        assert torch.allclose(full, own, atol=1e-5 * max(1.0, size), rtol=1e-5)
        assert not is_fused or torch.equal(module(x[2:3]), full[2:3])
        assert module(x[:0]).shape == (0, width)
        fused.uninstall(module)


@pytest.mark.parametrize("name", sorted(models.WANTED))
def test_layers_with_something_more_in_them_keep_their_own_attention(name: str) -> None:
    runner = from_model(models.WANTED[name](), compile=True)
    kinds = {type(module).__name__ for module in runner.fused}
    attentions = {kind for kind in kinds if kind.endswith("Attention")}
    has_more = any(hasattr(m, "q_norm") for m in runner.model.modules())
    assert not (attentions and has_more)
    assert ("LlamaAttention" in attentions) == (name in {"llama", "llama3", "linear", "yarn"})


# attention over random layouts ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compiled", "torch"])
def test_attention_equals_dense_attention_for_random_tile_layouts(
    native: Native, kind: str
) -> None:
    worst = 0.0
    for seed in range(30):
        layout = Layout(seed)
        batch = layout.batch(layout.spans, native if kind == "compiled" else None)
        q, k, v = layout.new(layout.spans)
        worst = max(worst, layout.error(batch.attend(1, q, k, v, 0.25), q, 1))
    assert worst < 1e-5


def test_a_row_has_the_same_bits_in_any_company_and_wherever_its_blocks_lie(
    native: Native,
) -> None:
    for seed in range(20):
        layout = Layout(seed)
        q, k, v = layout.new(layout.spans)
        together = layout.batch(layout.spans, native).attend(0, q, k, v, 0.25)
        at = 0
        for span in layout.spans:
            rows = slice(at, at + len(span.tokens))
            alone = layout.batch([span], native).attend(0, *layout.new([span]), 0.25)
            assert torch.equal(alone, together[rows])
            last = Span(
                *(span.start + len(span.tokens) - 1, span.tokens[-1:], span.positions[-1:]),
                *(span.slots[-1:], span.tiles, True),
            )
            one = [x[rows][-1:] for x in (q, k, v)]
            assert torch.equal(layout.batch([last], native).attend(0, *one, 0.25), alone[-1:])
            at += len(span.tokens)


def test_what_is_not_a_number_stays_none(native: Native) -> None:
    layout = Layout(3)
    q, k, v = layout.new(layout.spans)
    q.view(torch.int32)[0, 0] = (
        0x7FC00001  # with bits of its own, which arithmetic on bits would use
    )
    out = layout.batch(layout.spans, native).attend(0, q, k, v, 0.25)
    assert out[0, 0].isnan().all()
    assert not out[0, 1:].isnan().any()
    assert not out[1:].isnan().any()


def test_26_a_shared_tile_is_one_piece_of_work_and_a_single_reader_pays_nothing_for_it(
    native: Native,
) -> None:
    """vllm#22103, #12395: there is no second path whose crossover could be missed. One reader of a
    tile is the plan of any tile; with several it is read once."""
    layout = Layout(11)
    shared, spans = layout.spans[0].tiles[0], layout.spans
    assert len(spans) > 2
    for some in (spans[:1], spans):
        batch = layout.batch(some, native)
        assert batch.compiled is not None
        tiles = {(t.pool_id, t.slot) for span in some for t in span.tiles}
        assert len(batch.compiled.arrays["tile_pool"]) == len(tiles)
        readers = sum(len(s.tokens) for s in some)  # all read the first tile of the shared text
        assert sum(shared in s.tiles for s in some) == len(some)
        first = batch.compiled.arrays["work"][0]
        assert first[2] - first[1] == min(readers, 32)


def test_strides_and_padding_are_taken_as_they_come(native: Native) -> None:
    layout = Layout(3)
    q, k, v = layout.new(layout.spans)
    plain = layout.batch(layout.spans, native).attend(0, q, k, v, 0.25)
    odd = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert torch.equal(layout.batch(layout.spans, native).attend(0, *odd, 0.25), plain)
    odd = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(layout.batch(layout.spans, native).attend(0, *odd, 0.25), plain)
    heads = layout.kv_heads * layout.groups
    padded = build(layout.spans, layout.store, layout.tile, heads, 16, (), native)
    more = -len(q) % 16
    wide = [torch.cat((x, torch.randn(more, *x.shape[1:]))) for x in (q, k, v)]
    out = padded.attend(0, *wide, 0.25)
    assert torch.equal(out[: len(q)], plain)
    assert not out[len(q) :].any()


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_large_and_small_scores_give_numbers(native: Native, size: float) -> None:
    layout = Layout(5)
    q, k, v = layout.new(layout.spans)
    out = layout.batch(layout.spans, native).attend(0, q * size, k, v, 0.25)
    same = layout.batch(layout.spans, None).attend(0, q * size, k, v, 0.25)
    assert torch.allclose(out, same, atol=1e-5 * max(1.0, size))


# models and labs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(models.WANTED))
def test_a_compiled_model_is_admitted_and_rows_need_no_padding(name: str) -> None:
    runner = from_model(models.WANTED[name](), compile=True)
    assert runner.native is not None
    assert runner.admission is not None
    assert runner.admission.compiled
    assert runner.admission.max_logit_error < 2e-4
    assert runner.bitwise


def test_stock_forwards_use_stock_operators() -> None:
    runner = from_model(models.llama(), compile=True)
    plain = from_model(models.llama())
    assert torch.equal(runner.dense([1, 2, 3]), plain.dense([1, 2, 3]))
    assert all(vars(module)["forward"] is forward for module, forward in runner.fused.items())


def test_where_nothing_can_be_compiled_the_lab_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(self: Runner) -> None:
        raise CompilerMissing("there is no compiler")

    monkeypatch.setattr(Runner, "compile", missing)
    runner = from_model(models.llama(), compile=True)
    assert runner.native is None
    assert runner.bitwise
    assert "there is no compiler; going on" in "".join(capsys.readouterr())


def test_a_compiler_that_fails_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'lanes.h:1: error: no such machine' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path))
    building.library.cache_clear()
    try:
        with pytest.raises(CompilerMissing, match="no such machine"):
            building.library()
        monkeypatch.setattr(building, "compiler", lambda: None)
        with pytest.raises(CompilerMissing, match="install one"):
            building.library()
    finally:
        building.library.cache_clear()


def test_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path))
    building.library.cache_clear()
    calls: list[Any] = []
    compile_ = building._compile
    monkeypatch.setattr(building, "_compile", lambda *a: (calls.append(a), compile_(*a)))
    try:
        for _ in range(2):
            building.library()
            building.library.cache_clear()
        assert len(calls) == 1
    finally:
        building.library.cache_clear()


def test_a_model_that_is_loaded_already_cannot_be_compiled_by_a_lab() -> None:
    with pytest.raises(BadInput, match="loaded already"):
        Lab(from_model(models.llama()), compile=True)
    half = from_model(models.llama().to(torch.bfloat16), compile=True)
    assert half.native is None


# what was found by trying to break it -------------------------------------------------------------


def logits(runner: Runner, tokens: list[int]) -> torch.Tensor:
    """Of every token, through the lab's attention."""
    store = runner.new_store()
    store.open("p", 64)
    tiles = [TileRef("p", 0, 0, min(16, len(tokens)))]
    slots = [("p", i) for i in range(len(tokens))]
    batch = runner.batch([Span(0, tokens, range(len(tokens)), slots, tiles, True)], store, 16)
    batch.logit_rows = torch.arange(batch.input_ids.shape[1])
    runner.run(batch)
    return runner.last_logits[: len(tokens)].float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_that_is_cast_later_is_computed_by_torch(dtype: torch.dtype) -> None:
    model = models.llama()
    runner = from_model(model, compile=True)
    tokens = [1, 2, 3, 4, 5]
    model.to(dtype)
    error = (logits(runner, tokens) - runner.dense(tokens)).abs().max()
    assert error < (0.2 if dtype == torch.bfloat16 else 1e-3)


def test_a_later_runner_of_a_model_finds_it_as_it_was() -> None:
    model = models.llama()
    first = from_model(model, compile=True)
    own = first.dense([1, 2, 3])
    second = from_model(model)
    assert not [m for m in model.modules() if "forward" in vars(m)]
    assert torch.equal(second.dense([1, 2, 3]), own)
    third = from_model(model, compile=True)
    assert all(f.own.__self__ is m for m, f in third.fused.items())
    second.dense([1, 2, 3])
    assert all(vars(m)["forward"] is f for m, f in third.fused.items())


def test_a_module_that_clips_large_numbers_keeps_its_own_forward(native: Native) -> None:
    module = Gated(lambda x: functional.silu(x.clamp(max=50.0)))
    assert module not in fused.forwards(native, module, attend, Geometry(1, 1, 1, 16))


def test_an_adapter_a_hook_or_another_activation_is_not_overlooked(native: Native) -> None:
    class Act(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.silu(x)

    x = torch.randn(3, 48)
    for change in ("adapter", "hook", "activation", "bias", "narrow"):
        module = Gated(Act())
        fused.install(fused.forwards(native, module, attend, Geometry(1, 1, 1, 16)))
        assert "forward" in vars(module)
        if change == "adapter":
            module.gate_proj = nn.Sequential(module.gate_proj, nn.Linear(100, 100))
        elif change == "hook":
            module.gate_proj.register_forward_hook(lambda *a: a[-1] + 1)
        elif change == "activation":
            module.act = nn.GELU()
        elif change == "bias":
            module.up_proj.bias = nn.Parameter(torch.ones(100))
        else:
            module.gate_proj.weight = nn.Parameter(torch.randn(1, 48))
            module.gate_proj.out_features = 1
        now = module(x)
        fused.uninstall(module)
        assert torch.allclose(now, module(x), atol=1e-5), change


@pytest.mark.parametrize("damage", ["cut", "trash", "empty", "sum"])
def test_a_damaged_library_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path))
    made: list[Any] = []
    whole = building._sum
    monkeypatch.setattr(building, "_compile", lambda found, target: made.append(target))
    target = building.cache_folder() / f"{building._name(building.compiler() or '')}.so"
    target.parent.mkdir(parents=True)
    content = {"cut": b"\x7fELF" + b"0" * 100, "trash": b"no library", "empty": b"", "sum": b"x"}
    target.write_bytes(content[damage])
    if damage == "sum":
        target.with_suffix(".sum").write_bytes(b"\xff")
    elif damage == "cut":
        target.with_suffix(".sum").write_text(whole(target))
    building.library.cache_clear()
    try:
        with pytest.raises(CompilerMissing, match="cannot be loaded"):
            building.library()
        assert made == [target]
    finally:
        building.library.cache_clear()


@pytest.mark.parametrize("script", ["just words", "#!/no/such/shell\n", "#!/bin/sh\nexit 0\n"])
def test_a_broken_compiler_is_a_named_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    broken = tmp_path / "c++"
    broken.write_text(script)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path / "cache"))
    building.library.cache_clear()
    try:
        runner = from_model(models.llama(), compile=True)
        assert runner.native is None
        with pytest.raises(CompilerMissing):
            building.library()
    finally:
        building.library.cache_clear()
