"""Copy-on-write in software against the operating system's pages, on the CPU: bytes and time.

Both lie on the same shared memory: `SharedParameters.branch` maps it privately, `software.wrap`
never writes it. Each run takes fresh modules, reads them, changes some of the weights twice (the
first time it copies) and reads again; where whole tensors are changed they are trained for a step
as well. Systems take turns, and ratios are taken of neighbours in time.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import BadInput
from inms_lab.model.progress import bar
from inms_lab.parameters.host import KIB, MIB
from inms_lab.parameters.kernel import PRIVATE
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.software import private_bytes, wrap
from inms_lab.parameters.weights import without_parameters

PATTERNS = ("tensors", "pages", "scattered")
THRESHOLDS = (4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB)
PHASES = ("read", "change", "again", "read_after", "step")
KERNEL = "kernel"
Row = dict[str, Any]
Change = dict[str, torch.Tensor | None]  # by name: which elements of a tensor; None: all


@dataclass(frozen=True, slots=True)
class Load:
    """`changed`, the share of the weights that is written; `tokens` of a read and of a step."""

    changed: float = 0.15
    tokens: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.changed <= 1:
            raise BadInput(f"changed is more than 0 and at most 1, not {self.changed!r}")
        if self.tokens < 2:
            raise BadInput(f"tokens is 2 or more, not {self.tokens!r}")


@dataclass
class Run:
    """One module's seconds by phase, its private bytes, and what it says afterwards."""

    seconds: dict[str, float]
    private: int
    logits: torch.Tensor


def measure(
    source: Any = None,
    load: Load | None = None,
    patterns: Sequence[str] = PATTERNS,
    thresholds: Sequence[int] = THRESHOLDS,
    repeat: int = 5,
    progress: bool = False,
) -> dict[str, Any]:
    """Each pattern in `repeat` rounds of all systems. `source`: of a causal language model, as
    `SharedParameters` takes it, or None for a small one with random weights.

    `rows`, a pattern and system each (a system is the kernel, or a threshold in bytes):
    `private_bytes`, milliseconds of a first read, of the change, of the same change again, of a
    read afterwards and of a training step (medians; None if there is none), and whether what the
    module says is what it says on the kernel's pages, in bits. `ratios`: of the times to those on
    the kernel's pages, with 95 % intervals. Raises `BadInput`.
    """
    load = load or Load()
    if unknown := [name for name in patterns if name not in PATTERNS]:
        raise BadInput(f"patterns are {', '.join(PATTERNS)}; not {unknown[0]}")
    if repeat < 2 or not thresholds:
        raise BadInput("at least two rounds of at least one threshold are wanted")
    rows: list[Row] = []
    ratios: list[Row] = []
    with SharedParameters(drawn(load.seed) if source is None else source) as params:
        systems: list[int | str] = [KERNEL, *thresholds]
        total = len(patterns) * repeat * len(systems)
        with bar(total, "copy-on-write", unit="run", enabled=progress) as done:
            for pattern in patterns:
                change = chosen(pattern, params.layout, load)
                runs: dict[int | str, list[Run]] = {system: [] for system in systems}
                for number in range(repeat):
                    for system in systems[:: -1 if number % 2 else 1]:
                        runs[system].append(_run(params, system, change, pattern, load))
                        done.update(1)
                for system in systems:
                    told = (pattern, system, runs[system], runs[KERNEL])
                    rows.append(_row(*told))
                    ratios += _ratios(*told) if system != KERNEL else []
        sizes = {"weights_bytes": params.layout.weight_bytes, "changed": load.changed}
    return {**sizes, "tokens": load.tokens, "rounds": repeat, "rows": rows, "ratios": ratios}


def chosen(pattern: str, layout: Layout, load: Load) -> Change:
    """What is changed: whole tensors (none that would go far beyond the share, one at least), whole
    pages, or single values."""
    rng = random.Random(f"{pattern} {load.seed}")
    wanted = load.changed * layout.weight_bytes
    if pattern == "tensors":
        taken: Change = {}
        for name in rng.sample(list(layout.spots), len(layout.spots)):
            if not taken or wanted >= layout.spots[name].num_bytes:
                taken[name] = None
                wanted -= layout.spots[name].num_bytes
        return taken
    draws = np.random.default_rng(load.seed)
    parts: Change = {}
    for name, spot in layout.spots.items():
        size = getattr(torch, spot.dtype).itemsize
        unit = PAGE // size if pattern == "pages" else 1
        count = spot.num_bytes // size
        hit = np.flatnonzero(draws.random(-(-count // unit)) < load.changed)
        at = (hit[:, None] * unit + np.arange(unit)).reshape(-1)
        if len(at):
            parts[name] = torch.from_numpy(at[at < count])
    return parts


def drawn(seed: int = 0) -> torch.nn.Module:
    """A small Llama with random weights, 27 MB: most of its tensors are larger than 1 MiB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=320,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def _run(
    params: SharedParameters, system: int | str, change: Change, pattern: str, load: Load
) -> Run:
    module, private = _made(params, system)
    ids = torch.arange(3, 3 + load.tokens).view(1, -1)
    seconds: dict[str, float] = {}

    def timed(phase: str, act: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        answer = act()
        seconds[phase] = time.perf_counter() - started
        return answer

    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        module(ids)  # pages are mapped, kernels are warm
        timed("read", lambda: module(ids))
        for phase in ("change", "again"):
            timed(phase, lambda: _write(tensors, change))
        held = private()
        logits = timed("read_after", lambda: module(ids)).logits
    if pattern == "tensors":
        timed("step", lambda: _step(module, [tensors[name] for name in change], ids))
    return Run(seconds, held, logits)


def _made(params: SharedParameters, system: int | str) -> tuple[torch.nn.Module, Callable[[], int]]:
    """A module on the weights, and what tells its private bytes."""
    if system == KERNEL:
        branch = params.branch("bench")
        return branch.module, lambda: params.pages(branch).count(PRIVATE)
    make = params.source.make
    assert make is not None  # branch() needs it too
    with without_parameters():
        empty = make()
    module = wrap(empty, params.tensors(), int(system))
    return module, lambda: private_bytes(module)


def _write(tensors: dict[str, torch.Tensor], change: Change) -> None:
    for name, at in change.items():
        if at is None:
            tensors[name].mul_(1.01)
        else:
            tensors[name].view(-1)[at] *= 1.01


def _step(module: torch.nn.Module, trained: Sequence[torch.Tensor], ids: torch.Tensor) -> None:
    module.requires_grad_(False)
    for tensor in trained:
        tensor.requires_grad_(True)
    optimizer = torch.optim.SGD(trained, 1e-3)
    module(ids, labels=ids).loss.backward()
    optimizer.step()


def _row(pattern: str, system: int | str, runs: Sequence[Run], kernel: Sequence[Run]) -> Row:
    """Medians of a system's runs in a pattern."""
    times = {
        f"{phase}_ms": round(1e3 * statistics.median(run.seconds[phase] for run in runs), 2)
        if phase in runs[0].seconds
        else None
        for phase in PHASES
    }
    same = (torch.equal(a.logits, b.logits) for a, b in zip(runs, kernel, strict=True))
    private = {"private_bytes": runs[0].private}
    return {"pattern": pattern, "system": system, **private, **times, "same_bits": all(same)}


def _ratios(
    pattern: str, system: int | str, runs: Sequence[Run], kernel: Sequence[Run]
) -> list[Row]:
    """Times of a system against the kernel's pages, a row a phase."""
    found = []
    for phase in runs[0].seconds:
        ratio, low, high = ratio_of(*([run.seconds[phase] for run in s] for s in (runs, kernel)))
        numbers = {"ratio": round(ratio, 3), "low": round(low, 3), "high": round(high, 3)}
        found.append({"pattern": pattern, "system": system, "phase": phase, **numbers})
    return found
