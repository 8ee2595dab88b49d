"""What one lock for everything costs: agent threads over one memory, coarse against fine.

The coarse policy holds the lock for lookup, hash, copy and write; the fine one for the books only;
neither for the forward. Runs alternate, and the ratio is taken of neighbours. Beside it: where the
threads' time goes, and what two threads gain over one for each part alone, for Python's own lock is
there in both.
"""

from __future__ import annotations

import statistics
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from inms_lab.attention.store import NoStore
from inms_lab.bench.intervals import ratio_of
from inms_lab.bench.threads import BLOCK, DIM, KV_HEADS, LAYERS, Agents, Load, text
from inms_lab.books.fingerprint import block_keys
from inms_lab.errors import BadInput
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

CLAIM, CLAIMED = "fine-locks", 0.30  # of claims.py
ALONE, TRIES = 0.2, 6  # seconds for each part alone, so many times


def measure(load: Load, layers: Sequence[int], seconds: float, repeat: int) -> dict[str, Any]:
    """`repeat` pairs of runs of `seconds` for each size of the forward, and each part alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # agents are the threads here
    try:
        rows = [_compared(load, size, seconds, repeat) for size in layers]
        alone = [_alone(name, load) for name in ("books", "hash", "copy", "forward")]
    finally:
        torch.set_num_threads(before)
    sizes = {"threads": load.threads, "prompt": load.prompt, "own": load.own, "block": BLOCK}
    claims = {CLAIM: claimed(rows, load)}
    return {**sizes, "seconds": seconds, "rows": rows, "alone": alone, "claims": claims}


def _compared(load: Load, layers: int, seconds: float, repeat: int) -> dict[str, Any]:
    load = replace(load, layers=layers)
    both = {coarse: Agents(load, coarse) for coarse in (True, False)}
    rates: dict[bool, list[float]] = {True: [], False: []}
    for agents in both.values():
        agents.run(seconds / 4)  # pages are taken, code is warm
    for number in range(repeat):
        for coarse in (True, False) if number % 2 else (False, True):
            rates[coarse].append(both[coarse].run(seconds))
            if not rates[coarse][-1]:
                raise BadInput(f"--seconds {seconds:g}: nothing was written in a run: give more")
    ratio, low, high = ratio_of(rates[False], rates[True])
    shares = {
        f"{name} profile": both[coarse].clock.shares()
        for name, coarse in (("coarse", True), ("fine", False))
    }
    for agents in both.values():
        agents.cache.check()
        agents.cache.store.close()
    return {
        "layers": layers,
        "coarse_tokens_per_s": round(statistics.median(rates[True]), 1),
        "fine_tokens_per_s": round(statistics.median(rates[False]), 1),
        "fine_to_coarse": round(ratio, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        **shares,
    }


def claimed(rows: Sequence[dict[str, Any]], load: Load) -> dict[str, str]:
    """What the rows say of the claim, as claims.py reads it: it holds if with the whole model's
    products, which agents cannot do without, the interval reaches what was claimed and not zero."""
    told = [
        f"{row['fine_to_coarse'] - 1:+.1%} ({row['low'] - 1:+.1%} to {row['high'] - 1:+.1%}) with "
        f"{row['layers']} layers' products a block"
        for row in sorted(rows, key=lambda row: -row["layers"])
    ]
    most = max(rows, key=lambda row: row["layers"])
    return {
        "measured": f"fine against coarse lock, {load.threads} agents: " + "; ".join(told),
        "interval": "95 %, paired runs",
        "verdict": HOLDS if most["low"] > 1 and most["high"] >= 1 + CLAIMED else DOES_NOT_HOLD,
    }


def _alone(name: str, load: Load) -> dict[str, Any]:
    """A part without any lock of ours: how much two threads do, against one; each the best of a few
    runs, for whoever else uses the machine only makes them slower."""
    rates = [[_rate(name, load, threads) for threads in (1, 2)] for _ in range(TRIES)]
    one, two = map(max, zip(*rates, strict=True))
    return {"part": name, "one": round(one, 1), "two": round(two, 1), "gain": round(two / one, 2)}


def _rate(name: str, load: Load, threads: int) -> float:
    """Rounds a second of so many threads, each with things of its own."""
    works = [_part(name, load, number) for number in range(threads)]
    for warm in works:
        warm()
    rounds, over = [0] * threads, threading.Event()
    start = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        start.wait()
        while not over.is_set():
            works[number]()
            rounds[number] += 1

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    start.wait()
    started = time.perf_counter()
    over.wait(ALONE)
    over.set()
    for thread in running:
        thread.join()
    return sum(rounds) / (time.perf_counter() - started)


def _part(name: str, load: Load, number: int) -> Callable[[], object]:
    if name == "books":
        small = Load(1, BLOCK, 4 * BLOCK, 0, load.seed)
        agents, lives = Agents(small, coarse=False, store=NoStore(1)), count()
        never = threading.Event()
        return lambda: agents.live(0, next(lives), never, [0.0])
    if name == "hash":
        tokens = array("i", text(load.seed, f"hash {number}", load.own))
        return lambda: block_keys(b"", b"", 0, tokens, BLOCK)
    if name == "copy":
        source = torch.zeros(2, LAYERS, KV_HEADS, BLOCK, DIM)
        target = torch.zeros(2, LAYERS, KV_HEADS, 8 * BLOCK, DIM)
        return lambda: target[:, :, :, BLOCK : 2 * BLOCK].copy_(source)
    products = Agents(Load(1, BLOCK, BLOCK, 1, load.seed), coarse=False, store=NoStore(1))
    return lambda: products.forward()
