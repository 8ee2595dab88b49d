"""`inms-lab experiment`: modes of sharing side by side, in memory, time and quality of a task."""

from __future__ import annotations

import json
import shlex
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import typer

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def experiment(
    model: Annotated[str, typer.Argument(help="name, folder or hub id")] = "smollm2-135m",
    tasks: Annotated[int, typer.Option(help="fact tasks, in teams of six")] = 120,
    modes: Annotated[list[str] | None, typer.Option("--mode", help="these only; repeat")] = None,
    scorer: Annotated[str, typer.Option(help="likelihood, or tests for 7B and up")] = "likelihood",
    block_size: Annotated[int, typer.Option(help="tokens per block")] = 16,
    seed: Annotated[int, typer.Option(help="of the tasks and of the intervals")] = 0,
    benefit: Annotated[bool, typer.Option(help="the benefit model instead, no weights")] = False,
    results: Annotated[Path | None, typer.Option(help="write all figures into this file")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Fact tasks in every mode: what sharing saves, what it costs. An interrupt may resume.

    With --benefit: blocks held against ((1-p)n + p) L s, for eight agents.
    """
    command = shlex.join(["inms-lab", *sys.argv[1:]])
    if benefit:
        result = _benefit(command)
    else:
        where = model, device, dtype
        result = _experiment(where, tasks, modes, scorer, block_size, seed, command)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(result))
    elif benefit:
        _render_benefit(result)
    else:
        from inms_lab.experiment.report import render

        render(result)


def _experiment(
    where: tuple[str, str | None, str | None],
    count: int,
    modes: list[str] | None,
    scorer: str,
    block_size: int,
    seed: int,
    command: str,
) -> dict[str, Any]:
    from inms_lab.books.gate import DEFAULT
    from inms_lab.experiment import report
    from inms_lab.experiment.labs import Settings
    from inms_lab.experiment.rehearsal import by_readers
    from inms_lab.experiment.run import run
    from inms_lab.experiment.tasks import family
    from inms_lab.model import load
    from inms_lab.notebook.opening import gate_for
    from inms_lab.places import cache_root

    name, device, dtype = where
    runner: Any = load(name, device=device, dtype=dtype)
    drawn, gate = family(runner, count, seed), gate_for(runner, DEFAULT)
    key = repr((str(runner.dtype), scorer, block_size, gate))
    digest = blake2b(key.encode(), digest_size=6).hexdigest()
    path = cache_root() / "measurements" / f"experiment-{runner.digest}-{digest}.jsonl"
    found = run(runner, drawn, modes or None, path, scorer=scorer, block_size=block_size)
    about = {
        "command": command,
        "model": runner.digest,
        "scorer": scorer,
        "block_size": block_size,
        "gate": gate.about() if gate is not None else None,
    }
    readers = by_readers(runner, drawn, modes or None, Settings(block_size))
    result = report.as_result(found, readers, about, seed)
    return result | {"leak_rank": report.risk_of(RESULTS)}


def _benefit(command: str) -> dict[str, Any]:
    from inms_lab.experiment import benefit
    from inms_lab.interference.calibrate import machine

    table = benefit.measure()
    longer = benefit.measure(
        block_sizes=benefit.COMPARED, modes=("inms",), tokens=benefit.CLAIM_TOKENS
    )
    return {
        "command": command,
        "machine": machine(),
        "seed": 0,
        "bytes_per_token": benefit.BYTES_PER_TOKEN,
        "claims": benefit.claimed(table, longer),
        "rows": json.loads(table.to_json(orient="records")),
    }


def _render_benefit(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = [row for row in result["rows"] if row["mode"] == "inms"]
    sizes = sorted({row["block_size"] for row in rows})
    agents, tokens = rows[0]["num_agents"], rows[0]["tokens"]
    shown = Table(title=f"{agents} agents of {tokens} tokens: MiB of KV held, by block size")
    for heading in ("p", "formula", *map(str, sizes)):
        shown.add_column(heading, justify="right")
    for share in sorted({row["share"] for row in rows}):
        mine = {row["block_size"]: row for row in rows if row["share"] == share}
        cells = (f"{mine[size]['kv'] / 2**20:.0f}" for size in sizes)
        shown.add_row(f"{share:g}", f"{mine[sizes[0]]['formula'] / 2**20:.0f}", *cells)
    shown.add_section()
    most = (max(row["metadata"] for row in rows if row["block_size"] == size) for size in sizes)
    shown.add_row("metadata,", "at most", *(f"{size / 2**20:.1f}" for size in most))
    out = Console()
    out.print(shown)
    left = max(abs(row["unexplained"]) for row in result["rows"])
    out.print(f"bytes that neither formula nor last blocks explain: {left} at most")
