"""The protocol of the three calls, and the values that it speaks of (blocks.py serves them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inms_lab.decisions.policy import PRIVATE


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one tier at the beginning of a context."""

    tokens: Sequence[int]
    tier: str = PRIVATE
    group: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Slots to write: `num_tokens` from `slot` of a pool's region; `position` of the first token.

    `copied`: the block was shared until now, and the slots before `slot` were copied into it.
    """

    pool_id: str
    block: int
    slot: int
    position: int
    num_tokens: int
    copied: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a block: shared, copied, computed, or deferred (somebody is writing it)."""

    outcome: str
    num_tokens: int


class BlockInterface(Protocol):
    """The three calls."""

    def register_sequence(
        self, name: str, clearance: frozenset[str], parts: Sequence[Part], kind: str = "agent"
    ) -> tuple[int, int]:
        """A new sequence: its id, and how many of its first tokens need not be computed.

        Parts of a shared tier that are not there are taken as private text. Raises `EmptyText`.
        """

    def write_block(
        self, seq_id: int, write: Callable[[Place], None], tokens: Sequence[int] = ()
    ) -> Written:
        """Take `tokens` in and deal with the next block. Raises `PoolExhausted` when there is no
        room, `SealedTier` where the sequence may not write, `SequenceBusy` where another call
        for this sequence is under way, and whatever `write` raises."""

    def destroy_sequence(self, seq_id: int) -> None:
        """End a sequence, once the call for it that is under way has ended; a second call raises
        `AgentClosed`."""
