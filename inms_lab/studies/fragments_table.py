"""`inms-lab fragments` in numbers: message lists as tokens, what was seen, as rows and as a table.

Values are plain, for JSON, notebooks and the terminal alike; only `render` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inms_lab.errors import BadInput
from inms_lab.studies.bill_table import format_bytes
from inms_lab.studies.fragments import RUN, SCOPES, WAYS, Encoded, Seen, look_back
from inms_lab.studies.messages import Request, read_requests

if TYPE_CHECKING:
    from rich.console import Console

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Cuts:
    """What of a file is looked at; None: all of it."""

    limit_tokens: int | None = None  # of a request: its first ones
    sessions: int | None = None  # the first ones
    answers: bool = True  # whether what an agent wrote counts as seen

    def __post_init__(self) -> None:
        for name in ("limit_tokens", "sessions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} is a number of at least 1, not {value}")

    @property
    def text(self) -> str:
        """In words."""
        tokens = f"cut to {self.limit_tokens:,} tokens" if self.limit_tokens else "not cut"
        sessions = f"the first {self.sessions} sessions" if self.sessions else "all sessions"
        answers = "count" if self.answers else "do not count"
        return f"{sessions}; requests are {tokens}; answers {answers} as seen"


@dataclass(slots=True)
class Report:
    """One file: its requests, what of them was seen, how many were cut.

    `quality`: as `interference.found.quality_of` gives it; None where it was not asked for.
    """

    name: str
    requests: list[Request]
    num_cut: int
    seen: Seen
    quality: dict[str, Any] | None = None

    def as_dict(self, kv_bytes_per_token: int) -> dict[str, Any]:
        """Everything as one JSON object. Shares are of tokens, or means over requests."""
        table = self.seen.requests
        return {
            "file": self.name,
            "sessions": int(table["session"].nunique()),
            "agents": int(table["first"].sum()),
            "requests_cut": self.num_cut,
            "all_requests": self._group(False, kv_bytes_per_token),
            "first_requests": self._group(True, kv_bytes_per_token),
            "fragments": len(self.seen.fragments),
            "quality": self.quality,
        }

    def _group(self, first: bool, size: int) -> dict[str, Any]:
        seen, table = self.seen, self.seen.requests
        out: dict[str, Any] = {
            "requests": int(table["first"].sum()) if first else len(table),
            "tokens": seen.tokens(first=first),
        }
        for scope in SCOPES:
            out[f"seen_in_{scope}"] = {
                way: {
                    "tokens": seen.tokens(way, scope, first),
                    "share": round(seen.share(way, scope, first), 4),
                    "mean_share": round(seen.mean_share(way, scope, first), 4),
                    "kv_bytes": seen.tokens(way, scope, first) * size,
                }
                for way in WAYS
            }
        return out


def examine(path: Path, encode: Encode, cuts: Cuts, tick: Callable[[], object]) -> Report:
    """Read a file, make tokens of its texts (each once), look back. `tick`: after each request.

    Raises `BadInput` for a file of another form, or without a request.
    """
    known: dict[str, tuple[int, ...]] = {}

    def tokens(text: str) -> tuple[int, ...]:
        if text not in known:
            known[text] = tuple(encode(text)) if text else ()
        return known[text]

    requests, found = list[Request](), list[Encoded]()
    sessions, num_cut = set[str](), 0
    for request in read_requests(path):
        sessions.add(request.session)
        if cuts.sessions is not None and len(sessions) > cuts.sessions:
            sessions.discard(request.session)
            continue
        whole = _encoded(request, tokens)
        kept = whole if cuts.limit_tokens is None else whole.cut(cuts.limit_tokens)
        num_cut += len(kept) < len(whole)
        requests.append(request)
        found.append(kept)
        tick()
    if not requests:
        raise BadInput(f"{path} holds no request with text: there is nothing to look for")
    return Report(path.name, requests, num_cut, look_back(found, cuts.answers))


def render(
    reports: Sequence[Report], model: str, size: int, cuts: Cuts, console: Console | None = None
) -> None:
    """Print the table; `size`: bytes of KV of a token."""
    from rich.console import Console
    from rich.table import Table

    out = console or Console()
    for report in reports:
        table = Table(title=report.name)
        table.add_column("seen before in")
        for name in ("tokens", "prefix", "messages", "any run", "KV saved"):
            table.add_column(name, justify="right")
        for first in (False, True):
            for scope in reversed(SCOPES):
                table.add_row(*_cells(report.seen, first, scope, size))
            table.add_section()
        out.print(table)
        if report.num_cut:
            out.print(f"{report.num_cut} of {len(report.requests)} requests were cut.")
        if report.quality is not None:
            out.print(_quality(report.quality), highlight=False)
    for line in (
        f"{cuts.text[0].upper()}{cuts.text[1:]}; tokens of {model}.",
        f"prefix: full blocks of {RUN} tokens from the start; messages: these, and whole messages"
        f" of at least {RUN} tokens anywhere; any run: tokens among {RUN} equal ones anywhere.",
        f"KV saved: not computed again, by messages, {format_bytes(size)} a token in float32.",
    ):
        out.print(line, style="dim", highlight=False)


def _quality(quality: dict[str, Any]) -> str:
    """A line a way of reuse, in words."""
    if not quality["samples"]:
        return "Quality: no message was found behind the prefix with enough text around it."
    cut = quality["cut_to"]
    lines = [
        f"{quality['samples']} messages as fragments (first {cut['fragment']} tokens, behind"
        f" at most {cut['own']}), the next {cut['next']} tokens against full prefill, 95 %:"
    ]
    ways = {
        "public": "encoded behind public context, shifted",
        "private": "behind the context where it was seen first",
        "alone": "behind nothing",
        "missing": "not there",
    }
    for name, words in ways.items():
        kl, same = (quality["variants"][name][what] for what in ("kl", "agreement"))
        lines.append(
            f"  {words}: KL {kl[0]:.3f} [{kl[1]:.3f}, {kl[2]:.3f}],"
            f" agreement {same[0]:.1%} [{same[1]:.1%}, {same[2]:.1%}]"
        )
    return "\n".join(lines)


def _cells(seen: Seen, first: bool, scope: str, size: int) -> list[str]:
    num = int(seen.requests["first"].sum()) if first else len(seen.requests)
    is_whole = scope == "file"
    return [
        f"{num:,} {'first ' if first else ''}requests" if is_whole else "  same session",
        f"{seen.tokens(first=first):,}" if is_whole else "",
        *(f"{seen.share(way, scope, first):.1%}" for way in WAYS),
        format_bytes(seen.tokens("messages", scope, first) * size),
    ]


def _encoded(request: Request, tokens: Callable[[str], tuple[int, ...]]) -> Encoded:
    messages = tuple(tokens(message.text) for message in request.messages)
    return Encoded(request.session, request.agent, messages, tokens(request.answer))
