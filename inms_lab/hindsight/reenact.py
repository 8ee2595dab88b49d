"""The inputs of a log, enacted again under another policy or with another block size. Pure.

Texts go where the other policy places them, sampled tokens are facts, and each holder is planned
until it has KV for as many tokens as it had in the log. No engine and no tensor is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.ledger import ENDS, Ledger
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.compact import is_move
from inms_lab.decisions.completion import Done, completed
from inms_lab.decisions.freeing import aborted, forgotten, freed, plan_preempt
from inms_lab.decisions.outcome import Chunk, Gone, NoRoom, Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import (
    GLOBAL,
    GROUP,
    PRIVATE,
    Place,
    Policy,
    by_name,
    placed,
)
from inms_lab.decisions.reuse import Reuse, Terms, detach, place_of, reuse
from inms_lab.decisions.sweep import WEAK
from inms_lab.errors import BadInput
from inms_lab.hindsight.reopened import owner_of, policy_of, reach, reopened
from inms_lab.logs.log import Log

TABLE = (Shared, Allocated, Copied)  # what a plan to extend does to a table


class Reenactment:
    """`books` after a log's inputs, in another mode or size (there an edit's copy is computed)."""

    def __init__(
        self, log: Log, mode: str | Policy | None = None, block_size: int | None = None
    ) -> None:
        if log.first or log.snapshot:
            raise BadInput("this log begins with a snapshot: the inputs before it are gone")
        self.log, self.was = log, policy_of(log)
        self.policy = by_name(mode) if isinstance(mode, str) else mode or self.was
        opened = [e for e in log.events if isinstance(e, PoolOpened)]
        size = opened[0].block_size if opened and block_size is None else block_size or 0
        if size < 1:
            raise BadInput(f"a block holds at least one token, not {size}")
        self.exact = self.policy == self.was and all(e.block_size == size for e in opened)
        self.real, self.books = Ledger(log.tokens), Ledger(log.tokens)
        self.instead: tuple[int, str] | None = None  # the text of this event has another tier
        self.placed = ""  # the tier that it got: its context may be more secret
        self.at = 0
        self._moved = -1  # the holder whose text that is
        self._touched: dict[int, bool] = {}  # tables changed in this step; a begun block goes on
        self._through: dict[int, tuple[str, int]] = {}  # the block that a holder's cut went through
        self.terms = Terms.of(log.about)
        self._groups: dict[int, str] = {}  # record -> its group
        named = {n for e in log.events if isinstance(e, Registered) for n in e.clearance}
        self.groups = tuple(sorted(n[6:] for n in named if n.startswith("group:")))
        for event in () if self.exact else reopened(self.policy, opened, self.groups, size):
            self.books.apply(event)

    def move(self, at: int) -> None:
        """Re-enact the log up to index `at`, with what was being written then."""
        for index in range(self.at, at):
            event = self.log.events[index]
            boundary = isinstance(event, (Commanded, Registered, Aborted))
            if boundary or (self.exact and isinstance(event, Stepped)):
                self._fly()  # a step that mounts only leaves no `Stepped`; others plan, then write
            if isinstance(event, Aborted):
                self._apply(aborted(self.books, None, event.cause))
                self._touched.clear()
            self.real.apply(event)
            if not is_move(self.real, event):  # where a block lies changes nothing that is decided
                self._enact(index, event)
        self.at = at
        self._fly()

    def _enact(self, index: int, event: Event) -> None:
        if isinstance(event, PoolOpened):
            self._apply((event,) if self.exact else ())
        elif isinstance(event, Registered):
            self._register(event)
        elif isinstance(event, Released):
            self._groups[event.seq_id] = event.group
            self._apply((event,))
        elif isinstance(event, Commanded):
            seq = self.books.sequences[event.seq_id]
            if seq.kind == "agent" or self.policy.encodes_prompts or event.verb in ENDS:
                self._apply(self._command(index, replace(event, number=seq.number + 1), seq))
        elif isinstance(event, Copied) and event.src_pool != event.pool_id:
            self._edit(event)
        elif isinstance(event, TABLE) and getattr(event, "cause", "hit") == "hit":
            begun = self._touched.get(event.seq_id) or isinstance(event, Copied)
            self._touched[event.seq_id] = begun
        elif isinstance(event, Evicted) and event.cause == "overwritten":
            self._touched[owner_of(self.real, event)] = True
        elif isinstance(event, Freed) and event.cause == WEAK:
            segment = self.real.sequences[event.seq_id].segments[event.segment]
            keep = segment.first_position + event.length
            self._apply(freed(self.books.sequences[event.seq_id], keep, WEAK))
        elif isinstance(event, Stepped):
            self._step(event)

    def _apply(self, events: Iterable[Event]) -> None:
        for event in events:
            self.books.apply(event)

    def _register(self, event: Registered) -> None:
        self._apply((replace(event, off=tuple(sorted(self.policy.off))),))
        parent = self.books.sequences[event.parent_id] if event.parent_id >= 0 else None
        for number, s in enumerate(parent.segments if parent else ()):
            if s.blocks:
                where = (event.seq_id, number, s.pool_id, tuple(s.blocks), s.computed, "fork")
                self._apply((Shared(*where),))

    def _command(self, index: int, e: Commanded, seq: Sequence) -> tuple[Event, ...]:
        if e.verb in ENDS:
            forgets = self.policy.forgets_private
            left = forgotten(self.books, seq) if forgets else ()
            return (e, *left, *freed(seq, 0, e.verb, forgets))
        if e.verb == "rollback":
            cut = next(
                (s for s in seq.segments if e.count < s.first_position + len(s.tokens)), None
            )
            if cut and e.count - cut.first_position < cut.computed:
                block = cut.blocks[(e.count - cut.first_position) // cut.block_size]
                self._through[seq.seq_id] = (cut.pool_id, block)
            return (e, *freed(seq, e.count, "rolled back"))
        if e.verb == "detach":  # planning finds out by itself what is gone here
            return ()
        return (self._placed(index, e, seq) if e.verb in ("append", "write") else e,)

    def _placed(self, index: int, e: Commanded, seq: Sequence) -> Commanded:
        """The text where this policy puts it, mounted from what there is to mount here."""
        moved = seq.seq_id == self._moved
        if self.instead and self.instead[0] == index:
            self._moved = seq.seq_id
            tier, _, name = self.instead[1].partition(":")
            place, known = (
                placed(self.policy, seq.tenant, tier, seq.name, name, seq.label()),
                Reuse(),
            )
            self.placed = place.tier
        elif self.exact and not moved:
            return e
        else:
            place, known = self._said(e, seq)
        e = replace(e, tier=place.tier, label=tuple(sorted(place.label)))
        e = replace(e, pool_id=place.pool_id, indexed=place.indexed)
        if known.piece < 0:
            return replace(e, piece=-1, encoded=-1, cause=known.why)
        donor = self.books.sequences[known.source].segments[known.piece]
        return replace(e, source=known.source, piece=known.piece, encoded=donor.encoded)

    def _said(self, e: Commanded, seq: Sequence) -> tuple[Place, Reuse]:
        """Where a text goes under this policy, by whose it is."""
        source = self.real.sequences[e.source] if e.source >= 0 else seq
        name = self._groups.get(source.seq_id, "")
        tier = {"prompt": GLOBAL, "record": GROUP}.get(source.kind, PRIVATE)
        tiers = self.policy.name == "inms"
        if tier != PRIVATE and tiers and not self.was.encodes_prompts:
            raise BadInput(
                f"in a log of mode {self.was.name} nobody encoded the sealed texts: begin with "
                "a log of mode inms or global"
            )
        attached = source.kind == "record" and source is not seq
        known = Reuse()
        if attached or e.piece >= 0:
            text = self.log.tokens[e.offset : e.offset + e.length].tobytes()
            record = source.seq_id if attached else -1
            known = reuse(self.books, self.terms, seq, text, record, e.piece >= 0)
        if known.piece >= 0:
            return place_of(self.books.sequences[known.source].segments[known.piece]), known
        if attached and not known.exact and seq.kind == "agent":
            tier = PRIVATE  # encoded at another place, or gone
        return placed(self.policy, seq.tenant, tier, seq.name, name, seq.label()), known

    def _edit(self, e: Copied) -> None:
        """The copy that an edit of sealed text begins with."""
        source = self._through.get(e.seq_id) if self.exact and e.seq_id != self._moved else None
        free = self.books.pools[e.pool_id].next_free(1) if source else ()
        if source and free:
            self._apply((replace(e, src_pool=source[0], src=source[1], dst=free[0]),))

    def _step(self, event: Stepped) -> None:
        for seq_id in dict.fromkeys((*(item[0] for item in event.items), *self._touched)):
            self._catch_up(seq_id, self.real.sequences[seq_id].num_computed, write=True)
        self._touched.clear()
        offset = event.offset
        for seq_id, _, num_sampled, over in event.items:
            if num_sampled or over:
                item = ((seq_id, 0, num_sampled, over),)
                self._apply((Stepped(self.books.num_steps + 1, offset, item),))
            offset += num_sampled

    def _fly(self) -> None:
        for seq_id, begun in self._touched.items():
            seq = self.real.sequences[seq_id]
            self._catch_up(seq_id, seq.num_computed, write=True)
            self._catch_up(seq_id, max(reach(seq), seq.num_computed + begun), write=False)

    def _catch_up(self, seq_id: int, target: int, write: bool) -> None:
        """Plan a holder until it has KV for `target` tokens, or blocks for it."""
        seq = self.books.sequences[seq_id]
        if (flying := reach(seq)) > seq.num_computed:
            if not write or seq.num_computed >= target:
                return
            self._write(Chunk(seq_id, seq.num_computed, flying))
        while seq.is_live and seq.num_computed < target:
            mounts = plan_extend(self.books, self.at, seq_id, 0)
            self._apply(mounts.events if isinstance(mounts, Plan) else ())
            missing = target - seq.num_computed
            plan = plan_extend(self.books, self.at, seq_id, missing) if missing > 0 else None
            if isinstance(plan, NoRoom):
                gives = plan_preempt(self.books, self.at, seq_id, plan.pool_id, force=True)
                if gives is None:
                    return
                self._apply(gives.events)
                continue
            if isinstance(plan, Gone):
                self._apply(detach(self.books, self.policy, 0, plan).events)
                continue
            if not isinstance(plan, Plan):
                return
            self._apply(plan.events)
            if not write or plan.chunk is None or plan.chunk.recompute:
                return
            self._write(plan.chunk)

    def _write(self, chunk: Chunk) -> None:
        self._apply(completed(self.books, 0, [Done(chunk, 0, False)]))
