"""What `peers.py` and a worker say to each other: one JSON object a line. Standard library only,
for every worker runs in an environment of its own.

A worker loads its engine, fills the agents' contexts, prints one `ready` line and waits. Each line
that it then reads is one measurement: `decode`, `next` or `fragment`; the end of input ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

WARM_UP = 3  # decode steps of a round that are not counted
LOWEST, HIGHEST = 1_000, 49_000  # token ids to draw from: none that means something to a chat
WHERE = {"next": 1 << 20, "fragment": 2 << 20}  # so that no text of one kind is another's


@dataclass(frozen=True)
class Work:
    """`agents` contexts of `shared` common tokens and `own` tokens each write `tokens` tokens."""

    shared: int
    own: int
    agents: int
    tokens: int
    seed: int = 0

    def prefix(self) -> list[int]:
        """The tokens that all contexts begin with."""
        return self._text("shared", 0, self.shared)

    def context(self, number: int) -> list[int]:
        """The whole context of an agent."""
        return self.prefix() + self.own_text(number)

    def own_text(self, number: int) -> list[int]:
        """What an agent alone holds."""
        return self._text("own", number, self.own)

    def behind(self, number: int) -> list[int]:
        """A reader's own prompt, then the shared text: a fragment, for it begins elsewhere."""
        return self.own_text(WHERE["fragment"] + number) + self.prefix()

    def newcomer(self, number: int) -> list[int]:
        """The context of one more agent."""
        return self.context(WHERE["next"] + number)

    def longest(self) -> int:
        """Tokens of the longest context at the end of a round."""
        return self.shared + self.own + WARM_UP + self.tokens + 1

    def distinct(self) -> int:
        """Tokens of all contexts together, the shared ones counted once."""
        return self.shared + self.agents * (self.own + WARM_UP + self.tokens + 1)

    def _text(self, kind: str, number: int, length: int) -> list[int]:
        rng = random.Random(f"{self.seed} {kind} {number}")
        return [rng.randrange(LOWEST, HIGHEST) for _ in range(length)]


class Worker(Protocol):
    """One engine with its contexts filled."""

    def about(self) -> dict[str, Any]:
        """Versions and settings, as plain data."""

    def decode(self) -> list[float]:
        """Seconds of each step in which every agent writes a token; contexts as before, after."""

    def next_agent(self, number: int) -> float:
        """Seconds to the first token of a newcomer whose prefix is cached."""

    def fragment(self, number: int) -> float:
        """Seconds to the first token of a reader with the shared text behind its own."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every worker takes."""
    out = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    for name, value in (("shared", 4096), ("own", 1024), ("agents", 8), ("tokens", 16)):
        out.add_argument(f"--{name}", type=int, default=value)
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--threads", type=int, default=2)
    out.add_argument("--model", type=Path, required=True, help="the default model's folder")
    return out


def work_of(options: argparse.Namespace) -> Work:
    """The work that the options describe."""
    return Work(*(getattr(options, name) for name in ("shared", "own", "agents", "tokens", "seed")))


def own_output() -> TextIO:
    """Standard output for the answers alone: what libraries print goes to standard error."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def peak_bytes() -> int:
    """The most memory that this process has held at once."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def serve(work: Work, make: Callable[[], Worker]) -> None:
    """Make the worker, then answer one line for each line of standard input."""
    out = own_output()

    def say(**values: Any) -> None:
        print(json.dumps(values), file=out, flush=True)

    started = time.perf_counter()
    worker = make()
    took = time.perf_counter() - started
    say(ready=True, setup_s=took, work=asdict(work), about=worker.about(), peak_bytes=peak_bytes())
    for count, line in enumerate(sys.stdin, 1):
        order = line.strip()
        if order == "decode":
            steps = worker.decode()
            say(steps_s=steps[WARM_UP:], peak_bytes=peak_bytes())
        elif order == "next":
            say(seconds=worker.next_agent(count), peak_bytes=peak_bytes())
        elif order == "fragment":
            say(seconds=worker.fragment(count), peak_bytes=peak_bytes())
        else:
            say(error=f"unknown order {order!r}")
