"""Ten thousand operations in any order, with crashes and failures (chaos.py), by hypothesis.

After each: conservation, the ledger equals the independent books, every slot stands for its own
text. In the end every request was answered and nothing is held. Then: the driver finds faults that
are planted, a list that finds one is made short, and what one principal is given does not depend on
another's private text or on the KV of blocks that it may not hold.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import torch
from chaos import (
    KINDS,
    NAMES,
    OTHER,
    SIZE,
    TEAMS,
    WEIGHTS,
    Broken,
    Op,
    Setup,
    World,
    play,
    random_ops,
    shrink,
)
from harness import Capture, one_thread, tiny  # noqa: F401
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from toy import Toy

import inms_lab.serving.engine
from inms_lab.attention.store import KVStore
from inms_lab.books import label
from inms_lab.books.events import Copied, Event, Evicted, Freed, Registered, Shared
from inms_lab.books.pool import Pool
from inms_lab.decisions.freeing import freed
from inms_lab.decisions.outcome import Chunk, Plan
from inms_lab.decisions.policy import Inms, Policy
from inms_lab.errors import PoolExhausted, StepInterrupted
from inms_lab.leases import Leases
from inms_lab.notebook.preload import _submit
from inms_lab.notebook.waste import compact
from inms_lab.serving.desk import Desk

ROOT = Path(__file__).resolve().parents[1]
RUNS, LENGTH = 40, 250  # ten thousand operations
NUMBER = st.integers(0, 255)
OPS = st.tuples(
    st.sampled_from([verb for verb, weight in WEIGHTS.items() for _ in range(weight)]),
    *(NUMBER, NUMBER, NUMBER),
)


class Anything(RuleBasedStateMachine):
    """A lab, and whatever may happen to it."""

    seen: ClassVar[Counter[str]] = Counter()  # over all runs

    @initialize(number=st.integers(0, 10_000))
    def build(self, number: int) -> None:
        self.world = World(Setup.of(number))
        self.world.on_event.append(self._note)
        self.is_sound = True

    @rule(op=OPS)
    def do(self, op: Op) -> None:
        self._within(lambda: self.world.do(op))
        self.seen["operations"] += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                if self.is_sound:
                    self._within(self.world.finish)
            finally:
                self.seen.update(self.world.seen + self.world.faults.num_raised)
                self.world.close()

    def _within(self, act: Callable[[], None]) -> None:
        self.is_sound = False
        self.world.lab.look(act)
        self.is_sound = True

    def _note(self, event: Event) -> None:
        self.seen[type(event).__name__] += 1
        if isinstance(event, Freed | Evicted | Shared):
            self.seen[event.cause] += 1


@pytest.mark.slow
def test_ten_thousand_operations_with_failures_leave_nothing_wrong() -> None:
    Anything.seen.clear()
    run_state_machine_as_test(
        Anything,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=LENGTH,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    seen = Anything.seen
    assert seen["operations"] >= 0.95 * RUNS * LENGTH, seen  # the last runs may be shorter
    happened = ("answered", "cancelled", "broken", "Evicted", "Copied", "Shared", "Aborted")
    causes = ("fork", "hit", "room", "preempted", "weak", "moved", "expire", "forgotten")
    for what in (*happened, "PoolExhausted", *causes, *KINDS):
        assert seen[what], (what, seen)


# what it found ----------------------------------------------------------------------------------


def within(world: World, act: Callable[[World], None]) -> None:
    """`act`, then the end, on the lab's thread."""
    try:
        world.lab.look(lambda: act(world))
        world.lab.look(world.finish)
    finally:
        world.close()


def test_an_interrupted_turn_leaves_no_empty_segment_behind() -> None:
    """It would stand before whatever comes next, which could then be found by nobody."""

    def act(world: World) -> None:
        agent = world.lab.agent("a", groups=("t",))
        world.ask(agent, "append", [1, 2, 3], seal=True)
        world.ask(agent, "write", count=2)
        world.engine.enter()
        segments = world.ledger.sequences[agent.seq_id].segments
        assert [len(part.tokens) for part in segments] == [3, 0]
        world.engine.stop_all(StepInterrupted("stopped"))
        assert [len(part.tokens) for part in segments] == [3]

    within(World(Setup()), act)


def test_nobody_waits_for_a_block_whose_writer_was_interrupted() -> None:
    """A fork waited for ever for what its sibling had begun to write and was stopped at."""

    def act(world: World) -> None:
        agent = world.lab.agent("a", groups=("t",))
        world.ask(agent, "append", [1] * 9)
        world.run()
        world.engine.config = replace(world.engine.config, token_budget=3)
        world.ask(agent, "fork")
        world.engine.enter()
        world.look()
        sibling = world.agent_at(0, 1)
        assert sibling is not None
        assert sibling.seq_id != agent.seq_id
        for one in (agent, sibling):  # idle, its KV is taken from it
            plan = freed(world.ledger.sequences[one.seq_id], 0, "preempted", True)
            world.cache.commit(Plan(len(world.log), plan))
        world.ask(agent, "write", count=2)
        world.engine.step()
        world.ask(sibling, "append", [2, 2])
        world.engine.step()
        assert world.ledger.pools["private"].pending
        world.engine.stop_all(StepInterrupted("stopped"))
        assert not world.ledger.pools["private"].pending

    within(World(Setup()), act)


def test_nobody_gives_way_to_who_cannot_be_helped() -> None:
    """An older agent took from a younger one at each step, for ever, and it was never enough."""
    toy = Toy("global", blocks=(1, 1, 7), budget=2)
    toy.prompt([4] * 8)
    older, younger = toy.agent("a"), toy.agent("b")
    text = toy.ask(older, "append", [1] * 24)  # six blocks, and the prompt keeps two of seven
    turn = toy.ask(younger, "write", [2] * 3, count=12)
    toy.run(limit=100)
    assert turn.future.result(timeout=0) == toy.model.generate([2] * 3, 12)
    with pytest.raises(PoolExhausted, match="nobody can give way"):
        text.future.result(timeout=0)


@pytest.mark.parametrize("keep", [9, 2])
def test_a_record_is_encoded_whole_even_if_its_text_stands_in_a_prompt_too(keep: int) -> None:
    """An agent's mount of the prompt, whole or cut, was taken for a text that it shares."""

    def act(world: World) -> None:
        prompt = [1, 2, 3, 4, 0, 1, 2, 3, 4]
        prompts, _, _ = _submit(world.lab.home, [prompt])
        world.lab.prompts.extend(prompts)
        team = world.lab.groups["t"]
        (agent,) = team.agents("a")
        world.run()
        world.ask(agent, "rollback", drop=9 - keep)
        world.run()
        record = team.publish(prompt[:keep], by=agent)
        world.run()
        segments = world.ledger.sequences[record.seq_id].segments
        assert [len(part.tokens) for part in segments] == [9, keep]
        assert not any(part.is_fragment for part in segments)

    within(World(Setup(fragments=True)), act)


@pytest.mark.parametrize("kind", ["clear", "copy"])
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_compaction_that_fails_half_way_loses_no_text(kind: str, calls: int) -> None:
    """Its moves are of several holders: what was not moved is computed again, for each of them."""

    def act(world: World) -> None:
        agents = [world.lab.agent(name, groups=()) for name in "abc"]
        for number, agent in enumerate(agents):
            world.ask(agent, "append", [number] * 9)
        world.run()
        world.engine.end(agents[0].seq_id, "close", "played")
        world.faults.arm(kind, calls, calls == 2, Broken)
        with pytest.raises(Broken):
            compact(world.cache)
        world.look()
        for agent in agents[1:]:
            world.ask(agent, "write", [4], count=3)

    within(World(Setup(blocks=(3, 3, 12))), act)


def test_a_pool_that_cannot_be_opened_is_not_there_and_can_be_opened_later() -> None:
    def act(world: World) -> None:
        world.faults.arm("open", 0, False, Broken)
        with pytest.raises(Broken):
            world.lab.group("late")
        assert "group:late" not in world.ledger.pools
        team = world.lab.group("late")
        (agent,) = team.agents("a")
        team.publish([1, 2, 3], by=agent)
        world.keep_all()
        world.keep(agent.attach(team).future)

    within(World(Setup()), act)


# planted faults ---------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def a_release_skips_a_block(patch: Patch) -> None:
    release = Pool.release
    patch.setattr(Pool, "release", lambda self, b, forget=False: release(self, b[1:], forget))


def a_block_is_published_twice(patch: Patch) -> None:
    publish = Pool.publish

    def twice(self: Pool, blocks: Any, keys: Any, texts: Any) -> None:
        publish(self, blocks, keys, texts)
        self.index.update({key: (*self.index[key], *self.index[key]) for key in keys})

    patch.setattr(Pool, "publish", twice)


def an_abort_forgets_a_block(patch: Patch) -> None:
    aborted = inms_lab.serving.engine.aborted
    patch.setattr(inms_lab.serving.engine, "aborted", lambda *args: aborted(*args)[1:])


def an_eviction_keeps_the_key(patch: Patch) -> None:
    def evict(self: Pool, blocks: Any) -> None:
        for block in blocks:
            if block in self.cached:
                del self.cached[block], self.labels[block]
                self.free[block] = None

    patch.setattr(Pool, "evict", evict)


def a_second_holder_is_not_counted(patch: Patch) -> None:
    def share(self: Pool, blocks: Any) -> None:
        for block in blocks:
            self.cached.pop(block, None)
            self.refs[block] = 1

    patch.setattr(Pool, "share", share)


def a_promise_outlives_its_block(patch: Patch) -> None:
    patch.setattr(Pool, "withdraw", lambda self, block: None)


def a_copy_copies_nothing(patch: Patch) -> None:
    patch.setattr(World, "spoil", lambda self: setattr(self.cache.store, "copy", _nothing))


def an_answer_is_forgotten(patch: Patch) -> None:
    patch.setattr(Desk, "computed", _nothing)


def nobody_is_ever_silent(patch: Patch) -> None:
    patch.setattr(Leases, "due", lambda self: [])


def _nothing(*_: Any) -> None:
    pass


PLANTED = [
    *(a_release_skips_a_block, a_block_is_published_twice, an_abort_forgets_a_block),
    *(an_eviction_keeps_the_key, a_second_holder_is_not_counted, a_promise_outlives_its_block),
    *(a_copy_copies_nothing, an_answer_is_forgotten, nobody_is_ever_silent),
]


def found(policy: Policy | None = None, most: int = 40) -> tuple[Setup, list[Op], str]:
    """The first of some random lists that shows that something is wrong, and what it shows."""
    for seed in range(most):
        setup, ops = Setup(blocks=(6, 6, 20), seed=seed), random_ops(random.Random(seed), 250)
        if why := wrong(setup, ops, policy):
            return setup, ops, why
    raise AssertionError(f"{most} lists found nothing")


def wrong(setup: Setup, ops: list[Op], policy: Policy | None = None) -> str:
    """What these operations show to be wrong; "": nothing."""
    try:
        play(setup, ops, policy=policy)
    except AssertionError as error:
        return str(error) or repr(error)
    return ""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        setup, ops, why = found()
    assert why
    assert not wrong(setup, ops), "the list fails without the fault too"


@pytest.mark.parametrize("check", ["label", "pending", "position"])
def test_a_check_that_is_switched_off_is_found(check: str) -> None:
    setup, ops, why = found(Inms().without(check))
    assert why
    assert not wrong(setup, ops), "the list fails with the check too"


def test_a_list_that_finds_a_fault_is_made_short(monkeypatch: Patch) -> None:
    a_release_skips_a_block(monkeypatch)
    setup, ops, _ = found()
    short = shrink(ops, lambda some: bool(wrong(setup, some)))
    assert len(short) <= 8 < len(ops), short
    assert wrong(setup, short)
    assert not any(wrong(setup, short[:i] + short[i + 1 :]) for i in range(len(short)))


# non-interference -------------------------------------------------------------------------------

READER = "b"
ENDING = ("end", "crash", "time", "stop", "cancel", "configure")
CLEARANCE = label.join(label.private(READER), *map(label.group, TEAMS[READER]))


class Captured(World):
    """A world that keeps what every principal was given, and may poison what B may not hold."""

    def __init__(self, setup: Setup, *, poison: bool = False, **options: Any) -> None:
        super().__init__(setup, **options)
        self.capture, self.poison = Capture(), poison
        self.on_event.append(self._note)
        self.happened: Counter[str] = Counter()
        forward, sample = self.engine.forward, self.engine.sample

        def forwarding(chunks: list[Chunk]) -> torch.Tensor:
            if self.poison:
                self._poison()
            logits = forward(chunks)
            for chunk in chunks:
                self._keep_kv(chunk)
            return logits

        def sampling(chunks: list[Chunk], logits: torch.Tensor) -> list[Any]:
            drawn = sample(chunks, logits)
            for s in drawn:
                if s.logits is not None:
                    seq = self.ledger.sequences[s.chunk.seq_id]
                    row = s.logits[None].float()
                    self.capture.keep(self.capture.asked, seq, s.chunk.stop - 1, row)
            return drawn

        self.engine.forward, self.engine.sample = forwarding, sampling  # type: ignore[method-assign]

    def _note(self, event: Event) -> None:
        if isinstance(event, Registered) and event.kind == "agent":
            self.capture.names[event.seq_id] = event.name.replace("/", ":")
        elif isinstance(event, Freed | Evicted):
            self.happened[event.cause] += 1
        elif isinstance(event, Copied):
            self.happened["copied"] += 1
        elif isinstance(event, Shared) and event.pool_id.startswith("group:"):
            self.happened["attached"] += 1

    def _keep_kv(self, chunk: Chunk) -> None:
        seq, store = self.ledger.sequences[chunk.seq_id], self.cache.store
        if isinstance(store, KVStore):
            for part in seq.segments:
                first = part.first_position
                ats = range(max(chunk.start - first, 0), min(part.length, chunk.stop - first))
                slots = [part.blocks[at // SIZE] * SIZE + at % SIZE for at in ats]
                if slots:
                    kv = store.regions[part.pool_id][:, :, :, slots].permute(3, 0, 1, 2, 4)
                    self.capture.keep(self.capture.kv, seq, first + ats[0], kv.contiguous())

    def _poison(self) -> None:
        """NaN into every block of another tenant, and into those whose label, or history by the
        independent books, is beyond B's clearance."""
        for pool_id, pool in self.ledger.pools.items():
            region = self.cache.store.regions[pool_id].unflatten(3, (-1, SIZE))  # type: ignore[attr-defined]
            allowed = [
                block
                for block, mark in pool.labels.items()
                if pool.spec.tenant != OTHER
                and CLEARANCE.issuperset(mark)
                and CLEARANCE.issuperset(self.books.taint[pool_id, block])
            ]
            kept = region[:, :, :, allowed].clone()
            region.fill_(torch.nan)
            region[:, :, :, allowed] = kept


def captured(setup: Setup, ops: list[Op], **options: Any) -> Captured:
    """A run to its end, for what it gave."""
    world = Captured(setup, **options)
    try:
        world.lab.look(lambda: [world.do(op) for op in ops] and world.finish())
    finally:
        world.close()
    return world


def both_gave(run: Captured, other: Captured) -> int:
    """How often B had the same context in both runs and was given tokens or logits there. It was
    given the same, to the bit, and no run gave it two results for one context."""
    same, num_asked = compared(run, other)
    assert same
    return num_asked


def compared(run: Captured, other: Captured) -> tuple[bool, int]:
    """Whether B was given the same wherever it had the same context; how many answers those are."""
    mine, theirs = (world.capture.of(READER) for world in (run, other))
    both = mine.keys() & theirs.keys()
    twice = [key for world in (run, other) for key in world.capture.conflicts if key[0] == READER]
    same = not twice and all(mine[key] == theirs[key] for key in both)
    return same, sum(what == "asked" for what, _ in both)


def ops_around_b(seed: str, count: int) -> list[Op]:
    """Random operations in which nobody ends, half of them B's."""
    rng, who = random.Random(seed), NAMES.index(READER)
    ops = [op for op in random_ops(rng, 3 * count) if op[0] not in ENDING][:count]
    return [(v, a - a % len(NAMES) + who, b, c) if b % 2 else (v, a, b, c) for v, a, b, c in ops]


def test_another_principals_private_text_changes_nothing_for_b() -> None:
    num_asked = num_changed = 0
    for seed in range(6):
        setup = Setup(blocks=(6, 6, 24), fragments=seed % 2 == 1, seed=seed)
        ops = ops_around_b(f"secret {seed}", 200)
        run, other = (captured(setup, ops, secret=secret) for secret in (0, 1))
        num_changed += run.log.tokens != other.log.tokens
        num_asked += both_gave(run, other)
    assert num_asked > 50
    assert num_changed > 3


def test_neither_poison_nor_secrets_change_a_bit_for_b_on_a_real_model() -> None:
    happened: Counter[str] = Counter()
    for seed in range(3):
        setup, ops = Setup(blocks=(6, 6, 24), seed=seed), ops_around_b(f"bits {seed}", 120)
        clean = captured(setup, ops, model=tiny())
        happened += clean.happened
        happened["poisoned"] += both_gave(clean, captured(setup, ops, model=tiny(), poison=True))
        happened["changed"] += both_gave(clean, captured(setup, ops, model=tiny(), secret=1))
    for what in ("attached", "preempted", "room", "copied", "poisoned", "changed"):
        assert happened[what], (what, happened)


def test_the_poison_is_felt_by_others_and_by_b_without_the_label_check() -> None:
    same = [("read", who, 32, 5) for who in (0, 1)]  # B reads what A has read
    ops: list[Op] = [("agent", 0, 0, 0), ("agent", 0, 0, 0), same[0], *[("step", 4, 0, 0)] * 3]
    ops += [same[1], ("write", 1, 3, 0), ("write", 0, 3, 0), *[("step", 4, 0, 0)] * 9]
    setup = Setup(blocks=(6, 6, 24))
    off = Inms().without("label")
    for policy, felt in ((None, False), (off, True)):
        runs = [captured_loosely(setup, ops, policy, poison) for poison in (False, True)]
        same_bits, num_asked = compared(*runs)
        assert num_asked
        assert same_bits != felt
        assert felt == any(is_poisoned(row) for row in runs[1].capture.of(READER).values())
        assert any(is_poisoned(row) for row in runs[1].capture.of("a").values())


def is_poisoned(row: bytes) -> bool:
    """Whether results contain a NaN."""
    return bool(torch.frombuffer(bytearray(row), dtype=torch.float32).isnan().any())


def captured_loosely(setup: Setup, ops: list[Op], policy: Any, poison: bool) -> Captured:
    """A run that the independent books do not watch: a check may be off."""
    world = Captured(setup, model=tiny(), policy=policy, poison=poison)
    world.books.take = world.books._check = _nothing  # type: ignore[method-assign, assignment]
    world.books.taint = TaintOf(world)  # type: ignore[assignment]
    world._compare = _nothing  # type: ignore[method-assign, assignment]
    try:
        world.lab.look(lambda: [world.do(op) for op in ops])
    finally:
        world.close()
    return world


class TaintOf(dict[Any, Any]):
    """Without the books a block's label stands for its history."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __getitem__(self, place: tuple[str, int]) -> frozenset[str]:
        return frozenset(self.world.ledger.pools[place[0]].labels[place[1]])


# the soak ---------------------------------------------------------------------------------------


def test_a_soak_goes_on_where_it_was_and_writes_what_it_finds(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import soak

    report = tmp_path / "report.json"
    options = ["--length", "60", "--processes", "0", "--report", str(report)]
    assert soak.main(["--ops", "120", *options]) == 0
    assert soak.main(["--ops", "240", *options]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["runs"], said["operations"], said["hung"]) == (4, 240, [])
    report.write_text(json.dumps(said | {"running": 4}), "utf-8")  # as one that hung left it
    with monkeypatch.context() as patch:
        a_release_skips_a_block(patch)
        assert soak.main(["--ops", "300000", *options]) == 1
        (script,) = tmp_path.glob("soak_0_*.py")
        assert f"python {script}" in capsys.readouterr().out
        assert json.loads(report.read_text("utf-8"))["hung"] == [4]
        text = script.read_text("utf-8")
        assert text.count("\n        (") <= 8
        with pytest.raises(AssertionError, match="LedgerViolation"):
            exec(text, {})
    exec(text, {})
    with pytest.raises(SystemExit, match="another seed"):
        soak.main(["--seed", "1", *options])
