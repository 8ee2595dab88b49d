"""A million operations in any order, with crashes and failures, and then processes that are killed.

    python benchmarks/soak.py [--ops 1000000] [--seed 0] [--length 300] [--processes 1000]

The operations and what is checked after each are those of tests/chaos.py; one run is `--length`
operations on a lab of its own, drawn from the seed and the run's number. One run in ten has KV in
tensors; one in a hundred is done three times on a small random model, plainly, with NaN in every
block that one principal may not hold, and with another's private text changed: no bit of what that
principal is given may differ. What was done is kept in `--report`: started again, it goes on there.
A failure is made short and written beside the report as a script that shows it; a run that hangs
ends the program with every thread's stack. Ends with code 1 after a failure. The last line is JSON.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from chaos import Op, Setup, play, random_ops, shrink  # noqa: E402
from harness import tiny  # noqa: E402
from test_random_driver import both_gave, captured, ops_around_b  # noqa: E402

MIB = 1 << 20
SCRATCH = ROOT / "benchmarks" / "scratch"
PROCESSES = ROOT / "benchmarks" / "soak_processes.py"
EVERY, SHORT = 100, 150  # one run in so many is on a small model: so many operations, thrice
SAY = 10.0  # seconds between two lines
SCRIPT = '''"""Run {run} of `make soak` with seed {seed}: {why}"""

import sys

sys.path[:0] = ["tests", "."]

from chaos import Setup, play

play(
    {setup!r},
    [
{ops}
    ],
)
'''


class Soak:
    """The runs of one seed, and the report of them."""

    def __init__(self, seed: int, length: int, report: Path) -> None:
        self.seed, self.length, self.report = seed, length, report
        self.done: dict[str, Any] = {"seed": seed, "length": length, "runs": 0, "operations": 0}
        self.done |= {"compared": 0, "seconds": 0.0, "hung": [], "seen": {}}
        if report.exists():
            self.done |= json.loads(report.read_text("utf-8"))
            if (self.done["seed"], self.done["length"]) != (seed, length):
                raise SystemExit(f"{report} is of another seed or length: name another --report")
            if self.done.get("running") is not None:
                self.done["hung"].append(self.done["running"])

    def one(self, run: int) -> str:
        """A run; gives what was wrong."""
        setup, ops = self.drawn(run)
        try:
            if run % EVERY == EVERY - 1:
                self._compare(run)
                count = 3 * SHORT
            else:
                seen = Counter(self.done["seen"]) + play(setup, ops)
                self.done["seen"], count = dict(seen), len(ops)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self.done["operations"] += count
        return ""

    def drawn(self, run: int) -> tuple[Setup, list[Op]]:
        """A run's lab and operations."""
        rng = random.Random(f"{self.seed} {run}")
        return Setup.of(rng.randrange(1 << 30)), random_ops(rng, self.length)

    def _compare(self, run: int) -> None:
        """On a small model, plainly, poisoned, and with another secret."""
        setup, ops = Setup(blocks=(6, 6, 24)), ops_around_b(f"{self.seed} {run}", SHORT)
        clean = captured(setup, ops, model=tiny())
        for options in ({"poison": True}, {"secret": 1}):
            self.done["compared"] += both_gave(clean, captured(setup, ops, model=tiny(), **options))

    def save(self, running: int | None) -> None:
        """What was done, and which run is under way."""
        self.report.parent.mkdir(parents=True, exist_ok=True)
        new = self.report.with_suffix(".new")
        new.write_text(json.dumps(self.done | {"running": running}), "utf-8")
        new.replace(self.report)

    def script(self, run: int, why: str) -> Path:
        """A short script that shows what a run found."""
        setup, ops = self.drawn(run)
        path = self.report.with_name(f"soak_{self.seed}_{run}.py")
        if run % EVERY == EVERY - 1:
            setup, ops = Setup(blocks=(6, 6, 24)), ops_around_b(f"{self.seed} {run}", SHORT)
        elif fails(setup, ops):
            closely = replace(setup, every_event=True)
            setup = closely if fails(closely, ops) else setup
            ops = shrink(ops, lambda some: fails(setup, some))
        lines = "\n".join(f"        {op!r}," for op in ops)
        text = SCRIPT.format(run=run, seed=self.seed, why=_line(why), setup=setup, ops=lines)
        path.write_text(text, "utf-8")
        return path


def fails(setup: Setup, ops: Sequence[Op]) -> bool:
    """Whether these operations show that something is wrong."""
    try:
        play(setup, ops)
    except Exception:
        return True
    return False


def _line(text: str) -> str:
    return text.splitlines()[0].replace('"', "'").replace("\\", "/")[:200]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", type=int, default=1_000_000, help="operations in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=300, help="operations of one run")
    parser.add_argument("--processes", type=int, default=1000, help="agent processes; 0: none")
    parser.add_argument("--report", type=Path, help="default: benchmarks/scratch/soak_SEED.json")
    parser.add_argument("--hang", type=float, default=600.0, help="seconds after which a run hangs")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL)  # of what was planned
    soak = Soak(args.seed, args.length, args.report or SCRATCH / f"soak_{args.seed}.json")
    if code := _operations(soak, args.ops, args.hang):
        return code
    if args.processes and PROCESSES.exists():
        command = [sys.executable, str(PROCESSES), "--processes", str(args.processes)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0


def _operations(soak: Soak, wanted: int, hang: float) -> int:
    done, process, said = soak.done, psutil.Process(), 0.0
    before, start, first = done["seconds"], time.monotonic(), done["operations"]
    while done["operations"] < wanted:
        run = done["runs"]
        soak.save(run)
        faulthandler.dump_traceback_later(hang, exit=True, file=sys.__stderr__)
        why = soak.one(run)
        faulthandler.cancel_dump_traceback_later()
        if why:
            path = soak.script(run, why)
            print(f"run {run} of seed {soak.seed} failed: {why}\nrun `python {path}` for it alone")
            return 1
        done["runs"] += 1
        done["seconds"] = before + time.monotonic() - start
        rate = (done["operations"] - first) / (time.monotonic() - start)
        if time.monotonic() - said > SAY:
            said = time.monotonic()
            sofar = f"{done['operations']:,} of {wanted:,} operations"
            print(f"{sofar}, {rate:,.0f} a second", flush=True)
    soak.save(None)
    rate = done["operations"] / max(done["seconds"], 1e-9)
    about = {"operations_per_second": round(rate), "rss_mib": process.memory_info().rss // MIB}
    print(json.dumps({**done, "seconds": round(done["seconds"]), **about}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
