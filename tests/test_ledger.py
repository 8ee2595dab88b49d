"""The ledger against an independent model of the books, after every event of random operations.

A toy engine is driven by seeded random operations in small pools, so that eviction, preemption,
copy-on-write, deferral and lack of room really happen; that they did is asserted too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bruteforce import Books, Wrong
from toy import Interrupt, Toy, plain

import inms_lab.serving.planning
from inms_lab.books.events import (
    EVENT_TYPES,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.gate import OPEN, Gate
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.copies import MANY
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.decisions.schedule import schedule
from inms_lab.errors import AgentClosed, BadInput, InmsError, PoolExhausted
from inms_lab.logs import audit

VOCAB = 5
ORDINARY = (BadInput, AgentClosed, PoolExhausted)  # what a request may be answered with
STEMS = ([1, 2, 3, 4, 0, 1, 2, 3], [1, 2, 3, 4, 4, 4], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [3, 0, 3])


class Player:
    """Random operations on a toy lab, and counts of what they led to."""

    def __init__(self, mode: str, seed: int, gate: Gate | None = None) -> None:
        self.rng, self.gate = random.Random(seed), gate
        self.toy = Toy(mode, size=4, blocks=(6, 6, 30 if mode == "inms" else 40), gate=gate)
        self.toy.on_event.append(self._saw)
        self.shares = MODES[mode].encodes_prompts
        self.prompts: dict[int, list[list[int]]] = {}
        self.records: dict[int, tuple[list[list[int]], list[int]]] = {}
        self.agents: list[int] = []
        self.forks: list[Any] = []
        self.futures: list[Any] = []
        self.seen: Counter[str] = Counter()
        self.last_cut: dict[int, str] = {}
        self.operations: list[tuple[Callable[[], None], int]] = [
            (self.new_agent, 5),
            (self.new_prompt, 3),
            (self.new_record, 3),
            (self.close_shared, 2),
            (self.mount, 6),
            (self.append, 7),
            (self.write, 8),
            (self.logits, 2),
            (self.fork, 6),
            (self.rollback, 8),
            (self.rewrite, 4),
            (self.edit, 4),
            (self.end, 4),
            (self.step, 45),
            (self.interrupt, 2),
        ]
        if gate is not None:
            self.operations += [(self.attach_anywhere, 6), (self.supersede, 1)]

    def play(self, count: int) -> Iterator[int]:
        """Do `count` operations; gives the number of each before it is done."""
        actions, weights = zip(*self.operations, strict=True)
        for number in range(count):
            yield number
            self.rng.choices(actions, weights)[0]()
            self._collect()

    def _saw(self, event: Event) -> None:
        self.seen[type(event).__name__] += 1
        if isinstance(event, Registered) and event.parent_id >= 0:
            self.last_cut[event.parent_id] = self.last_cut[event.seq_id] = "fork"
        elif isinstance(event, Commanded) and event.verb == "rollback":
            self.last_cut[event.seq_id] = "rollback"
        elif isinstance(event, Copied):
            edit = event.src_pool != event.pool_id
            self.seen["copy: rewrite" if edit else f"copy: {self.last_cut[event.seq_id]}"] += 1
        elif isinstance(event, Evicted):
            self.seen[f"evicted: {event.cause}"] += 1
        elif isinstance(event, Freed):
            self.seen[f"freed: {event.cause}"] += 1
        if isinstance(event, Commanded):
            self.seen["fragment"] += event.piece >= 0
            self.seen[event.verb] += 1

    def _collect(self) -> None:
        for future in [f for f in self.futures if f.done()]:
            self.futures.remove(future)
            error = future.exception()
            assert error is None or isinstance(error, ORDINARY), repr(error)
            self.seen["answered" if error is None else type(error).__name__] += 1
            if error is None and future in self.forks:
                self.agents.append(future.result())
        live = self.toy.ledger.sequences
        self.agents = [a for a in self.agents if live[a].is_live]

    # operations -----------------------------------------------------------------------------

    def text(self, most: int = 9) -> list[int]:
        """A few tokens that often begin as other texts do."""
        stem = self.rng.choice(STEMS)
        tokens = stem[: self.rng.randint(0, len(stem))]
        tokens += [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(0, 4))]
        return tokens[:most] or [self.rng.randrange(VOCAB)]

    def ask(self, seq_id: int, verb: str, tokens: list[int] | None = None, **options: Any) -> Any:
        try:
            request = self.toy.ask(seq_id, verb, tokens or [], **options)
        except InmsError as error:
            self.seen[type(error).__name__] += 1
            return None
        self.futures.append(request.future)
        return request.future

    def agent(self) -> int | None:
        return self.rng.choice(self.agents) if self.agents else None

    def new_agent(self) -> None:
        if len(self.agents) < 6:
            self.agents.append(self.toy.agent(self.rng.choice("abc")))

    def new_prompt(self) -> None:
        if self.shares and len(self.prompts) < 2:
            texts = [self.text() for _ in range(self.rng.randint(1, 2))]
            seq_id = self.toy.engine.register("prompt", "prompt", frozenset())
            for text in texts:
                self.ask(seq_id, "append", text, tier="global", seal=True)
            self.prompts[seq_id] = texts

    def new_record(self, replaces: int = -1) -> None:
        if self.shares and len(self.records) < 3:
            behind = self.rng.choice([*self.prompts.values(), []])
            text = self.text()
            seq_id = self.toy.engine.register("record", "r", frozenset({"group:team"}))
            offset, length = self.toy.log.add_tokens(text)
            self.toy.cache.record(Released(seq_id, "author", "team", offset, length, replaces))
            for earlier in behind:
                self.ask(seq_id, "append", earlier, tier="global", seal=True)
            where = {"tier": "group", "group": "team", "seal": True, "offset": offset}
            self.ask(seq_id, "append", text, **where)
            self.records[seq_id] = (behind, text)

    def close_shared(self) -> None:
        holders = [*self.prompts, *self.records]
        if holders:
            seq_id = self.rng.choice(holders)
            self.ask(seq_id, "close")
            self.prompts.pop(seq_id, None)
            self.records.pop(seq_id, None)

    def mount(self) -> None:
        """An agent starts with sealed texts, and reads a record behind them."""
        seq_id = self.agent()
        if seq_id is None:
            return
        if not self.prompts or self.rng.random() < 0.02:  # nobody preloaded this one
            self.ask(seq_id, "append", self.text(), tier="global", seal=True)
            return
        texts = self.rng.choice([*self.prompts.values(), []])
        for text in texts:
            self.ask(seq_id, "append", text, tier="global", seal=True)
        for record, (behind, text) in self.records.items():
            if behind == texts:
                self.attach(seq_id, record, text)

    def attach(
        self, seq_id: int, record: int, text: list[int], afresh: tuple[int, ...] = ()
    ) -> None:
        where = {"tier": "group", "group": "team", "seal": True, "record": record}
        self.ask(seq_id, "append", text, **where, afresh=afresh)

    def attach_anywhere(self) -> None:
        """A record at any place of a context, now and then with some blocks computed afresh."""
        seq_id = self.agent()
        if seq_id is not None and self.records:
            record = self.rng.choice([*self.records])
            afresh = tuple(i for i in range(3) if self.rng.random() < 0.15)
            self.attach(seq_id, record, self.records[record][1], afresh)

    def supersede(self) -> None:
        """A record is replaced; its blocks stay as long as somebody reads them."""
        held = [r for r in self.records if r in self.toy.ledger.records.get("team", ())]
        if held and len(self.records) < 3:
            old = self.rng.choice(held)
            self.new_record(replaces=old)
            self.records.pop(old)
            self.toy.engine.retired.add(old)

    def append(self) -> None:
        seq_id = self.agent()
        if seq_id is not None:
            seal, fresh = self.rng.random() < 0.2, self.rng.random() < 0.1
            self.ask(seq_id, "append", self.text(), seal=seal, fresh=fresh)

    def write(self) -> None:
        seq_id = self.agent()
        if seq_id is not None:
            opening = [] if self.rng.random() < 0.3 else self.text(4)
            self.ask(seq_id, "write", opening, count=self.rng.randint(1, 6))

    def logits(self) -> None:
        seq_id = self.agent()
        if seq_id is not None and self.toy.ledger.sequences[seq_id].num_tokens:
            self.ask(seq_id, "logits")

    def fork(self) -> None:
        seq_id = self.agent()
        if seq_id is not None and len(self.agents) < 9:
            self.forks.append(self.ask(seq_id, "fork"))

    def rollback(self) -> None:
        seq_id = self.agent()
        if seq_id is not None:
            count = self.toy.ledger.sequences[seq_id].num_tokens
            self.ask(seq_id, "rollback", count=self.rng.randint(max(0, count - 15), count))

    def rewrite(self) -> None:
        seq_id = self.agent()
        count = self.toy.ledger.sequences[seq_id].num_tokens if seq_id is not None else 0
        if seq_id is not None and count:
            start = self.rng.randrange(count)
            replaced = self.rng.randint(0, 3)
            self.ask(seq_id, "rewrite", self.text(4), start=start, count=replaced)

    def edit(self) -> None:
        """An agent changes a word of the sealed text that its context begins with."""
        sequences = self.toy.ledger.sequences
        private = self.toy.ledger.pools.get("private")
        if private and not private.free:  # a copy takes a free block, it evicts nobody
            self.end()
            self.toy.engine.enter()
        for seq_id in reversed(self.agents):
            for segment in sequences[seq_id].segments[:2]:
                offsets = [i for i in range(segment.computed) if i % segment.block_size]
                live = sequences[seq_id].is_live
                if live and segment.tier in ("global", "group") and offsets:
                    start = segment.first_position + self.rng.choice(offsets)
                    self.ask(seq_id, "rewrite", self.text(2), start=start, count=1)
                    return

    def end(self) -> None:
        seq_id = self.agent()
        if seq_id is not None:
            self.ask(seq_id, self.rng.choice(("close", "close", "fail", "expire")), cause="played")

    def step(self) -> None:
        self.toy.step(self.rng.choice((1, 2, 3, 7, 30)))

    def interrupt(self) -> None:
        self.toy.model.interrupt = True
        try:
            self.toy.step()
        except Interrupt:
            self.seen["interrupted"] += 1
        self.toy.model.interrupt = False


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what planning answers; now and then proves that it changed nothing."""
    counts: Counter[str] = Counter()

    def watched(books: Ledger, at: int, seq_id: int, budget: int, copies: int = MANY) -> Any:
        look = sum(counts.values()) % 97 == 0
        before = plain(books) if look else None
        outcome = plan_extend(books, at, seq_id, budget, copies)
        assert not look or plain(books) == before, "planning changed the books"
        counts[type(outcome).__name__] += 1
        return outcome

    monkeypatch.setattr(inms_lab.serving.planning, "plan_extend", watched)
    return counts


def check_replay(toy: Toy, rng: random.Random) -> None:
    """The log tells the whole story: from its start, and cut off at any point, from a snapshot."""
    index = rng.randrange(len(toy.log) + 1)
    replayed = toy.log.replay(index)
    snapshot = replayed.snapshot()
    for event in toy.log.events[index:]:
        replayed.apply(event)
    assert replayed.snapshot() == toy.ledger.snapshot()
    tail = Ledger.replay(snapshot, toy.log.events[index:], toy.log.tokens)
    assert tail.snapshot() == toy.ledger.snapshot()
    before = plain(toy.ledger)
    for seq_id in schedule(toy.ledger):
        for budget in (1, 5, 100):
            at = len(toy.log)
            plan = plan_extend(toy.ledger, at, seq_id, budget)
            assert plan == plan_extend(replayed, at, seq_id, budget)
            if isinstance(plan, Plan):
                trial = replayed.overlay()
                for event in plan.events:
                    trial.apply(event)
    assert plain(toy.ledger) == before == plain(replayed)


def check_happened(player: Player, outcomes: Counter[str]) -> None:
    """The run was not a quiet one."""
    seen, kinds = player.seen, {t.__name__ for t in EVENT_TYPES} - {PoolOpened.__name__}
    wanted = {"copy: fork", "copy: rollback", "freed: preempted", "interrupted"}
    if player.shares:
        wanted |= {"evicted: room", "evicted: overwritten", "PoolExhausted"}
        assert outcomes["Deferred"]
    else:
        kinds -= {Evicted.__name__, Published.__name__, Released.__name__}
    if player.toy.engine.policy.name == "inms":
        wanted |= {"copy: rewrite", "evicted: forgotten", "SealedTier"}
        assert outcomes["Refused"]
    assert outcomes["NoRoom"]
    assert not (kinds | wanted) - seen.keys(), (kinds | wanted) - seen.keys()
    assert seen["answered"] > seen["PoolExhausted"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_ledger_equals_the_independent_books_in_short_runs(mode: str, seed: int) -> None:
    player = Player(mode, seed)
    for _ in player.play(250):
        pass
    check_replay(player.toy, player.rng)
    finish(player)


@pytest.mark.parametrize("mode", ["inms", "global"])
@pytest.mark.parametrize("seed", range(8))
def test_ledger_equals_the_independent_books_with_fragments(mode: str, seed: int) -> None:
    player = Player(mode, seed, gate=OPEN)
    for _ in player.play(400):
        pass
    check_replay(player.toy, player.rng)
    finish(player)
    assert player.seen["fragment"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "count"), [("inms", 10_000), ("global", 3000), ("independent", 3000)]
)
def test_ledger_equals_the_independent_books_over_thousands_of_operations(
    mode: str, count: int, outcomes: Counter[str]
) -> None:
    player = Player(mode, 2024)
    for number in player.play(count):
        if number % 500 == 499:
            check_replay(player.toy, player.rng)
    check_happened(player, outcomes)
    finish(player)


def finish(player: Player) -> None:
    """Everything comes to an end, and then nothing is held."""
    player.toy.step(30)
    player.toy.run(limit=2000)
    player._collect()
    assert not player.futures, "a request was never answered"
    for seq in list(player.toy.ledger.sequences.values()):
        if seq.is_live:
            player.toy.enter(seq.seq_id, "close")
    assert set(player.toy.held().values()) == {0}
    assert not audit.faults(player.toy.ledger)


BAD: dict[str, tuple[str, Event]] = {
    "a held block is handed out": ("is not free", Allocated(2, 0, "private", (0,), (b"",), 4)),
    "a cached block is handed out": ("is not free", Allocated(2, 0, "private", (1,), (b"",), 4)),
    "a block is handed out twice": ("twice", Allocated(2, 0, "private", (7, 7), (b"",) * 2, 5)),
    "other content is shared": ("other content", Shared(2, 0, "private", (1,), 4)),
    "another's block is shared": ("other content", Shared(2, 0, "private", (0,), 4)),
    "an empty block is shared": ("nobody published", Shared(2, 0, "private", (7,), 4)),
    "foreign text is copied": (
        "not what is copied",
        Copied(2, 0, 0, "private", 0, "private", 7, 3),
    ),
    "a held block is evicted": ("has holders", Evicted("private", (0,), (b"",), (0,))),
    "an eviction lies about its key": (
        "another identity",
        Evicted("private", (1,), (b"",), (0,)),
    ),
    "a block is freed that is not in the table": (
        "from elsewhere",
        Freed(0, 0, "private", (1,), 0, "x"),
    ),
    "a pending block is published": ("not written", Published(1, 0, "private", 0, (2,), (b"k",))),
    "a block is published twice": ("twice", Published(0, 0, "private", 0, (0,), (b"k",))),
    "one key for two contents": ("two contents", Published(3, 0, "private", 0, (3,), (b"0",))),
    "one content under two keys": ("two keys", Published(3, 0, "private", 0, (3,), (b"new",))),
    "a step writes without a slot": ("without a slot", Stepped(9, 0, ((2, 4, 0, False),))),
    "a step writes what is published": ("can be found", Stepped(9, 0, ((4, 1, 0, False),))),
    "a text for who may not see it": (
        "may not see it",
        Commanded(5, 1, "append", "group", ("group:team",), "group:team", 0, 4),
    ),
    "a text with too low a label": (
        "below what",
        Commanded(5, 1, "append", "private", (), "private", 0, 4),
    ),
}


@pytest.mark.parametrize(("words", "event"), BAD.values(), ids=BAD)
def test_the_independent_books_notice(words: str, event: Event) -> None:
    toy = Toy(budget=1000)
    first, pending, idle, third, fourth = (toy.agent("a") for _ in range(5))
    toy.engine.register("agent", "stranger", frozenset({"agent:stranger"}))
    toy.do(first, "append", [1, 1, 1, 1, 2, 2, 2, 2])
    toy.enter(first, "rollback", count=4)  # block 0 is held, block 1 cached
    toy.enter(pending, "append", [3, 3, 3, 3])
    toy.enter(third, "append", [4, 4, 4])
    toy.enter(fourth, "append", [0, 0, 0, 0])
    toy.engine.plan()  # blocks 2, 3, 4 are pending
    toy.enter(idle, "append", [2, 2, 2, 2, 1])
    books = Books(toy.log.tokens)
    for e in toy.log.events:
        books.apply(e)
    books.apply(Stepped(2, 0, ((third, 3, 0, False), (fourth, 3, 0, False))))
    text = books.holders[third].parts[0]
    text.open = False
    content = (tuple(text.contexts), 0, (text.label,), books.holders[third].root)
    if "two contents" in words:
        books.content_of[b"0"] = "another"
    elif "two keys" in words:
        books.key_of[content] = b"old"
    books.published["private", 4] = b"early"
    with pytest.raises(Wrong, match=words):
        books.apply(event)


@pytest.mark.parametrize(
    ("check", "reader", "texts", "words"),
    [
        ("label", "b", ([1, 1, 1, 1], [1, 1, 1, 1]), "may not hold"),
        ("position", "a", ([1, 1, 1, 1], [2, 2, 2, 2, 1, 1, 1, 1]), "other content"),
        ("pending", "a", ([1, 1, 1, 1], [1, 1, 1, 1]), "nobody published"),
    ],
)
def test_the_independent_books_notice_a_check_that_is_switched_off(
    check: str, reader: str, texts: tuple[list[int], list[int]], words: str
) -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    for policy in (inms, inms.without(check)):
        toy = Toy(policy, budget=3 if check == "pending" else 4)
        toy.ask(toy.agent("a"), "append", texts[0])
        toy.step()
        turn = toy.ask(toy.agent(reader), "append", texts[1])
        if policy.off:
            with pytest.raises(Wrong, match=words):
                toy.run()
        else:
            toy.run()
            assert turn.future.result(timeout=0) == len(texts[1])
