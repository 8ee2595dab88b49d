"""`inms-lab refs`: the life of one block, out of a log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inms_lab.errors import BadInput

if TYPE_CHECKING:
    from inms_lab.logs.history import Change


def refs(
    log: Annotated[Path, typer.Argument(help="a saved log, a journal, or vLLM's KV events")],
    block: Annotated[int, typer.Option(help="block number within its pool")],
    pool: Annotated[str | None, typer.Option(help="needed if several pools used it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON list")] = False,
) -> None:
    """Who held a block, when, and why its refcount changed."""
    from dataclasses import asdict

    from inms_lab.logs.history import block_history, pools_with
    from inms_lab.logs.open_log import open_log

    events = open_log(log)
    if events.note:
        print(f"note: {events.note}", file=sys.stderr)
    pools = pools_with(events, block) if pool is None else [pool]
    if not pools:
        raise BadInput(f"block {block} was never used: with --pool this says which there are")
    if len(pools) > 1:
        raise BadInput(f"block {block} is used in {', '.join(pools)}: choose one with --pool")
    changes = block_history(events, pools[0], block)
    if as_json:
        print(json.dumps([asdict(change) for change in changes]))
    else:
        _table_of(f"block {block} of {pools[0]}", changes)


def _table_of(title: str, changes: list[Change]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in ("index", "step", "event", "cause", "agent", "refcount", "state", "held by"):
        table.add_column(name, justify="right" if name in ("index", "step") else "left")
    for c in changes:
        counts = f"{c.before} -> {c.after}" if c.before != c.after else str(c.after)
        state = f"{c.state} (life {c.generation + 1})" if c.event == "Allocated" else c.state
        row = (c.index, c.step, c.event, c.cause, c.holder, counts, state, ", ".join(c.holders))
        table.add_row(*map(str, row))
    Console().print(table)
