"""What reused KV tells of a secret: every reader's rank of the true candidate. Writes JSON.

    python benchmarks/leak_rank.py [--trials 400] [--candidates 10] [--seed 0] [--out FILE]

Trials that were done are kept in benchmarks/scratch/, so a run that was stopped is taken up again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inms_lab.interference import leak
from inms_lab.interference.calibrate import machine
from inms_lab.model import load
from inms_lab.notebook.text import Text

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "leak_rank.json")
    options = parser.parse_args()
    runner = load(options.model)
    text = Text(runner.tokenizer, runner.stop_tokens)
    trials = leak.of_package(text, options.trials, options.candidates, options.seed)
    found = leak.measure(runner, trials, HERE / "scratch" / "leak_rank.jsonl")
    table = found.table(options.seed)
    print(table.round(3).to_string(), file=sys.stderr)
    k = options.candidates
    result = {
        "command": f"python benchmarks/leak_rank.py --trials {options.trials}"
        f" --candidates {k} --seed {options.seed}",
        "machine": machine(),
        "model": runner.digest,
        "seed": options.seed,
        "candidates": k,
        "chance": {"top1": 1 / k, "rank": (k - 1) / 2, "auc": 0.5},
        "rows": [
            {"variant": variant, "reader": reader, **row.round(4).to_dict()}
            for (variant, reader), row in table.iterrows()
        ],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
