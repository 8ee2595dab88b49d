"""Drives a bare engine with random programs and keeps, to the bit, what every token row gave.

A `Bench` is an engine on a tiny model with one sealed prompt, groups with records, and agents that
follow scripts of `Op`s. It captures the logits of every row (or of the asked rows only) and the KV
of every token, both by (agent, index, digest of the context up to there), so that two runs can be
compared byte for byte whatever their schedules were. Whose words a block has seen is tracked here
by folding scripts and log, without asking the engine's labels.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import models
import pytest
import torch

from inms_lab import label
from inms_lab.attention.batch import Batch
from inms_lab.config import Config
from inms_lab.engine import Engine, StepReport
from inms_lab.events import Allocated, Copied, Evicted, Freed, Released, Shared
from inms_lab.model.runner import Runner
from inms_lab.outcome import Chunk, Outcome
from inms_lab.policy import MODES, Policy
from inms_lab.request import Request
from inms_lab.sample import Sampling
from inms_lab.sequence import Sequence

Key = tuple[str, int, bytes]  # agent, index of a token in its context, digest up to that token
Words = frozenset[str]  # principals whose text was seen
PLENTY = 400  # blocks: room for everything


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
        """As usual, then the same rows out of all rows."""
        wanted, count = batch.logit_rows, batch.num_rows
        padding = torch.zeros(-count % self.row_multiple, dtype=torch.long)
        batch.logit_rows = torch.cat((torch.arange(count), padding))
        super().run(batch)
        self.every = self.last_logits[:count].float()
        self.last_logits = self.last_logits[wanted]


@cache
def tiny(name: str = "llama", every_row: bool = True) -> Runner:
    """A tiny random model of one of the architectures of models.py; one object for all tests."""
    model = models.WANTED[name](num_hidden_layers=2, vocab_size=160)
    return (EveryRow if every_row else Runner)(model, name, name)


@dataclass(frozen=True, slots=True)
class Op:
    """One command of a script. Verbs are the engine's, and

    prompt   take the sealed prompt         attach   take the group's record number `count`
    publish  `tokens` become a record       fork     `ops` are the child's script
    `waits` = False lets the next op be submitted before this one is answered.
    """

    verb: str
    tokens: tuple[int, ...] = ()
    count: int = 0
    start: int = 0
    seal: bool = False
    fresh: bool = False
    waits: bool = True
    sampling: Sampling = Sampling()
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
    """A program on its way: what it still has to do and what it was answered."""

    name: str
    group: str
    seq_id: int
    ops: deque[Op]
    answers: list[tuple[Op, Future[Any]]] = field(default_factory=list)
    attached: int = 0  # records of its group in its context


class Watched(Engine):
    """An engine that tells its bench what it does."""

    bench: Bench

    def _extend(self, *args: Any) -> Outcome:
        outcome = super()._extend(*args)
        self.bench.outcomes[type(outcome).__name__] += 1
        return outcome

    def _enter(self, request: Request) -> None:
        super()._enter(request)
        if not (request.future.done() and request.future.exception()):
            self.bench.entered(request)

    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        self.bench.before_forward(chunks)
        logits = super().forward(chunks)
        self.bench.computed(chunks)
        return logits

    def sample(self, chunks: list[Chunk], logits: torch.Tensor) -> list[Any]:
        sampled = super().sample(chunks, logits)
        for s in sampled:
            if s.logits is not None:
                self.bench.keep(self.bench.asked, s.chunk.seq_id, s.chunk.stop - 1, s.logits[None])
        return sampled


class Bench:
    """An engine with its prompt, records and agents, and everything that they were given."""

    def __init__(
        self,
        runner: Runner,
        policy: Policy | str = "inms",
        *,
        prompt: tuple[int, ...] = (),
        block_size: int = 8,
        tile: int = 0,
        budget: int = 512,
        private: int = PLENTY,
        common: int = PLENTY,
        groups: tuple[str, ...] = ("g", "h"),
        debug: bool = True,
    ) -> None:
        store = runner.new_store()
        unit = block_size * store.bytes_per_token
        sizes = {"private_bytes": private * unit}
        sizes |= dict.fromkeys(("global_bytes", "group_bytes"), common * unit)
        config = Config(block_size, tile, budget, context=512, debug=debug, **sizes)
        self.policy = MODES[policy] if isinstance(policy, str) else policy
        self.engine = Watched(runner, store, self.policy, config)
        self.engine.bench = self
        self.engine.open_pools(groups, store.bytes_per_token)
        self.runner, self.store, self.prompt = runner, store, prompt
        self.records: dict[str, list[tuple[int, tuple[int, ...]]]] = {g: [] for g in groups}
        self.players: list[Player] = []
        self.holders: list[Player] = []  # of records
        self.names: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.rows: dict[Key, bytes] = {}  # logits of every row, where the runner keeps them
        self.asked: dict[Key, bytes] = {}  # logits of the rows that were sampled or asked for
        self.kv: dict[Key, bytes] = {}
        self.conflicts: list[Key] = []  # one context, two results within this run
        self.reports: list[StepReport] = []
        self.poison_beyond: Words | None = None
        self.num_cut = 0  # chunks that ended before the text did
        self.peak = 0  # blocks of the largest private part of one holder
        self._sources: dict[int, list[Words]] = {}  # whose token it is, by holder and index
        self._seen: dict[tuple[str, int], Words] = {}  # whose words a block has seen
        self._cursor = 0
        if prompt and self.policy.encodes_prompts:
            holder = self.engine.register("prompt", "system", label.PUBLIC)
            self._ask(holder, Op("prompt"))
            self.drain()

    # agents and records ---------------------------------------------------------------------

    def agent(self, name: str, group: str = "g") -> int:
        """A new agent with the clearance of one group."""
        seq_id = self.engine.register("agent", name, label.group(group) | label.private(name))
        self.names[seq_id] = name
        return seq_id

    def publish(self, by: str, group: str, tokens: tuple[int, ...]) -> int:
        """The group's next record, re-encoded behind the prompt and the earlier records."""
        seq_id = self.engine.register("record", f"{group}/{by}", label.group(group))
        offset, length = self.engine.log.add_tokens(tokens)
        self.engine.cache.record(Released(seq_id, by, group, offset, length))
        self.records[group].append((seq_id, tokens))
        if self.policy.encodes_prompts:
            ops = [Op("attach", count=number) for number in range(len(self.records[group]))]
            ops = [Op("prompt"), *ops] if self.prompt else ops
            answers = [(op, self._ask(seq_id, op, group)) for op in ops]
            self.holders.append(Player(f"{group}/{by}", group, seq_id, deque(), answers))
        return seq_id

    def _ask(self, seq_id: int, op: Op, group: str = "g") -> Future[Any]:
        return self.engine.submit(self.request(seq_id, op, group)).future

    def request(self, seq_id: int, op: Op, group: str = "g") -> Request:
        """What an op asks of the engine."""
        if op.verb == "prompt":
            return Request(seq_id, "append", self.prompt, "global", seal=True)
        if op.verb == "attach":
            record, tokens = self.records[group][op.count]
            record = -1 if record == seq_id else record  # its own holder writes it
            return Request(seq_id, "append", tokens, "group", group, seal=True, record=record)
        return Request(
            seq_id,
            {"read": "append"}.get(op.verb, op.verb),
            op.tokens,
            start=op.start,
            count=op.count,
            seal=op.seal,
            fresh=op.fresh,
            sampling=op.sampling,
        )

    # driving --------------------------------------------------------------------------------

    def run(self, *programs: Program, limit: int = 3000) -> Bench:
        """All programs to their ends; raises whatever any of them was answered with."""
        waiting = sorted(programs, key=lambda p: p.arrives)
        for step in range(limit):
            while waiting and waiting[0].arrives <= step:
                program = waiting.pop(0)
                seq_id = self.agent(program.name, program.group)
                player = Player(program.name, program.group, seq_id, deque(program.ops))
                self.players.append(player)
            for player in list(self.players):
                self._play(player)
            busy = waiting or self.engine.has_work or any(p.ops for p in self.players)
            if not busy:
                break
            self.step()
        else:
            raise AssertionError(f"still busy after {limit} steps: {self.stuck()}")
        for player in (*self.holders, *self.players):
            for op, future in player.answers:
                if (error := future.exception(timeout=0)) is not None:
                    raise AssertionError(f"{player.name}: {op} was answered with {error!r}")
            self.look(player.seq_id)
        return self

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
        raise AssertionError(f"still busy after {limit} steps: {self.stuck()}")

    def stuck(self) -> str:
        """Who still wants something, in words."""
        busy = (s for s in self.engine.ledger.sequences.values() if s.has_work)
        text = ", ".join(f"{s.name} {s.state} {s.num_computed}/{s.num_tokens}" for s in busy)
        last = map(repr, self.engine.log.events[-6:])
        return "\n  ".join((text, *last))

    def _play(self, player: Player) -> None:
        while player.ops:
            op = player.ops[0]
            if player.answers and player.answers[-1][0].waits and not self._settled(player):
                return
            if op.verb == "attach" and not self._is_out(player.group, op.count):
                return
            player.ops.popleft()
            if op.verb == "publish":
                self.publish(player.name, player.group, op.tokens)
                continue
            if op.verb in ("close", "rollback", "rewrite"):
                if not self._settled(player):
                    player.ops.appendleft(op)
                    return
                self.look(player.seq_id)
            player.answers.append((op, self._ask(player.seq_id, op, player.group)))
            if op.verb == "fork":
                self._follow(player, op)

    def _is_out(self, group: str, number: int) -> bool:
        records = self.records[group]
        return number < len(records) and records[number][0] not in self.engine.desk.queues

    def _settled(self, player: Player) -> bool:
        return all(future.done() for _, future in player.answers)

    def _follow(self, parent: Player, op: Op) -> None:
        number = sum(done.verb == "fork" for done, _ in parent.answers)
        name = f"{parent.name}/{number}"

        def born(future: Future[int]) -> None:
            if future.exception() is None:
                self.names[future.result()] = name
                child = Player(name, parent.group, future.result(), deque(op.ops))
                self.players.append(child)

        parent.answers[-1][1].add_done_callback(born)

    # capture --------------------------------------------------------------------------------

    def keep(
        self, where: dict[Key, bytes], seq_id: int, start: int, rows: torch.Tensor
    ) -> None:
        """Rows [n, ...] of tokens from `start` on; a second result must be the first, bit by bit."""
        if seq_id not in self.names:
            return
        seq = self.engine.ledger.sequences[seq_id]
        digests = contexts(seq, start, start + len(rows))
        for index, (digest, row) in enumerate(zip(digests, rows.numpy(), strict=True), start):
            key = (self.names[seq_id], index, digest)
            if where.setdefault(key, data := row.tobytes()) != data:
                self.conflicts.append(key)

    def computed(self, chunks: list[Chunk]) -> None:
        """A forward is done: keep its rows and the KV that it wrote."""
        row = 0
        for chunk in chunks:
            count = chunk.stop - chunk.start
            self.num_cut += chunk.stop < self.engine.ledger.sequences[chunk.seq_id].num_tokens
            if isinstance(self.runner, EveryRow):
                self.keep(self.rows, chunk.seq_id, chunk.start, self.runner.every[row : row + count])
            if chunk.seq_id in self.names:
                self.look(chunk.seq_id, chunk.start, chunk.stop)
            row += count

    def look(self, seq_id: int, start: int = 0, stop: int | None = None) -> None:
        """Keep the KV of tokens [start, stop) as the block table finds it."""
        seq = self.engine.ledger.sequences[seq_id]
        for segment in seq.segments:
            first, size = segment.first_position, segment.block_size
            known = segment.computed if stop is None else segment.length
            begin, end = max(start - first, 0), min(known, known if stop is None else stop - first)
            if begin < end:
                slots = [segment.blocks[at // size] * size + at % size for at in range(begin, end)]
                region = self.store.regions[segment.pool_id][:, :, :, slots]
                self.keep(self.kv, seq_id, first + begin, region.permute(3, 0, 1, 2, 4).contiguous())
            if stop is None and segment.computed < len(segment.tokens):
                break  # preempted: nothing behind is computed either

    def of(self, name: str) -> dict[tuple[str, Key], bytes]:
        """Everything captured of one agent and its forks."""
        mine = {"rows": self.rows, "asked": self.asked, "kv": self.kv}
        return {
            (what, key): data
            for what, kept in mine.items()
            for key, data in kept.items()
            if key[0].split("/")[0] == name
        }

    def tokens_of(self, name: str) -> list[int]:
        """The context of an agent that has not ended."""
        player = next(p for p in self.players if p.name == name)
        return list(self.engine.ledger.sequences[player.seq_id].tokens())

    def happened(self) -> Counter[str]:
        """What the run went through: the things that purity must survive."""
        seen = Counter(deferred=self.outcomes["Deferred"], chunks=self.num_cut)
        agents = {i for i, s in self.engine.ledger.sequences.items() if s.kind == "agent"}
        for event in self.engine.log.events:
            if isinstance(event, Freed) and event.cause == "preempted" and event.blocks:
                seen["preempted"] += 1
            elif isinstance(event, Evicted):
                seen["evicted" if event.cause == "room" else event.cause] += 1
            elif isinstance(event, Copied):
                seen["copied"] += 1
            elif isinstance(event, Shared) and event.seq_id in agents:
                seen["attached" if event.pool_id.startswith("group:") else event.cause] += 1
        for report in self.reports:
            names = {self.names.get(c.seq_id, "").split("/")[0] for c in report.chunks} - {""}
            seen["batches"] += len(names) > 1
        return seen

    # whose words a block has seen -------------------------------------------------------------

    def entered(self, request: Request) -> None:
        """A request entered the books: whose tokens lie where in the holder's context."""
        seq = self.engine.ledger.sequences[request.seq_id]
        mine = self._sources.setdefault(seq.seq_id, [])
        own = label.private(seq.name)
        if request.verb in ("append", "write"):
            tier = {"global": label.PUBLIC, "group": label.group(request.group)}
            mine += [tier.get(request.tier, own)] * len(request.tokens)
            mine += [own] * (request.count if request.verb == "write" else 0)
        elif request.verb == "rollback":
            del mine[request.count :]
        elif request.verb == "rewrite":
            mine[request.start : request.start + request.count] = [own] * len(request.tokens)
        elif request.verb == "fork":
            self._sources[request.future.result()] = list(mine)

    def before_forward(self, chunks: list[Chunk]) -> None:
        """Fold the log up to here, mark what will be written, then poison what must not be read."""
        self.peak = max(self.peak, *(self._held(seq) for seq in self._sequences()))
        events = self.engine.log.events
        for event in events[self._cursor :]:
            if isinstance(event, Allocated):
                self._seen.update(((event.pool_id, b), label.PUBLIC) for b in event.blocks)
            elif isinstance(event, Copied):
                self._seen[event.pool_id, event.dst] = self._seen[event.src_pool, event.src]
        self._cursor = len(events)
        for chunk in chunks:
            self._mark(chunk)
        if self.poison_beyond is not None:
            self.poison(self.poison_beyond)

    def _mark(self, chunk: Chunk) -> None:
        seq = self.engine.ledger.sequences[chunk.seq_id]
        seen = list(accumulate(self._sources[chunk.seq_id], frozenset.union))
        for segment in seq.segments:
            first, size = segment.first_position, segment.block_size
            for at in range(max(chunk.start - first, 0), min(chunk.stop - first, segment.length)):
                if not chunk.recompute:
                    place = (segment.pool_id, segment.blocks[at // size])
                    self._seen[place] |= seen[first + at]

    def words_in(self, seq_id: int) -> Words:
        """Whose words a holder's context has."""
        return frozenset().union(*self._sources[seq_id])

    def poison(self, clearance: Words) -> None:
        """NaN in every slot of blocks that are free, or that saw or are labelled with more."""
        for pool_id, pool in self.engine.ledger.pools.items():
            region = self.store.regions[pool_id].unflatten(3, (-1, pool.block_size))
            allowed = [
                block
                for block, mark in pool.labels.items()
                if clearance.issuperset(mark) and clearance.issuperset(self._seen[pool_id, block])
            ]
            kept = region[:, :, :, allowed].clone()
            region.fill_(torch.nan)
            region[:, :, :, allowed] = kept

    def _sequences(self) -> list[Sequence]:
        return list(self.engine.ledger.sequences.values())

    def _held(self, seq: Sequence) -> int:
        pools = ("private", "common")
        return sum(len(s.blocks) for s in seq.segments if s.pool_id in pools)


def contexts(seq: Sequence, start: int, stop: int) -> Iterator[bytes]:
    """For tokens [start, stop): a digest of all tokens and segment cuts up to each of them."""
    h, at = blake2b(digest_size=12), 0
    for segment in seq.segments:
        h.update(b"cut")
        for token in segment.tokens:
            h.update(token.to_bytes(4, "little"))
            if start <= at < stop:
                yield h.digest()
            at += 1


def alone(bench: Callable[[], Bench], program: Program, records: dict[str, list[Any]]) -> Bench:
    """The same engine serving one agent: fresh, with room, with the records there from the start."""
    single = bench()
    for group, texts in records.items():
        for by, tokens in texts:
            single.publish(by, group, tokens)
    single.drain()
    ops = tuple(op for op in program.ops if op.verb != "publish")
    return single.run(replace(program, ops=ops, arrives=0))


# random programs ------------------------------------------------------------------------------


def words(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    """Random token ids, `low` to `high` of them."""
    return tuple(rng.randrange(160) for _ in range(rng.randint(low, high)))


def random_ops(
    rng: random.Random,
    texts: list[tuple[int, ...]],
    num_records: int,
    num_tokens: int = 0,
    depth: int = 1,
    size: int = 6,
) -> tuple[Op, ...]:
    """About `size` commands behind `num_tokens` of context; texts recur, so that hits happen."""
    ops: list[Op] = []
    for _ in range(rng.randint(size // 2, size)):
        waits = rng.random() < 0.6
        verb = rng.choice(VERBS if num_tokens else ("read",))
        if verb == "read":
            tokens = rng.choice(texts)[: rng.randint(3, 30)]
            shape = {"seal": rng.random() < 0.3, "fresh": rng.random() < 0.2}
            ops.append(Op("read", tokens, waits=waits, **shape))
            num_tokens += len(tokens)
        elif verb == "write":
            tokens, count = words(rng, 0, 3), rng.randint(1, 9)
            how = rng.choice((Sampling(), Sampling(0.8, 0.9, seed=rng.randrange(99))))
            ops.append(Op("write", tokens, count, sampling=how, waits=waits))
            num_tokens += len(tokens) + count
        elif verb == "attach" and num_records:
            ops.append(Op("attach", count=rng.randrange(num_records)))
            num_tokens += RECORD
        elif verb == "rollback":
            num_tokens = rng.randint(max(1, num_tokens - 20), num_tokens)
            ops.append(Op("rollback", count=num_tokens))
        elif verb == "rewrite":
            start = rng.randrange(max(0, num_tokens - 40), num_tokens)
            count, tokens = rng.randint(0, min(9, num_tokens - start)), words(rng, 1, 9)
            ops.append(Op("rewrite", tokens, count, start))
            num_tokens += len(tokens) - count
        elif verb == "fork" and depth:
            both = Op("read", rng.choice(texts), fresh=True)  # each may find the other's blocks
            num_tokens += len(both.tokens)
            child = random_ops(rng, texts, num_records, num_tokens, depth - 1, size // 2)
            ops += (Op("fork", ops=(both, *child)), both)
        elif verb == "logits":
            ops.append(Op("logits", waits=waits))
    return tuple(ops)


VERBS = ("read", "read", "write", "write", "write", "attach", "rollback", "rewrite", "fork", "logits")
RECORD = 13  # tokens of every record: a sealed block that is partly filled


def opening(rng: random.Random, prompt: tuple[int, ...], num_records: int) -> tuple[Op, ...]:
    """The public part of a context: the prompt, then some records in their order."""
    count = rng.randint(0, num_records)
    return (Op("prompt"), *(Op("attach", count=number) for number in range(count)))

