"""Three calls for an inference engine of its own: the memory without the model, block by block.

    register_sequence   match the global and group prefix and mount what is there
    write_block         look the next block up: share it, or give a place, have it written, publish
    destroy_sequence    drop every reference; private memory goes back

The caller computes KV; `write_block` calls back with the place to put it, publishes the block when
the callback returns, and takes it back when the callback raises. Works on any `KVCache`.

Any number of threads may call. What is found is pinned in the critical section that finds it, and
what is written can be found only after another one: between the two lie fingerprints, copies and
the callback, with no lock held.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from inms_lab.books.events import Commanded, Event, Registered
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.sequence import Sequence as Holder
from inms_lab.decisions.completion import Done, completed
from inms_lab.decisions.freeing import aborted
from inms_lab.decisions.lookup import hits
from inms_lab.decisions.outcome import Deferred, NoRoom, Plan, Refused
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import DEFAULT, PRIVATE, Policy
from inms_lab.errors import (
    AgentClosed,
    EmptyText,
    PoolExhausted,
    SealedTier,
    SequenceBusy,
    UnknownGroup,
)
from inms_lab.serving.cache import KVCache
from inms_lab.serving.commands import entry
from inms_lab.serving.copying import Copying
from inms_lab.serving.request import Request
from inms_lab.serving.three_calls import BlockInterface, Part, Place, Written

__all__ = ["BlockInterface", "Blocks", "Part", "Place", "Written"]

UNFINISHED = "the write did not finish"


class Blocks:
    """`BlockInterface` over a cache and a policy, for one model (`namespace`).

    `coarse`: one lock is held for the whole of each call, for comparison. Without it a sequence
    that is in a call is `busy`: only that call touches its table, so it needs no lock to hash.
    """

    def __init__(
        self, cache: KVCache, policy: Policy, namespace: Namespace, coarse: bool = False
    ) -> None:
        self.cache, self.policy, self.namespace = cache, policy, namespace
        self.coarse = coarse
        self.copies = Copying()
        self.busy: dict[int, bool] = {}  # sequence in a call -> whether it is to end behind it

    def register_sequence(
        self, name: str, clearance: frozenset[str], parts: Sequence[Part], kind: str = "agent"
    ) -> tuple[int, int]:
        """See `BlockInterface`."""
        if any(not len(part.tokens) for part in parts):
            raise EmptyText("a part without tokens: leave it out")
        books, tenant = self.cache.ledger, self.namespace.tenant or DEFAULT
        texts = [(part, array("i", part.tokens)) for part in parts]
        off, root = tuple(sorted(self.policy.off)), self.namespace.root()
        with self._whole():
            with self.cache.lock:
                seq_id = len(books.sequences)
                who = (seq_id, kind, name, tenant, tuple(sorted(clearance)), root)
                self.cache.record(Registered(*who, off=off))
                self.busy[seq_id] = False
            try:
                for part, tokens in texts:
                    self._mount(books.sequences[seq_id], part, tokens)
                return seq_id, books.sequences[seq_id].num_computed
            except BaseException:
                self.busy[seq_id] = True  # nobody was told its id
                raise
            finally:
                self._leave(seq_id)

    def write_block(
        self, seq_id: int, write: Callable[[Place], None], tokens: Sequence[int] = ()
    ) -> Written:
        """See `BlockInterface`."""
        text = array("i", tokens)
        with self._whole():
            with self.cache.lock:
                self._live(seq_id)
                if seq_id in self.busy:
                    raise SequenceBusy(f"sequence {seq_id} is in another call: wait for its end")
                if text:
                    self._enter(Request(seq_id, "append", text))
                self.busy[seq_id] = False
            try:
                return self._write(self.cache.ledger.sequences[seq_id], write)
            finally:
                self._leave(seq_id)

    def destroy_sequence(self, seq_id: int) -> None:
        """See `BlockInterface`."""
        with self._whole(), self.cache.lock:
            self._live(seq_id)
            if seq_id in self.busy:
                self.busy[seq_id] = True
            else:
                self._enter(Request(seq_id, "close", cause="destroyed"))

    # steps of a call ------------------------------------------------------------------------

    def _mount(self, seq: Holder, part: Part, tokens: array[int]) -> None:
        """Take a part in and mount what is there; an agent's shared part that is not there whole
        becomes private text."""
        request = Request(seq.seq_id, "append", tokens, part.tier, part.group)
        request.seal = part.tier != PRIVATE
        while True:
            draft = self._draft(request)
            self._hash(draft)
            with self.cache.lock:
                own = seq.kind != "agent" or request.tier == PRIVATE
                if own or self._is_there(draft):
                    self._enter(request)
                    seq.segments[-1].keys = draft.segments[-1].keys
                    outcome = plan_extend(self.cache.ledger, len(self.cache.log), seq.seq_id, 0)
                    if isinstance(outcome, Plan):
                        self.cache.book(outcome)  # what is mounted moves no tensors
                    return
            request.tier = PRIVATE

    def _draft(self, request: Request) -> Holder:
        """The sequence as it will be with this text. Its tokens are put into the table once."""
        books = self.cache.ledger
        with self.cache.lock:
            made = self._entry(request).events[0]
        assert isinstance(made, Commanded)
        request.offset = made.offset
        seq = books.sequences[request.seq_id].overlay()
        seq.append(made, array("i", request.tokens), books.pools[made.pool_id].block_size)
        return seq

    def _hash(self, seq: Holder) -> None:
        """Have the fingerprints of what lacks KV at hand: lookups only compare from then on."""
        for segment in seq.segments:
            if segment.computed < len(segment.tokens):
                segment.key((len(segment.tokens) - 1) // segment.block_size)

    def _is_there(self, draft: Holder) -> bool:
        """Whether the last part can be mounted whole behind what the sequence has."""
        *before, last = draft.segments
        found = hits(self.cache.ledger.pools[last.pool_id], last, 0, draft)
        whole = len(found) == -(-len(last.tokens) // last.block_size)
        return whole and all(s.computed == len(s.tokens) for s in before)

    def _write(self, seq: Holder, write: Callable[[Place], None]) -> Written:
        books, before = self.cache.ledger, seq.num_computed
        segment = next((s for s in seq.segments if s.computed < len(s.tokens)), None)
        if segment is None:
            return Written("computed", 0)
        self._hash(seq)
        at = segment.computed
        room = min(segment.block_size - at % segment.block_size, len(segment.tokens) - at)
        with self.cache.lock:
            outcome = plan_extend(books, len(self.cache.log), seq.seq_id, room)
            if isinstance(outcome, NoRoom):
                pool_id = outcome.pool_id
                raise PoolExhausted(f"{pool_id} has no block left for {seq.name}: destroy some")
            if isinstance(outcome, Refused):
                raise SealedTier(outcome.reason)
            if isinstance(outcome, Deferred):
                return Written("deferred", 0)
            assert isinstance(outcome, Plan), "without terms there are no fragments"
            self.cache.book(outcome)
            if outcome.chunk is None or seq.num_computed > before:
                self._abort(outcome)  # found blocks come first; the next call goes on behind them
                return Written("shared", seq.num_computed - before)
            self.copies.begin(outcome.events)
        copied = any(decision.outcome == "copied" for decision in outcome.decisions)
        block, chunk = segment.blocks[at // segment.block_size], outcome.chunk
        slot = block * segment.block_size + at % segment.block_size
        place = Place(segment.pool_id, block, slot, chunk.start, chunk.num_written, copied)
        try:
            self._move(outcome.events)
            write(place)
        except BaseException:
            with self.cache.lock:
                self._abort(outcome)
            raise
        with self.cache.lock:
            for event in completed(books, len(self.cache.log.tokens), [Done(chunk, 0, False)]):
                self.cache.record(event)
        return Written("copied" if copied else "computed", chunk.num_written)

    def _move(self, events: tuple[Event, ...]) -> None:
        try:
            self.copies.wait_for_readers(events)
            self.cache.move(events)
        finally:
            self.copies.end(events)

    def _leave(self, seq_id: int) -> None:
        with self.cache.lock:
            if self.busy.pop(seq_id):
                self._enter(Request(seq_id, "close", cause="destroyed"))

    def _whole(self) -> AbstractContextManager[object]:
        return self.cache.lock if self.coarse else nullcontext()

    def _entry(self, request: Request) -> Plan:
        return entry(self.cache.ledger, self.cache.log, self.policy, request, 1 << 30)

    def _enter(self, request: Request) -> None:
        self.cache.book(self._entry(request))

    def _live(self, seq_id: int) -> None:
        seq = self.cache.ledger.sequences.get(seq_id)
        if seq is None:
            raise UnknownGroup(f"there is no sequence {seq_id}")
        if not seq.is_live or self.busy.get(seq_id):
            state = seq.state if not seq.is_live else "ending"
            raise AgentClosed(f"{seq.name} is {state}: register it again")

    def _abort(self, plan: Plan) -> None:
        for event in aborted(self.cache.ledger, [plan.chunk] if plan.chunk else [], UNFINISHED):
            self.cache.record(event)
