"""Anything in any order, with failures: random operations on a whole lab, and what must still hold.

An operation is a verb and three numbers, which mean something whatever was before: so any operation
may be left out of a list, and a list that finds a fault can be made shorter. They are done on the
lab's own thread, where nothing waits. After each event the ledger is compared with the independent
books and after each step every slot with the text that it should stand for (toy.py); `look` adds
what must hold between two operations, `finish` what must hold in the end.

Setup     how a lab is built
World     a lab, four principals with their agents, and the verbs (its methods `do_...`)
Faults    what makes the next store operation, forward or plan fail, now, later or half-way
play      all of a list of operations: raises where something does not hold
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from bruteforce import _APPLY, Books
from toy import TensorModel, Toy, ToyModel, compare_books, compare_slots

from inms_lab.books.events import Event, Stepped
from inms_lab.books.gate import OPEN
from inms_lab.config import Config
from inms_lab.decisions.policy import MODES, Policy
from inms_lab.errors import AgentClosed, BadInput, InmsError, PoolExhausted, StepInterrupted
from inms_lab.logs import audit
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.preload import _submit
from inms_lab.notebook.waste import compact, trim
from inms_lab.serving.request import Request

Op = tuple[str, int, int, int]

SIZE = 4  # tokens of a block
# Principals, the teams of each, and the last two of them another tenant's.
TEAMS = {"a": ("t",), "b": ("t", "u"), "c": ("u",), "d": ("t",), "x/e": ("t",), "x/f": ("t",)}
NAMES = tuple(TEAMS)
OTHER = "x"  # the tenant
STEMS = ([1, 2, 3, 4, 0, 1, 2, 3], [1, 2, 3, 4, 4, 4], [2] * 10, [3, 0, 3])
BUDGETS = (1, 2, 3, 7, 30)
LAST = 1000  # steps in which everything must come to an end
ORDINARY = (BadInput, AgentClosed, PoolExhausted, StepInterrupted)  # what an answer may be
# What can be made to fail: store operations, and what a step does one after the other.
KINDS = ("clear", "copy", "open", "write", "enter", "plan", "forward", "sample")

# Verbs and how often each is drawn; the first is what others are simplified to.
WEIGHTS = {
    "step": 36,
    "agent": 8,
    "attach": 8,
    "cancel": 2,
    "compact": 3,
    "configure": 2,
    "crash": 1,
    "edit": 4,
    "end": 4,
    "fault": 8,
    "fork": 6,
    "lease": 3,
    "logits": 2,
    "offer": 2,
    "parcel": 1,
    "preload": 1,
    "publish": 4,
    "read": 14,
    "replace": 2,
    "rewrite": 4,
    "rollback": 8,
    "stop": 1,
    "team": 1,
    "time": 4,
    "trim": 1,
    "write": 14,
}
VERBS = tuple(WEIGHTS)


class Broken(Exception):
    """Something outside the engine failed."""


class BrokenOff(BaseException):
    """Somebody interrupted it."""


class PureModel(ToyModel):
    """A toy whose states are digests: what it generates is a function of the context alone,
    whoever came before."""

    digest = "pure"

    def __init__(self, vocab_size: int = 5, max_context: int = 200) -> None:
        super().__init__(vocab_size, max_context)
        self.parents: dict[int, int] = {0: -1}  # type: ignore[assignment]

    def state(self, before: int, token: Any) -> int:
        new = self.states.get((before, token))
        if new is None:
            data = repr((before, token)).encode()
            new = 1 + int.from_bytes(blake2b(data, digest_size=6).digest(), "big")
            self.states[before, token], self.parents[new] = new, before
        return new


@dataclass(frozen=True)
class Setup:
    """How a lab is built: sizes in blocks of the global, the group and the private pools."""

    mode: str = "inms"
    blocks: tuple[int, int, int] = (6, 6, 24)
    fragments: bool = False
    tensors: bool = False
    copy_budget: int = 16
    every_event: bool = True  # compare the books after each event, not after each operation only
    suspect_after: int = 0
    floor: int = 0  # private blocks that an agent keeps for sure
    seed: int = 0

    @classmethod
    def of(cls, number: int) -> Setup:
        """One of many, by number."""
        rng = random.Random(number)
        mode = rng.choice(("inms", "inms", "inms", "global", "independent"))
        private = rng.choice((8, 12, 20)) + 10 * (mode != "inms")
        blocks = (rng.choice((3, 6, 9)), rng.choice((4, 6, 9)), private)
        chances = rng.random() < 0.5, rng.random() < 0.1
        budget, often = rng.choice((1, 2, 16)), rng.random() < 0.1
        upkeep = rng.choice((0, 0, 2, 6)), rng.choice((0, 0, 1))
        return cls(mode, blocks, *chances, budget, often, *upkeep, seed=number)


class Told(Books):
    """The independent books, whose tables are looked through when it is asked for."""

    def take(self, event: Event) -> None:
        """One event; raises `Wrong` if it may not happen."""
        _APPLY[type(event)](self, event)
        self.counts = Counter(place for place, *_ in self.entries())


class Faults:
    """Failures that are due, one of each kind: after so many calls more, half-way or not."""

    def __init__(self) -> None:
        self.armed: dict[str, tuple[int, bool, type[BaseException]]] = {}
        self.num_raised: Counter[str] = Counter()

    def arm(self, kind: str, calls: int, half: bool, error: type[BaseException]) -> None:
        """After `calls` calls more of this kind one fails."""
        self.armed[kind] = (calls, half, error)

    def disarm(self) -> None:
        """Nothing fails."""
        self.armed.clear()

    def call(self, kind: str, whole: Callable[[], Any], half: Callable[[], Any]) -> Any:
        """`whole()`, or the failure that is due, when `half()` was done if it is half-way."""
        if kind not in self.armed:
            return whole()
        calls, is_half, error = self.armed.pop(kind)
        if calls:
            self.armed[kind] = (calls - 1, is_half, error)
            return whole()
        if is_half:
            half()
        self.num_raised[kind] += 1
        raise error(f"planned: {kind}")

    def around(self, kind: str, whole: Callable[..., Any], half: Callable[..., Any]) -> Any:
        """`whole`, failing when it is due."""

        def wrapped(*args: Any, **options: Any) -> Any:
            calls = (partial(act, *args, **options) for act in (whole, half))
            return self.call(kind, *calls)

        return wrapped


def _nothing(*_: Any, **__: Any) -> None:
    pass


class World(Toy):
    """A lab in which anything may happen."""

    def __init__(
        self,
        setup: Setup,
        *,
        model: Any = None,
        policy: Policy | None = None,
        secret: int = 0,
    ) -> None:
        """`secret`: what the private texts of the first principal are; `policy` overrides the
        setup's mode."""
        self.setup, self.secret = setup, secret
        self.model = model or (TensorModel(max_context=200) if setup.tensors else PureModel())
        self.model.fragments = setup.fragments
        sizes = dict(
            zip(("global_bytes", "group_bytes", "private_bytes"), setup.blocks, strict=True)
        )
        store = self.model.new_store()
        unit = SIZE * store.bytes_per_token
        config = Config(
            block_size=SIZE,
            tile=SIZE,
            context=120,
            debug=setup.every_event,
            copy_budget=setup.copy_budget,
            suspect_after=setup.suspect_after,
            floor_bytes=setup.floor * unit,
            **{name: count * unit for name, count in sizes.items()},
        )
        mode = policy or MODES[setup.mode]
        self.now = 0.0  # seconds, by the clock of the leases
        gate = OPEN if setup.fragments else None
        clock = lambda: self.now  # noqa: E731
        self.lab = Lab(self.model, mode=mode, config=config, gate=gate, clock=clock)
        self.engine = self.lab.engine
        self.engine.cache.on_violation.clear()  # no file of it is wanted
        self.cache, self.log, self.ledger = self.engine.cache, self.engine.log, self.engine.ledger
        self.books, self.known_states = Told(self.log.tokens), {}
        self.on_event: list[Callable[[Event], None]] = []
        self.is_toy = isinstance(self.model, ToyModel)
        for event in self.log.events:
            self.books.apply(event)
        self._watch()
        self.groups = ("t", "u")
        self.agents: dict[tuple[int, int], Agent] = {}  # by principal and number of the fork
        self.requests: list[Request] = []
        self.futures: list[Future[Any]] = []
        self.seen: Counter[str] = Counter()
        self.faults = Faults()
        self._break()
        self.folder = tempfile.TemporaryDirectory()
        other = self.lab.tenant(OTHER, private_bytes=12 * unit, copy_budget=2)
        self.homes = {OTHER: other, "": self.lab.home}
        for name in self.groups:
            self.lab.group(name)
        other.group("t")

    def _watch(self) -> None:
        """The independent books are told every event, as it happens."""
        enter = self.cache._enter
        self.unseen = 0  # events since the ledger was compared

        def entered(event: Event) -> None:
            enter(event)
            self.books.take(event)
            self.unseen += 1
            if self.setup.every_event:
                self._compare()
            if isinstance(event, Stepped) and self.is_toy:
                compare_slots(self)
            for hook in self.on_event:
                hook(event)

        self.cache._enter = entered  # type: ignore[method-assign]

    def _compare(self) -> None:
        if self.unseen:
            self.books._check()
            compare_books(self.books, self.ledger)
        self.unseen = 0

    # failures ----------------------------------------------------------------------------------

    def _break(self) -> None:
        """Put `faults` around all that may fail."""
        store, engine, around = self.cache.store, self.engine, self.faults.around
        for kind in ("clear", "copy", "open"):
            whole = getattr(store, kind)
            half = {"clear": _half_clear, "copy": _half_copy}.get(kind)
            setattr(store, kind, around(kind, whole, partial(half, whole) if half else _nothing))
        if hasattr(store, "write"):
            store.write = around("write", store.write, _nothing)
        if self.is_toy:
            self.model.put = around("write", self.model.put, _nothing)
        engine.forward = around(
            "forward", engine.forward, lambda *a: type(engine).forward(engine, *a)
        )
        engine.sample = around("sample", engine.sample, _nothing)
        engine.commit = self._committing(engine.commit)

    def _committing(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        """A commit that fails: of a request before it happens, as an error; of a step's plan before
        or after it, in any way."""

        def wrapped(plan: Any) -> Any:
            whole = partial(commit, plan)
            if plan.decisions or plan.chunk:
                return self.faults.call("plan", whole, whole)
            return self.faults.call("enter", whole, _nothing)

        return wrapped

    def _expects(self, error: BaseException) -> None:
        """An answer or an end of a step that may be."""
        if isinstance(error, Broken | BrokenOff):
            self.seen["broken"] += 1
        elif isinstance(error, ORDINARY):
            self.seen[type(error).__name__] += 1
        else:
            raise AssertionError(f"nobody planned {error!r}") from error

    # playing -----------------------------------------------------------------------------------

    def do(self, op: Op) -> None:  # type: ignore[override]
        """One operation (on the lab's thread), and then what must hold between two."""
        verb, *numbers = op
        try:
            getattr(self, f"do_{verb}")(*numbers)
        except (InmsError, Broken, BrokenOff) as error:
            self._expects(error)
        self.spoil()
        self.look()

    def spoil(self) -> None:
        """For tests of the driver: something is wrong from now on."""

    def look(self) -> None:
        """What must hold between two operations."""
        if self.unseen:
            faults = audit.faults(self.ledger)
            assert not faults, faults
        self._compare()
        for seq in self.ledger.holders():
            for segment in seq.segments:
                assert segment.length == segment.computed, f"{seq.name} holds what nobody writes"
        while errors := self.engine.desk.hook_errors:
            self._expects(errors.pop())
        for future in [future for future in self.futures if future.done()]:
            self.futures.remove(future)
            if future.cancelled():
                self.seen["cancelled"] += 1
            elif (error := future.exception()) is not None:
                self._expects(error)
            else:
                self.seen["answered"] += 1
        self._notice_forks()

    def finish(self) -> None:
        """All comes to an end: every request is answered, nothing is held, the log tells it."""
        try:
            self._finish()
        except InmsError as error:
            raise AssertionError(f"nobody planned {error!r}") from error

    def _finish(self) -> None:
        self.faults.disarm()
        for _ in range(LAST):
            if not self.engine.has_work:
                break
            self.do_step(4, 0, 0)
        assert not self.engine.has_work, f"still busy after {LAST} steps more"
        self.look()
        assert not self.futures, f"{len(self.futures)} requests were never answered"
        assert self.log.replay().snapshot() == self.ledger.snapshot(), "the log tells another story"
        for seq in reversed(self.ledger.holders()):
            self.engine.end(seq.seq_id, "close", "over")
        assert set(self.held().values()) <= {0}, f"blocks are held by nobody: {self.held()}"
        assert not self.ledger.live
        for pool in self.ledger.pools.values():
            assert not pool.pending
            assert not pool.promised
        self.look()

    def close(self) -> None:
        """Let everything go, unwatched: something may be wrong already."""
        self.faults.disarm()
        self.cache.__dict__.pop("_enter", None)
        self.cache.debug = False
        self.lab.close()
        self.folder.cleanup()

    # who and what ------------------------------------------------------------------------------

    def agent_at(self, a: int, b: int = 0) -> Agent | None:
        """A live agent, principal `a`; the `b`-th of its sequences."""
        who = a % len(NAMES)
        mine = [agent for (p, _), agent in self.agents.items() if p == who and self._lives(agent)]
        return mine[b % len(mine)] if mine else None

    def home(self, name: str) -> Any:
        """The tenant of a principal."""
        return self.homes[name.rpartition("/")[0]]

    def team_of(self, agent: Agent, b: int) -> Any:
        """One of an agent's teams."""
        return self.lab.groups[agent.groups[b % len(agent.groups)]]

    def _lives(self, agent: Agent) -> bool:
        return self.ledger.sequences[agent.seq_id].is_live

    def text(self, b: int, c: int, agent: Agent | None = None, most: int = 9) -> list[int]:
        """A few tokens that often begin as other texts do; the first principal's are secret."""
        if agent is not None and agent.name == NAMES[0]:
            b, c = b + 7 * self.secret, c + 3 * self.secret
        stem = STEMS[b % len(STEMS)]
        tokens = stem[: b // 4 % (len(stem) + 1)]
        tokens += [(c >> (2 * i)) % 5 for i in range(c % 5)]
        return tokens[:most] or [c % 5]

    def ask(self, agent: Agent, verb: str, tokens: Sequence[int] = (), **options: Any) -> Request:  # type: ignore[override]
        """Queue a request of an agent."""
        request = self.lab.submit(Request(agent.seq_id, verb, list(tokens), **options))
        self.keep(request.future)
        return request

    def keep(self, future: Future[Any]) -> None:
        """Its answer is waited for."""
        if future not in self.futures:
            self.futures.append(future)

    def _notice_forks(self) -> None:
        for seq in self.ledger.holders():
            known = {agent.seq_id for agent in self.agents.values()}
            if seq.kind == "agent" and seq.is_live and seq.seq_id not in known:
                teams = tuple(map(self.home(seq.name).full, TEAMS[seq.name]))
                child = Agent(self.lab, seq.name, seq.seq_id, teams, seq.tenant)
                self.agents[NAMES.index(seq.name), seq.seq_id] = self.lab.adopt(child)
        for where, agent in [*self.agents.items()]:
            if not self._lives(agent):
                del self.agents[where]

    # verbs -------------------------------------------------------------------------------------

    def do_step(self, a: int, b: int, c: int) -> None:
        """Some steps of the engine."""
        engine = self.engine
        engine.config = replace(engine.config, token_budget=BUDGETS[a % len(BUDGETS)])
        for _ in range(1 + b % 3):
            before, had_work = len(self.log), engine.has_work
            report = engine.step()
            moved = report is not None or len(self.log) > before or not engine.has_work
            assert moved or not had_work, "nothing can move"

    def do_agent(self, a: int, b: int, c: int) -> None:
        """A new agent, of a principal that has none if there is one."""
        alone = [n for n in NAMES if not any(NAMES[p] == n for p, _ in self.agents)] or NAMES
        name = alone[a % len(alone)]
        agent = self.home(name).agent(name.rpartition("/")[2], groups=TEAMS[name])
        self.agents[NAMES.index(name), agent.seq_id] = agent

    def do_team(self, a: int, b: int, c: int) -> None:
        """A team, perhaps a new one, with a pool of its own."""
        self.homes[("", OTHER)[b % 2]].group(f"team {a % 3}")

    def do_read(self, a: int, b: int, c: int) -> None:
        """Private text."""
        if agent := self.agent_at(a, a >> 2):
            shape = {"seal": b % 5 == 0, "fresh": b % 7 == 0}
            self.ask(agent, "append", self.text(b, c, agent), **shape)

    def do_write(self, a: int, b: int, c: int) -> None:
        """A turn."""
        if agent := self.agent_at(a, a >> 2):
            opening = self.text(b, c, agent, 4) if c % 3 else []
            self.ask(agent, "write", opening, count=1 + b % 6)

    def do_logits(self, a: int, b: int, c: int) -> None:
        """Logits of the next token."""
        if agent := self.agent_at(a, b):
            self.ask(agent, "logits")

    def do_fork(self, a: int, b: int, c: int) -> None:
        """Another sequence of a principal."""
        agent = self.agent_at(a, b)
        if agent and len(self.agents) < 10:
            self.ask(agent, "fork")

    def do_rollback(self, a: int, b: int, c: int) -> None:
        """Some of the last tokens are forgotten."""
        if agent := self.agent_at(a, b):
            self.ask(agent, "rollback", drop=c % 16)

    def do_rewrite(self, a: int, b: int, c: int) -> None:
        """An edit anywhere."""
        if agent := self.agent_at(a, a >> 2):
            start = b % (len(agent.tokens) or 1)
            self.ask(agent, "rewrite", self.text(b, c, agent, 4), start=start, count=c % 4)

    def do_edit(self, a: int, b: int, c: int) -> None:
        """An edit in the middle of a block of text that others share."""
        if not (agent := self.agent_at(a, a >> 2)):
            return
        for segment in self.ledger.sequences[agent.seq_id].segments:
            inside = [i for i in range(segment.computed) if i % segment.block_size]
            if segment.tier in ("global", "group") and inside:
                start = segment.first_position + inside[b % len(inside)]
                self.ask(agent, "rewrite", self.text(b, c, agent, 2), start=start, count=1)
                return

    def do_attach(self, a: int, b: int, c: int) -> None:
        """A team's records, or one of them with some blocks computed afresh."""
        if not (agent := self.agent_at(a, a >> 2)):
            return
        team = self.team_of(agent, b)
        if not team.records or c % 3 == 0:
            self.keep(agent.attach(team).future)
            return
        record = team.records[c % len(team.records)]
        afresh = c // 8 % 3 if self.setup.fragments else 0
        self.keep(agent.attach(record, recompute=afresh).future)

    def do_publish(self, a: int, b: int, c: int) -> None:
        """A text becomes a record."""
        self._publish(a, b, c, old=None)

    def do_replace(self, a: int, b: int, c: int) -> None:
        """A record of a team is superseded."""
        if agent := self.agent_at(a):
            team = self.team_of(agent, b)
            if team.records:
                self._publish(a, b, c, old=team.records[c % len(team.records)])

    def _publish(self, a: int, b: int, c: int, old: Any) -> None:
        if not (agent := self.agent_at(a)):
            return
        team = self.team_of(agent, b)
        if len(team.records) < 4 or old is not None:
            behind = ("records", "prompt")[c % 2]
            team.publish(self.text(b, c), by=agent, behind=behind, replaces=old)
            self.keep_all()

    def do_offer(self, a: int, b: int, c: int) -> None:
        """A text is shared as it is attached."""
        if agent := self.agent_at(a, a >> 2):
            team = self.team_of(agent, b)
            if len(team.records) < 4:
                self.keep(agent.attach(self.text(b, c), group=team).future)

    def do_preload(self, a: int, b: int, c: int) -> None:
        """The global tier gets a text more; who comes later starts with it."""
        home = self.homes[("", "", OTHER)[a % 3]]
        if len(home.prompts) < 2:
            prompts, _, future = _submit(home, [self.text(b, c)])
            home.prompts.extend(prompts)
            if future is not None:
                self.keep(future)

    def do_end(self, a: int, b: int, c: int) -> None:
        """An agent ends, in its turn or at once."""
        if agent := self.agent_at(a, a >> 2):
            verb = ("close", "close", "fail", "expire")[b % 4]
            if c % 3:
                self.ask(agent, verb, cause="played")
            else:
                self.engine.end(agent.seq_id, verb, "played")

    def do_stop(self, a: int, b: int, c: int) -> None:
        """A cell was interrupted: nobody generates any longer; and a shared holder may end."""
        if c % 2:
            self.engine.stop_all(StepInterrupted("stopped"))
            return
        shared = [seq for seq in self.ledger.holders() if seq.kind != "agent" and seq.is_live]
        if shared:
            self.engine.end(shared[a % len(shared)].seq_id, "close", "played")

    def do_cancel(self, a: int, b: int, c: int) -> None:
        """Who asked does not want the answer any more."""
        if self.futures:
            self.futures[a % len(self.futures)].cancel()

    def do_fault(self, a: int, b: int, c: int) -> None:
        """Something will fail in the next steps."""
        kind = KINDS[a % len(KINDS)]
        broken_off = b % 2 and kind in ("plan", "forward", "sample")
        error = BrokenOff if broken_off else Broken
        self.faults.arm(kind, c % 6, b // 2 % 2 == 1, error)

    def do_configure(self, a: int, b: int, c: int) -> None:
        """Other budgets."""
        change = {"prefill_budget": 1 + a % 9, "copy_budget": 1 + b % 4}
        self.engine.config = replace(self.engine.config, **change)

    def do_crash(self, a: int, b: int, c: int) -> None:
        """All processes of agents die between two steps; what is on the log is what was."""
        index = self.log.first + a % (len(self.log) + 1 - self.log.first)
        replayed = self.log.replay(index)
        for event in self.log.since(index):
            replayed.apply(event)
        assert replayed.snapshot() == self.ledger.snapshot(), "the log tells another story"
        if b % 2:
            for agent in list(self.agents.values()):
                self.engine.end(agent.seq_id, "expire", "its process is gone")

    def do_parcel(self, a: int, b: int, c: int) -> None:
        """A record goes into a file and comes back."""
        if not (agent := self.agent_at(a)):
            return
        team = self.team_of(agent, b)
        if team.records:
            path = Path(self.folder.name) / "record"
            team.export(team.records[c % len(team.records)], path, by=agent)
            team.import_record(path, by=agent)

    def do_lease(self, a: int, b: int, c: int) -> None:
        """An agent's life depends on its beats from now on."""
        if agent := self.agent_at(a, b):
            self.lab.keeper.grant(agent)

    def do_time(self, a: int, b: int, c: int) -> None:
        """Some beat, time passes, and who was silent for too long is ended with its forks."""
        keeper = self.lab.keeper
        for row in keeper.leases.rows():
            if (a >> row.epoch % 8) & 1:
                beaten = keeper.leases.beat(row.holder, row.epoch)
                assert beaten == (row.state == "live")
        self.now += (0, 1, 5, 20)[b % 4]
        keeper._tick(True)
        if any(isinstance(error, Broken) for error in self.engine.desk.hook_errors):
            keeper._tick(True)  # an end that failed is tried again
        for row in keeper.leases.rows():
            gone = not self.ledger.sequences[row.holder].is_live  # type: ignore[index]
            assert row.state != "overdue", "nobody ended who was silent"
            assert gone or row.state == "live" or "newer" in row.cause

    def do_compact(self, a: int, b: int, c: int) -> None:
        """Private blocks move together."""
        compact(self.cache, 1 + a % 8)

    def do_trim(self, a: int, b: int, c: int) -> None:
        """The memory of free blocks goes back to the system."""
        trim(self.cache)

    def keep_all(self) -> None:
        """Whatever anybody asked for is waited for."""
        for queue in (*self.engine.desk.queues.values(), *self.engine.desk.running.values()):
            for request in queue:
                self.keep(request.future)


def _half_clear(whole: Any, pool_id: str, blocks: Sequence[int], size: int) -> None:
    whole(pool_id, blocks[: len(blocks) // 2], size)


def _half_copy(whole: Any, source: Any, target: Any, count: int) -> None:
    whole(source, target, count // 2)


def random_ops(rng: random.Random, count: int) -> list[Op]:
    """So many operations, drawn by weight."""
    verbs = rng.choices(VERBS, [*WEIGHTS.values()], k=count)
    return [(verb, *(rng.randrange(256) for _ in range(3))) for verb in verbs]  # type: ignore[misc]


def play(setup: Setup, ops: Iterable[Op], **options: Any) -> Counter[str]:
    """Do it all in a lab of its own; gives what was seen, raises where something does not hold."""
    world = World(setup, **options)
    try:

        def act() -> None:
            for op in ops:
                world.do(op)
            world.finish()

        world.lab.look(act)
        return world.seen + world.faults.num_raised
    finally:
        with suppress(BaseException):
            world.close()


def shrink(ops: Sequence[Op], fails: Callable[[list[Op]], bool], tries: int = 2000) -> list[Op]:
    """A shorter list that still fails: smaller and smaller pieces are left out, then
    numbers are made small."""
    ops, left = list(ops), tries

    def still(shorter: list[Op]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(shorter)

    size = len(ops) // 2
    while size:
        at = 0
        while at < len(ops):
            shorter = ops[:at] + ops[at + size :]
            if still(shorter):
                ops = shorter
            else:
                at += size
        size //= 2
    for at, (verb, *numbers) in enumerate(ops):
        for place, number in enumerate(numbers):
            for small in (0, number // 8, number // 2):
                tried = [*numbers[:place], small, *numbers[place + 1 :]]
                if small < number and still([*ops[:at], (verb, *tried), *ops[at + 1 :]]):  # type: ignore[list-item]
                    numbers = tried
                    break
        ops[at] = (verb, *numbers)  # type: ignore[assignment]
    return ops
