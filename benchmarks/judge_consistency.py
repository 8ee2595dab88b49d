"""How often a decision changes when the text it is about is a reused fragment. Writes JSON.

    python benchmarks/judge_consistency.py [--items 80] [--seed 0] [--out FILE]

`--items` is the number of each kind. Items that were done are kept in benchmarks/scratch/, so a run
that was stopped is taken up again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inms_lab.interference import judge
from inms_lab.interference.calibrate import machine
from inms_lab.model import load
from inms_lab.notebook.text import Text

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--items", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "judge_consistency.json")
    options = parser.parse_args()
    runner = load(options.model)
    text = Text(runner.tokenizer, runner.stop_tokens)
    items = judge.of_package(text, options.items, seed=options.seed)
    found = judge.measure(runner, items, HERE / "scratch" / "judge_consistency.jsonl")
    table = found.table(options.seed)
    print(table.round(3).to_string(), file=sys.stderr)
    result = {
        "command": f"python benchmarks/judge_consistency.py --items {options.items}"
        f" --seed {options.seed}",
        "machine": machine(),
        "model": runner.digest,
        "seed": options.seed,
        "options": len(items[0].options),
        "rows": [
            {"kind": kind, "variant": variant, **row.round(4).to_dict()}
            for (kind, variant), row in table.iterrows()
        ],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
