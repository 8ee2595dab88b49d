"""What was reused and what was not, and why: a report over a log, so that nothing fails in silence.

One row for each holder, outcome and reason: how many tokens and blocks of its context were mounted
in place (`shared`), at another place (`shared at a shift`), copied, or computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from inms_lab.books.events import Copied, Event, Shared, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.books.table_rules import moves
from inms_lab.decisions.copies import NEW
from inms_lab.logs.log import Log

Key: TypeAlias = tuple[str, str, str, str]  # holder, kind, outcome, reason


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens and blocks with one outcome for one reason."""

    holder: str
    kind: str
    outcome: str
    reason: str
    num_tokens: int
    num_blocks: int


class Reused:
    """The rows, as text, HTML or a table; `share(...)` sums them up."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def tokens(self, *outcomes: str, kind: str = "agent") -> int:
        """Tokens of all holders of this kind with one of these outcomes (none: all outcomes)."""
        rows = (r for r in self.rows if r.kind == kind)
        return sum(r.num_tokens for r in rows if not outcomes or r.outcome in outcomes)

    @property
    def share(self) -> float:
        """Share of the agents' tokens that were not computed, in place or at a shift."""
        every = self.tokens()
        return self.tokens("shared", "shared at a shift") / every if every else 0.0

    def to_pandas(self) -> Any:
        """A table with one row for each holder, outcome and reason."""
        import pandas as pd

        names = list(Row.__slots__)
        return pd.DataFrame([[getattr(r, n) for n in names] for r in self.rows], columns=names)

    def __repr__(self) -> str:
        if not self.rows:
            return "nothing was decided yet"
        head = f"{self.share:.0%} of the agents' tokens were reused"
        lines = (
            f"{r.holder:<14} {r.num_tokens:>6} tokens  {r.outcome}: {r.reason}" for r in self.rows
        )
        return "\n".join((head, *lines))

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(index=False, border=0))


def reused(log: Log) -> Reused:
    """The report over a log. What was lost and computed again counts again."""
    books = Ledger.replay(log.snapshot, (), log.tokens)
    tokens: Counter[Key] = Counter()
    blocks: Counter[Key] = Counter()
    for event in log.events:
        for key, num_tokens, num_blocks in _rows(books, event):
            tokens[key] += num_tokens
            blocks[key] += num_blocks
        books.apply(event)
    for made in log.decisions:
        if made.outcome in ("refused", "no room"):
            seq = books.sequences[made.seq_id]
            blocks[seq.name, seq.kind, made.outcome, made.reason] += 0
    return Reused([Row(*key, tokens[key], blocks[key]) for key in blocks])


def _rows(books: Ledger, event: Event) -> Iterator[tuple[Key, int, int]]:
    """What an event that is about to happen mounts, copies or computes."""
    if isinstance(event, (Shared, Copied)):
        seq = books.sequences[event.seq_id]
        segment = seq.segments[event.segment]
        if isinstance(event, Copied):
            if not moves(books, event):
                yield (seq.name, seq.kind, "copied", "another holder reads this block"), 0, 1
            return
        outcome, reason = "shared", "same fingerprint" if event.cause == "hit" else "a fork"
        if segment.is_fragment:
            outcome, reason = "shared at a shift", f"a fragment, shift {segment.shift:+d}"
        count = event.length - segment.length
        yield (seq.name, seq.kind, outcome, reason), count, len(event.blocks)
    elif isinstance(event, Stepped):
        for seq_id, count, _, _ in event.items:
            seq = books.sequences[seq_id]
            for segment in seq.segments:
                step = min(count, segment.room)
                count -= step
                if step:
                    why = segment.why or NEW
                    before = -(-segment.computed // segment.block_size)
                    num_blocks = -(-(segment.computed + step) // segment.block_size) - before
                    yield (seq.name, seq.kind, "computed", why), step, num_blocks
