"""The main job's result as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from inms_lab.terminal.demo import DemoResult


def render(result: DemoResult, console: Console | None = None) -> None:
    """Print the modes side by side, what the comparison says, and what the agents wrote."""
    out = console or Console()
    title = f"{result.agents} agents of {result.tokens_per_agent} tokens, {result.model}"
    table = Table(title=f"{title}, blocks of {result.block_size}")
    for heading in ("", *result.modes):
        table.add_column(heading, justify="left" if not heading else "right")
    modes = list(result.modes.values())
    table.add_row("KV at the peak, MiB", *(f"{m.kv_bytes_peak / 2**20:,.2f}" for m in modes))
    table.add_row("  by formula, MiB", *(f"{m.kv_bytes_formula / 2**20:,.2f}" for m in modes))
    table.add_row("blocks at the peak", *(str(m.blocks_peak) for m in modes))
    table.add_row("tokens computed", *(f"{m.computed_tokens:,}" for m in modes))
    if not result.dry_run:
        table.add_row("time to prepare, s", *(f"{m.preload_s:.2f}" for m in modes))
        first = (" ".join(f"{seconds:.2f}" for seconds in m.ttft_s) for m in modes)
        table.add_row("time to first token, each, s", *first)
        table.add_row("wall time, s", *(f"{m.wall_s:.2f}" for m in modes))
        share = (f"{m.bookkeeping_s / m.wall_s:.1%}" for m in modes)
        table.add_row("bookkeeping, of wall time", *share)
    out.print(table)
    out.print(f"inms saves {result.saving:.1%} of the KV of independent agents.")
    out.print(
        f"The smooth formula p(n-1)/n says {result.saving_smooth:.1%}; blocks round up: "
        f"{result.explanation}.",
        highlight=False,
    )
    if result.dry_run:
        out.print("Dry run: decided on the books alone, no weights, no text was generated.")
        return
    same = "the same tokens" if result.identical_tokens else "[red]other tokens[/red]"
    also = "too" if result.tokens_equal_global else "does not"
    out.print(f"Every agent wrote {same} in inms as in independent (global {also}).")
    for text in result.modes["inms"].texts:
        out.print(f"  {text.strip()[:96]!r}", highlight=False, markup=False)
    out.print(f"Texts: {result.source}", style="dim", highlight=False)
