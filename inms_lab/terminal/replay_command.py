"""`inms-lab replay`: a trace in, what the books find of it out; the log for the view, if asked."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inms_lab.errors import BadInput

if TYPE_CHECKING:
    from inms_lab.studies.replay import Played, Tally
    from inms_lab.studies.trace import Request

AGENTS_SHOWN = 12


def replay(
    trace: Annotated[Path, typer.Argument(help=".jsonl, .jsonl.gz or .json")],
    capacity: Annotated[
        int | None, typer.Option(help="blocks that stay between requests; without it, all")
    ] = None,
    curve: Annotated[
        str | None, typer.Option(help="also at these capacities, for example 1000,10000")
    ] = None,
    share_tools: Annotated[
        bool, typer.Option(help="take equally long tool definitions of all sessions for equal")
    ] = False,
    requests: Annotated[int | None, typer.Option(help="the first requests only")] = None,
    model: Annotated[str, typer.Option(help="whose tokens, for a trace of text")] = "smollm2-135m",
    block_size: Annotated[int, typer.Option(help="tokens per block, for a trace of text")] = 16,
    save: Annotated[Path | None, typer.Option(help="write the log into this file")] = None,
    html: Annotated[Path | None, typer.Option(help="write the log as an offline page")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Play a trace of requests through the books: hits by tier and by agent, at a capacity."""
    from inms_lab.model.progress import bar
    from inms_lab.studies import replay as played_by

    if block_size < 1:
        raise BadInput(f"--block-size: a block has at least one token, not {block_size}")
    if capacity is not None and capacity < 1:
        raise BadInput(f"--capacity {capacity} keeps nothing: give at least one block")
    capacities = numbers(curve) if curve else []
    started = time.perf_counter()
    stream = read(trace, share_tools, model, block_size, requests)
    size = block_size if stream[0].tokens is not None else played_by.SIZE
    keep = save is not None or html is not None
    with bar(len(stream), "playing", unit=" requests") as progress:
        played, log = played_by.replay(stream, capacity, size, keep_log=keep, tick=progress.update)
    seconds = time.perf_counter() - started
    if save is not None:
        log.save(save)
    if html is not None:
        from inms_lab.terminal.page import write_page

        write_page(log, html, f"INMS Lab: {trace.name}")
    rates = played_by.curve(stream, capacities, size)
    if as_json:
        print(json.dumps(as_dict(trace.name, played, rates, seconds)))
    else:
        render(trace.name, played, rates, seconds)


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise BadInput(f"--curve {text!r} is no list of capacities: write for example 1000,10000")
    return found


def read(
    path: Path, share_tools: bool, model: str, block_size: int, count: int | None
) -> list[Request]:
    """The first `count` requests of a trace; a tokenizer is looked for only if it has text."""
    from inms_lab.studies.trace import read_trace

    if count is not None and count < 1:
        raise BadInput(f"--requests: {count} requests are none: give at least 1")

    def encode(text: str) -> list[int]:
        if not tokenizer:
            from inms_lab.terminal.fragments_command import tokenizer_of

            tokenizer.append(tokenizer_of(model)[0])
        return list(tokenizer[0](text))

    tokenizer: list[Any] = []
    return read_trace(path, share_tools, encode, block_size)[:count]


def as_dict(name: str, played: Played, rates: dict[int, float], seconds: float) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "trace": name,
        "capacity": played.capacity,
        "unique_blocks": played.unique,
        **played.all.as_dict(),
        "hits_by_tier": dict(played.tiers),
        "first_requests": played.first.as_dict(),
        "first_requests_of_joining_agents": played.joining.as_dict(),
        "agents": {agent: tally.as_dict() for agent, tally in played.agents.items()},
        "curve": {str(capacity): rate for capacity, rate in rates.items()},
        "seconds": round(seconds, 2),
        "us_per_block": round(seconds / played.all.blocks * 1e6, 3),
    }


def render(name: str, played: Played, rates: dict[int, float], seconds: float) -> None:
    """Print tables."""
    from rich.console import Console
    from rich.table import Table

    out = Console()
    table = Table(title=f"{name}: {played.capacity:,} blocks stay between requests")
    for column in ("", "requests", "blocks", "hits", "hit rate"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(*_cells("all requests", played.all))
    table.add_row(*_cells("the first request of each agent", played.first))
    table.add_row(*_cells("... of agents that join a session", played.joining))
    table.add_section()
    for agent, tally in islice(played.agents.items(), AGENTS_SHOWN):
        table.add_row(*_cells(agent, tally))
    if len(played.agents) > AGENTS_SHOWN:
        table.add_row(f"({len(played.agents) - AGENTS_SHOWN} more, see --json)")
    out.print(table)
    tiers = Table("whose text was found", "blocks", "of all blocks")
    for tier, count in played.tiers.items():
        tiers.add_row(tier, f"{count:,}", f"{count / played.all.blocks:.4f}")
    out.print(tiers)
    if rates:
        points = Table("capacity (blocks)", "hit rate")
        for capacity, rate in rates.items():
            points.add_row(f"{capacity:,}", f"{rate:.4f}")
        out.print(points)
    out.print(f"{played.unique:,} different blocks; read and played in {seconds:.1f} s")


def _cells(name: str, tally: Tally) -> list[str]:
    rate = f"{tally.hits / tally.blocks:.4f}" if tally.blocks else ""
    return [name, f"{tally.requests:,}", f"{tally.blocks:,}", f"{tally.hits:,}", rate]
