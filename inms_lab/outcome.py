"""What planning can answer: a plan, or a value that says why not. All of them immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inms_lab.events import Event


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
    """Somebody is writing this very block: wait for it rather than compute it twice (check 2)."""

    seq_id: int
    reason: str


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


Outcome: TypeAlias = Plan | NoRoom | Deferred | Refused


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; `tokens` are (sequence, token) pairs sampled."""

    step: int
    chunks: tuple[Chunk, ...]
    tokens: tuple[tuple[int, int], ...]
