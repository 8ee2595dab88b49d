"""What planning can answer: a plan, or a value that says why not. All of them immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inms_lab.books.events import Event
from inms_lab.decisions.copies import MANY


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `[start, stop)` of a sequence for one forward; `recompute`: logits, no KV write."""

    seq_id: int
    start: int
    stop: int
    recompute: bool = False

    @property
    def num_written(self) -> int:
        """Tokens whose KV this chunk writes."""
        return 0 if self.recompute else self.stop - self.start


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a run of blocks of one segment, and why."""

    segment: int
    first: int
    num_blocks: int
    outcome: str  # shared, copied or computed (a plan); deferred or refused (a value)
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Events to commit at log index `at`, the chunk to compute then, and the decisions made."""

    at: int
    events: tuple[Event, ...]
    chunk: Chunk | None = None
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The pool has too few blocks, evictions included (check 7)."""

    seq_id: int
    pool_id: str
    needed: int
    available: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """Not in this step: somebody is writing this very block, and waiting for it is better than to
    compute it twice (check 2), or the copy budget is used up (check 7)."""

    seq_id: int
    reason: str
    check: int = 2


@dataclass(frozen=True, slots=True)
class Gone:
    """The KV of this holder's fragment, segment `segment`, is nowhere any more: detach it."""

    seq_id: int
    segment: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A rule forbids it; `check` is the number of the check."""

    seq_id: int
    check: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The books have moved since the plan was made: plan again."""

    at: int
    now: int


Outcome: TypeAlias = Plan | NoRoom | Deferred | Refused | Gone


@dataclass(frozen=True, slots=True)
class Decided:
    """What planning answered for a holder at log index `at`; its events are `[at, stop)`.

    `budget`: tokens it might compute; `outcome`: planned, deferred, refused or no room, then with
    the number of the `check` and the `reason`; `parts`: what was decided for each run of blocks.
    """

    at: int
    stop: int
    seq_id: int
    budget: int
    outcome: str
    check: int = 0
    reason: str = ""
    parts: tuple[Decision, ...] = ()

    @property
    def copies(self) -> int:
        """Blocks that it might copy on write: none where it was deferred for want of them."""
        return 0 if (self.outcome, self.check) == ("deferred", 7) else MANY

    def repeats(self, other: Decided) -> bool:
        """Whether nothing has come of it since `other` said the same."""
        mine = (self.seq_id, self.outcome, self.reason)
        theirs = (other.seq_id, other.outcome, other.reason)
        return mine == theirs and not self.parts and not other.parts


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; `tokens` are (sequence, token) pairs sampled."""

    step: int
    chunks: tuple[Chunk, ...]
    tokens: tuple[tuple[int, int], ...]


def decided(at: int, seq_id: int, budget: int, outcome: Outcome) -> Decided | None:
    """The decision as the log keeps it; None for a plan that changes no table."""
    if isinstance(outcome, Plan):
        stop = at + len(outcome.events)
        parts = outcome.decisions
        return Decided(at, stop, seq_id, budget, "planned", parts=parts) if parts else None
    if isinstance(outcome, Gone):
        return None  # planning goes on with text of the holder's own
    if isinstance(outcome, NoRoom):
        reason = f"{outcome.pool_id}: {outcome.needed} blocks needed, {outcome.available} available"
        return Decided(at, at, seq_id, budget, "no room", 7, reason)
    kind = "refused" if isinstance(outcome, Refused) else "deferred"
    return Decided(at, at, seq_id, budget, kind, outcome.check, outcome.reason)
