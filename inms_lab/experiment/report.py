"""Results as plain data for a file, and back as tables; what a person reads in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from inms_lab.errors import BadInput
from inms_lab.experiment.modes import MODES
from inms_lab.experiment.results import EXACT, Experiment
from inms_lab.experiment.tasks import SETTLED, UPDATED, teams_of
from inms_lab.interference.calibrate import machine

TABLES = ("modes", SETTLED, UPDATED, "stages", "compared", "readers")
LEAK_RANK = "leak_rank.json"
ENDS = ("", "_low", "_high")
COST_HEADINGS = ("KV, MiB", "metadata", "prefill", "TTFT", "computed", "wall")


def as_result(
    found: Experiment, readers: pd.DataFrame, about: Mapping[str, Any], seed: int = 0
) -> dict[str, Any]:
    """Everything a results file needs. `readers`: blocks by number of readers (rehearsal.py);
    `about`: command, model, settings."""
    compared = found.compared(seed=seed) if EXACT in found.played else pd.DataFrame()
    tables = {
        "modes": found.table(seed),
        SETTLED: found.table(seed, SETTLED),
        UPDATED: found.table(seed, UPDATED),
        "stages": found.stages(seed),
        "compared": compared,
        "readers": readers.rename(columns=str),
    }
    return {
        **about,
        "machine": machine(),
        "seed": seed,
        "num_tasks": len(found.tasks),
        "num_teams": len(teams_of(found.tasks)),
        "what": {mode.name: mode.what for mode in found.modes},
        "reference": EXACT,
        "tables": {name: _plain(table) for name, table in tables.items()},
        "choices": found.marks(),
        "kinds": "".join(task.kind[0] for task in found.tasks),
    }


def tables(result: str | Path | Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of a result, or of a file that holds one: those named in `TABLES`."""
    told: Any = result
    try:
        if isinstance(result, (str, Path)):
            told = json.loads(Path(result).read_text(encoding="utf-8"))
        return {
            name: pd.DataFrame.from_dict(rows, orient="index").rename_axis("mode").astype(float)
            for name, rows in told["tables"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"this is no result of `inms-lab experiment` ({error!r}): run it with --results FILE"
        ) from None


def risk_of(folder: Path) -> dict[str, Any] | None:
    """What KV of a shared text gives away, from the leak-rank figures in this folder, if there are
    any: of text encoded behind private thoughts, behind public text, and computed anew."""
    try:
        told = json.loads((folder / LEAK_RANK).read_text(encoding="utf-8"))
        rows = [row for row in told["rows"] if row["reader"] == "logits"]
        keys = ["variant", "trials", *(f"{x}{end}" for x in ("top1", "auc") for end in ENDS)]
        kept = [{key: row[key] for key in keys} for row in rows]
        return {"file": LEAK_RANK, "chance": told["chance"], "rows": kept}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def render(result: Mapping[str, Any]) -> None:
    """Print quality and costs of the modes, and what each stage adds."""
    from rich.console import Console
    from rich.table import Table

    out, found = Console(), tables(result)
    every, late = found["modes"], found[UPDATED]
    title = f"{result['num_tasks']} tasks of {result['num_teams']} teams, 95 % intervals"
    quality = Table("mode", "right", "guess", "stale, if changed", "leak", title=title)
    costs = Table("mode", *COST_HEADINGS, title="means over teams; tokens and ms")
    for name, row in every.iterrows():
        shares = (_share(row, "correct"), _share(row, "guess"), _share(late.loc[name], "stale"))
        leak = f"{row.leak:.2f} [{row.leak_low:.2f}, {row.leak_high:.2f}]"
        quality.add_row(str(name), *shares, leak)
        numbers = (row.prefill_tokens, row.ttft_ms, row.computed_tokens, row.wall_ms)
        sizes = (f"{row.kv_bytes / 2**20:.1f}", f"{row.metadata_bytes / 2**20:.2f}")
        costs.add_row(str(name), *sizes, *(f"{number:.0f}" for number in numbers))
    out.print(quality, costs)
    for name, row in found["stages"].iterrows():
        out.print(
            f"{name} ({MODES[str(name)].what}): KV x {row.kv_bytes:.2f}, prefill of the reader x "
            f"{row.prefill_tokens:.2f}, tokens computed x {row.computed_tokens:.2f}; right "
            f"{row.correct:+.1%} [{row.correct_low:+.1%}, {row.correct_high:+.1%}], other choices "
            f"{row.changed:.1%}, leak {row.leak:+.3f} [{row.leak_low:+.3f}, {row.leak_high:+.3f}]",
            highlight=False,
        )


def _share(row: pd.Series, what: str) -> str:
    return f"{row[what]:.0%} [{row[f'{what}_low']:.0%}, {row[f'{what}_high']:.0%}]"


def _plain(table: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Rows by name, five digits, None for what there is not."""
    return {
        str(name): {str(k): None if v != v else float(f"{v:.5g}") for k, v in row.items()}
        for name, row in table.iterrows()
    }
