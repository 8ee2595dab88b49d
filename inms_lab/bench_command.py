"""`inms-lab bench NAME`: a measurement on this machine, with what decides its figures.

One function a measurement: its options, then the call of the module in bench/ that measures. The
options `--json`, `--seed` and `--repeat` are everybody's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from inms_lab.errors import BadInput

app = typer.Typer(help="Measure this machine: one command a question.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Seed = Annotated[int, typer.Option(help="of whatever is drawn")]
Repeat = Annotated[int, typer.Option(help="measure so many times; the median counts")]


@app.callback()
def bench() -> None:
    """Keeps the name of a single measurement part of the command."""


@app.command()
def bookkeeping(
    trace: Annotated[Path, typer.Option(help="a trace of block ids, as replay takes it")],
    capacity: Annotated[int, typer.Option(help="blocks that stay between requests")] = 10_000,
    share_tools: Annotated[
        bool, typer.Option(help="take equally long tool definitions of all sessions for equal")
    ] = False,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """What the books cost per block of a trace, log on, and what they find."""
    from inms_lab.bench.bookkeeping import measure

    def measured() -> dict[str, Any]:
        return measure(trace, capacity, repeat, share_tools)

    _show("bookkeeping", measured, (as_json, seed, repeat))


def _show(
    name: str, measured: Callable[[], dict[str, Any]], options: tuple[bool, int, int]
) -> None:
    """Measure, then print the result behind its header."""
    from inms_lab.bench.header import header

    as_json, seed, repeat = options
    if repeat < 1:
        raise BadInput(f"a measurement is repeated at least once, not {repeat} times")
    result = header(name, seed, repeat) | measured()
    if as_json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:>22}  {text}")
