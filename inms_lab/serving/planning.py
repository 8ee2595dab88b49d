"""What is computed in a step: planned and committed holder by holder, tenant by tenant.

Each tenant is served as if it were alone: it has pools, a token budget and a copy budget of its
own, and who must give way, wait or fail is settled among its own holders. So what is planned for a
tenant is a function of its own history. What to share is plan.py's, who gives way is freeing.py's.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from inms_lab.books.events import Copied, Freed
from inms_lab.books.sequence import Sequence
from inms_lab.config import Config
from inms_lab.decisions.copies import CopyLine
from inms_lab.decisions.freeing import above_floor, plan_preempt
from inms_lab.decisions.outcome import Chunk, Deferred, Gone, NoRoom, Outcome, Plan, Refused
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.reuse import detach
from inms_lab.decisions.schedule import Budget, schedule
from inms_lab.decisions.sweep import Ages, Suspect, plan_weak, suspects
from inms_lab.errors import PoolExhausted, SealedTier
from inms_lab.serving.entering import larger

if TYPE_CHECKING:
    from inms_lab.serving.engine import Engine


class Share:
    """What a tenant has of a step: settings of its own, or the lab's as they are now (None), and
    its line for the copy budget."""

    def __init__(self, engine: Engine, own: Config | None) -> None:
        self._engine, self._own, self.copies = engine, own, CopyLine()
        self.owed: dict[int, None] = {}  # below their floor and found no room: first, next time

    @property
    def config(self) -> Config:
        """Its sizes and budgets."""
        return self._own or self._engine.config

    @property
    def floor(self) -> int:
        """Private blocks that nobody can take from an agent."""
        return self.config.floor_blocks(self._engine.cache.store.bytes_per_token)


class Planner:
    """The plans of one engine's steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.books, self.ages = engine, engine.ledger, Ages()
        self.victims = set[int]()  # who gave way in this step

    def begin(self) -> None:
        """A step begins: every tenant's budgets are whole."""
        self.victims = set()
        desk, sequences = self.engine.desk, self.books.sequences

        def waits(seq_id: int) -> bool:
            asked = sequences[seq_id].has_work or desk.first(seq_id) is not None
            return sequences[seq_id].is_live and asked

        for share in self.engine.shares.values():
            share.copies.begin(share.config.copy_budget, waits)

    def may_edit(self, seq: Sequence) -> bool:
        """Whether an edit, which may copy a block, can enter in this step; else it waits."""
        line = self.engine.shares[seq.tenant].copies
        if not line.has_turn(seq.seq_id):
            line.wait(seq.seq_id)
            return False
        return True

    def took(self, seq: Sequence, plan: Plan) -> None:
        """A chunk of this holder was planned, or its edit entered: what was copied comes off the
        budget, and its place in the line is free."""
        count = sum(isinstance(event, Copied) for event in plan.events)
        self.engine.shares[seq.tenant].copies.took(seq.seq_id, count)

    def busy(self) -> set[str]:
        """The tenants for whom something is asked, waits or runs."""
        desk, sequences = self.engine.desk, self.books.sequences
        asked = {sequences[seq_id].tenant for seq_id in (*desk.queues, *desk.running)}
        return asked | {seq.tenant for seq in self.books.holders() if seq.has_work}

    def plan(self) -> list[Chunk]:
        """Plan and commit for all that have something to do; gives what is to be computed."""
        chunks: list[Chunk] = []
        busy = self.busy()
        for tenant, share in self.engine.shares.items():
            if tenant in busy:
                chunks += self._tenant(tenant, share)
        return chunks

    def suspects(self, after: int) -> list[Suspect]:
        """Private blocks that idle agents have kept for `after` steps or more."""
        self._follow()
        return suspects(self.books, self.ages, after)

    def _follow(self) -> None:
        log = self.engine.log
        if self.ages.at < log.first:  # the events before are gone: what lies there begins now
            self.ages = Ages(log.first)
        self.ages.follow(self.books, log.since(self.ages.at))

    def sweep(self) -> None:
        """What is suspect becomes weak, and the pages of what nobody can find go back."""
        engine = self.engine
        if not (after := engine.config.suspect_after):
            return
        for suspect in self.suspects(after):
            engine.commit(plan_weak(self.books, len(engine.log), suspect))
            pool = self.books.pools[suspect.pool_id]
            free = [block for block in suspect.blocks if block in pool.free]
            engine.cache.store.give_back(suspect.pool_id, free, pool.block_size)

    def _tenant(self, tenant: str, share: Share) -> list[Chunk]:
        chunks: list[Chunk] = []
        stuck: list[NoRoom] = []
        first = {**share.owed, **share.copies.line}
        order, moved = schedule(self.books, tenant, first), False
        share.owed.clear()
        budget = Budget(self.books, order, share.config)
        for seq_id in order:
            if not (most := budget.of(self.books.sequences[seq_id])):
                continue
            outcome = self._extend(share, seq_id, most, {chunk.seq_id for chunk in chunks})
            if isinstance(outcome, NoRoom):
                stuck.append(outcome)  # waits for those that go on, or fails below
            elif isinstance(outcome, Plan):
                moved |= bool(outcome.events) and seq_id not in self.victims
                chunks += budget.taken(outcome.chunk)
        desk = self.engine.desk
        asked = (self.books.sequences[seq_id] for seq_id in list(desk.running))
        for seq in (seq for seq in asked if seq.tenant == tenant):
            desk.computed(seq)  # a full hit, or a cut, may have left nothing to do
        if stuck and not (chunks or moved):  # all wait, perhaps for it: it takes from anybody
            outcome = self._extend(share, stuck[0].seq_id, budget.left, set(), force=True)
            if isinstance(outcome, NoRoom):
                self._fail(outcome)
            chunks += [outcome.chunk] if isinstance(outcome, Plan) and outcome.chunk else []
        return chunks

    def _extend(
        self, share: Share, seq_id: int, budget: int, busy: Set[int], force: bool = False
    ) -> Outcome:
        engine, line = self.engine, share.copies
        while True:
            at = len(engine.log)
            outcome = plan_extend(self.books, at, seq_id, budget, line.left)
            engine.log.decide(seq_id, budget, outcome)
            if isinstance(outcome, Plan):
                engine.commit(outcome)
                if outcome.chunk is not None:
                    self.took(self.books.sequences[seq_id], outcome)
            elif isinstance(outcome, Deferred) and outcome.check == 7:
                line.wait(seq_id)
            elif isinstance(outcome, Gone):
                engine.commit(detach(self.books, engine.policy, at, outcome))
                continue
            elif isinstance(outcome, NoRoom):
                where = (at, seq_id, outcome.pool_id)
                missing = outcome.needed - outcome.available
                plan = plan_preempt(self.books, *where, busy, force, share.floor, missing)
                if plan is not None:
                    self.victims |= {e.seq_id for e in plan.events if isinstance(e, Freed)}
                    engine.commit(plan)
                    continue
                seq = self.books.sequences[seq_id]
                if above_floor(seq, outcome.pool_id, share.floor) < 0:
                    share.owed[seq_id] = None
            elif isinstance(outcome, Refused):
                engine.end(seq_id, "fail", outcome.reason, SealedTier(outcome.reason))
            return outcome

    def _fail(self, no: NoRoom) -> None:
        seq = self.books.sequences[no.seq_id]
        text = (
            f"{seq.name} needs {no.needed} more blocks of {no.pool_id}, {no.available} are free or "
            "can be evicted and nobody can give way: close agents or "
            f"{larger(self.books.pools[no.pool_id].spec)}"
        )
        self.engine.end(no.seq_id, "fail", text, PoolExhausted(text))
