"""The CUDA path, checked and timed; `bash benchmarks/gpu.sh` finds a Python and a GPU for it.

Checks: attention over random layouts against dense attention, small models and the default one
against stock transformers (the admission). Times: decode of agents behind a shared prefix, with and
without the compiled kernels, with and without sharing, in alternating rounds. `--dry` does the same
on the CPU with small sizes and Triton's interpreter, and writes nothing: its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import models
import torch
from layouts import Layout
from transformers import LlamaConfig, LlamaForCausalLM

from inms_lab.attention.launched import trial
from inms_lab.bench.contexts import WARM_UP, Contexts, Work, room_for
from inms_lab.bench.header import machine, spread
from inms_lab.kernels.launcher import Launcher
from inms_lab.model import from_model, runner
from inms_lab.model.capture import Graphs, on_cuda
from inms_lab.model.loader import load_model
from inms_lab.model.runner import Geometry, Runner
from inms_lab.model.source import default_folder

HALF = {torch.bfloat16: 4e-2, torch.float16: 5e-3}  # as in tests/test_triton.py
KINDS = {torch.float32: 1e-5, **HALF}
SHAPES = ((3, 3, 64), (2, 4, 128))  # kv heads, query heads of each, their size
SEED = 0


def layouts(device: str, dry: bool) -> list[dict[str, Any]]:
    """The largest deviation from dense attention, over random layouts."""
    found = []
    for dtype, limit in KINDS.items():
        for heads in SHAPES[:1] if dry else SHAPES:
            worst, kernels = 0.0, Launcher()
            for seed in range(1 if dry else 6):
                many = {"agents": 2 if dry else 1 + 6 * (seed % 3), "longest": 2 if dry else 40}
                layout = Layout(seed, heads=heads, dtype=dtype, device=device, **many)
                q, k, v = layout.new(layout.spans)
                out = layout.batch(layout.spans, kernels).attend(1, q, k, v, 0.25)
                worst = max(worst, layout.error(out, q, 1))
            shape = {"kv_heads": heads[0], "groups": heads[1], "head_dim": heads[2]}
            found.append({"dtype": str(dtype), **shape, "error": worst, "limit": limit})
            print(f"layouts {dtype} {heads}: {worst:.1e} (limit {limit:.0e})")
    return found


def admitted(what: str, made: Runner) -> dict[str, Any]:
    """What the admission found."""
    assert made.admission is not None
    error, limit = made.admission.max_logit_error, made.admission.tolerance
    compiled = made.native is not None
    print(f"{what} {made.dtype}: {error:.1e} (limit {limit:.1e}), compiled: {compiled}")
    facts = {"dtype": str(made.dtype), "error": error, "limit": limit, "compiled": compiled}
    return {"model": what, **facts}


def default_model(device: str) -> tuple[str, Any]:
    """The default model in half precision; without its folder, random weights of its shapes."""
    try:
        folder = default_folder()
    except ImportError:  # nothing that knows where a user's cache is
        folder = Path("absent")
    if folder.exists():
        return "default", load_model(folder, device, torch.bfloat16)
    torch.manual_seed(SEED)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=8192, tie_word_embeddings=True)
    return "random weights", LlamaForCausalLM(config).to(device, torch.bfloat16)


def decode(runners: dict[str, Runner], work: Work, tokens: int, repeat: int) -> dict[str, Any]:
    """Tokens per second of every way to do the same work, a round of each after another."""
    ways = {
        f"{kernels}, {sharing}": (made, mode)
        for sharing, mode in (("shared", "inms"), ("not shared", "independent"))
        for kernels, made in runners.items()
    }
    steps: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        ready = {
            way: stack.enter_context(Contexts(made, work, mode=mode))
            for way, (made, mode) in ways.items()
        }
        for contexts in ready.values():
            contexts.write(1)  # builds what is built at first use
        for _ in range(repeat):
            for way, contexts in ready.items():
                seconds = contexts.write(tokens).rounds[0][WARM_UP:]
                steps[way].append(statistics.median(seconds))
    found = {}
    for way, medians in steps.items():
        rates = spread([work.agents / s for s in medians], 1)
        found[way] = {"tokens_per_s": rates, "step_ms": spread([1e3 * s for s in medians])}
        print(f"decode, {way}: {rates['median']} tokens/s")
    return {"work": asdict(work), "tokens": tokens, "repeat": repeat, "ways": found}


def interpreted() -> None:
    """Let `compile=True` take the Triton kernels on the CPU too."""

    def chosen(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> Launcher:
        kernels = Launcher()
        trial(
            kernels, (geometry.num_heads, geometry.num_kv_heads, geometry.head_dim), dtype, device
        )
        return kernels

    runner.kernels = chosen  # type: ignore[assignment]


def keep(out: Path | None, result: dict[str, Any]) -> None:
    """Write what is known."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {out}")


def main() -> None:
    """Check, time, write; exit 1 where a check fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    dry, started = options.dry, time.perf_counter()
    if dry:
        interpreted()
    elif not torch.cuda.is_available():
        sys.exit("no GPU here: start this with benchmarks/gpu.sh")
    device = "cpu" if dry else "cuda"
    checked = [*layouts(device, dry)]
    for dtype in HALF if dry else KINDS:
        model = models.mqa(num_hidden_layers=1) if dry else models.llama()
        checked.append(admitted("small", from_model(model.to(device, dtype), compile=True)))
        if dry:
            break
    name, model = ("small", model) if dry else default_model(device)
    plain, compiled, recorded = (from_model(model, compile=c) for c in (False, True, True))
    graphs = Graphs(recorded, (lambda forward: forward) if dry else on_cuda)
    graphs.install()
    checked.append(admitted(name, compiled))
    wrong = [x for x in checked if not x["error"] <= x["limit"] or x.get("compiled") is False]
    result = {
        "bench": "gpu",
        "gpu": "none: a dry run" if dry else torch.cuda.get_device_name(),
        "machine": machine() | {"triton": metadata.version("triton")},
        "model": name,
        "ok": not wrong,
        "checks": checked,
    }
    took = time.perf_counter() - started
    print(f"checked in {took:.0f} s")
    keep(options.out, result)  # should time run out
    tokens, repeat = (2, 1) if dry else (40, 5 if took < 90 else 3)
    sizes = (40, 20, 2) if dry else (4096, 1024, 8)
    work = Work(*sizes, room_for(tokens), SEED, drawn=True)
    runners = {"plain": plain, "compiled": compiled, "compiled, graphs": recorded}
    times = decode(runners, work, tokens, repeat)
    times["graphs"] = {"replays": graphs.replays, "given_up": graphs.reason}
    seconds = round(time.perf_counter() - started, 1)
    keep(options.out, result | {"decode": times, "seconds": seconds})
    print(f"graphs: {graphs.replays} replays{graphs.reason and ', given up: ' + graphs.reason}")
    print(f"{'all checks passed' if not wrong else f'FAILED: {wrong}'}; {seconds} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
