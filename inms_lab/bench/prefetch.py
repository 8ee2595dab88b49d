"""A cold start with layers asked for ahead, and without: seconds until the first token."""

from __future__ import annotations

import gc
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inms_lab.bench.header import spread
from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import BadInput
from inms_lab.model.progress import bar
from inms_lab.parameters.prefetch import File, Prefetch, cached, forget
from inms_lab.parameters.region import View
from inms_lab.parameters.sources import Source
from inms_lab.parameters.weights import module_on


def measure(
    source: Source,
    degrees: Sequence[int] = (0, 1, 2, 4, 8),
    tokens: int = 64,
    repeat: int = 5,
    budget: int | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Each degree in turn, `repeat` times: the weights are taken out of the system's cache, mapped
    and a text of `tokens` is read. Bits must not depend on the degree. `folder`: a disk with room.
    """
    if not degrees or min(degrees) < 0 or tokens < 1 or repeat < 1:
        raise BadInput("degrees are 0 or more, tokens and repeat at least 1")
    runs: dict[int, list[dict[str, float]]] = {degree: [] for degree in degrees}
    outputs = []
    try:
        temporary = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise BadInput(
            f"nothing can be written into {folder or tempfile.gettempdir()} ({error.strerror}): "
            "name a folder that there is, on a disk with room, --folder ~/.cache"
        ) from error
    with temporary as place:
        file = File(Path(place) / "weights", source.layout)
        file.write(source.tensors())
        with bar(repeat * len(degrees), "prefetch", unit="start") as progress:
            for _ in range(repeat):
                for degree in degrees:
                    run, output = _start(source, file, degree, tokens, budget)
                    runs[degree].append(run)
                    outputs.append(output)
                    progress.update()
    rows = [_row(degree, runs) for degree in degrees]
    equal = all(torch.equal(output, outputs[0]) for output in outputs)
    return {"weights_bytes": source.layout.weight_bytes, "equal": equal, "rows": rows}


def _start(
    source: Source, file: File, degree: int, tokens: int, budget: int | None
) -> tuple[dict[str, float], torch.Tensor]:
    piece = file.open()
    gc.collect()  # a module that nobody has any more keeps its pages mapped, and so in the cache
    forget(piece)
    warm = cached(piece)
    if warm == piece.num_bytes:
        raise BadInput(
            f"pages of {file.path.parent} stay in memory (a tmpfs?), so no start is cold: "
            "name a folder on a disk, --folder ~/.cache"
        )
    view = View(source.layout.num_bytes)
    view.lay([piece])
    assert source.make is not None
    module = module_on(source.make, view, source.layout)
    text = torch.arange(tokens)[None] % 97 + 3
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    with Prefetch(module, view, source.layout, degree, budget, piece) as ahead:
        began = time.perf_counter()
        with torch.inference_mode():
            logits = module(text).logits[0, -1].clone()
        seconds = time.perf_counter() - began
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    return {"seconds": seconds, "faults": faults, "asked": ahead.asked, "warm": warm}, logits


def _row(degree: int, runs: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    first = next(iter(runs))
    mine, base = ([run["seconds"] for run in runs[one]] for one in (degree, first))
    ratio, low, high = ratio_of(mine, base)
    return {
        "degree": degree,
        "ms": spread([1000 * one for one in mine], 1),
        f"to_degree_{first}": round(ratio, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "verdict": "faster" if high < 1 else "slower" if low > 1 else "not told apart",
        "major_faults": sorted(run["faults"] for run in runs[degree])[len(runs[degree]) // 2],
        "asked_bytes": runs[degree][-1]["asked"],
        "warm_bytes": max(run["warm"] for run in runs[degree]),  # that were no cold start
    }
