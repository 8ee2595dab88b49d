"""Pictures of a snapshot: one SVG on a dark plate of its own, so it reads on any theme. Pure.

A block's refcount is a number, and lightness repeats it (the more holders, the lighter), with the
holders' initials below. No scripts, no ids, no links, nothing that depends on when it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from .snapshot import CACHED, HELD, AgentRow, Block, PoolRow, Snapshot
from .words import Tell, teller

WIDTH, MARGIN = 960, 20
PITCH, CELL = 29, 27  # a cell with its gap, a cell
STATE_AT, BAR_AT, BAR = 146, 215, 370  # where states and bars begin, and the longest bar
MOST_NAME = 16  # letters of an agent's name
PER_ROW = (WIDTH - 2 * MARGIN) // PITCH
MOST_BLOCKS = 10 * PER_ROW  # a pool shows no more cells than these
MIB = 1 << 20

ORDER = ("global", "group", "private", "common")

# Lightness rises with the refcount (cividis: dark blue, grey, sand, yellow), also in grey print.
CSS = """
.inms-view{max-width:1080px;margin:4px 0;font:14px system-ui,sans-serif}
.inms-view svg,.inms-view img{width:100%;height:auto;display:block}
.inms{font:14px system-ui,'Liberation Sans','Noto Sans CJK SC','WenQuanYi Zen Hei',sans-serif;
fill:#d5dbe6}
.inms .plate{fill:#141a26}
.inms .name{font-size:17px;font-weight:600;fill:#fff}
.inms .dim{fill:#a3adbd}
.inms .end{text-anchor:end}
.inms .n{font-size:13px;font-weight:700;text-anchor:middle}
.inms .who{font-size:8.5px;text-anchor:middle}
.inms .r1{fill:#3b5585}.inms .r2{fill:#868d99}.inms .r3{fill:#b5a873}.inms .r4{fill:#f5dc5a}
.inms .t1{fill:#fff}.inms .t2,.inms .t3,.inms .t4{fill:#10141d}
.inms .cached{fill:none;stroke:#a3adbd;stroke-dasharray:4 3}
.inms .free{fill:none;stroke:#76839b;stroke-dasharray:2 3}
.inms .rest{fill:none;stroke:#a3adbd}
"""
TOOTH = 4.5  # of the torn edge of a block that somebody has as a fragment


LEGEND = (
    (MARGIN, "r1", "1", "svg_l_refs"),
    (370, "r4", "4", "svg_l_more"),
    (570, CACHED, "0", "svg_l_cached"),
    (825, "free", "", "svg_l_free"),
)
SHIFTED = "svg_l_shifted"  # below, where there are such blocks


@dataclass(slots=True)
class _Canvas:
    """SVG parts, and how far down the picture goes."""

    parts: list[str]
    tell: Tell
    y: float = MARGIN

    def text(self, x: float, dy: float, text: str, css: str = "") -> None:
        """`text` with its base line `dy` below the current height."""
        name = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:g}" y="{self.y + dy:g}"{name}>{escape(text)}</text>')

    def title(self, x: float, dy: float, name: str, words: str) -> None:
        """A name in large letters and, wherever it ends, some words."""
        spans = f'<tspan class="name">{escape(name)}</tspan><tspan dx="12">{escape(words)}</tspan>'
        self.parts.append(f'<text x="{x:g}" y="{self.y + dy:g}" class="dim">{spans}</text>')

    def torn(self, x: float, dy: float, high: float) -> None:
        """Teeth out of the left edge of a box."""
        teeth = "".join(
            f"l{TOOTH:g} {TOOTH:g}l-{TOOTH:g} {TOOTH:g}" for _ in range(int(high / TOOTH / 2))
        )
        self.parts.append(f'<path d="M{x:g} {self.y + dy:g}{teeth}z" class="plate"/>')

    def box(self, x: float, dy: float, w: float, h: float, css: str, title: str = "") -> None:
        """A rectangle whose top is `dy` below the current height; `title` appears on hovering."""
        where = f'x="{x:g}" y="{self.y + dy:g}" width="{w:g}" height="{h:g}" rx="3"'
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(f'<rect {where} class="{css}"{inside}')


def render_svg(shot: Snapshot, *, titles: bool = True, lang: str = "en") -> str:
    """The picture as one SVG element; `titles`: what appears on hovering over a block."""
    canvas = _Canvas([], teller(lang))
    for pool in sorted(shot.pools, key=lambda pool: ORDER.index(pool.tier)):
        _draw_pool(canvas, pool, titles)
    _draw_agents(canvas, shot.agents)
    _draw_memory(canvas, shot)
    _draw_legend(canvas, shifted=any(block.shifts for pool in shot.pools for block in pool.blocks))
    height = canvas.y + MARGIN / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" class="inms" '
        f'role="img" aria-label="{escape(summary(shot, lang))}"><style>{CSS}</style>'
        f'<rect width="{WIDTH}" height="{height:g}" rx="8" class="plate"/>'
        f"{''.join(canvas.parts)}</svg>"
    )


def render_html(shot: Snapshot, lang: str = "en") -> str:
    """The picture for a page without a kernel: the SVG as an image, and its numbers in a table.

    As an image it also shows in notebooks that are not trusted yet, where inline SVG is removed.
    """
    tell = teller(lang)
    rows = [
        (p.pool_id, tell("svg_now", p.num_held, p.num_cached, p.num_free), _refs(p, tell))
        for p in shot.pools
    ]
    rows += [
        (
            a.name,
            tell("svg_tokens", tell(f"map_s_{a.state}"), a.num_tokens),
            tell("svg_own", a.num_shared, a.num_own)
            + (tell("svg_agent_shifted", a.num_shifted) if a.num_shifted else ""),
        )
        for a in shot.agents
    ]
    cells = "".join(f"<tr>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>" for row in rows)
    titles = (tell(f"svg_{key}") for key in ("who", "state", "blocks"))
    head = f"<tr>{''.join(f'<th>{escape(title)}</th>' for title in titles)}</tr>"
    return (
        f"{image(shot, lang)}<details><summary>{escape(tell('svg_numbers'))}</summary>"
        f"<table>{head}{cells}</table></details>"
    )


def image(shot: Snapshot, lang: str = "en") -> str:
    """The SVG as an image element that carries its own data."""
    data = quote(render_svg(shot, titles=False, lang=lang), safe=" ='/:;,()<>{}")
    return (
        f'<img width="{WIDTH}" alt="{escape(summary(shot, lang))}" src="data:image/svg+xml,{data}">'
    )


def summary(shot: Snapshot, lang: str = "en") -> str:
    """The picture in one sentence: what each pool holds, and what the agents would hold alone."""
    tell = teller(lang)
    pools = ", ".join(tell("svg_pool", pool.pool_id, pool.num_held) for pool in shot.pools)
    sizes = (f"{size / MIB:.1f} MiB" for size in (shot.held_bytes, shot.independent_bytes))
    head = tell("svg_pools", pools or tell("svg_none"), len(shot.agents))
    return f"{head}; {tell('svg_note', *sizes)}"


def _refs(pool: PoolRow, tell: Tell) -> str:
    counts = sorted({block.refs for block in pool.blocks if block.state == HELD})
    return tell("svg_refs", ", ".join(map(str, counts))) if counts else tell("svg_nobody")


def _draw_pool(canvas: _Canvas, pool: PoolRow, titles: bool) -> None:
    states = (pool.num_held, pool.num_cached, pool.num_free)
    counts = canvas.tell("svg_counts", *states, pool.num_blocks, pool.block_size)
    canvas.title(MARGIN, 14, pool.pool_id, canvas.tell(f"map_about_{pool.tier}"))
    canvas.text(WIDTH - MARGIN, 14, counts, "dim end")
    canvas.y += 24
    shown = pool.blocks[:MOST_BLOCKS]
    for at, block in enumerate(shown):
        row, column = divmod(at, PER_ROW)
        _draw_block(canvas, MARGIN + column * PITCH, row * PITCH, block, titles)
    canvas.y += -(-len(shown) // PER_ROW) * PITCH
    rest = [canvas.tell("svg_never", pool.num_blocks - len(pool.blocks))]
    if len(pool.blocks) > len(shown):
        rest.insert(0, canvas.tell("svg_more", len(pool.blocks) - len(shown)))
    canvas.text(MARGIN, 14, " ".join(rest), "dim")
    canvas.y += 34


def _draw_block(canvas: _Canvas, x: float, dy: float, block: Block, titles: bool) -> None:
    held = block.state == HELD
    shade = min(block.refs, 4)
    names = ", ".join(block.places) if held else canvas.tell("svg_kept")
    names = canvas.tell("svg_free") if block.state == "free" else names
    title = canvas.tell("svg_block", block.number, names)
    canvas.box(x, dy, CELL, CELL, f"r{shade}" if held else block.state, title if titles else "")
    if block.shifts:
        canvas.torn(x, dy, CELL)
    if held:
        initials = "".join(name[0] for name in block.holders[:5])
        canvas.text(x + CELL / 2, dy + 14, str(block.refs), f"n t{shade}")
        canvas.text(x + CELL / 2, dy + 23.5, initials, f"who t{shade}")
    elif block.state == CACHED:
        canvas.text(x + CELL / 2, dy + 18, "0", "n dim")


def _short(name: str) -> str:
    """A name that fits. The end in brackets stays: it tells forks and namesakes apart."""
    if len(name) <= MOST_NAME:
        return name
    end = name[name.rfind(" (") :] if name.endswith(")") and " (" in name else ""
    end = end if len(end) < MOST_NAME - 3 else ""
    return f"{name[: MOST_NAME - 1 - len(end)]}…{end}"


def _draw_agents(canvas: _Canvas, agents: tuple[AgentRow, ...]) -> None:
    most = max((a.num_shared + a.num_own for a in agents), default=0) or 1
    for agent in agents:
        shared, own = (BAR * n / most for n in (agent.num_shared, agent.num_own))
        canvas.text(MARGIN, 15, _short(agent.name))
        canvas.text(STATE_AT, 15, canvas.tell(f"map_s_{agent.state}"), "dim")
        canvas.box(BAR_AT, 2, shared, 16, "r4")
        canvas.box(BAR_AT + shared, 2, own, 16, "r1")
        counts = canvas.tell("svg_agent", agent.num_tokens, agent.num_shared, agent.num_own)
        if agent.num_shifted:
            counts += canvas.tell("svg_agent_shifted", agent.num_shifted)
        canvas.text(WIDTH - MARGIN, 15, counts, "dim end")
        canvas.y += 24
    canvas.y += 12 * bool(agents)


def _draw_memory(canvas: _Canvas, shot: Snapshot) -> None:
    most = max(shot.held_bytes, shot.independent_bytes, 1)
    less = 1 - shot.held_bytes / shot.independent_bytes if shot.independent_bytes else 0
    saved = canvas.tell("svg_less", f"{int(100 * less + 0.5)}") if less > 0 else ""
    bars = [("svg_held", shot.held_bytes, "r3")]
    if shot.independent_bytes:
        bars.append(("svg_alone", shot.independent_bytes, "rest"))
    for name, num_bytes, css in bars:
        canvas.text(MARGIN, 15, canvas.tell(name))
        canvas.box(BAR_AT, 2, BAR * num_bytes / most, 16, css)
        canvas.text(WIDTH - MARGIN, 15, f"{num_bytes / MIB:.1f} MiB{saved}", "dim end")
        saved = ""
        canvas.y += 24
    canvas.y += 10


def _draw_legend(canvas: _Canvas, shifted: bool) -> None:
    for x, css, number, words in LEGEND:
        canvas.box(x, 0, 20, 20, css)
        canvas.text(x + 10, 15, number, f"n t{css[1:]}" if css[0] == "r" else "n dim")
        canvas.text(x + 28, 15, canvas.tell(words), "dim")
    canvas.y += 24
    if shifted:
        canvas.box(MARGIN, 4, 20, 20, "r2")
        canvas.torn(MARGIN, 4, 20)
        canvas.text(MARGIN + 28, 19, canvas.tell(SHIFTED), "dim")
        canvas.y += 28
