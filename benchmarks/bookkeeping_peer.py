"""Bookkeeping side by side: our books and vLLM's `KVCacheManager` replay one trace in turn.

    python benchmarks/bookkeeping_peer.py --trace FILE [--capacity 10000] [--rounds 5] [--json]
        [--python .peers/vllm/bin/python] [--events] [--results FILE]

Both take 16 tokens for a block of the trace; `peer_workers/bookkeeping_vllm.py` and
`inms_lab/bench/bookkeeping.py` say what is timed. Ours writes its log; `--events` lets vLLM collect
its KV events too. Rounds alternate, and the first one of each is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import IO, Any

from inms_lab.bench.bookkeeping import Rounds
from inms_lab.bench.header import machine, spread

HERE = Path(__file__).resolve().parent
WORKER = HERE / "peer_workers" / "bookkeeping_vllm.py"


class Peer:
    """vLLM's manager in a process of its own."""

    def __init__(self, python: Path, trace: Path, capacity: int, events: bool) -> None:
        if not python.is_file():
            raise SystemExit(f"there is no {python}: run `make peers`, or name one with --python")
        command = [str(python), str(WORKER), "--trace", str(trace), "--capacity", str(capacity)]
        self.process = subprocess.Popen(
            [*command, "--events"] if events else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
        self.about = self._answer()

    def play(self) -> dict[str, float]:
        """One round."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write("round\n")
        stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with code {self.process.wait(60)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alternate, and compare the medians."""
    ours = Rounds(options.trace, options.capacity)
    peer = Peer(options.python, options.trace, options.capacity, options.events)
    mine, theirs, rates = list[float](), list[float](), dict[str, float]()
    for _ in range(options.rounds + 1):
        cost, rate = ours.play()
        answer = peer.play()
        mine.append(cost)
        theirs.append(answer["us_per_block"])
        rates = {"inms": round(rate, 4), "vllm": round(answer["hit_rate"], 4)}
    peer.close()
    own, other = spread(mine[1:]), spread(theirs[1:])
    return {
        "bench": "bookkeeping_peer",
        "command": f"python benchmarks/bookkeeping_peer.py --trace {options.trace.name}"
        f" --capacity {options.capacity} --rounds {options.rounds}",
        "machine": machine(),
        "trace": options.trace.name,
        "blocks": ours.num_blocks,
        "capacity": options.capacity,
        "rounds": options.rounds,
        "hit_rate": rates,
        "vllm": peer.about["vllm"],
        "vllm_events": options.events,
        "us_per_block": {"inms": own, "vllm": other},
        "ratio": round(own["median"] / other["median"], 3),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--capacity", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", type=Path, default=Path(".peers/vllm/bin/python"))
    parser.add_argument("--events", action="store_true", help="vLLM collects its KV events")
    parser.add_argument("--results", type=Path, help="write the figures into this file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options)
    if options.results:
        options.results.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result))
        return
    for name, cost in result["us_per_block"].items():
        rate = result["hit_rate"][name]
        print(
            f"{name:>5}  {cost['median']:6.2f} us a block"
            f" ({cost['min']:.2f} to {cost['max']:.2f}), hit rate {rate:.4f}"
        )
    print(
        f"ratio  {result['ratio']:.3f}, {options.rounds} rounds of {result['blocks']} blocks each"
    )


if __name__ == "__main__":
    main()
