"""The experiment as one call: tasks in modes, resumable, with a progress bar.

tasks = family(model, 120)
found = run(model, tasks, path="run.jsonl")     # Experiment: .table(), .stages(), .compared()
run_modes(model, tasks[:6], ["independent", "global", "inms", "pooled"])      # a small table
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd

from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.errors import BadInput
from inms_lab.experiment import modes as known
from inms_lab.experiment.labs import Settings
from inms_lab.experiment.modes import Mode
from inms_lab.experiment.play import Played, play
from inms_lab.experiment.results import Experiment
from inms_lab.experiment.tasks import Task, teams_of
from inms_lab.interference.resume import Lines
from inms_lab.model.forward import Forward
from inms_lab.model.progress import bar, say
from inms_lab.notebook import opening


def run(
    model: str | Path | Forward,
    tasks: Sequence[Task],
    modes: Sequence[str | Mode] | None = None,
    path: str | Path | None = None,
    *,
    gate: Gate | None = DEFAULT,
    scorer: str = "likelihood",
    block_size: int = 16,
    quick: bool = False,
    progress: bool = True,
) -> Experiment:
    """Every team in every mode (without names: all) that `path` does not hold yet.

    `gate` judges fragments in the modes that use them; where it lets none of this model through,
    that is said once. `scorer`: "likelihood", or "tests" for models that can write code. `quick`:
    agents that share with nobody are counted, not computed; their modes have no wall time.
    """
    if not tasks:
        raise BadInput("there is no task: `family(model, count)` makes some")
    loaded = opening.load_model(model, None, None)
    settings, columns = Settings(block_size, scorer, gate, quick), known.chosen(modes)
    judge = opening.gate_for(loaded, gate)
    why = "" if judge is None else loaded.unsafe or judge.excess()
    if why and any(mode.gated for mode in columns):
        say(f"no fragments of this model: {why}", enabled=progress)
    lines = Lines(path, _header(loaded, replace(settings, gate=judge)))
    teams = teams_of(tasks)
    played: dict[str, list[Played]] = {mode.name: [] for mode in columns}
    with bar(len(teams) * len(columns), "modes", unit="run", enabled=progress) as shown:
        for team in teams:
            for mode in columns:
                shown.set_postfix_str(mode.name)
                name = _name(mode, team)
                found = lines.find(name)
                if found is None:
                    found = asdict(play(loaded, team, mode, settings))
                    lines.append(name, found)
                played[mode.name].append(Played(**found))
                shown.update()
    return Experiment([task for team in teams for task in team], columns, played)


def run_modes(
    model: str | Path | Forward,
    tasks: Sequence[Task],
    modes: Sequence[str | Mode] = ("independent", "global", "inms", "pooled"),
    **options: Any,
) -> pd.DataFrame:
    """A small run, quick unless `quick=False`: a row a mode, shares of tasks and means of teams.

    `options` are those of `run`.
    """
    found = run(model, tasks, modes, **({"quick": True} | options))
    table = found.table()
    out = table[["correct", "guess", "stale", "leak", "prefill_tokens", "ttft_ms"]].copy()
    out.insert(4, "kv_mib", table.kv_bytes / 2**20)
    out["choices"] = pd.Series(found.marks())
    return out


def _header(model: Any, settings: Settings) -> dict[str, Any]:
    gate = settings.gate.about() if settings.gate is not None else None
    about = asdict(replace(settings, gate=None)) | {"gate": gate}
    return {"experiment": 1, "model": model.digest, **about}


def _name(mode: Mode, tasks: Sequence[Task]) -> str:
    parts = [mode.name, repr(mode.policy), mode.texts, mode.gated, mode.int8]
    key = json.dumps([*parts, *(task.digest for task in tasks)])
    return f"{mode.name}/{blake2b(key.encode(), digest_size=8).hexdigest()}"
