"""The modes that are compared: who reads which texts, and how the KV of these is held.

What a mode gives the reader to read:

    copies      everybody's own copy of the decisions as they were at first; no news reaches it
    told        the same, and what replaced a decision is read too, privately
    content     the same; authors write their decisions behind their own private thoughts, and text
                is found by its content, whoever computed it
    records     the decisions are published, attached, and replaced by new versions
    rebuilt     the same; on news a context is put together anew from the texts that hold
    truncated   as told, and the oldest shared tokens are dropped until a context fits its share
    pooled      as told, and everybody's private text as well

So `pooled` against `told` is the danger of visibility, `content` against `told` that of shared KV,
and `copies` against `told` the price of news that arrive nowhere. Three texts differ from mode to
mode; `inms global` (only the prompt's KV is shared) computes just what told contexts would be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inms_lab.decisions.policy import Global, Independent, Inms, Policy
from inms_lab.errors import BadInput

COPIES, TOLD, CONTENT, RECORDS = "copies", "told", "content", "records"
REBUILT, TRUNCATED, POOLED = "rebuilt", "truncated", "pooled"


@dataclass(frozen=True, slots=True)
class Mode:
    """A column of the experiment. `gated`: fragments that the gate lets through are used."""

    name: str
    what: str
    policy: Policy
    texts: str
    gated: bool = False
    int8: bool = False


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("independent", "own copies of everything", Independent(), COPIES),
        Mode("global", "equal text is shared, whoever computed it", Global(), CONTENT, gated=True),
        Mode("inms global", "the prompt is shared", Inms(encodes_records=False), RECORDS),
        Mode("inms group", "and records, in their own place", Inms(), RECORDS),
        Mode("inms", "and records in other places: fragments", Inms(), RECORDS, gated=True),
        Mode("pooled", "everyone's private text in every context", Independent(), POOLED),
        Mode("truncate", "oldest shared text dropped, memory of inms", Independent(), TRUNCATED),
        Mode("recompute", "contexts are rebuilt when something changes", Inms(), REBUILT),
        Mode("int8", "KV in int8, nothing shared", Independent(), TOLD, int8=True),
        Mode("int8 inms", "KV in int8, shared as in inms", Inms(), RECORDS, gated=True, int8=True),
    )
}
STAGES = ("inms global", "inms group", "inms")  # each adds one way to share to the one before


def chosen(names: Iterable[str | Mode] | None = None) -> list[Mode]:
    """The modes with these names, or all; a mode of one's own passes."""
    if isinstance(names, (str, Mode)):
        names = [names]
    out = [m if isinstance(m, Mode) else MODES.get(m, m) for m in names or MODES]
    for mode in out:
        if not isinstance(mode, Mode):
            raise BadInput(f"no mode is called {mode!r}; there are: {', '.join(MODES)}")
    return [mode for mode in out if isinstance(mode, Mode)]
