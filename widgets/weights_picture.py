"""The page map of weights as a picture without scripts, for pages without a kernel. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import quote

from .words import teller

WIDTH, MARGIN, ROW = 960, 20, 34
NAME, TOLD = 150, 210  # what is left of a strip, and right of it
BUCKETS = 295  # of a strip
MIB = 1 << 20
CSS = """
.m{font:14px system-ui,'Liberation Sans','Noto Sans CJK SC','WenQuanYi Zen Hei',sans-serif;
fill:#d5dbe6}
.m .plate{fill:#141a26}.m .absent{fill:#33405a}.m .shared{fill:#58a8e8}.m .own{fill:#ffe45c}
.m .dim{fill:#a3adbd}
"""


def picture(now: dict[str, Any], tensors: Sequence[Any], look: dict[str, Any], lang: str) -> str:
    """An image and what it shows in words: `now`, `tensors`, `look` as in `WeightsMap`."""
    tell, holders = teller(lang), now["holders"]
    parts = [
        f'<text x="{MARGIN}" y="{MARGIN + 8}" class="dim">{escape(tell("weights_l_own"))} '
        f'<tspan fill="#ffe45c">■</tspan> · {escape(tell("weights_l_shared"))} '
        f'<tspan fill="#58a8e8">▄</tspan> · {escape(tell("weights_l_absent"))} '
        '<tspan fill="#76839b">▁</tspan></text>'
    ]
    for number, holder in enumerate(holders):
        parts.append(_strip(holder, MARGIN + 24 + number * ROW, tell))
    height = 2 * MARGIN + 24 + max(1, len(holders)) * ROW
    words = "; ".join(f"{one['name']}: {_told(one, tell)}" for one in holders)
    words = words or tell("weights_nobody")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" class="m"><style>{CSS}</style>'
        f'<rect width="{WIDTH}" height="{height}" rx="8" class="plate"/>{"".join(parts)}</svg>'
    )
    data = quote(svg, safe=" ='/:;,()<>{}")
    said = f"<p>{escape(look['note'])}</p>" if look.get("note") else ""
    image = f'<img width="{WIDTH}" alt="{escape(words)}" src="data:image/svg+xml,{data}">'
    return f"{said}{image}{_table(holders, tensors, tell)}"


def _told(holder: dict[str, Any], tell: Any) -> str:
    if holder["state"] != "lives":
        return str(tell("weights_ended"))
    own = holder["own"]
    size = f"{own / MIB:.1f} MiB" if own >= MIB else f"{own >> 10} KiB"
    return str(tell("weights_has", size, holder["version"]))


def _strip(holder: dict[str, Any], y: int, tell: Any) -> str:
    words = (
        f'<text x="{MARGIN}" y="{y + 16}">{escape(holder["name"][:18])}</text>'
        f'<text x="{WIDTH - TOLD}" y="{y + 16}" class="dim">{escape(_told(holder, tell))}</text>'
    )
    cells = holder.get("cells") or b""
    left, wide = MARGIN + NAME, WIDTH - TOLD - 12 - MARGIN - NAME
    count = min(BUCKETS, len(cells))
    ends = [number * len(cells) // count for number in range(count + 1)] if count else []
    looks = []
    for first, stop in pairwise(ends):
        part = cells[first:stop]
        own, shared = max(c >> 4 for c in part), max(c & 15 for c in part)
        looks.append("own" if own else "shared" if shared else "absent")
    at, boxes = 0, []
    for css, run in groupby(looks):
        size = len(list(run))
        x, w = left + wide * at / count, wide * size / count
        top, high = {"own": (0, 22), "shared": (11, 11), "absent": (20, 2)}[css]
        boxes.append(
            f'<rect x="{x:.1f}" y="{y + top}" width="{w:.1f}" height="{high}" class="{css}"/>'
        )
        at += size
    return words + "".join(boxes)


def _table(holders: Sequence[dict[str, Any]], tensors: Sequence[Any], tell: Any) -> str:
    """Of each holder, the tensors of which it has most pages for itself."""
    rows = []
    for holder in holders:
        data = memoryview(holder.get("counts") or b"").cast("I")
        own = [
            (data[2 * n], tensor) for n, tensor in enumerate(tensors) if len(data) and data[2 * n]
        ]
        for count, (name, _, _, pages) in sorted(own, key=lambda one: -one[0])[:8]:
            cells = (holder["name"], name, f"{count:,}", f"{pages:,}")
            rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    if not rows:
        return ""
    titles = ("holder", "tensor", "own", "pages")
    head = "".join(f"<th>{escape(tell(f'weights_{key}'))}</th>" for key in titles)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    summary = escape(tell("weights_numbers"))
    return f"<details><summary>{summary}</summary><table><tr>{head}</tr>{body}</table></details>"
