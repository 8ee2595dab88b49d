"""One team in one mode: the agents read, a decision is replaced, the reader is asked.

The deciding agents go first, together, then the reader alone, so that the time to its first token
is its own; the same again for the news. Then its first question is asked, and the others at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from inms_lab.decisions.policy import Independent
from inms_lab.errors import BadInput
from inms_lab.experiment import modes
from inms_lab.experiment.labs import Settings, open_lab
from inms_lab.experiment.modes import Mode
from inms_lab.experiment.reading import NAMES, WAYS
from inms_lab.experiment.rehearsal import rehearse, share_of
from inms_lab.experiment.score import Answer, scorer_of
from inms_lab.experiment.tasks import DECIDERS, READER, Task
from inms_lab.hindsight.reused import reused
from inms_lab.model.forward import Forward
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.usage import deep_size, peak


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a team in a mode, up to the reader's first answer.

    KV is at its peak before the first question, in whole blocks; metadata (log, token table, books)
    is as it is then. The reader's own parts of the run: `prefill_tokens` that it computed, and
    `ttft_ms`. Of everybody: `wall_ms` (None where agents were only counted), `computed_tokens`, and
    `shifted_tokens`, which were mounted at another place.
    """

    kv_bytes: int
    kv_blocks: int
    metadata_bytes: int
    prefill_tokens: int
    ttft_ms: float
    wall_ms: float | None
    computed_tokens: int
    shifted_tokens: int
    context_tokens: int  # of the reader, before it is asked
    answers: dict[str, dict[str, Any]]  # by task

    def answer(self, task: Task) -> Answer:
        """What was made of this task."""
        return Answer(**self.answers[task.digest])


def play(model: Forward, tasks: Sequence[Task], mode: Mode, settings: Settings) -> Played:
    """All tasks of one team."""
    team, ask = tasks[0].team, scorer_of(settings.scorer)
    if any(task.team.digest != team.digest for task in tasks):
        raise BadInput("these tasks are of several teams: see `teams_of`")
    room = share_of(model, team, settings) if mode.texts == modes.TRUNCATED else 0
    counts_others = settings.quick and isinstance(mode.policy, Independent)
    first = () if counts_others else DECIDERS
    with open_lab(model, mode, settings) as lab:
        started, clock = time.perf_counter(), _Clock(lab)
        lab.preload(team.prompt, progress=False)
        story = WAYS[mode.texts](lab, team, len(NAMES), room)
        for step in (story.begin, story.hear):
            step(first)
            with clock.running():
                step([READER])
        held = lab.look(lab.log.copy)
        metadata = lab.look(lambda: lab.log.num_bytes() + deep_size(lab.engine.ledger))
        context, before = len(story.reader.tokens), lab.engine.num_computed
        with clock.running():
            asked = ask(story.reader, tasks[:1])
        # What else the scorer did until it answered is no part of the reader's time.
        late = time.perf_counter() - asked.first_at
        computed = lab.engine.num_computed
        answers = [*asked.answers, *(ask(story.reader, tasks[1:]).answers if tasks[1:] else ())]
        per_token = lab.engine.cache.store.bytes_per_token
    blocks, wall = peak(held, per_token).num_blocks, 1000 * (asked.first_at - started)
    if counts_others:
        counted = rehearse(model, team, mode, settings)
        blocks, metadata = counted.num_blocks, counted.metadata_bytes
        computed += counted.computed_tokens - before
    return Played(
        kv_bytes=blocks * settings.block_size * per_token,
        kv_blocks=blocks,
        metadata_bytes=metadata,
        prefill_tokens=clock.tokens,
        ttft_ms=1000 * (clock.seconds - late),
        wall_ms=None if counts_others else wall,
        computed_tokens=computed,
        shifted_tokens=reused(held).tokens("shared at a shift"),
        context_tokens=context,
        answers={t.digest: asdict(answer) for t, answer in zip(tasks, answers, strict=True)},
    )


class _Clock:
    """Seconds and computed tokens of the parts of a run in which the reader alone works."""

    def __init__(self, lab: Lab) -> None:
        self.engine, self.seconds, self.tokens = lab.engine, 0.0, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """One such part."""
        at, computed = time.perf_counter(), self.engine.num_computed
        yield
        self.seconds += time.perf_counter() - at
        self.tokens += self.engine.num_computed - computed
