"""The hot loop: schedule, plan, commit, forward, sample; one step at a time, on one thread.

The engine owns the door and the requests in flight. It decides nothing itself: what to share is
plan.py's, who gives way is freeing.py's, how requests enter is commands.py's. A step that does not
finish is aborted as a whole and can be tried again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Event as Flag

import torch

from inms_lab.books.events import PoolOpened, Registered
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.gate import Gate
from inms_lab.books.ledger import ENDS
from inms_lab.config import Config
from inms_lab.decisions.completion import completed
from inms_lab.decisions.freeing import aborted
from inms_lab.decisions.outcome import Chunk, Plan, StepReport
from inms_lab.decisions.policy import DEFAULT, Policy, pool_of
from inms_lab.decisions.reuse import Terms
from inms_lab.errors import AgentClosed, BadInput, StepInterrupted
from inms_lab.model.forward import Forward
from inms_lab.serving import answering
from inms_lab.serving.cache import KVCache, Tensors
from inms_lab.serving.commands import check_request, entry, stands
from inms_lab.serving.desk import Desk
from inms_lab.serving.planning import Planner, Share
from inms_lab.serving.request import Request
from inms_lab.serving.spans import Sampled, span_of


class Engine:
    """A model, its tiered cache and the requests of many holders."""

    def __init__(
        self,
        model: Forward,
        store: Tensors,
        policy: Policy,
        config: Config,
        gate: Gate | None = None,
    ) -> None:
        """`gate`: what fragments must satisfy; None: text is shared in its own place only."""
        self.model, self.policy, self.config = model, policy, config
        self.cache = KVCache(store, config.debug, config.log_limit)
        self.ledger, self.log = self.cache.ledger, self.cache.log
        self.namespace = Namespace(model=model.digest, tenant=DEFAULT)
        self.context, self.tile = min(config.context, model.max_context), config.tile_size()
        per_token = store.bytes_per_token
        self.terms = Terms(gate, model.unsafe, per_token, self.tile)
        about = config.about(policy.name, sorted(policy.off), model.digest, per_token)
        self.log.about = about | self.terms.about()
        self.desk = Desk()
        self.retired = set[int]()  # superseded records
        self.shares = {DEFAULT: Share(self, None)}  # by tenant
        self.planner = Planner(self)
        self.cancel = Flag()
        self.bookkeeping = 0.0  # seconds of schedule, plan, commit and log
        self.num_computed = 0  # tokens through the model

    def open_pools(
        self,
        groups: tuple[str, ...],
        bytes_per_token: int,
        tenant: str = DEFAULT,
        config: Config | None = None,
    ) -> None:
        """Open the pools that the policy wants for a tenant's groups, those that are not open yet;
        `config`: what a new tenant's sizes and budgets are, if not the lab's."""
        share = self.shares.get(tenant) or Share(self, config)
        size, opened = share.config.block_size, []
        for name, tier, label in self.policy.pools(groups):
            pool_id = pool_of(tenant, name)
            if pool_id not in self.ledger.pools:
                count = share.config.num_blocks(tier, bytes_per_token)
                opened.append(PoolOpened(pool_id, tier, tenant, size, count, label))
        for event in opened:  # all sizes are good: now they are opened
            try:
                self.cache.record(event)
            except (OSError, MemoryError, OverflowError) as error:
                raise BadInput(
                    f"{event.pool_id} cannot have {event.num_blocks} blocks of {event.block_size} "
                    f"tokens on this machine ({error}): give it fewer bytes"
                ) from error
        self.shares[tenant] = share

    def register(
        self, kind: str, name: str, clearance: frozenset[str], tenant: str = DEFAULT
    ) -> int:
        """A new holder; gives its sequence id."""
        seq_id, root = len(self.ledger.sequences), self.namespace_of(tenant).root()
        who = (seq_id, kind, name, tenant, tuple(sorted(clearance)), root)
        self.cache.record(Registered(*who, off=tuple(sorted(self.policy.off))))
        return seq_id

    def namespace_of(self, tenant: str) -> Namespace:
        """What a tenant's keys begin with: the lab's namespace, under the tenant's name."""
        return self.namespace if tenant == DEFAULT else replace(self.namespace, tenant=tenant)

    def submit(self, request: Request) -> Request:
        """Queue a request; it enters at the next step boundary, after the holder's earlier ones."""
        self._live(request.seq_id)
        check_request(request, self.model.vocab_size)
        self.desk.ask(request)
        return request

    def _live(self, seq_id: int) -> None:
        seq = self.ledger.sequences[seq_id]
        if not seq.is_live:
            raise AgentClosed(f"{seq.name} is {seq.state}: make a new agent")

    def check(self, tokens: Sequence[int]) -> None:
        """Raises for a text without tokens or with ids that the model does not know."""
        check_request(Request(-1, "append", tokens), self.model.vocab_size)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.desk.queues) or any(s.has_work for s in self.ledger.holders())

    def step(self) -> StepReport | None:
        """Enter commands, then schedule, plan, commit, forward, sample; None if idle."""
        started = time.perf_counter()
        self.planner.begin()
        self.enter()
        try:
            chunks = self.plan()
            planned = time.perf_counter()
            if not chunks:
                self.bookkeeping += planned - started
                return None
            sampled = self.sample(chunks, self.forward(chunks))
        except BaseException:
            for event in aborted(self.ledger, None, "interrupted"):
                self.cache.record(event)
            raise
        computed = time.perf_counter()
        self.num_computed += sum(chunk.stop - chunk.start for chunk in chunks)
        self.complete(sampled)
        finished = time.perf_counter()
        self.bookkeeping += planned - started + finished - computed
        self.log.durations[self.ledger.num_steps] = finished - started
        self.planner.sweep()
        tokens = tuple((s.chunk.seq_id, s.token) for s in sampled if s.token is not None)
        return StepReport(self.ledger.num_steps, tuple(chunks), tokens)

    def enter(self) -> None:
        """Requests whose holder is not busy enter the books, sealed text first, else in order."""
        if self.retired:
            self._retire()
        sequences = self.ledger.sequences

        def turn(seq_id: int) -> tuple[bool, int, int]:
            seq = sequences[seq_id]
            return seq.kind == "agent", self.shares[seq.tenant].copies.place(seq_id), seq_id

        for seq_id in sorted(self.desk.queues, key=turn):
            seq = self.ledger.sequences[seq_id]
            while not seq.is_asked and (first := self.desk.first(seq_id)) is not None:
                if first.verb == "rewrite" and not self.planner.may_edit(seq):
                    break
                if (request := self.desk.next(seq_id)) is not None:
                    self._enter(request)

    def _retire(self) -> None:
        """Superseded records that no context has any more give their blocks back, when their
        tenant next does something: at no moment that depends on another."""
        used = {s.source for seq in self.ledger.holders() if seq.is_live for s in seq.segments}
        busy = self.planner.busy()
        for seq_id in sorted(self.retired - used - self.desk.wanted()):
            if self.ledger.sequences[seq_id].tenant in busy:
                self.retired.discard(seq_id)
                self.end(seq_id, "close", "superseded, and nobody reads it")

    def _enter(self, request: Request) -> None:
        seq = self.ledger.sequences[request.seq_id]
        try:
            self._live(request.seq_id)
            if request.before is not None:
                request.tokens = [*request.before(), *request.tokens]
            plan = None if stands(seq, request) else self._book(request)
        except Exception as error:  # the asker's, not everybody's
            request.future.set_exception(error)
            self.desk.refuse_rest(seq.seq_id, error)
            return
        except BaseException:  # an interrupt: it was taken from its queue, and is answered
            request.future.set_exception(StepInterrupted(f"{request.verb} was interrupted"))
            raise
        if request.verb in ("append", "write", "logits"):
            self.desk.start(request, seq)
            return
        if request.verb in ENDS:
            self.desk.drop(seq.seq_id, AgentClosed(f"{seq.name} is {seq.state}"))
        if request.verb == "rewrite" and plan is not None:
            self.planner.took(seq, plan)
        child = plan.events[0] if plan else None
        request.future.set_result(child.seq_id if isinstance(child, Registered) else None)

    def plan(self) -> list[Chunk]:
        """Plan and commit, tenant by tenant, one sequence after the other, within the budgets."""
        return self.planner.plan()

    def stop_all(self, error: Exception) -> None:
        """Nobody generates any longer; every request is answered with `error`, nobody ends."""
        for seq in self.ledger.holders():
            if seq.is_asked:
                self._book(Request(seq.seq_id, "stop"))
            self.desk.drop(seq.seq_id, error)

    def _book(self, request: Request) -> Plan:
        where = (self.ledger, self.log, self.policy)
        return self.commit(entry(*where, request, self.context, self.terms))

    def commit(self, plan: Plan) -> Plan:
        """The plan becomes fact; it was made at this very moment."""
        stale = self.cache.commit(plan)
        assert stale is None, "one thread owns the ledger"
        return plan

    def end(self, seq_id: int, verb: str, cause: str, error: Exception | None = None) -> None:
        """End a holder now: its private blocks go back, its requests are answered with `error`."""
        if self.ledger.sequences[seq_id].is_live:
            self._book(Request(seq_id, verb, cause=cause))
        name = self.ledger.sequences[seq_id].name
        self.desk.drop(seq_id, error or AgentClosed(f"{name} has ended: {cause or verb}"))

    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """One forward over all chunks; logits only for those that need them."""
        spans = [span_of(self.ledger.sequences[c.seq_id], c, self.tile) for c in chunks]
        return self.model.forward(spans, self.cache.store, self.tile, self.cancel)

    def sample(self, chunks: list[Chunk], logits: torch.Tensor) -> list[Sampled]:
        """The next token of every sequence that generates and whose context is complete."""
        return answering.sampled(self.ledger, self.desk, chunks, logits)

    def complete(self, sampled: list[Sampled]) -> None:
        """The step becomes fact: tokens, `Stepped`, `Published`; then requests are answered."""
        done = [answering.done(self.ledger, self.desk, s) for s in sampled]
        offset, _ = self.log.add_tokens(s.token for s in sampled if s.token is not None)
        for event in completed(self.ledger, offset, done):
            self.cache.record(event)
        answering.tell(self.ledger, self.desk, sampled, done)
