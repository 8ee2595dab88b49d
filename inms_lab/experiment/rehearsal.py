"""What a team takes in a mode, counted without weights: blocks depend on texts, not on a model.

Used where a number of blocks must be known beforehand, for agents that are only counted, and for
teams larger than anybody wants to wait for. Every fragment passes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

from inms_lab.books.gate import OPEN
from inms_lab.experiment import modes
from inms_lab.experiment.labs import Settings, open_lab
from inms_lab.experiment.modes import MODES, Mode
from inms_lab.experiment.reading import NAMES, WAYS
from inms_lab.experiment.tasks import DECIDERS, READER, Task, Team, teams_of
from inms_lab.model.forward import DryModel, Forward
from inms_lab.model.progress import bar
from inms_lab.notebook.usage import deep_size, peak


@dataclass(frozen=True, slots=True)
class Counted:
    """At its peak: blocks, and the tokens that were computed on the way; metadata as in the end."""

    num_blocks: int
    computed_tokens: int
    metadata_bytes: int


def rehearse(
    model: Forward, team: Team, mode: Mode, settings: Settings, num_readers: int = 1
) -> Counted:
    """Play the team up to the first question, on the books alone."""
    num_agents = len(DECIDERS) + num_readers
    readers = range(READER, num_agents)
    room = 0
    if mode.texts == modes.TRUNCATED:
        room = share_of(model, team, settings, num_readers)
    dry = DryModel(model.vocab_size, model.max_context, 1)
    counted = replace(mode, int8=False)
    with open_lab(dry, counted, replace(settings, gate=OPEN), num_agents) as lab:
        lab.preload(team.prompt, progress=False)
        story = WAYS[mode.texts](lab, team, num_agents, room)
        for step in (story.begin, story.hear):
            step(DECIDERS)
            step(readers)
        metadata = lab.look(lambda: lab.log.num_bytes() + deep_size(lab.engine.ledger))
        return Counted(peak(lab.log, 1).num_blocks, lab.engine.num_computed, metadata)


def share_of(model: Forward, team: Team, settings: Settings, num_readers: int = 1) -> int:
    """Tokens that a context may take so that all contexts fit the memory of mode `inms`."""
    size = settings.block_size
    whole = rehearse(model, team, MODES["inms"], settings, num_readers).num_blocks
    blocks = whole // (len(NAMES) - 1 + num_readers)
    prompt = -(-len(team.prompt) // size)  # a segment of its own
    return len(team.prompt) + max(0, blocks - prompt) * size


def by_readers(
    model: Forward,
    tasks: Sequence[Task],
    names: Sequence[str | Mode] | None = None,
    settings: Settings | None = None,
    num_readers: Sequence[int] = (1, 2, 4, 8),
    progress: bool = True,
) -> pd.DataFrame:
    """Blocks at the peak, the mean over teams: a row a mode, a column a number of readers."""
    settings, columns = settings or Settings(), modes.chosen(names)
    teams = [part[0].team for part in teams_of(tasks)]
    rows: dict[str, list[float]] = {mode.name: [] for mode in columns}
    total = len(columns) * len(num_readers) * len(teams)
    with bar(total, "more readers", unit="run", enabled=progress) as shown:
        for mode, n in product(columns, num_readers):
            blocks = 0
            for team in teams:
                blocks += rehearse(model, team, mode, settings, n).num_blocks
                shown.update()
            rows[mode.name].append(blocks / len(teams))
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(num_readers))
