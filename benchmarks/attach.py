"""Attaching a record by reference against computing it: time to first token, and blocks held.

    python benchmarks/attach.py [--pairs 8] [--tokens 512] [--own 100] [--json FILE]

Two labs on one model take turns in one process: one mounts the record as a fragment, behind text
of the reader's own and so at a shift; the other has no gate, so it computes the record there. From
the request to attach until the first generated token, for a new reader each time. Prints a line a
pair, the medians and the median ratio; writes nothing without `--json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.interference.calibrate import machine
from inms_lab.model import Runner, load
from inms_lab.model.progress import bar
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.publishing.records import Record

TEXTS = Path(__file__).resolve().parents[1] / "inms_lab" / "texts"
MOST = 0.3  # of the time to compute it


@dataclass(frozen=True, slots=True)
class Attached:
    """One reader: seconds from the request to the first token; what attaching itself took."""

    seconds: float
    computed: int  # tokens through the model by attaching
    blocks: int  # held more afterwards, over all pools
    shift: int  # of the record's KV; 0: it was computed in its place


class Bench:
    """A lab with a prompt and one record of `num_tokens` tokens."""

    def __init__(self, runner: Runner, gate: Gate | None, num_tokens: int) -> None:
        self.lab = Lab(runner, gate=gate)
        self.lab.preload((TEXTS / "system.md").read_text("utf-8")[:600], progress=False)
        self.team = self.lab.group("team")
        (author,) = self.team.agents("author")
        words = self.lab.text.encode((TEXTS / "decisions.md").read_text("utf-8"))
        text = (words * (num_tokens // len(words) + 1))[:num_tokens]
        self.record = self.team.publish(text, by=author)

    def attach(self, name: str, own: list[int]) -> Attached:
        """A new reader with text of its own attaches the record and writes one token."""
        (reader,) = self.team.agents(name)
        reader.read(own).result()
        before, computed = self._held(), self.lab.engine.num_computed
        started = time.perf_counter()
        reader.attach(self.record).result()
        attached = time.perf_counter()
        blocks, computed = self._held() - before, self.lab.engine.num_computed - computed
        shift = _shift(reader, self.record)
        asked = time.perf_counter()
        reader.write(1).result()
        seconds = attached - started + time.perf_counter() - asked
        reader.close().result()
        return Attached(seconds, computed, blocks, shift)

    def _held(self) -> int:
        return self.lab.look(lambda: sum(p.num_held for p in self.lab.engine.ledger.pools.values()))


def _shift(reader: Agent, record: Record) -> int:
    segment = reader.lab.engine.ledger.sequences[reader.seq_id].segments[-1]
    assert tuple(segment.tokens) == record.tokens
    return segment.shift


def measure(
    runner: Runner, pairs: int, num_tokens: int, num_own: int, warm: int = 1, progress: bool = True
) -> list[tuple[Attached, Attached]]:
    """(by reference, computed) of each pair, after `warm` pairs that do not count; which of the two
    goes first alternates."""
    benches = [Bench(runner, gate, num_tokens) for gate in (DEFAULT, None)]
    text = benches[0].lab.text.encode((TEXTS / "backend.md").read_text("utf-8"))
    out = []
    with bar(pairs, "attach", unit="pair", enabled=progress) as shown:
        for number in range(-warm, pairs):
            start = (number + warm) * num_own % (len(text) - num_own)
            own = text[start : start + num_own]
            order = (0, 1) if number % 2 else (1, 0)
            found = {n: benches[n].attach(f"reader {number}", own) for n in order}
            if number >= 0:
                out.append((found[0], found[1]))
                shown.update()
    for bench in benches:
        bench.lab.assert_clean()
    return out


def ratio(pairs: list[tuple[Attached, Attached]]) -> float:
    """The median of the pairs' ratios of times to first token."""
    return statistics.median(a.seconds / b.seconds for a, b in pairs)


def report(pairs: list[tuple[Attached, Attached]]) -> dict[str, Any]:
    """Medians and what every pair gave."""
    sides = {"by reference": [a for a, _ in pairs], "computed": [b for _, b in pairs]}
    ratios = sorted(a.seconds / b.seconds for a, b in pairs)
    out: dict[str, Any] = {
        "median_ratio": round(ratio(pairs), 4),
        "ratios": [round(r, 4) for r in ratios],
        "bound": MOST,
        "holds": ratio(pairs) <= MOST and all(a.blocks == 0 for a, _ in pairs),
    }
    for name, side in sides.items():
        rows = [asdict(one) | {"seconds": round(one.seconds, 4)} for one in side]
        out[name] = {"median_seconds": round(statistics.median(r["seconds"] for r in rows), 4)}
        out[name]["runs"] = rows
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--own", type=int, default=100)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    runner = load(options.model)
    pairs = measure(runner, options.pairs, options.tokens, options.own)
    for a, b in pairs:
        print(
            f"shift {a.shift:+5d}: {a.seconds:7.3f} s, {a.computed} tokens computed, {a.blocks} "
            f"blocks more | computed: {b.seconds:7.3f} s, {b.computed} tokens, {b.blocks} blocks "
            f"| ratio {a.seconds / b.seconds:.3f}"
        )
    found = report(pairs)
    medians = [found[name]["median_seconds"] for name in ("by reference", "computed")]
    words = "holds" if found["holds"] else "does not hold"
    print(f"medians: {medians[0]:.3f} s and {medians[1]:.3f} s; median ratio ", end="")
    print(f"{found['median_ratio']:.3f} (at most {MOST} {words})")
    if options.json is not None:
        command = f"python benchmarks/attach.py --pairs {options.pairs} --tokens {options.tokens}"
        about = {
            "command": f"{command} --own {options.own} --json benchmarks/results/attach.json",
            "machine": machine(),
            "model": runner.digest,
            "seed": None,
            "tokens": options.tokens,
            "own": options.own,
        }
        options.json.write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
