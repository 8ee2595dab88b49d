"""The bill as a table: the question of `inms-lab bill`, answered in rows with their formulas.

Rows are plain values, for notebooks, JSON and the terminal alike; only `render` draws.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from inms_lab.studies import bill
from inms_lab.studies.geometry import Geometry

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: sizes in bytes, lengths in tokens, `shared` the common part of a context.

    `memory` None asks for no fit; `weights` None takes the estimate; `block_size` None is 16
    below 2k tokens of context and 256 above.
    """

    geometry: Geometry
    agents: int
    tokens: int
    shared: float
    memory: int | None = None
    weights: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a stable `key`, what it is, how it comes about, its value and unit."""

    key: str
    label: str
    formula: str
    value: float
    unit: str  # "bytes", "share", "agents" or "slots"

    @property
    def text(self) -> str:
        if self.unit == "bytes":
            return format_bytes(self.value)
        return f"{self.value:.1%}" if self.unit == "share" else f"{self.value:,.0f}"


def rows(question: Question) -> list[Row]:
    """The whole bill; raises `BadInput` for a question that has no answer."""
    return [*_kv_rows(question), *_block_rows(question), *_fit_rows(question)]


def as_dict(question: Question) -> dict[str, Any]:
    """The answer as one JSON object: the question, the values by key, reservations."""
    asked = asdict(question)
    geometry = asked.pop("geometry")
    notes = geometry.pop("notes")
    answer = {row.key: row.value for row in rows(question)}
    return {"model": geometry, "question": asked, **answer, "notes": list(notes)}


def render(question: Question, console: Console | None = None) -> None:
    """Print the table to the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "value", "how", title=f"{question.agents} agents of {question.tokens} tokens")
    table.columns[1].justify = "right"
    for row in rows(question):
        table.add_row(row.label, row.text, row.formula)
    console = console or Console()
    console.print(table)
    for note in question.geometry.notes:
        console.print(f"Note: {note}.")


def format_bytes(value: float) -> str:
    """In 1024-based units, one decimal, as `30.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _kv_rows(q: Question) -> list[Row]:
    g, n, s = q.geometry, q.agents, q.geometry.kv_bytes_per_token
    share = bill.saving(n, q.shared)
    return [
        Row(
            "kv_bytes_per_token",
            "KV of one token (s)",
            f"2 x {g.num_layers} layers x {g.num_kv_heads} kv heads x {g.head_dim} head dim"
            f" x {g.dtype_bytes} bytes",
            s,
            "bytes",
        ),
        Row("context_bytes", "one agent's context", "L s", q.tokens * s, "bytes"),
        Row(
            "independent_bytes",
            f"{n} agents, nothing shared",
            "n L s",
            bill.independent_bytes(n, q.tokens, s),
            "bytes",
        ),
        Row(
            "shared_bytes",
            f"{n} agents, {q.shared:.4g} of each held once",
            "((1 - p) n + p) L s",
            bill.shared_bytes(n, q.tokens, q.shared, s),
            "bytes",
        ),
        Row("saving", "saved", "p (n - 1) / n, never more than p", share, "share"),
    ]


def _block_rows(q: Question) -> list[Row]:
    block_size = (16 if q.tokens < 2048 else 256) if q.block_size is None else q.block_size
    common = round(q.shared * q.tokens)
    exact = bill.block_bill(
        [common], [[q.tokens - common]] * q.agents, block_size, q.geometry.kv_bytes_per_token
    )
    held = f"ceil(length / {block_size}) blocks a segment"
    return [
        Row(
            "block_independent_bytes",
            "nothing shared, to the block",
            held,
            exact.independent_bytes,
            "bytes",
        ),
        Row("block_shared_bytes", "shared, to the block", held, exact.shared_bytes, "bytes"),
        Row(
            "block_empty_slots",
            "empty slots when shared",
            f"of {exact.shared_blocks * block_size:,}, at the end of segments",
            exact.shared_empty,
            "slots",
        ),
    ]


def _fit_rows(q: Question) -> list[Row]:
    if q.memory is None:
        return []
    g = q.geometry
    weights = g.weights_bytes if q.weights is None else q.weights
    fit = bill.agents_that_fit(q.memory, weights, q.tokens, q.shared, g.kv_bytes_per_token)
    estimate = f"estimate: {g.num_params or 0:,} parameters x {g.dtype_bytes} bytes"
    room = format_bytes(q.memory)
    return [
        Row(
            "weights_bytes",
            "weights (W)",
            estimate if q.weights is None else "as given",
            weights,
            "bytes",
        ),
        Row(
            "fit_independent",
            f"agents in {room} (M), nothing shared",
            "(M - W) / (L s), rounded down",
            fit.independent,
            "agents",
        ),
        Row(
            "fit_shared",
            f"agents in {room} (M), shared",
            "((M - W) / (L s) - p) / (1 - p), rounded down",
            fit.shared,
            "agents",
        ),
    ]
