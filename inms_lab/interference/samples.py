"""Samples: a reader's own prompt, a history that it reuses as a fragment, and how it went on.

They are made of logs of a team at work, one JSON object a line (also gzipped):

    {"system_prompt": {agent: its prompt, ...}, "history": [{"name": agent, "content": ...}, ...]}

The form is that of Who&When (`whoandwhen_captainagent`); the package has small logs of an invented
team. Selection: of every log in which two agents have a prompt of their own, the first tokens of
the history are the fragment and the next ones the continuation; logs that are too short are left
out. **The public prefix** is the text that most prompts of a file end with (in the captain-agent
logs the instructions for solving tasks and using code), put in front; an agent's own prompt is the
rest of its prompt. Turns are in the model's chat format.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.notebook.text import Text

OWN_LOGS = "team.json"
HEADING = "## "


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of tokens: prompts are cut to `own` at most, the other two are exact."""

    own: int = 300
    fragment: int = 384
    continuation: int = 63

    def __post_init__(self) -> None:
        if min(self.own, self.fragment, self.continuation) < 1:
            raise BadInput(f"{self}: every size is a number of tokens, 1 or more")


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids. The reader's context is `public`, `own`, `fragment`; then `continuation` comes.

    `other` is another agent's private prompt, as long as `own` or shorter.
    """

    name: str
    public: tuple[int, ...]
    own: tuple[int, ...]
    other: tuple[int, ...]
    fragment: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def digest(self) -> str:
        """16 hex digits that name its tokens."""
        parts = (self.public, self.own, self.other, self.fragment, self.continuation)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    @property
    def place(self) -> int:
        """Where the reader has the fragment."""
        return len(self.public) + len(self.own)


def of_package(text: Text, sizes: Sizes | None = None) -> list[Sample]:
    """Samples from the package's own logs."""
    own = _own_logs()
    return of_logs(own["logs"], text, sizes or Sizes(), own["public"])


def of_file(path: Path, text: Text, sizes: Sizes | None = None) -> list[Sample]:
    """Samples from a file of logs. Raises `BadInput` for one that is something else."""
    advice = 'one {"system_prompt": {...}, "history": [...]} a line is wanted'
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            logs = [json.loads(line) for line in file if line.strip()]
        return of_logs(logs, text, sizes or Sizes())
    except FileNotFoundError:
        raise BadInput(f"there is no {path}: give a file of logs") from None
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, gzip.BadGzipFile) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} holds no logs ({type(error).__name__}: {error}); {advice}"
        ) from None


def of_logs(
    logs: Sequence[dict[str, Any]], text: Text, sizes: Sizes, public: str = ""
) -> list[Sample]:
    """A sample of each log that is long enough and has two agents with prompts, in order.

    Without `public`: the prompts' common end, and if they have none the package's public prompt.
    """
    prompts = (prompt for log in logs for prompt in log["system_prompt"].values())
    public = public or public_text(prompts) or _own_logs()["public"]
    shared = text.encode(public, "system")
    found = [_sample(i, log, public, shared, text, sizes) for i, log in enumerate(logs)]
    samples = [sample for sample in found if sample is not None]
    if not samples:
        raise BadInput(
            f"none of {len(logs)} logs has two agents with prompts and a history of "
            f"{sizes.fragment + sizes.continuation} tokens: choose a smaller fragment"
        )
    return samples


def public_text(prompts: Iterable[str]) -> str:
    """The end, from a heading on, that most of these prompts share; "": no two share any."""
    tails: Counter[str] = Counter()
    for prompt in prompts:
        lines = prompt.split("\n")
        starts = [i for i, line in enumerate(lines) if line.startswith(HEADING)]
        tails.update({"\n".join(lines[i:]) for i in starts})
    best = max(tails, key=lambda tail: (tails[tail], len(tail)), default="")
    return best if tails[best] > 1 else ""


def chosen(samples: Sequence[Sample], count: int | None, seed: int) -> list[Sample]:
    """`count` samples drawn without replacement, in their order; None: all."""
    if count is None:
        return list(samples)
    if not 1 <= count <= len(samples):
        raise BadInput(f"there are {len(samples)} samples, {count} were asked for")
    return [samples[i] for i in sorted(random.Random(seed).sample(range(len(samples)), count))]


def _sample(
    number: int,
    log: dict[str, Any],
    public: str,
    shared: list[int],
    text: Text,
    sizes: Sizes,
) -> Sample | None:
    prompts = {k: p.removesuffix(public).strip() for k, p in log["system_prompt"].items()}
    prompts = {agent: prompt for agent, prompt in prompts.items() if prompt}
    if len(prompts) < 2:
        return None
    history: list[int] = []
    for message in log["history"]:
        history += text.encode(f"{message['name']}: {message['content']}", "user")
    end = sizes.fragment + sizes.continuation
    if len(history) < end:
        return None
    own, other = (
        tuple(text.encode(f"{agent}\n{prompt}", "user")[: sizes.own])
        for agent, prompt in list(prompts.items())[:2]
    )
    name = str(log.get("file", f"log {number + 1}"))
    fragment, continuation = history[: sizes.fragment], history[sizes.fragment : end]
    return Sample(name, tuple(shared), own, other, tuple(fragment), tuple(continuation))


def _own_logs() -> dict[str, Any]:
    source = files("inms_lab.interference") / "texts" / OWN_LOGS
    return dict(json.loads(source.read_text(encoding="utf-8")))
