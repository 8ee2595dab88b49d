"""Drives a bare engine with random programs and keeps, to the bit, what every token row gave.

World     texts, sizes and programs, drawn from a seed: what two runs have in common
Bench     an engine with a sealed prompt, groups with records, and agents that follow scripts
Capture   logits and KV by (agent, index, digest of the context up to there), so that two runs
          can be compared byte by byte whatever their schedules were
Witness   whose words every block has seen, found by folding scripts and log: an opinion that
          does not ask the engine's labels
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import models
import pytest
import torch

from inms_lab.attention.batch import Batch
from inms_lab.books import label
from inms_lab.books.events import Allocated, Copied, Evicted, Freed, Released, Shared
from inms_lab.books.gate import Gate
from inms_lab.books.sequence import Sequence
from inms_lab.config import Config
from inms_lab.decisions.outcome import Chunk, Outcome
from inms_lab.decisions.policy import MODES, Policy
from inms_lab.model.admission import admit
from inms_lab.model.runner import Runner
from inms_lab.serving.engine import Engine, Sampled, StepReport
from inms_lab.serving.planning import Planner
from inms_lab.serving.request import Request
from inms_lab.serving.sample import Sampling

Tokens = tuple[int, ...]
Words = frozenset[str]  # principals whose text was seen
Key = tuple[str, int, bytes]  # agent, index of a token in its context, digest up to that token

PLENTY = 400  # blocks: room for everything
VOCABULARY = 160
RECORD = 13  # tokens of every record: its last block is partly filled, and sealed
GREEDY = Sampling()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models are fastest on one thread; results are compared at one number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class EveryRow(Runner):
    """A runner that also keeps the logits of all rows of the last forward, `every` [T, vocab]."""

    def run(self, batch: Batch) -> None:
        """As usual, then the wanted rows out of all rows."""
        wanted, count = batch.logit_rows, batch.num_rows
        padding = torch.zeros(-count % self.row_multiple, dtype=torch.long)
        batch.logit_rows = torch.cat((torch.arange(count), padding))
        super().run(batch)
        self.every = self.last_logits[:count].float()
        self.last_logits = self.last_logits[wanted]


@cache
def tiny(name: str = "llama", every_row: bool = True) -> Runner:
    """A tiny random model of one of the architectures of models.py; one object for all tests."""
    model = models.WANTED[name](num_hidden_layers=2, vocab_size=VOCABULARY)
    return (EveryRow if every_row else Runner)(model, name, name)


@cache
def shifting(name: str = "llama") -> Runner:
    """The same, admitted: it is known how its keys turn."""
    model = models.WANTED[name](num_hidden_layers=2, vocab_size=VOCABULARY)
    plain = Runner(model, name, name)
    admit(plain)
    runner = EveryRow(model, name, name)
    runner.admission, runner.row_multiple = plain.admission, plain.row_multiple
    runner.bitwise = plain.bitwise
    assert not runner.unsafe
    return runner


# scripts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Op:
    """One command of a script. Verbs are the engine's, `read` for append, and

    prompt   take the sealed prompt         attach   take the group's record number `count`
    publish  `tokens` become a record       fork     `ops` are the child's script
    Without `waits` the next op is submitted before this one is answered.
    """

    verb: str
    tokens: Tokens = ()
    count: int = 0
    start: int = 0
    seal: bool = False
    fresh: bool = False
    waits: bool = True
    sampling: Sampling = GREEDY
    afresh: tuple[int, ...] = ()  # attach: blocks of the fragment that are computed all the same
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """An agent's script, and the step at whose boundary it arrives."""

    name: str
    ops: tuple[Op, ...]
    group: str = "g"
    arrives: int = 0


@dataclass(slots=True)
class Player:
    """A script on its way: what is still to do and what was answered."""

    name: str
    group: str
    seq_id: int
    ops: deque[Op]
    answers: list[tuple[Op, Future[Any]]] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether everything submitted was answered."""
        return all(future.done() for _, future in self.answers)

    @property
    def may_go_on(self) -> bool:
        """Whether the next op may be submitted now."""
        waits = self.answers and self.answers[-1][0].waits
        must_settle = self.ops[0].verb in ("close", "rollback", "rewrite", "publish")
        return self.is_settled or not (waits or must_settle)


# what the runs gave -----------------------------------------------------------------------------


class Capture:
    """Logits and KV of agents' tokens. One context with two results in one run is a conflict."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # of the sequences that are captured
        self.rows: dict[Key, bytes] = {}  # logits of every row, where the runner keeps them
        self.asked: dict[Key, bytes] = {}  # logits of the rows that were sampled or asked for
        self.kv: dict[Key, bytes] = {}
        self.conflicts: list[Key] = []

    def keep(
        self, where: dict[Key, bytes], seq: Sequence, start: int, results: torch.Tensor
    ) -> None:
        """Results [n, ...] of tokens from `start` on."""
        if seq.seq_id not in self.names:
            return
        digests = contexts(seq, start, start + len(results))
        for index, (digest, row) in enumerate(zip(digests, results.numpy(), strict=True), start):
            key = (self.names[seq.seq_id], index, digest)
            if where.setdefault(key, data := row.tobytes()) != data:
                self.conflicts.append(key)

    def of(self, name: str) -> dict[tuple[str, Key], bytes]:
        """Everything of one agent and its forks."""
        kept = {"rows": self.rows, "asked": self.asked, "kv": self.kv}
        return {
            (what, key): data
            for what, results in kept.items()
            for key, data in results.items()
            if key[0].split("/")[0] == name
        }


def contexts(seq: Sequence, start: int, stop: int) -> Iterator[bytes]:
    """For tokens [start, stop): a digest of all tokens and segment cuts up to each of them, and of
    what fragments were encoded behind."""
    h, at = blake2b(digest_size=12), 0
    for segment in seq.segments:
        h.update(b"cut" + (segment.root if segment.is_fragment else b""))
        for token in segment.tokens:
            h.update(token.to_bytes(4, "little"))
            if start <= at < stop:
                yield h.digest()
            at += 1


def differences(run: Bench, truth: Bench, name: str) -> list[tuple[str, Key]]:
    """Where one agent was not given in `run`, to the bit, what it was given in `truth`: there are
    other bytes, an answer is missing, or one context has two results.

    A row that `truth` never computed, because it mounted or copied that token's KV, is compared by
    its KV.
    """
    mine, theirs = run.capture.of(name), truth.capture.of(name)
    twice = (key for bench in (run, truth) for key in bench.capture.conflicts)
    out = [("twice", key) for key in twice if key[0].split("/")[0] == name]
    out += [(what, key) for what, key in theirs.keys() - mine.keys() if what == "asked"]
    for (what, key), data in mine.items():
        mounted = what == "rows" and (what, key) not in theirs and ("kv", key) in theirs
        if not mounted and theirs.get((what, key)) != data:
            out.append((what, key))
    return out


class Witness:
    """Whose words every block has seen, from the scripts and the log alone."""

    def __init__(self) -> None:
        self.sources: dict[int, list[Words]] = {}  # whose token it is, by holder and index
        self.seen: dict[tuple[str, int], Words] = {}  # by (pool, block)
        self.cursor = 0  # of the log

    def entered(self, request: Request, seq: Sequence) -> None:
        """A request entered the books: whose tokens lie where in the holder's context now."""
        mine, own = self.sources.setdefault(seq.seq_id, []), label.private(seq.name)
        if request.verb in ("append", "write"):
            tiers = {"global": label.PUBLIC, "group": label.group(request.group)}
            mine += [tiers.get(request.tier, own)] * len(request.tokens)
            mine += [own] * (request.count if request.verb == "write" else 0)
        elif request.verb == "rollback":
            del mine[request.count :]
        elif request.verb == "rewrite":
            mine[request.start : request.start + request.count] = [own] * len(request.tokens)
        elif request.verb == "fork":
            self.sources[request.future.result()] = list(mine)

    def context(self, seq_id: int) -> Words:
        """Whose words a holder has in its context."""
        return label.join(*self.sources.get(seq_id, ()))

    def computing(self, engine: Engine, chunks: list[Chunk]) -> None:
        """These chunks are about to be computed: the blocks that they write see their contexts."""
        for event in engine.log.events[self.cursor :]:
            if isinstance(event, Allocated):
                self.seen.update(((event.pool_id, b), label.PUBLIC) for b in event.blocks)
            elif isinstance(event, Copied):
                self.seen[event.pool_id, event.dst] = self.seen[event.src_pool, event.src]
        self.cursor = len(engine.log)
        for chunk in chunks:
            if not chunk.recompute:
                self._write(engine.ledger.sequences[chunk.seq_id], chunk)

    def _write(self, seq: Sequence, chunk: Chunk) -> None:
        seen = list(accumulate(self.sources[seq.seq_id], frozenset.union))
        for segment in seq.segments:
            first, size = segment.first_position, segment.block_size
            for at in range(max(chunk.start - first, 0), min(chunk.stop - first, segment.length)):
                self.seen[segment.pool_id, segment.blocks[at // size]] |= seen[first + at]

    def poison(self, engine: Engine, clearance: Words) -> None:
        """NaN into every block that is free, or whose label or history is beyond `clearance`."""
        for pool_id, pool in engine.ledger.pools.items():
            region = engine.cache.store.regions[pool_id].unflatten(3, (-1, pool.block_size))
            allowed = [
                block
                for block, mark in pool.labels.items()
                if clearance.issuperset(mark) and clearance.issuperset(self.seen[pool_id, block])
            ]
            kept = region[:, :, :, allowed].clone()
            region.fill_(torch.nan)
            region[:, :, :, allowed] = kept


# the engine under test --------------------------------------------------------------------------


class Telling(Planner):
    """A planner that counts its answers for the bench."""

    engine: Watched

    def _extend(self, *args: Any, **options: Any) -> Outcome:
        outcome = super()._extend(*args, **options)
        self.engine.bench.outcomes[type(outcome).__name__] += 1
        return outcome


class Watched(Engine):
    """An engine that tells its bench what it does."""

    bench: Bench

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.planner = Telling(self)

    def _enter(self, request: Request) -> None:
        super()._enter(request)
        if not (request.future.done() and request.future.exception()):
            self.bench.witness.entered(request, self.ledger.sequences[request.seq_id])

    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        self.bench.computing(chunks)
        logits = super().forward(chunks)
        self.bench.computed(chunks)
        return logits

    def sample(self, chunks: list[Chunk], logits: torch.Tensor) -> list[Sampled]:
        sampled = super().sample(chunks, logits)
        capture = self.bench.capture
        for s in sampled:
            if s.logits is not None:
                seq = self.ledger.sequences[s.chunk.seq_id]
                capture.keep(capture.asked, seq, s.chunk.stop - 1, s.logits[None])
        return sampled


class Bench:
    """An engine with its prompt, records and agents, and everything that they were given.

    Sizes are blocks: `private` of the private pool (or the only one), `common` of the other pools.
    """

    def __init__(
        self,
        runner: Runner,
        policy: Policy | str = "inms",
        *,
        prompt: Tokens = (),
        block_size: int = 8,
        tile: int = 0,
        budget: int = 512,
        private: int = PLENTY,
        common: int = PLENTY,
        poison_beyond: Words | None = None,
        debug: bool = True,
        gate: Gate | None = None,
    ) -> None:
        store = runner.new_store()
        unit = block_size * store.bytes_per_token
        sizes = {"private_bytes": private * unit}
        sizes |= dict.fromkeys(("global_bytes", "group_bytes"), common * unit)
        config = Config(block_size, tile, budget, context=512, debug=debug, **sizes)
        self.policy = MODES[policy] if isinstance(policy, str) else policy
        self.runner, self.prompt, self.poison_beyond = runner, prompt, poison_beyond
        self.capture, self.witness = Capture(), Witness()
        self.players: list[Player] = []
        self.records: dict[str, list[tuple[int, Tokens]]] = {"g": [], "h": []}
        self.published: list[tuple[int, Words]] = []  # record, its author's context
        self.outcomes: Counter[str] = Counter()
        self.reports: list[StepReport] = []
        self.num_cut = 0  # chunks that ended before the known text did
        self.peak = 0  # blocks of the largest private part of one holder
        self.engine = Watched(runner, store, self.policy, config, gate)
        self.engine.bench = self
        self.engine.open_pools(tuple(self.records), store.bytes_per_token)
        if prompt and self.policy.encodes_prompts:
            self._hold("prompt", "system", label.PUBLIC, [Op("prompt")])
            self.drain()

    def sequence(self, name: str) -> Sequence:
        """The sequence of the agent that came last under this name."""
        seq_id = next(p.seq_id for p in reversed(self.players) if p.name == name)
        return self.engine.ledger.sequences[seq_id]

    # agents and records -------------------------------------------------------------------------

    def agent(self, name: str, *ops: Op, group: str = "g") -> Player:
        """A new agent with the clearance of one group, and its script."""
        seq_id = self.engine.register("agent", name, label.group(group) | label.private(name))
        self.capture.names[seq_id] = name
        player = Player(name, group, seq_id, deque(ops))
        self.players.append(player)
        return player

    def publish(self, by: str, group: str, tokens: Tokens) -> int:
        """The group's next record, re-encoded behind the prompt and the earlier records."""
        authors = [p.seq_id for p in self.players if p.name == by]
        seen = self.witness.context(authors[-1]) if authors else label.PUBLIC
        ops = [Op("prompt")] if self.prompt else []
        ops += [Op("attach", count=number) for number in range(len(self.records[group]) + 1)]
        seq_id = self.engine.register("record", f"{group}/{by}", label.group(group))
        offset, length = self.engine.log.add_tokens(tokens)
        self.engine.cache.record(Released(seq_id, by, group, offset, length))
        self.records[group].append((seq_id, tokens))
        self.published.append((seq_id, seen))
        if self.policy.encodes_prompts:
            self._submit(Player(f"record of {by}", group, seq_id, deque(ops)))
        return seq_id

    def _hold(self, kind: str, name: str, clearance: Words, ops: list[Op]) -> None:
        seq_id = self.engine.register(kind, name, clearance)
        self._submit(Player(name, "g", seq_id, deque(ops)))

    def _submit(self, holder: Player) -> None:
        while holder.ops:
            self.ask(holder, holder.ops.popleft())
        self.players.append(holder)

    def ask(self, player: Player, op: Op) -> Future[Any]:
        """Submit one op of a player."""
        future = self.engine.submit(self._request(player, op)).future
        player.answers.append((op, future))
        if op.verb == "fork":
            self._follow(player, op, future)
        return future

    def _request(self, player: Player, op: Op) -> Request:
        who = player.seq_id
        if op.verb == "prompt":
            return Request(who, "append", self.prompt, "global", seal=True)
        if op.verb == "attach":
            record, tokens = self.records[player.group][op.count]
            mounted = -1 if record == who else record  # its own holder writes it
            where = {"seal": True, "record": mounted, "afresh": op.afresh}
            return Request(who, "append", tokens, "group", player.group, **where)
        verb = "append" if op.verb == "read" else op.verb
        shape = {"seal": op.seal, "fresh": op.fresh, "sampling": op.sampling}
        return Request(who, verb, op.tokens, start=op.start, count=op.count, **shape)

    def _follow(self, parent: Player, op: Op, future: Future[int]) -> None:
        number = sum(done.verb == "fork" for done, _ in parent.answers)
        name = f"{parent.name}/{number}"

        def born(future: Future[int]) -> None:
            if future.exception() is None:
                self.capture.names[future.result()] = name
                self.players.append(Player(name, parent.group, future.result(), deque(op.ops)))

        future.add_done_callback(born)

    # driving ------------------------------------------------------------------------------------

    def run(self, *programs: Program, limit: int = 3000) -> Bench:
        """All programs to their ends; raises whatever any of them was answered with."""
        waiting = sorted(programs, key=lambda p: p.arrives)
        for step in range(limit):
            while waiting and waiting[0].arrives <= step:
                program = waiting.pop(0)
                self.agent(program.name, *program.ops, group=program.group)
            for player in list(self.players):
                self._play(player)
            if not (waiting or self.engine.has_work or any(p.ops for p in self.players)):
                self._finish()
                return self
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {self._stuck()}")

    def step(self) -> StepReport | None:
        """One step of the engine."""
        report = self.engine.step()
        if report is not None:
            self.reports.append(report)
        return report

    def drain(self, limit: int = 3000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {self._stuck()}")

    def _finish(self) -> None:
        for player in self.players:
            for op, future in player.answers:
                if (error := future.exception(timeout=0)) is not None:
                    raise AssertionError(f"{player.name}: {op} was answered with {error!r}")
            self.look(player.seq_id)

    def _stuck(self) -> str:
        busy = (s for s in self.engine.ledger.sequences.values() if s.has_work)
        text = ", ".join(f"{s.name} {s.state} {s.num_computed}/{s.num_tokens}" for s in busy)
        return "\n  ".join((text, *map(repr, self.engine.log.events[-6:])))

    def _play(self, player: Player) -> None:
        while player.ops and player.may_go_on:
            op = player.ops[0]
            if op.verb == "attach" and not self._is_out(player.group, op.count):
                return
            player.ops.popleft()
            if op.verb == "publish":
                self.publish(player.name, player.group, op.tokens)
                continue
            if op.verb in ("close", "rollback", "rewrite"):
                self.look(player.seq_id)
            self.ask(player, op)

    def _is_out(self, group: str, number: int) -> bool:
        """Whether a record's text is in the books (its KV may still be on its way)."""
        records = self.records[group]
        return number < len(records) and records[number][0] not in self.engine.desk.queues

    # watching -----------------------------------------------------------------------------------

    def computing(self, chunks: list[Chunk]) -> None:
        """Before every forward."""
        held = (self._held(s) for s in self.engine.ledger.sequences.values())
        self.peak = max(self.peak, *held)
        self.witness.computing(self.engine, chunks)
        if self.poison_beyond is not None:
            self.witness.poison(self.engine, self.poison_beyond)

    def computed(self, chunks: list[Chunk]) -> None:
        """After every forward: keep its rows and the KV that it wrote."""
        row = 0
        for chunk in chunks:
            seq, count = self.engine.ledger.sequences[chunk.seq_id], chunk.stop - chunk.start
            self.num_cut += chunk.stop < seq.num_tokens
            if isinstance(self.runner, EveryRow):
                rows = self.runner.every[row : row + count]
                self.capture.keep(self.capture.rows, seq, chunk.start, rows)
            self.look(chunk.seq_id, chunk.start, chunk.stop)
            row += count

    def look(self, seq_id: int, start: int = 0, stop: int | None = None) -> None:
        """Keep the KV of tokens [start, stop) (None: of all that have it) by the block table."""
        seq = self.engine.ledger.sequences[seq_id]
        for segment in seq.segments:
            first, size = segment.first_position, segment.block_size
            known = segment.computed if stop is None else min(segment.length, stop - first)
            slots = [
                segment.blocks[at // size] * size + at % size
                for at in range(max(start - first, 0), known)
            ]
            if slots:
                region = self.engine.cache.store.regions[segment.pool_id][:, :, :, slots]
                kv = region.permute(3, 0, 1, 2, 4).contiguous()
                self.capture.keep(self.capture.kv, seq, first + max(start - first, 0), kv)

    def happened(self) -> Counter[str]:
        """What the run went through."""
        seen = Counter(deferred=self.outcomes["Deferred"], cut=self.num_cut)
        for event in self.engine.log.events:
            if isinstance(event, Freed):
                seen[event.cause] += bool(event.blocks)
            elif isinstance(event, Evicted):
                seen["evicted" if event.cause == "room" else event.cause] += 1
            elif isinstance(event, Copied):
                seen["copied"] += 1
            elif isinstance(event, Shared) and event.seq_id in self.capture.names:
                seen["attached" if event.pool_id.startswith("group:") else event.cause] += 1
        for report in self.reports:
            names = (self.capture.names.get(chunk.seq_id, "") for chunk in report.chunks)
            seen["batched"] += len({name.split("/")[0] for name in names} - {""}) > 1
        return seen

    def _held(self, seq: Sequence) -> int:
        return sum(len(s.blocks) for s in seq.segments if s.pool_id in ("private", "common"))


# random worlds ----------------------------------------------------------------------------------

VERBS = (*("read", "write") * 2, "write", "attach", "rollback", "rewrite", "fork", "fork", "logits")


@dataclass(frozen=True, slots=True)
class World:
    """Texts, sizes and programs."""

    prompt: Tokens
    records: tuple[Tokens, ...]
    programs: tuple[Program, ...]
    block_size: int
    tile: int
    budget: int

    def bench(self, runner: Runner, policy: Policy | str = "inms", **sizes: Any) -> Bench:
        """An engine for this world."""
        grid = {"block_size": self.block_size, "tile": self.tile}
        return Bench(runner, policy, prompt=self.prompt, **(grid | sizes))

    def alone(self, runner: Runner, program: Program, policy: Policy | str = "inms") -> Bench:
        """The engine serving one agent: with room, in one chunk, the records there beforehand."""
        bench = self.bench(runner, policy, debug=False)
        for tokens in self.records:
            bench.publish("nobody", program.group, tokens)
        bench.drain()
        ops = tuple(op for op in program.ops if op.verb != "publish")
        return bench.run(replace(program, ops=ops, arrives=0))

    def together(
        self, runner: Runner, room: int, policy: Policy | str = "inms", **sizes: Any
    ) -> Bench:
        """All programs in small chunks; `room`: blocks of the private pool."""
        bench = self.bench(runner, policy, budget=self.budget, private=room, **sizes)
        return bench.run(*self.programs)


def random_world(seed: int, names: str = "abcd") -> World:
    """A prompt, three records of an author with private context, and agents that do anything."""
    rng = random.Random(seed)
    prompt, texts = words(rng, 9, 40), [words(rng, 30) for _ in range(4)]
    records = tuple(words(rng, RECORD) for _ in range(3))
    block = rng.choice((4, 8, 16))
    tile = rng.choice((0, block // 2, block // 4, block * 2))
    story = [Op("prompt"), Op("read", rng.choice(texts))]
    for tokens in records:
        story += (Op("publish", tokens), Op("write", count=2))
    programs = [Program("author", tuple(story))]
    for name in names:
        ops = random_ops(rng, texts, len(prompt), len(records), rng.randint(0, len(records)))
        ops += (Op("close"),) * (rng.random() < 0.6)
        programs.append(Program(name, ops, arrives=rng.randint(0, 25)))
    return World(prompt, records, tuple(programs), block, tile, rng.randint(1, 64))


def words(rng: random.Random, low: int, high: int = 0) -> Tokens:
    """Random token ids, `low` of them (or up to `high`)."""
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, max(low, high))))


def random_ops(
    rng: random.Random, texts: list[Tokens], prompt: int, num_records: int, attached: int
) -> tuple[Op, ...]:
    """The public part of a context (a prompt of so many tokens, some records), then commands."""
    opening = (Op("prompt"), *(Op("attach", count=number) for number in range(attached)))
    known = prompt + RECORD * attached
    return opening + _random_ops(rng, texts, num_records, known, depth=1, size=6)


def _random_ops(
    rng: random.Random, texts: list[Tokens], num_records: int, known: int, depth: int, size: int
) -> tuple[Op, ...]:
    """About `size` commands behind `known` tokens; texts recur, so that hits happen."""
    ops: list[Op] = []
    for _ in range(rng.randint(size // 2, size)):
        waits, verb = rng.random() < 0.6, rng.choice(VERBS)
        if verb == "read":
            tokens = rng.choice(texts)[: rng.randint(3, 30)]
            shape = {"seal": rng.random() < 0.3, "fresh": rng.random() < 0.2}
            ops.append(Op("read", tokens, waits=waits, **shape))
            known += len(tokens)
        elif verb == "write":
            tokens, count = words(rng, 0, 3), rng.randint(1, 9)
            how = rng.choice((GREEDY, Sampling(0.8, 0.9, seed=rng.randrange(99))))
            ops.append(Op("write", tokens, count, sampling=how, waits=waits))
            known += len(tokens) + count
        elif verb == "attach" and num_records:
            ops.append(Op("attach", count=rng.randrange(num_records)))
            known += RECORD
        elif verb == "rollback":
            known = rng.randint(max(1, known - 20), known)
            ops.append(Op("rollback", count=known))
        elif verb == "rewrite":
            start = rng.randrange(max(0, known - 40), known)
            count, tokens = rng.randint(0, min(9, known - start)), words(rng, 1, 9)
            ops.append(Op("rewrite", tokens, count, start))
            known += len(tokens) - count
        elif verb == "fork" and depth:
            both = Op("read", rng.choice(texts), fresh=True)  # each may find the other's blocks
            known += len(both.tokens)
            child = _random_ops(rng, texts, num_records, known, depth - 1, size // 2)
            ops += (Op("fork", ops=(both, *child)), both)
        elif verb == "logits":
            ops.append(Op("logits", waits=waits))
    return tuple(ops)
