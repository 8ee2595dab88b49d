"""What the books cost per block of a trace: register, match, write, publish, end, evict; log on.

Not timed: reading the trace, and the token ids that stand for its blocks.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inms_lab.bench.header import spread
from inms_lab.errors import BadInput
from inms_lab.studies.replay import SIZE, Player, enough, tokens_of
from inms_lab.studies.trace import Request, read_trace


class Rounds:
    """A trace that is played again and again, each time through books of its own."""

    def __init__(self, trace: Path, capacity: int, share_tools: bool = False) -> None:
        if capacity < 1:
            raise BadInput(
                f"--capacity: a cache of {capacity} blocks keeps nothing: give at least one"
            )
        self.requests: Sequence[Request] = read_trace(trace, share_tools)
        self.tokens = [tokens_of(request) for request in self.requests]
        self.num_blocks = sum(len(request.blocks) for request in self.requests)
        self.capacity = enough(self.requests, capacity)
        self.longest = max(-(-len(tokens) // SIZE) for tokens in self.tokens)

    def play(self) -> tuple[float, float]:
        """Microseconds per block, and the hit rate."""
        player = Player(self.capacity, self.longest)
        hits = 0
        gc.collect()
        gc.freeze()  # the trace is no garbage to look through
        started = time.perf_counter()
        for request, tokens in zip(self.requests, self.tokens, strict=True):
            hits += len(player.play(request.holder, tokens)[0])
        seconds = time.perf_counter() - started
        gc.unfreeze()
        return seconds / self.num_blocks * 1e6, hits / self.num_blocks


def measure(trace: Path, capacity: int, repeat: int, share_tools: bool = False) -> dict[str, Any]:
    """Play a trace `repeat` times; the median counts."""
    rounds = Rounds(trace, capacity, share_tools)
    costs, rates = zip(*(rounds.play() for _ in range(repeat)), strict=True)
    return {
        "trace": trace.name,
        "capacity": capacity,
        "requests": len(rounds.requests),
        "blocks": rounds.num_blocks,
        "hit_rate": round(rates[0], 4),
        "us_per_block": spread(costs)["median"],
        "us_per_block_spread": spread(costs),
    }
