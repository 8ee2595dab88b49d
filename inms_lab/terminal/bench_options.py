"""What the measurements of `inms-lab bench` have in common: options, refusals, the printing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from inms_lab.errors import BadInput

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Seed = Annotated[int, typer.Option(help="of whatever is drawn")]
Repeat = Annotated[int, typer.Option(help="measure so many times; the median counts")]
Model = Annotated[str, typer.Option(help="name, folder or hub id")]
Compiled = Annotated[bool, typer.Option("--compile/--no-compile", help="use compiled kernels")]
Shared = Annotated[int, typer.Option(help="tokens that all contexts begin with")]
Own = Annotated[int, typer.Option(help="tokens of each agent's own")]
Agents = Annotated[int, typer.Option(help="number of agents")]
Quick = Annotated[bool, typer.Option(help="draw the contexts' KV at random, do not compute it")]
Results = Annotated[Path | None, typer.Option(help="write the result to this file too")]
DEFAULT = "smollm2-135m"


def at_least(least: float, **options: float) -> None:
    """Refuse an option's number that is too small; before a model is loaded for nothing."""
    for name, value in options.items():
        if value < least:
            raise BadInput(f"--{name} {value} is too small: give at least {least}")


def show(
    name: str,
    measured: Callable[[], dict[str, Any]],
    options: tuple[bool, int, int],
    path: Path | None = None,
) -> None:
    """Measure, then print the result behind its header, and write it where that is asked."""
    from inms_lab.bench.header import Others, header, print_result

    as_json, seed, repeat = options
    if repeat < 1:
        raise BadInput(f"--repeat {repeat}: a measurement is repeated at least once")
    if not 0 <= seed < 1 << 63:
        raise BadInput(f"--seed {seed} is none: give a number from 0 to {(1 << 63) - 1}")
    others, found = Others(), measured()
    result = header(name, seed, repeat) | {"others_cores": others.cores()} | found
    print_result(result, as_json)
    if path is not None:
        from inms_lab.interference.calibrate import machine

        path.write_text(json.dumps(result | {"machine": machine()}, indent=1) + "\n", "utf-8")
