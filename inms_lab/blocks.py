"""Three calls for an inference engine of its own: the memory without the model, block by block.

    register_sequence   match the global and group prefix and mount what is there
    write_block         look the next block up: share it, or give a place, have it written, publish
    destroy_sequence    drop every reference; private memory goes back

The caller computes KV; `write_block` calls back with the place to put it, publishes the block when
the callback returns, and takes it back when the callback raises. Works on any `KVCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inms_lab.cache import KVCache
from inms_lab.commands import entry
from inms_lab.completion import Done, completed
from inms_lab.errors import AgentClosed, EmptyText, PoolExhausted, SealedTier, UnknownGroup
from inms_lab.events import Registered
from inms_lab.fingerprint import Namespace
from inms_lab.freeing import aborted
from inms_lab.outcome import Deferred, NoRoom, Plan, Refused
from inms_lab.plan import plan_extend
from inms_lab.policy import PRIVATE, Policy
from inms_lab.request import Request


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
        room, `SealedTier` where the sequence may not write, and whatever `write` raises."""

    def destroy_sequence(self, seq_id: int) -> None:
        """End a sequence; a second call raises `AgentClosed`."""


class Blocks:
    """`BlockInterface` over a cache and a policy, for one model (`namespace`)."""

    def __init__(self, cache: KVCache, policy: Policy, namespace: Namespace) -> None:
        self.cache, self.policy, self.namespace = cache, policy, namespace

    def register_sequence(
        self, name: str, clearance: frozenset[str], parts: Sequence[Part], kind: str = "agent"
    ) -> tuple[int, int]:
        """See `BlockInterface`."""
        if any(not len(part.tokens) for part in parts):
            raise EmptyText("a part without tokens: leave it out")
        books = self.cache.ledger
        seq_id = len(books.sequences)
        who = (seq_id, kind, name, self.namespace.tenant, tuple(sorted(clearance)))
        off = tuple(sorted(self.policy.off))
        self.cache.record(Registered(*who, self.namespace.root(), off=off))
        for part in parts:
            request = Request(seq_id, "append", part.tokens, part.tier, part.group)
            request.seal = part.tier != PRIVATE
            if kind == "agent" and part.tier != PRIVATE and not self._is_there(request):
                request.tier = PRIVATE
            self._enter(request)
            outcome = plan_extend(books, len(self.cache.log), seq_id, 0)
            if isinstance(outcome, Plan):
                self.cache.commit(outcome)
        return seq_id, books.sequences[seq_id].num_computed

    def write_block(
        self, seq_id: int, write: Callable[[Place], None], tokens: Sequence[int] = ()
    ) -> Written:
        """See `BlockInterface`."""
        self._live(seq_id)
        if len(tokens):
            self._enter(Request(seq_id, "append", tokens))
        books = self.cache.ledger
        seq = books.sequences[seq_id]
        before = seq.num_computed
        segment = next((s for s in seq.segments if s.computed < len(s.tokens)), None)
        if segment is None:
            return Written("computed", 0)
        room = segment.block_size - segment.computed % segment.block_size
        outcome = plan_extend(books, len(self.cache.log), seq_id, room)
        if isinstance(outcome, NoRoom):
            raise PoolExhausted(f"{outcome.pool_id} has no block left for {seq.name}: destroy some")
        if isinstance(outcome, Refused):
            raise SealedTier(outcome.reason)
        if isinstance(outcome, Deferred):
            return Written("deferred", 0)
        assert isinstance(outcome, Plan), "without terms there are no fragments"
        self.cache.commit(outcome)
        if outcome.chunk is None or seq.num_computed > before:
            if outcome.chunk is not None:
                self._abort(outcome)  # found blocks come first; the next call goes on behind them
            return Written("shared", seq.num_computed - before)
        copied = any(decision.outcome == "copied" for decision in outcome.decisions)
        at = segment.computed
        block = segment.blocks[at // segment.block_size]
        slot = block * segment.block_size + at % segment.block_size
        count = outcome.chunk.num_written
        place = Place(segment.pool_id, block, slot, outcome.chunk.start, count, copied)
        try:
            write(place)
        except BaseException:
            self._abort(outcome)
            raise
        for event in completed(books, len(self.cache.log.tokens), [Done(outcome.chunk, 0, False)]):
            self.cache.record(event)
        return Written("copied" if copied else "computed", count)

    def destroy_sequence(self, seq_id: int) -> None:
        """See `BlockInterface`."""
        self._live(seq_id)
        self._enter(Request(seq_id, "close", cause="destroyed"))

    def _is_there(self, request: Request) -> bool:
        """Whether the whole part can be mounted behind what the sequence has."""
        plan = entry(self.cache.ledger, self.cache.log, self.policy, request, 1 << 30)
        trial = self.cache.ledger.overlay()
        for event in plan.events:
            trial.apply(event)
        outcome = plan_extend(trial, len(self.cache.log), request.seq_id, 0)
        if not isinstance(outcome, Plan):
            return False
        for event in outcome.events:
            trial.apply(event)
        seq = trial.sequences[request.seq_id]
        return seq.num_computed == seq.num_tokens

    def _enter(self, request: Request) -> None:
        self.cache.commit(entry(self.cache.ledger, self.cache.log, self.policy, request, 1 << 30))

    def _live(self, seq_id: int) -> None:
        seq = self.cache.ledger.sequences.get(seq_id)
        if seq is None:
            raise UnknownGroup(f"there is no sequence {seq_id}")
        if not seq.is_live:
            raise AgentClosed(f"{seq.name} is {seq.state}: register it again")

    def _abort(self, plan: Plan) -> None:
        assert plan.chunk is not None
        for event in aborted(self.cache.ledger, [plan.chunk], "the write did not finish"):
            self.cache.record(event)
