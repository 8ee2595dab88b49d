"""What the journal costs a run: the share of the time that writing the log through takes.

    python benchmarks/journal.py [--agents 8] [--tokens 400] [--repeat 5] [--model NAME] [--fsync]

Without `--model` no weights are used, so a step is bookkeeping alone: the largest share that it can
be. The seconds are those of the calls that write, on the lab's thread, beside those of the steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from inms_lab import Lab, Log
from inms_lab.config import Config
from inms_lab.model.forward import DryModel

BYTES = 1000  # of a token's KV, where there is no model


def lab_of(model: str | None, agents: int, tokens: int) -> Lab:
    """A lab with room for these agents."""
    if model is not None:
        return Lab(model, context=2 * tokens + 64)
    room = 16 * BYTES * (agents * (2 * tokens + 64) // 16 + agents)
    config = Config(16, 0, 512, 2 * tokens + 64, room, room, room)
    return Lab(DryModel(1000, config.context, BYTES), config=config)


def once(options: argparse.Namespace, path: Path) -> dict[str, float]:
    """One run, every agent reads and writes; seconds of the steps and of the journal."""
    with lab_of(options.model, options.agents, options.tokens) as lab:
        journal = lab.keep_journal(path, fsync=options.fsync)
        spent, write = [0.0], journal.write

        def timed() -> None:
            started = time.perf_counter()
            write()
            spent[0] += time.perf_counter() - started

        journal.write = timed  # type: ignore[method-assign]

        async def program(agent: Any) -> None:
            await agent.read([ord(c) % 1000 for c in agent.name] * (options.tokens // 8))
            await agent.write(options.tokens)

        team = [lab.agent(f"agent {number:02}") for number in range(options.agents)]
        started = time.perf_counter()
        asyncio.run(lab.run(dict.fromkeys(team, program)))
        seconds = time.perf_counter() - started
        events, steps = len(lab.log), len(lab.log.durations)
    assert Log.load(path).events == lab.log.events
    return {
        "run_s": seconds,
        "journal_s": spent[0],
        "share": spent[0] / seconds,
        "us_a_step": 1e6 * spent[0] / steps,
        "us_an_event": 1e6 * spent[0] / events,
        "bytes_an_event": journal.num_bytes / events,
        "events": events,
        "steps": steps,
    }


def main() -> None:
    """Print the medians as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="that each agent writes")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--model", default=None, help="with weights: a name or folder")
    parser.add_argument("--fsync", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [once(options, Path(folder) / f"{n}") for n in range(options.repeat)]
    result = {name: round(median(run[name] for run in runs), 4) for name in runs[0]}
    print(json.dumps(vars(options) | result))


if __name__ == "__main__":
    main()
