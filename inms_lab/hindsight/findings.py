"""What a diagnosis says: complaints and their causes, each with its first event. Values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from textwrap import wrap
from typing import Any

from inms_lab.errors import BadInput

QUALITY = "quality dropped"
ROOM = "out of memory with free memory"
STORM = "out of memory after a long write"
GROWTH = "slow growth"
COMPLAINTS = (QUALITY, ROOM, STORM, GROWTH)
WIDTH = 76  # characters of a line


@dataclass(frozen=True, slots=True)
class Finding:
    """A complaint's cause. `index`: of the event that it began with, `event`: what that was;
    `because`: what was found; `advice`: what to do; `block`: the (pool, number) to look at."""

    complaint: str
    cause: str
    index: int
    event: str
    because: str
    advice: str
    holders: tuple[str, ...] = ()
    block: tuple[str, int] | None = None

    def rows(self) -> list[tuple[str, str]]:
        """(name, text) of what there is to say, the complaint apart."""
        first = f"event {self.index}: {self.event}"
        rows = [("cause", self.cause), ("first", first), ("because", self.because)]
        return [*rows, ("do", self.advice)]

    def __repr__(self) -> str:
        lines = [self.complaint]
        for name, text in self.rows():
            for number, line in enumerate(wrap(text, WIDTH) or [""]):
                lines.append(f"  {name if not number else '':<8} {line}")
        return "\n".join(lines)


class Diagnosis:
    """The findings, at most one for each complaint and cause, and `looked_at`: what was counted."""

    def __init__(self, findings: tuple[Finding, ...], looked_at: Mapping[str, int]) -> None:
        self.findings, self.looked_at = findings, dict(looked_at)

    def about(self, complaint: str) -> Finding | None:
        """The first finding for a complaint; None: nothing was found. Raises `BadInput`."""
        if complaint not in COMPLAINTS:
            raise BadInput(f"{complaint!r} is none of: {', '.join(COMPLAINTS)}")
        return next((f for f in self.findings if f.complaint == complaint), None)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {"findings": [asdict(f) for f in self.findings], "looked_at": self.looked_at}

    def __repr__(self) -> str:
        found = [repr(finding) for finding in self.findings] or ["nothing found"]
        return "\n".join([*found, *self._looked()])

    def _looked(self) -> list[str]:
        return ["looked at", *(f"  {count:>8} {what}" for what, count in self.looked_at.items())]

    def _repr_html_(self) -> str:
        out = []
        for finding in self.findings:
            rows = "".join(
                f'<tr><th style="text-align:left">{name}</th>'
                f'<td style="text-align:left">{escape(text)}</td></tr>'
                for name, text in finding.rows()
            )
            out.append(f"<p><b>{finding.complaint}</b></p><table>{rows}</table>")
        looked = ", ".join(f"{count} {what}" for what, count in self.looked_at.items())
        nothing = "" if self.findings else "<p><b>nothing found</b></p>"
        return f"{''.join(out)}{nothing}<p>looked at {escape(looked)}</p>"
