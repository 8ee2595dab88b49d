"""The doctor's second part: can agents' processes share weights here, and what slows them down?

Faults of this part are told, but they do not make anything "missing": the lab works without.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

_ELSEWHERE = {
    "darwin": "macOS: processes share weights (private mappings); nothing tells of single pages",
    "win32": "Windows: processes cannot share weights: run the lab in WSL for that",
}
_MARKS = {
    (True, False): ("ok", "green"),
    (True, True): ("look", "yellow"),
    (False, True): ("fault", "bold red"),
}


def print_section(console: Console) -> None:
    """Print what `inms_lab.parameters.faults` finds on this machine."""
    if sys.platform != "linux":
        told = _ELSEWHERE.get(sys.platform, f"shared weights: not tried on {sys.platform}")
        console.print(Text(told))
        return
    from inms_lab.parameters.faults import examine

    table = Table(title="Shared weights: memory of this machine")
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in examine(seconds=0.3):
        mark, style = _MARKS[finding.ok, bool(finding.advice)]
        cells = (finding.name, finding.value, finding.advice)
        table.add_row(Text(mark, style), *map(Text, cells))
    console.print(table)
