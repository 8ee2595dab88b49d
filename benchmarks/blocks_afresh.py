"""Which blocks of a fragment are worth computing afresh? Rules beside each other. Writes JSON.

    python benchmarks/blocks_afresh.py [--seed 0] [--out FILE]

Eight logs of the package's invented team, three stretches of each; a reader attaches eight blocks
that were encoded behind public text only, and some are computed afresh. KL to full prefill, nats a
token, over the next 32 tokens. What was done is kept in benchmarks/scratch/, to be taken up again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from inms_lab.interference.calibrate import machine
from inms_lab.interference.compare import bootstrap
from inms_lab.interference.contexts import Scratch
from inms_lab.interference.resume import Lines
from inms_lab.model import load
from inms_lab.model.progress import bar
from inms_lab.notebook.text import Text
from inms_lessons.bench import LAYERS, NUM_BLOCKS, SIZES, Reader, stretches

HERE = Path(__file__).resolve().parent
BUDGET = 2  # blocks of eight: a quarter
SAME = 1e-5  # KL that is no difference
FIRST, NONE, BEST = "first", "none", "best pair"
EARLY, THIRD = "deviating, layers 1-2", f"deviating, layers 1-{LAYERS - 1}"
Rule = Callable[[np.ndarray], np.ndarray]  # deviation [layers, blocks] -> how much each is wanted

RULES: dict[str, Rule] = {
    FIRST: lambda d: -np.arange(d.shape[1]),
    "last": lambda d: np.arange(d.shape[1]),
    "first and last": lambda d: np.abs(np.arange(d.shape[1]) - (d.shape[1] - 1) / 2),
    EARLY: lambda d: d[1:3].mean(axis=0),
    "deviating, layers 1-5": lambda d: d[1:6].mean(axis=0),
    THIRD: lambda d: d[1:LAYERS].mean(axis=0),
    f"deviating, layer {LAYERS - 1}": lambda d: d[LAYERS - 1],
    "deviating, all layers": lambda d: d.mean(axis=0),
    "least deviating": lambda d: -d[1:LAYERS].mean(axis=0),
}
BY_BUDGET = (FIRST, EARLY, THIRD)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "blocks_afresh.json")
    options = parser.parse_args()
    found = measure(HERE / "scratch" / "blocks_afresh.jsonl")
    result = {
        "command": f"python benchmarks/blocks_afresh.py --seed {options.seed}",
        "machine": machine(),
        "seed": options.seed,
        **summary(found, options.seed),
        "readers": found,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(path: Path) -> list[dict[str, Any]]:
    """Each reader: what it is, KL with every pair of blocks and by rule and budget."""
    runner = load("smollm2-135m")
    every = stretches(Text(runner.tokenizer, runner.stop_tokens))
    lines = Lines(path, {"model": runner.digest, "samples": [s.sample.digest for s in every]})
    scratch = Scratch(runner, num_slots=4096)
    public = scratch.encode(every[0].sample.public)
    found = []
    with bar(len(every), "blocks afresh", unit="reader") as shown:
        for stretch in every:
            known = lines.find(stretch.sample.name)
            if known is None:
                with scratch.room():
                    reader = Reader(scratch, public, stretch)
                    known = {"log": stretch.log, "start": stretch.start, **of(reader)}
                lines.append(stretch.sample.name, known)
            found.append(known)
            shown.update()
    return found


def of(reader: Reader) -> dict[str, Any]:
    """KL of one reader with no block, each pair, and each rule's choice for each budget."""
    rules = {name: order(rule(reader.every_layer)) for name, rule in RULES.items()}
    budgets = {
        name: [_short(reader.kl(rules[name][:k])) for k in range(NUM_BLOCKS)] for name in BY_BUDGET
    }
    pairs = {pair: reader.kl(pair) for pair in combinations(range(NUM_BLOCKS), BUDGET)}
    chosen = {name: tuple(sorted(blocks[:BUDGET])) for name, blocks in rules.items()}
    return {
        "kl": {NONE: _short(reader.kl())}
        | {name: _short(pairs[pair]) for name, pair in chosen.items()}
        | {BEST: _short(min(pairs.values()))},
        "chosen": {name: list(pair) for name, pair in chosen.items()}
        | {BEST: list(min(pairs, key=pairs.__getitem__))},
        "by_budget": budgets,
    }


def order(wanted: np.ndarray) -> list[int]:
    """The blocks, the most wanted first."""
    return sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))


def summary(found: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Means over readers with their 95 % bootstrap intervals: KL, its difference to that of
    `first`, the share of it that is taken away; and how many readers are better or worse off."""
    rules: dict[str, Any] = {}
    none, first = (np.array([one["kl"][name] for one in found]) for name in (NONE, FIRST))
    for name in found[0]["kl"]:
        kl = np.array([one["kl"][name] for one in found])
        rules[name] = {
            "kl": _interval(kl, seed),
            "to_first": _interval(kl - first, seed),
            "taken": _interval(1 - kl / none, seed),
            "better": int((kl < first - SAME).sum()),
            "worse": int((kl > first + SAME).sum()),
        }
    budgets = {}
    for name in BY_BUDGET:
        kl = np.array([one["by_budget"][name] for one in found])  # [readers, budgets]
        budgets[name] = [_short(mean) for mean in kl.mean(axis=0)]
    costly = {}
    for log in sorted({one["log"] for one in found}):
        mine = [one for one in found if one["log"] == log]
        costly[log] = max(mine, key=lambda one: one["kl"][NONE])["start"]
    sizes = {"block": SIZES.fragment // NUM_BLOCKS, "blocks": NUM_BLOCKS, "budget": BUDGET}
    return {
        **sizes,
        "num_readers": len(found),
        "rules": rules,
        "by_budget": budgets,
        "costly": costly,
    }


def _interval(values: np.ndarray, seed: int) -> list[float]:
    interval = bootstrap(values.tolist(), seed)
    return [_short(x) for x in (interval.mean, interval.low, interval.high)]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


if __name__ == "__main__":
    main()
