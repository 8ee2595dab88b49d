"""From a measurement to what the gate needs: one model's `Calibration`, and what time costs here.

calibration = calibrate(runner, samples)     # measured, kept in the user's cache
calibration_of(runner.digest)                # found again (calibrations.py), without torch
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from inms_lab.books.gate import Calibration
from inms_lab.interference.contexts import Scratch
from inms_lab.interference.measure import Measurement, measure
from inms_lab.interference.samples import Sample
from inms_lab.interference.variants import FULL, MISSING, PUBLIC, Settings
from inms_lab.model.runner import Runner
from inms_lab.notebook.calibrations import keep

MAX_KL, MIN_AGREEMENT = 0.035, 0.92  # what "behind public context, shifted" must hold on average


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds on this machine, medians."""

    prefill_ms: float  # of one token, in a chunk behind a context
    tile_ms: float  # of one tile more in a decode step, read at a shift beside its neighbours


def calibrate(
    runner: Runner,
    samples: Sequence[Sample],
    settings: Settings | None = None,
    path: str | Path | None = None,
    *,
    what: str = "",
    folder: Path | None = None,
    progress: bool = True,
) -> Calibration:
    """Measure (measure.py), and keep the calibration in `folder`, without one in the user's cache.

    `what` says in words what the samples are.
    """
    measured = measure(runner, samples, settings, path, progress=progress)
    calibration = calibration_from(measured, cost_of(runner), what)
    keep(calibration, folder)
    return calibration


def calibration_from(measured: Measurement, cost: Cost, what: str, seed: int = 0) -> Calibration:
    """The calibration that follows from a measurement: of records encoded behind public context."""
    kl, same = (measured.interval(PUBLIC, name, seed) for name in ("kl", "agreement"))
    return Calibration(
        model=measured.model,
        kl=kl.mean,
        kl_interval=(kl.low, kl.high),
        agreement=same.mean,
        agreement_interval=(same.low, same.high),
        num_samples=len(measured.outcomes),
        prefill_ms=cost.prefill_ms,
        tile_ms=cost.tile_ms,
        what=what,
    )


def cost_of(runner: Runner, tile: int = 64, repeat: int = 15) -> Cost:
    """Time a chunk of prefill, and decode steps with and without four fragments of eight tiles.

    The two kinds of step take turns, so that a machine that others use slows both alike.
    """
    tile = min(tile, runner.max_context // 64)
    length, rng = 8 * tile, random.Random(0)
    words = [rng.randrange(runner.vocab_size) for _ in range(3 * length)]
    scratch = Scratch(runner, tile, 6 * length)
    context = scratch.encode(words[:length])
    fragment = scratch.encode(words[length : 2 * length])
    fragments = [fragment, *(scratch.copy(fragment) for _ in range(3))]
    prefills, tiles = [], []
    for i in range(repeat):
        if i % 3 == 0:
            with scratch.room():
                prefills.append(_timed(scratch, words[2 * length :], [context]) / length)
        without = _timed(scratch, [], [context])
        tiles.append((_timed(scratch, [], [context, *fragments]) - without) / 32)
    scratch.close()
    return Cost(statistics.median(prefills), max(0.0, statistics.median(tiles)))


def holds(calibration: Calibration) -> bool:
    """Whether the mean interference is within what the lab promises of its default model."""
    return calibration.kl <= MAX_KL and calibration.agreement >= MIN_AGREEMENT


def as_result(
    measured: Measurement, calibration: Calibration, command: str, seed: int
) -> dict[str, Any]:
    """Everything a results file needs, as plain data: all variants with their intervals."""
    variants = measured.table(seed).astype(object)
    names = [name for name in measured.settings.names if name not in (FULL, MISSING)]
    errors = {name: measured.kv_error(name) for name in names}
    return {
        "command": command,
        "machine": machine(),
        "seed": seed,
        "model": measured.model,
        "what": calibration.what,
        "num_samples": len(measured.outcomes),
        "settings": asdict(measured.settings),
        "bounds": {"kl": MAX_KL, "agreement": MIN_AGREEMENT, "hold": holds(calibration)},
        "variants": {
            name: {key: _short(value, 6) for key, value in row.items()}
            for name, row in variants.to_dict(orient="index").items()
        },
        "kv_error_by_layer": {
            name: [_short(x) for x in error.mean(axis=1)] for name, error in errors.items()
        },
        "kv_error": {PUBLIC: [[_short(x) for x in row] for row in errors[PUBLIC].to_numpy()]},
        "kl_by_token": {
            name: [_short(x) for x in column] for name, column in measured.kl_by_token().items()
        },
        "calibration": asdict(calibration),
    }


def machine() -> str:
    """This machine in words: what decides times, and the last digits of numbers."""
    kind = platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{kind}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"


def _timed(scratch: Scratch, tokens: Sequence[int], behind: Sequence[Any]) -> float:
    """Milliseconds of one forward that computes these tokens."""
    start = time.perf_counter()
    scratch.logits(tokens, behind)
    if scratch.store.device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def _short(value: float, digits: int = 4) -> float | None:
    return None if value != value else float(f"{value:.{digits}g}")  # NaN: there is none
