"""What bookkeeping costs: schedule, plan, commit and log, without any model. Prints JSON.

    python benchmarks/bookkeeping_step.py [--repeat 5] [--steps 400]

`prefill`: agents with texts of their own are computed and closed again; microseconds per block, all
of its life included (fingerprint, allocation, publication, release, log). `decode`: one step of
eight agents behind a shared prompt; milliseconds, the median over many steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from array import array
from collections.abc import Sequence
from typing import Any

from inms_lab.attention.store import NoStore
from inms_lab.books.events import Allocated
from inms_lab.books.fingerprint import block_key
from inms_lab.books.label import PUBLIC, private
from inms_lab.config import Config
from inms_lab.decisions.policy import MODES
from inms_lab.model.forward import DryModel
from inms_lab.serving.engine import Engine
from inms_lab.serving.request import Request

VOCAB = 49_152
SEED = 0
CPU = platform.processor() or platform.machine()


def engine(block_size: int, budget: int = 512) -> Engine:
    """A dry engine with room for everything below."""
    size = 1 << 20
    config = Config(block_size, 0, budget, 1 << 15, *(size * n for n in (1, 1, 4)))
    out = Engine(DryModel(VOCAB, 1 << 15), NoStore(1), MODES["inms"], config)
    out.open_pools((), 1)
    return out


def text(rng: random.Random, length: int) -> list[int]:
    """Token ids that nobody else has."""
    return [rng.randrange(VOCAB) for _ in range(length)]


def agent(lab: Engine, number: int) -> int:
    """A new agent."""
    return lab.register("agent", f"agent {number}", private(f"agent {number}"))


def run(lab: Engine) -> None:
    """Until nothing is left to do."""
    while lab.has_work:
        lab.step()


def prefill(block_size: int, num_agents: int = 24, length: int = 4096) -> dict[str, float]:
    """Compute and close agents one after the other; microseconds of bookkeeping per block."""
    rng, lab = random.Random(SEED), engine(block_size)
    for number in range(num_agents):
        seq_id = agent(lab, number)
        lab.submit(Request(seq_id, "append", text(rng, length)))
        run(lab)
        lab.submit(Request(seq_id, "close"))
        lab.step()
    blocks = sum(len(e.blocks) for e in lab.log.events if isinstance(e, Allocated))
    return {"blocks": blocks, "us_per_block": lab.bookkeeping / blocks * 1e6}


def fingerprint(block_size: int, count: int = 20_000) -> float:
    """Microseconds of one fingerprint."""
    tokens, key = array("i", text(random.Random(SEED), block_size)), b"k" * 16
    started = time.perf_counter()
    for position in range(count):
        key = block_key(key, key, position, tokens)
    return (time.perf_counter() - started) / count * 1e6


def decode(
    block_size: int, num_steps: int, num_agents: int = 8, shared: int = 1024, own: int = 256
) -> Sequence[float]:
    """Milliseconds of bookkeeping of each step in which all agents generate one token."""
    rng, lab = random.Random(SEED), engine(block_size)
    system = text(rng, shared)
    prompt = lab.register("prompt", "prompt", PUBLIC)
    lab.submit(Request(prompt, "append", system, "global", seal=True))
    run(lab)
    for number in range(num_agents):
        seq_id = agent(lab, number)
        lab.submit(Request(seq_id, "append", system, "global", seal=True))
        lab.submit(Request(seq_id, "write", text(rng, own), count=num_steps + 50))
    out: list[float] = []
    while len(out) < num_steps:
        before = lab.bookkeeping
        report = lab.step()
        assert report is not None
        if len(report.tokens) == num_agents and len(report.chunks) == num_agents:
            out.append((lab.bookkeeping - before) * 1e3)
    return out


def measure(repeat: int, num_steps: int) -> dict[str, Any]:
    """Everything, the best of `repeat` for throughput, the median over all steps for latency."""
    result: dict[str, Any] = {
        "machine": {"cpu": CPU, "python": platform.python_version()},
        "seed": SEED,
        "prefill": {},
        "decode_8_agents": {},
    }
    for block_size in (16, 256):
        best = min((prefill(block_size) for _ in range(repeat)), key=lambda r: r["us_per_block"])
        best["of_it_fingerprint_us"] = min(fingerprint(block_size) for _ in range(repeat))
        result["prefill"][f"block_{block_size}"] = {k: round(v, 2) for k, v in best.items()}
        steps = [ms for _ in range(repeat) for ms in decode(block_size, num_steps)]
        result["decode_8_agents"][f"block_{block_size}"] = {
            "steps": len(steps),
            "median_ms": round(statistics.median(steps), 4),
            "p99_ms": round(statistics.quantiles(steps, n=100)[98], 4),
        }
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    print(json.dumps(measure(options.repeat, options.steps), indent=2))


if __name__ == "__main__":
    main()
