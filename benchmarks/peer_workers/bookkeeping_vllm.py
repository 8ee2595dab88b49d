"""vLLM's `KVCacheManager` replays a trace of block ids, for `bookkeeping_peer.py`, in an
environment of its own. Each line of standard input is one round, answered by one line of JSON.

Timed for each request: the request object with its block hashes, the prefix lookup, the slots, and
the end of the request. Not timed: reading the trace, and the token ids that stand for its blocks.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

from protocol import own_output


def texts(path: Path, size: int) -> list[list[int]]:
    """The token ids of each request: `size` ids stand for a block of the trace."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [json.loads(line)["hash_ids"] for line in file if line.strip()]
    return [[number * size + slot for number in row for slot in range(size)] for row in rows]


class Manager:
    """A fresh manager of `capacity` blocks for every round."""

    def __init__(self, requests: list[list[int]], capacity: int, size: int, events: bool) -> None:
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils as utils
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        self.requests, self.size, self.events = requests, size, events
        self.longest = max(map(len, requests))
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        # One block more: the manager keeps the first for itself.
        self.config = KVCacheConfig(
            num_blocks=capacity + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        hashed = get_hash_fn_by_name("sha256")  # its default
        utils.init_none_hash(hashed)
        self.hasher = utils.get_request_block_hasher(size, hashed)
        self.sampling = SamplingParams(max_tokens=1)

    def round(self) -> dict[str, float]:
        """Replay everything once."""
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.request import Request

        manager = KVCacheManager(
            self.config,
            self.longest + self.size,
            self.size,
            self.size,
            enable_kv_cache_events=self.events,
        )
        log: list[Any] = []
        hits = blocks = 0
        started = time.perf_counter()
        for number, tokens in enumerate(self.requests):
            request = Request(str(number), tokens, self.sampling, None, block_hasher=self.hasher)
            found, count, _ = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, len(tokens) - count, count, found) is None:
                raise SystemExit(f"request {number} does not fit: give more blocks")
            manager.free(request)
            if self.events:
                log += manager.take_events()
            hits += count // self.size
            blocks += len(tokens) // self.size
        seconds = time.perf_counter() - started
        return {"us_per_block": seconds / blocks * 1e6, "hit_rate": hits / blocks}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--events", action="store_true", help="collect KV events")
    options = parser.parse_args()
    out = own_output()

    def say(**values: Any) -> None:
        print(json.dumps(values), file=out, flush=True)

    import vllm

    requests = texts(options.trace, options.size)
    manager = Manager(requests, options.capacity, options.size, options.events)
    gc.collect()
    gc.freeze()  # the trace is no garbage to look through
    say(ready=True, vllm=vllm.__version__)
    for _ in sys.stdin:
        say(**manager.round())


if __name__ == "__main__":
    main()
