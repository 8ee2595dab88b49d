"""Hit rates of the shared traces at every capacity, beside the reference figures of their README.

    python benchmarks/replay_rates.py [--data ../shared/data] [--only mooncake]

The reference table is read from the README, so that nothing is copied here. Ends with code 1 if a
figure differs in its fourth digit. Takes some minutes: every figure is a replay of a whole trace.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from inms_lab.studies.replay import replay
from inms_lab.studies.trace import read_trace


def table(readme: Path) -> Iterator[tuple[str, bool, dict[int, float]]]:
    """(trace, tools shared, capacity -> rate) of each line; the ideal is capacity 0."""
    name = ""
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 6 or not re.match(r"[\d,]+: ", cells[5]):
            continue
        shared = cells[0].startswith("same")
        name = name if shared else cells[0].split(",")[0]
        points = (point.split(":") for point in cells[5].split(";"))
        rates = {int(key.replace(",", "")): float(value) for key, value in points}
        yield name, shared, {**rates, 0: float(cells[4])}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", default="", help="traces whose name has this in it")
    options = parser.parse_args()
    wrong = 0
    for name, shared, rates in table(options.data / "README.md"):
        if options.only not in name:
            continue
        path = options.data / "traces" / f"{name}.jsonl.gz"
        requests = read_trace(path, shared)
        for capacity, known in rates.items():
            started = time.perf_counter()
            played, _ = replay(requests, capacity or None)
            rate = round(played.all.hits / played.all.blocks, 4)
            wrong += rate != known
            words = f"{name}{', tools shared' if shared else ''}, {capacity or 'all'} blocks"
            seconds = time.perf_counter() - started
            print(f"{words}: {rate:.4f}, known {known:.4f}, {seconds:.1f} s", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
