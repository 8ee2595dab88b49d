"""What the reader makes of a task: the option that it finds most likely, or code that it writes.

    likelihood    log p of each option behind the question, read in a fork of the reader: its own
                  context, its own KV. Honest for a small model, which cannot be asked to write.
    tests         the reader writes a Python function that returns the fact; preset tests say which
                  option it returned. For models that write code, from about 7B parameters.

Both ask in forks, so that one question leaves no trace in the next, and close them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from inms_lab.errors import BadInput
from inms_lab.experiment.sandbox import Limits, run_tests
from inms_lab.experiment.tasks import Task, Tokens
from inms_lab.interference.compare import surprise
from inms_lab.notebook.agent import Agent

CODE = (
    "{asked} Write a Python function answer() without arguments that returns it as a string."
    " Reply with the code alone."
)
MAX_TOKENS = 96  # of generated code
_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The option that was chosen (-1: none), and log p in nats of each, where there is one."""

    chosen: int
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers, and when the first thing that the reader computed for one was there."""

    answers: list[Answer]
    first_at: float  # time.perf_counter


Scorer = Callable[[Agent, Sequence[Task]], Asked]


def by_likelihood(reader: Agent, tasks: Sequence[Task]) -> Asked:
    """Log-likelihood of every option of every task; the questions share a forward."""
    forks = [reader.fork().result() for _ in tasks]
    for fork, task in zip(forks, tasks, strict=True):
        fork.read(task.question, role=None)
    pending = [fork.next_logits() for fork in forks]
    rows: list[dict[Tokens, torch.Tensor]] = [{(): logits.result()} for logits in pending]
    first_at = time.perf_counter()
    later = []
    for fork, task, row in zip(forks, tasks, rows, strict=True):
        beginnings = {option[:n] for option in task.options for n in range(1, len(option))}
        for beginning in sorted(beginnings):
            child = fork.fork().result()
            child.read(beginning, role=None)
            later.append((child, row, beginning, child.next_logits()))
    for _, row, beginning, logits in later:
        row[beginning] = logits.result()
    for child in (*(child for child, *_ in later), *forks):
        child.close().result()
    answers = []
    for task, row in zip(tasks, rows, strict=True):
        scores = [
            -math.fsum(float(surprise(row[o[:n]][None], o[n : n + 1])) for n in range(len(o)))
            for o in task.options
        ]
        answers.append(Answer(max(range(len(scores)), key=scores.__getitem__), scores))
    return Asked(answers, first_at)


def by_tests(reader: Agent, tasks: Sequence[Task], limits: Limits | None = None) -> Asked:
    """Have the reader write a function for each task, and run the tests of every option on it."""
    forks = [reader.fork().result() for _ in tasks]
    for fork, task in zip(forks, tasks, strict=True):
        fork.read(CODE.format(asked=task.asked), role="user")
    pending = [fork.write(MAX_TOKENS) for fork in forks]
    written = [str(output.result()) for output in pending]
    first_at = min(fork.requests[-1].first_token_at for fork in forks)
    for fork in forks:
        fork.close().result()
    judged = [judge(task, text, limits) for task, text in zip(tasks, written, strict=True)]
    return Asked(judged, first_at)


def judge(task: Task, written: str, limits: Limits | None = None) -> Answer:
    """The option whose tests pass on the code in what was written."""
    preset = {str(i): preset_test(value) for i, value in enumerate(task.said)}
    passed = run_tests(code_in(written), preset, limits).passed
    return Answer(next((i for i in range(len(task.said)) if passed[str(i)]), -1))


def preset_test(value: str) -> str:
    """Statements that raise unless `answer()` is this value, whatever its case and full stop."""
    return f"assert str(answer()).strip().rstrip('.').lower() == {value.lower()!r}"


def code_in(written: str) -> str:
    """The code in what a model wrote: its first fenced block, or all of it."""
    found = _FENCE.search(written)
    return found.group(1) if found else written


SCORERS: dict[str, Scorer] = {"likelihood": by_likelihood, "tests": by_tests}


def scorer_of(name: str) -> Scorer:
    """The scorer called `name`."""
    if name not in SCORERS:
        raise BadInput(f"no scorer is called {name!r}; there are: {', '.join(SCORERS)}")
    return SCORERS[name]
