"""The Triton kernels, interpreted on the CPU (conftest.py asks for that) or on a GPU: equal to
dense attention within a stated tolerance; who asks for them gets them, or hears why not.

On a machine with a GPU: TRITON_INTERPRET=0 python -m pytest tests/test_triton.py
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import pytest
import torch
from layouts import Layout
from placed import Place
from torch.utils._python_dispatch import TorchDispatchMode

from inms_lab.attention import launched
from inms_lab.attention.batch import Span, build
from inms_lab.attention.launched import Launched, bucket, trial
from inms_lab.attention.reads import TileRef
from inms_lab.attention.store import KVStore
from inms_lab.errors import CompilerMissing
from inms_lab.kernels import launcher as launching
from inms_lab.kernels.launcher import HEADER, ROWS, Launcher
from inms_lab.model import compiling, from_model, probe, runner
from inms_lab.model.capture import Graphs
from inms_lab.model.runner import Geometry

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed; it comes with CUDA builds of torch",
)
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
# Of results of size 1: inputs and weights are rounded to the KV's own type, sums are in float32.
OFF = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


@pytest.fixture(scope="module")
def kernels() -> Launcher:
    return Launcher()


def layout_of(seed: int, **more: Any) -> Layout:
    return Layout(seed, **{"longest": 3, "device": DEVICE, **more})


# against dense attention -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_attention_equals_dense_attention_for_random_layouts(
    kernels: Launcher, dtype: torch.dtype
) -> None:
    for seed in range(12):
        layout = layout_of(seed, dtype=dtype)
        batch = layout.batch(layout.spans, kernels)
        assert isinstance(batch.compiled, Launched)
        q, k, v = layout.new(layout.spans)
        out = batch.attend(1, q, k, v, 0.25)
        assert out.dtype == dtype
        assert layout.error(out, q, 1) < OFF[dtype], seed


@pytest.mark.parametrize("heads", [(1, 1, 24), (2, 3, 40), (1, 20, 16), (1, 71, 16), (1, 2, 256)])
def test_heads_of_any_size_and_number(kernels: Launcher, heads: tuple[int, int, int]) -> None:
    layout = layout_of(1, heads=heads, agents=3)
    q, k, v = layout.new(layout.spans)
    assert layout.error(layout.batch(layout.spans, kernels).attend(0, q, k, v, 0.25), q, 0) < 1e-5


def test_a_tile_that_many_rows_hold_is_read_in_several_pieces(kernels: Launcher) -> None:
    layout = layout_of(2, agents=ROWS + 3, longest=1, heads=(1, 1, 16))
    batch = layout.batch(layout.spans, kernels)
    q, k, v = layout.new(layout.spans)
    assert layout.error(batch.attend(0, q, k, v, 0.25), q, 0) < 1e-5
    assert isinstance(batch.compiled, Launched)
    tiles = {(t.pool_id, t.slot) for span in layout.spans for t in span.tiles}
    assert batch.compiled.num_work > len(tiles)


def test_a_chunk_sees_itself_under_a_causal_mask(kernels: Launcher) -> None:
    layout = layout_of(7, longest=None, agents=1, heads=(1, 2, 16))
    assert len(layout.spans[0].tokens) > 20
    q, k, v = layout.new(layout.spans)
    assert layout.error(layout.batch(layout.spans, kernels).attend(0, q, k, v, 0.25), q, 0) < 1e-5


def test_rows_that_read_nothing_give_zeros_and_numbers_to_others(kernels: Launcher) -> None:
    layout = layout_of(3, agents=2)
    nothing = Span(0, [1], [0], [], [], True)
    q, k, v = (torch.cat((x[:1], x)) for x in layout.new(layout.spans))
    out = layout.batch([nothing, *layout.spans], kernels).attend(0, q, k, v, 0.25)
    assert not out[0].any()
    assert layout.error(out[1:], q[1:], 0) < 1e-5
    alone = layout.batch([nothing], kernels).attend(0, q[:1], k[:1], v[:1], 0.25)
    assert alone.shape == q[:1].shape
    assert not alone.any()


def test_what_a_mask_hides_does_not_matter(kernels: Launcher) -> None:
    """Slots behind what anybody sees are never read: not even what is no number shows."""
    store = KVStore(1, 1, 16, device=DEVICE)
    store.open("pool", 32)
    store.regions["pool"].normal_()
    spans = [Span(4, [1], [4], [("pool", 4)], [TileRef("pool", 0, 0, 5)], True)]
    q, k, v = (torch.randn(1, 1, 16, device=DEVICE) for _ in range(3))
    out = build(spans, store, 32, 1, 1, (), kernels).attend(0, q, k, v, 1.0)
    store.regions["pool"][:, :, :, 5:] = torch.nan
    same = build(spans, store, 32, 1, 1, (), kernels).attend(0, q, k, v, 1.0)
    assert torch.equal(same, out)


@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_large_and_small_scores_give_numbers(kernels: Launcher, size: float) -> None:
    layout = layout_of(5)
    q, k, v = layout.new(layout.spans)
    out = layout.batch(layout.spans, kernels).attend(0, q * size, k, v, 0.25)
    assert layout.error(out, q * size, 0) < 1e-5 * max(1.0, size)


def test_strides_and_padding_are_taken_as_they_come(kernels: Launcher) -> None:
    layout = layout_of(3)
    q, k, v = layout.new(layout.spans)
    plain = layout.batch(layout.spans, kernels).attend(0, q, k, v, 0.25)
    for one, two in ((0, 1), (1, 2)):
        odd = [x.transpose(one, two).contiguous().transpose(one, two) for x in (q, k, v)]
        assert torch.equal(layout.batch(layout.spans, kernels).attend(0, *odd, 0.25), plain)
    heads = layout.kv_heads * layout.groups
    padded = build(layout.spans, layout.store, layout.tile, heads, 16, (), kernels)
    wide = [torch.cat((x, torch.randn_like(x)[:1].expand(-len(q) % 16, -1, -1))) for x in (q, k, v)]
    out = padded.attend(0, *wide, 0.25)
    assert torch.equal(out[: len(q)], plain)
    assert not out[len(q) :].any()


def test_writes_are_those_of_the_plain_path(kernels: Launcher) -> None:
    regions = []
    for native in (kernels, None):
        layout = layout_of(4, dtype=torch.float16)
        layout.batch(layout.spans, native).attend(1, *layout.new(layout.spans), 0.25)
        regions.append(layout.store.regions)
    for pool, region in regions[0].items():
        assert torch.equal(region, regions[1][pool])


def test_the_header_names_every_array_of_a_layout(kernels: Launcher) -> None:
    module = kernels._kernels
    for place, name in enumerate(HEADER):
        constant = getattr(module, name.upper())
        assert getattr(constant, "value", constant) == place, name


def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ahead.py")
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9


SCRIPT = Path(__file__).parents[1] / "benchmarks/gpu.sh"


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """benchmarks/gpu.sh with this Python."""
    settings = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_script_for_gpus_says_that_there_is_none() -> None:
    done = script()
    assert done.returncode == 2
    assert "no GPU here, so the CUDA path was not run" in done.stderr
    assert not done.stdout


@pytest.mark.slow
def test_the_script_for_gpus_runs_dry() -> None:
    done = script("--dry")
    assert done.returncode == 0, done.stderr
    assert "all checks passed" in done.stdout
    assert "decode, compiled, shared: " in done.stdout


# models -----------------------------------------------------------------------------------------


def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compile=True` takes these kernels on any device."""

    def chosen(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> Launcher:
        made = Launcher()
        trial(made, (geometry.num_heads, geometry.num_kv_heads, geometry.head_dim), dtype, device)
        return made

    monkeypatch.setattr(runner, "kernels", chosen)


def test_a_model_in_half_precision_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(monkeypatch)
    model = models.mqa(num_hidden_layers=1).to(DEVICE, torch.bfloat16)
    made = from_model(model, compile=True)
    assert isinstance(made.native, Launcher)
    assert made.admission is not None
    assert made.admission.compiled
    assert made.admission.max_logit_error <= made.admission.tolerance
    assert not made.bitwise


def test_a_model_in_float32_gives_the_logits_of_stock_transformers() -> None:
    made = from_model(models.llama(num_hidden_layers=2).to(DEVICE))
    made.native = Launcher()
    packed, dense = probe.packed(made, 16), probe.dense(made)
    assert (packed.first - dense[0]).abs().max() < 2e-4
    assert (packed.second - dense[1]).abs().max() < 2e-4


def test_a_fragment_is_read_at_several_shifts_as_by_the_plain_operators() -> None:
    made = from_model(models.llama().to(DEVICE))
    logits = []
    for native in (None, Launcher()):
        made.native = native
        torch.manual_seed(0)
        place = Place(made, 32 * 16)
        (home,) = place.encode([5, 6, 7, 8, 9] * 5, 40)
        readers = [place.reader([(home, at)], [11, 12, 13], at + len(home)) for at in (0, 40, 90)]
        logits.append(place.read(*(place.span(reader) for reader in readers)).logits)
    assert (logits[0] - logits[1]).abs().max() < 2e-4


# who gets them ----------------------------------------------------------------------------------


def test_a_model_on_cuda_gets_these_kernels_once_they_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(compiling, "trial", lambda *args: tried.append(args[1:]))
    for dtype in OFF:
        made = compiling.kernels(Geometry(2, 6, 3, 64), dtype, torch.device("cuda"))
        assert isinstance(made, Launcher)
        assert tried.pop() == ((6, 3, 64), dtype, torch.device("cuda"))


def test_without_triton_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(launching, "import_module", missing)
    with pytest.raises(CompilerMissing, match="pip install triton"):
        Launcher()


def test_kernels_that_cannot_be_built_or_are_wrong_are_not_used(
    monkeypatch: pytest.MonkeyPatch, kernels: Launcher
) -> None:
    heads, device = (4, 2, 16), torch.device(DEVICE)
    trial(kernels, heads, torch.float32, device)

    def broken(*args: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nmore")

    broken_launcher = SimpleNamespace(readers=kernels.readers, write=broken)
    with pytest.raises(CompilerMissing, match=r"RuntimeError: Failed to find C compiler\.\)"):
        trial(broken_launcher, heads, torch.float32, device)  # type: ignore[arg-type]
    plain = launched.packed

    def blind(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return plain({**arrays, "reader_seen": np.minimum(arrays["reader_seen"], 3)})

    monkeypatch.setattr(launched, "packed", blind)
    with pytest.raises(CompilerMissing, match="off plain attention"):
        trial(kernels, heads, torch.float32, device)


# steps that are recorded ------------------------------------------------------------------------


def test_buckets_are_large_enough_and_few() -> None:
    sizes = [bucket(number) for number in range(2000)]
    assert all(size >= number and size <= 1.26 * number + 1 for number, size in enumerate(sizes))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 45


def test_a_reader_with_room_for_more_gives_the_same_bits(kernels: Launcher) -> None:
    """Also when it has followed another plan of its shape before."""
    by_shape: dict[tuple[int, ...], Launched] = {}
    taken = 0
    for seed in range(3):
        layout = layout_of(11, agents=5, heads=(1, 2, 16))
        for count in range(2, 6):
            spans = layout.spans[:count] if seed % 2 else layout.spans[-count:]
            reader = layout.batch(spans, kernels).compiled
            assert isinstance(reader, Launched)
            new = layout.new(spans)
            plain = reader.attend(1, *new, 0.25)
            shape = reader.shape[:-1]  # the regions lie elsewhere in each layout
            larger = by_shape.get(shape)
            if larger is None:
                larger = by_shape[shape] = reader.grown()
            else:
                taken += 1
                larger.kv = reader.kv
                larger.take(reader)
            assert larger.num_work >= reader.num_work
            assert torch.equal(larger.attend(1, *new, 0.25), plain)
    assert taken


def decoding(made: runner.Runner, steps: int) -> list[torch.Tensor]:
    """Logits of steps in which two readers of a shared text each compute one token of theirs."""
    torch.manual_seed(0)
    place = Place(made, 32 * 16)
    (home,) = place.encode([5, 6, 7, 8, 9] * 4, 0)
    own = [[11 + i % 7 for i in range(steps)], [3 + i % 5 for i in range(steps)]]
    readers = [place.reader([(home, 0)], tokens, len(home)) for tokens in own]
    out = []
    with torch.inference_mode():
        for i in range(steps):
            spans = [place.span(reader, i, i + 1) for reader in readers]
            out.append(made.forward(spans, place.store, 16))
    return out


@pytest.mark.parametrize("fault", ["", "stale", "fails"])
def test_steps_of_one_shape_are_recorded_once_and_replayed_with_what_is_new(fault: str) -> None:
    made = from_model(models.mqa(num_hidden_layers=1).to(DEVICE))
    made.native = Launcher()
    plain = decoding(made, 8)
    recorded = []

    def record(forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        if fault == "fails":
            raise RuntimeError("operation not permitted when stream is capturing")
        first = forward()
        recorded.append(first)
        return (lambda: first) if fault == "stale" else forward

    graphs = Graphs(made, record)
    graphs.install()
    replayed = decoding(made, 8)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, replayed, strict=True))
    if fault:
        assert graphs.reason
    else:
        assert not graphs.reason
        assert len(recorded) < graphs.replays >= 4


class _Asked(TorchDispatchMode):
    """Keeps the names of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, f: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(f.overloadpacket.__name__)
        return f(*args, **kwargs or {})


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_a_forward_neither_waits_for_the_device_nor_brings_it_numbers(name: str) -> None:
    """Else it could not be recorded."""
    made = from_model(getattr(models, name)(num_hidden_layers=1).to(DEVICE))
    made.native = Launcher()
    place = Place(made, 32 * 16)
    reader = place.reader([], [11, 12], 0)
    batch = made.batch([place.span(reader, 0, 1)], place.store, 16)
    with torch.inference_mode(), _Asked() as asked:
        made.run(batch)
    assert asked.names & {"linear", "mm", "addmm"}
    waits = {"item", "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}
    assert not asked.names & (waits | {"lift_fresh", "scalar_tensor"})


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
def test_cuda_graphs_give_the_same_logits() -> None:
    made = from_model(models.llama().to(DEVICE), compile=True)
    plain = decoding(made, 12)
    graphs = Graphs(made)
    graphs.install()
    replayed = decoding(made, 12)
    assert not graphs.reason
    assert graphs.replays
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, replayed, strict=True))
