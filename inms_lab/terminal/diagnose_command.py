"""`inms-lab diagnose`: the causes that a saved log shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from inms_lab.errors import BadInput


def diagnose(
    log: Annotated[Path, typer.Argument(help="a log from log.save(path), or vLLM's KV events")],
    idle_after: Annotated[
        int | None, typer.Option(help="steps without work, then a holder is idle")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Quality dropped, no room, slow growth: the cause, and the event that it began with."""
    from inms_lab.hindsight import diagnose as judge
    from inms_lab.logs.open_log import open_log

    if idle_after is not None and idle_after < 1:
        raise BadInput(f"--idle-after is a number of steps from 1 on, not {idle_after}")
    events = open_log(log)
    if events.note:
        print(f"note: {events.note}", file=sys.stderr)
    found = judge.diagnose(events, idle_after=idle_after)
    print(json.dumps(found.as_dict()) if as_json else found)
