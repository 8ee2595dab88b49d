"""Lab 01: which published figure does not follow from its own inputs, and what does?

All figures are of one write-up on KV caches. Its k is 1024, and so are its KB and GB: here they are
called KiB and GiB. What a row's inputs give is computed, never typed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from inms_lab.config import Config
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook import usage
from inms_lab.notebook.lab import Lab
from inms_lab.studies import bill

from .wrong import Wrong, shown

KIB, GIB = 1024, 1024**3
PER_TOKEN = bill.kv_bytes_per_token(num_layers=32, num_kv_heads=32, head_dim=128, dtype_bytes=2)
BLOCK_SIZE = 256
ABOUT = 0.05  # how far a figure printed as "about" may lie from what its inputs give
ROUNDED = 0.05  # GiB; how far an answer may lie from it


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table: `agents` of `tokens` each, `share` of them common, `printed` GiB."""

    row: int
    printed: float
    agents: int
    tokens: int
    share: float = 0.0

    def gib(self, share: float | None = None, agents: float | None = None) -> float:
        """What the inputs give; with one of them replaced where a mistake is recognised."""
        n, p = self.agents if agents is None else agents, self.share if share is None else share
        return ((1 - p) * n + p) * self.tokens * PER_TOKEN / GIB

    @property
    def follows(self) -> bool:
        """Is it what its inputs give, give or take a rounding?"""
        return abs(self.gib() - self.printed) <= ABOUT * self.printed

    @property
    def common(self) -> int:
        """Whole tokens that all agents have in common."""
        return int(self.share * self.tokens)

    def blocks(self, block_size: int) -> bill.BlockBill:
        """The same to the block."""
        own = [[self.tokens - self.common]] * self.agents
        shared = [self.common] if self.common else []
        return bill.block_bill(shared, own, block_size, PER_TOKEN)


FIGURES = {
    figure.row: figure
    for figure in (
        Figure(1, 512 * KIB / GIB, 1, 1),
        Figure(2, 10, 1, 20 * KIB),
        Figure(3, 80, 8, 20 * KIB),
        Figure(4, 64, 8, 16 * KIB),
        Figure(5, 34, 8, 16 * KIB, 0.6),
        Figure(6, 12, 3, 8 * KIB),
        Figure(7, 7.5, 3, 8 * KIB, 4.5 / 8),
    )
}


def figure(row: Any, gib: Any, log: Any = None) -> Wrong | None:
    """The row whose figure is wrong, and its right value in GiB; `log`: of the lab's own run."""
    number = _number(row)
    found = FIGURES.get(int(number)) if number is not None and number == int(number) else None
    if found is None:
        rows = f"the number of a row, {min(FIGURES)} to {max(FIGURES)}"
        return Wrong(rows, shown(row), "row", "row = 3, for example: no text, no list")
    index, run = _moment(found, log)
    if found.follows:
        return Wrong(
            "a row whose inputs do not give its figure",
            f"row {found.row}: its inputs give {_size(found.gib())}, as is printed",
            f"row {found.row}",
            f"{_seen(found, run, index)}; try another row",
            log=run,
            index=index,
        )
    value = _number(gib)
    if value is None:
        example = "gib = together(...) / GIB, for example"
        return Wrong("a number of GiB", shown(gib), f"row {found.row}, gib", example)
    if abs(value - found.gib()) <= ROUNDED:
        return None
    came, hint = _mistake(found, value, run)
    return Wrong(
        f"what the inputs of row {found.row} give, in GiB",
        came,
        f"row {found.row}, gib",
        hint,
        log=run,
        index=index,
        block=_most_shared(run, index),
    )


# --- wrong values ------------------------------------------------------------------------------


def _mistake(f: Figure, value: float, log: Log) -> tuple[str, str]:
    """What an answer computes, and where to look on."""
    for wrong, came, hint in _known(f, log):
        if abs(value - wrong) <= max(min(ROUNDED, 0.02 * wrong), 1e-3 * wrong):
            return f"{value:g}: {came}", hint
    low, high = f.gib(share=1.0), f.gib(share=0.0)
    if not low <= value <= high:
        why = f"one context alone is {low:g} GiB, {f.agents} that share nothing are {high:g}"
        return f"{value:g}, which cannot be", why
    return f"{value:g}", "together(n, tokens, common, s): how many agents, how many common tokens?"


def _known(f: Figure, log: Log) -> Iterator[tuple[float, str, str]]:
    """(value, what it is, hint) of mistakes that people make."""
    n, p, right = f.agents, f.share, f.gib()
    alone = f.gib(share=0.0)
    block_size = int(log.about["block_size"])
    yield f.printed, "the printed figure itself", "what do the row's own inputs give?"
    yield alone, "the memory with nothing shared", "it is the dashed line; the common part is extra"
    saved = "is what sharing saves, the gap below the dashed line"
    yield alone - right, f"this {saved}", "wanted is what is still held"
    yield 100 * (1 - right / alone), f"this, in percent, {saved}", "wanted is what is held, in GiB"
    yield 1 - right / alone, f"this, as a share, {saved}", "wanted is what is held, in GiB"
    once = "the common part is stored once, not never: look at its blocks in the global pool"
    yield (1 - p) * alone, "the own parts alone", once
    yield p * alone, "the common parts alone, one for each agent", "held once; and the own parts?"
    yield p * alone / n, "the common part alone", "each agent's own part comes on top of it"
    other_way = f"{n} times the own part, once the common part"
    yield f.gib(share=1 - p), f"{p:.0%} as each agent's own part", f"it is common: {other_way}"
    yield f.gib(agents=n - 1), f"the bill of {n - 1} agents", "the first agent has an own part too"
    yield f.gib(agents=n + 1), f"the bill of {n + 1} agents", "the common part is no agent"
    yield right / n, "one agent's share of it", f"the figure is of all {n} agents together"
    queries = "this is 128 KiB a token; the write-up has no grouped queries"
    yield right / 4, "the bill with grouped queries", queries
    whole = f"whole blocks of {block_size} tokens, as the lab holds them"
    inputs = "the row's inputs know no blocks: leave the unused slots out"
    yield f.blocks(block_size).shared_bytes / GIB, whole, inputs
    kilo = "16k is 16 x 1024 tokens, 512 KiB are 512 x 1024 bytes, a GiB is 1024^3"
    yield right * 1000 / 1024, "a k counted as 1000", kilo
    yield right * (1000 / 1024) ** 2, "a k counted as 1000, twice", kilo
    yield right * 1.024**3, "gigabytes of 1000^3 bytes", kilo
    yield right * 1.024, "gigabytes of 1000^3 bytes, of two k of 1000", kilo
    for size, unit in ((1, "bytes"), (KIB, "KiB"), (KIB**2, "MiB"), (KIB**4, "TiB")):
        yield right * GIB / size, f"in {unit}", "the same amount in GiB, please"


# --- where it can be seen ----------------------------------------------------------------------


def _moment(f: Figure, log: Any) -> tuple[int, Log]:
    """The event at which a row's memory can be read: its run's fullest; for one token the first
    that holds any. In the lab's own log if that is of such a run, else in one made here."""
    of_run = next(g for g in FIGURES.values() if g.share and g.tokens == 16 * KIB)
    if not (isinstance(log, Log) and _is_of(of_run, log)):
        log = _run(of_run)
    if f.tokens == 1:
        return _first_held(log), log
    if (f.agents, f.tokens) != (of_run.agents, of_run.tokens):
        log = _run(f)
    return usage.peak(log, PER_TOKEN).index, log


def _is_of(f: Figure, log: Log) -> bool:
    if log.about.get("bytes_per_token") != PER_TOKEN or log.first:
        return False
    return usage.peak(log, PER_TOKEN).num_bytes == f.blocks(log.about["block_size"]).shared_bytes


def _first_held(log: Log) -> int:
    return next(i for i in range(len(log)) if usage.held_bytes(log.replay(i), PER_TOKEN))


def _most_shared(log: Log, index: int) -> tuple[str, int] | None:
    """(pool, number) of the first block that the most hold."""
    refs = {(p, b): n for p, pool in log.replay(index).pools.items() for b, n in pool.refs.items()}
    return min(refs, key=lambda block: (-refs[block], block)) if refs else None


@cache
def _run(f: Figure) -> Log:
    """The log of such agents on a model without weights, one after the other."""
    size = int(2 * f.gib(share=0.0) * GIB)
    config = Config(BLOCK_SIZE, 0, 2048, f.tokens, size, size, size)
    mode = "inms" if f.common else "independent"
    with Lab(DryModel(32_000, f.tokens, PER_TOKEN), mode=mode, config=config) as lab:
        if f.common:
            lab.preload([0] * f.common, progress=False)
        for number in range(1, f.agents + 1):
            lab.agent(f"agent {number}").read([number] * (f.tokens - f.common))
            lab.run_to()
    return lab.log


def _seen(f: Figure, log: Log, index: int) -> str:
    books = log.replay(index)
    held = _size(usage.held_bytes(books, PER_TOKEN) / GIB)
    if f.tokens == 1:
        blocks = sum(pool.num_held for pool in books.pools.values())
        return f"the first {blocks} blocks of {log.about['block_size']} tokens take {held}"
    if f.common:
        return f"{held} are held in whole blocks"
    alone = usage.independent_blocks(books) * log.about["block_size"] * PER_TOKEN
    return f"the dashed line is at {_size(alone / GIB)}, in whole blocks"


# --- what a student hands in ---------------------------------------------------------------------


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * KIB**2:g} KiB"
