"""One layer of a decode step, for readers that share a text and for readers with a copy each.

    python benchmarks/read_once.py [--readers 1 2 4 8 16] [--repeat 21] [--threads 1] [--json FILE]

The contexts are those of lab 09: 512 tokens of prompt, 4096 of a shared text, 2048 of the reader's
own; sizes of SmolLM2-135M, numbers made up. Timed are a layer's attention, by torch's operators and
by the compiled kernels where there is a compiler, and a layer's matrix products, which read the
weights once for all readers. Everything takes turns, over several layers so that nothing is read
from a cache. Prints the bytes and the medians; writes nothing without `--json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from inms_lab.bench.header import machine, spread
from inms_lab.errors import CompilerMissing
from inms_lab.kernels.native import Native
from inms_lab.terminal.standin import SMOLLM2_135M
from inms_lessons.reading import GEOMETRY, Readers

LAYERS = 4  # more than a cache holds
HELD = {"shared": "inms", "copies": "independent"}  # where the text lies: the mode of the lab


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    result = measured(sorted(set(given.readers)), given.repeat)
    for row in result["attention"]:
        where = f"{row['kernels']:<9} {row['held']:<7} {row['readers']:>3} readers"
        print(f"{where}  {row['kv_bytes'] / 1e6:6.1f} MB  {row['scores']:>9,} scores", end="")
        print("  {median:7.2f} ms ({min:.2f} to {max:.2f})".format(**row["ms"]))
    for row in result["products"]:
        print(f"{row['kernels']:<9} products {row['readers']:>2} readers", end="")
        print(f"  {result['weight_bytes'] / 1e6:6.1f} MB", end="")
        print("  {median:7.2f} ms ({min:.2f} to {max:.2f})".format(**row["ms"]))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(readers: list[int], repeat: int) -> dict[str, Any]:
    """All rows, as plain data."""
    torch.manual_seed(0)
    try:
        kernels: dict[str, Native | None] = {"torch": None, "compiled": Native()}
    except CompilerMissing:
        kernels = {"torch": None}
    teams = {held: Readers(mode, max(readers), layers=LAYERS) for held, mode in HELD.items()}
    weights = [_weights() for _ in range(LAYERS)]
    calls: list[tuple[dict[str, Any], Callable[[int], object]]] = []
    for name, native in kernels.items():
        for count in readers:
            for held, team in teams.items():
                own = native and Native()  # its room is not given to another step
                plain, step = team.step(count), team.step(count, own)
                about = {"kernels": name, "held": held, "readers": count}
                counts = {"kv_bytes": plain.bytes, "scores": plain.scores}
                calls.append((about | counts, step.attend))
            about = {"kernels": name, "readers": count}
            calls.append((about, _products(weights, count, native)))
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeat + 1):  # the first one warms up
        for (_, call), taken in zip(calls, times, strict=True):
            started = time.perf_counter()
            for layer in range(LAYERS):
                call(layer)
            if turn:
                taken.append(1000 * (time.perf_counter() - started) / LAYERS)
    rows = [about | {"ms": spread(taken)} for (about, _), taken in zip(calls, times, strict=True)]
    return {
        "bench": "read_once",
        "command": "python benchmarks/read_once.py --json benchmarks/results/read_once.json",
        "machine": machine() | {"threads": torch.get_num_threads()},
        "seed": 0,
        "repeat": repeat,
        "lengths": asdict(teams["shared"].lengths),
        "num_layers": GEOMETRY.num_layers,
        "weight_bytes": sum(w.nbytes for w in weights[0]),
        "attention": [row for row in rows if "held" in row],
        "products": [row for row in rows if "held" not in row],
    }


def _weights() -> list[torch.Tensor]:
    """A layer's matrices, made up: [outputs, inputs]."""
    hidden, wide = GEOMETRY.hidden_size, SMOLLM2_135M["intermediate_size"]
    assert isinstance(wide, int)
    own, kv = (heads * GEOMETRY.head_dim for heads in (GEOMETRY.num_heads, GEOMETRY.num_kv_heads))
    shapes = [(own, hidden), (kv, hidden), (kv, hidden), (hidden, own)]
    shapes += [(wide, hidden), (wide, hidden), (hidden, wide)]
    return [torch.randn(shape) for shape in shapes]


def _products(
    weights: list[list[torch.Tensor]], rows: int, native: Native | None
) -> Callable[[int], object]:
    """A layer's products with `rows` rows."""
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights[0]}

    def multiply(layer: int) -> object:
        if native is None:
            return [functional.linear(inputs[w.shape[1]], w) for w in weights[layer]]
        return [native.linear(w, None, inputs[w.shape[1]]) for w in weights[layer]]

    return multiply


if __name__ == "__main__":
    main()
