"""Any number of threads: random interleavings over the three calls and over a lab, and planted
faults that they find. `INMS_INTERLEAVINGS=5000` runs more of them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from interleaved import SIZE, SYSTEM, WATCHDOG, Border, Threads, together, watched
from interleaved_lab import LabThreads
from toy import Toy, ToyModel

from inms_lab.books import label
from inms_lab.books.events import Commanded, Event
from inms_lab.config import Config
from inms_lab.errors import AgentClosed, SequenceBusy, TextTooLarge, TokenOutOfRange
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.text import Text
from inms_lab.serving.blocks import Blocks, Part, Place
from inms_lab.serving.request import Request

RUNS = int(os.environ.get("INMS_INTERLEAVINGS", "400"))
FOUND_WITHIN = 60  # runs, for a fault that was planted
PUBLIC, READER = label.PUBLIC, label.group("t") | label.private("a")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    with watched():
        yield


def runs(count: int, **options: Any) -> Counter[str]:
    """So many interleavings; what happened in them."""
    seen = Counter[str]()
    for seed in range(count):
        threads = Threads(seed, **options)
        threads.run(3, 3)
        seen.update(threads.seen)
    return seen


def found(run: Callable[[int], None]) -> BaseException | None:
    """The first error in a number of seeded runs."""
    for seed in range(FOUND_WITHIN):
        try:
            run(seed)
        except Exception as error:
            return error
    return None


# the three calls ---------------------------------------------------------------------------------


def test_threads_over_the_three_calls_corrupt_nothing_and_end() -> None:
    """vllm#37076, #37164: a found block is given away before it is pinned. vllm#41400: one can be
    found before it is written. Here each slot that is read is looked at, in every interleaving."""
    seen = runs(RUNS)
    for what in ("computed", "shared", "deferred", "copied", "destroyed", "closed", "no room"):
        assert seen[what], f"nothing was {what}: the runs show too little"


def test_the_coarse_lock_corrupts_nothing_either() -> None:
    assert runs(FOUND_WITHIN, coarse=True)["computed"]


class Hasty(Blocks):
    """Ends a sequence whose block is being written."""

    def destroy_sequence(self, seq_id: int) -> None:
        with self.cache.lock:
            self._live(seq_id)
            self._enter(Request(seq_id, "close", cause="destroyed"))


class Unclaimed(Blocks):
    """Lets two threads into one sequence."""

    def write_block(self, seq_id: int, write: Any, tokens: Any = ()) -> Any:
        with self.cache.lock:
            self.busy.pop(seq_id, None)
        return super().write_block(seq_id, write, tokens)


@pytest.mark.parametrize("fault", [{"left_out": True}, {"make": Hasty}])
def test_a_lock_or_a_wait_that_is_left_out_is_found(fault: dict[str, Any]) -> None:
    assert found(lambda seed: Threads(seed, **fault).run(3, 4)) is not None


def test_two_threads_in_one_sequence_are_told_apart() -> None:
    """All write to one sequence: one at a time gets in; if two did, its table would be torn."""

    def run(seed: int, make: type[Blocks] = Blocks) -> None:
        threads = Threads(seed, make)
        parts = [Part(SYSTEM, "global"), Part([7] * 20)]
        seq_id, _ = threads.blocks.register_sequence("a", READER, parts)

        def write() -> None:
            for _ in range(8):
                try:
                    threads.fill(seq_id)
                except SequenceBusy:
                    threads.count("busy")

        errors = together([write] * 3)
        if errors:
            raise errors[0]
        threads.end()
        seen.update(threads.seen)

    seen = Counter[str]()
    assert found(run) is None
    assert seen["busy"]
    assert found(lambda seed: run(seed, Unclaimed)) is not None


# directed: what random runs meet too seldom ------------------------------------------------------


class Gate:
    """Somebody stops at a gate until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(WATCHDOG), "nobody opened the gate"


def on_a_thread(work: Callable[[], Any]) -> Future[Any]:
    """What `work()` gives, on a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def copying(make: type[Blocks]) -> tuple[Threads, Future[Any], Future[Any], Gate]:
    """A copy on write stops half-way; its source is let go meanwhile and somebody wants the block.

    Gives the copying call, and the one that wants the block.
    """
    threads, gate = Threads(0, make, num_private=4), Gate()
    blocks, store = threads.blocks, threads.store
    parts = [Part(SYSTEM, "global"), Part([7] * 6)]
    parent, _ = blocks.register_sequence("a", READER, parts)
    threads.fill(parent)
    (child,) = threads.fork(parent)
    copy = store.copy

    def slow(source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        gate()
        copy(source, target, num_slots)

    store.copy = slow  # type: ignore[method-assign]
    copies = on_a_thread(lambda: threads.fill(parent, [5]))
    assert gate.reached.wait(WATCHDOG)
    blocks.destroy_sequence(child)

    def want() -> None:
        other = label.private("b")
        seq_id, _ = blocks.register_sequence("b", other, [Part(SYSTEM, "global"), Part([9] * 8)])
        threads.fill(seq_id)

    return threads, copies, on_a_thread(want), gate


def test_the_source_of_a_copy_is_not_overwritten_before_the_copy_is_made() -> None:
    threads, copies, wants, gate = copying(Blocks)
    time.sleep(0.02)
    assert not wants.done(), "the next holder did not wait"
    gate.opened.set()
    copies.result(WATCHDOG)
    wants.result(WATCHDOG)
    threads.end()


class Unpinned(Blocks):
    """Copies from a block that anybody may have meanwhile."""

    def _move(self, events: tuple[Event, ...]) -> None:
        self.copies.end(events)
        super()._move(events)


def test_without_that_wait_the_copy_would_be_foreign() -> None:
    _, copies, wants, gate = copying(Unpinned)
    wants.result(WATCHDOG)
    gate.opened.set()
    with pytest.raises(AssertionError, match="foreign KV"):
        copies.result(WATCHDOG)


def test_a_block_that_another_thread_writes_is_waited_for_and_then_shared() -> None:
    threads, gate = Threads(0), Gate()
    rules = [Part(SYSTEM, "global"), Part([50] * SIZE, "group", "t")]
    first, _ = threads.blocks.register_sequence("rec", label.group("t"), rules, "record")
    second, _ = threads.blocks.register_sequence("rec", label.group("t"), rules, "record")

    def slow(place: Place) -> None:
        gate()
        threads.put(first, place)

    writes = on_a_thread(lambda: threads.blocks.write_block(first, slow))
    assert gate.reached.wait(WATCHDOG)
    put = lambda place: threads.put(second, place)  # noqa: E731
    assert threads.blocks.write_block(second, put).outcome == "deferred"
    with pytest.raises(SequenceBusy, match="another call"):
        threads.blocks.write_block(first, slow)
    gate.opened.set()
    assert writes.result(WATCHDOG).outcome == "computed"
    assert threads.blocks.write_block(second, put).outcome == "shared"
    threads.end()


def test_a_sequence_that_is_destroyed_while_it_writes_ends_behind_the_write() -> None:
    threads, gate = Threads(0), Gate()
    seq_id, _ = threads.blocks.register_sequence("a", READER, [Part([7] * SIZE)])

    def slow(place: Place) -> None:
        gate()
        threads.put(seq_id, place)

    writes = on_a_thread(lambda: threads.blocks.write_block(seq_id, slow))
    assert gate.reached.wait(WATCHDOG)
    threads.blocks.destroy_sequence(seq_id)
    pool = threads.cache.ledger.pools["private"]
    assert pool.num_held == 1
    with pytest.raises(AgentClosed, match="ending"):
        threads.blocks.destroy_sequence(seq_id)
    gate.opened.set()
    assert writes.result(WATCHDOG).outcome == "computed"
    assert pool.num_held == 0
    with pytest.raises(AgentClosed, match="reclaimed"):
        threads.blocks.write_block(seq_id, slow)
    threads.end()


def test_what_cannot_be_registered_leaves_nothing_pinned() -> None:
    threads = Threads(0)
    parts = [Part(SYSTEM, "global"), Part([7] * 1000)]
    with pytest.raises(TextTooLarge):
        threads.blocks.register_sequence("a", READER, parts)
    (prompt,) = threads.cache.ledger.holders()
    assert set(threads.cache.ledger.pools["global"].refs.values()) == {1}
    assert prompt.kind == "prompt"
    threads.end()


@pytest.mark.parametrize("coarse", [False, True])
def test_no_lock_is_held_for_what_takes_long_unless_it_is_coarse(
    coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(0, coarse=coarse)
    held = Counter[tuple[str, bool]]()

    def note(what: str) -> None:
        lock: Any = threads.cache.lock
        held[what, lock.lock._is_owned()] += 1

    def noting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            note(what)
            return function(*args)

        return noted

    for name in ("clear", "copy"):
        monkeypatch.setattr(threads.store, name, noting(name, getattr(threads.store, name)))
    for name in ("_hash", "_move"):
        monkeypatch.setattr(threads.blocks, name, noting(name, getattr(threads.blocks, name)))
    monkeypatch.setattr(threads, "put", noting("write", threads.put))
    seq_id, _ = threads.blocks.register_sequence("a", READER, [Part([7] * 6)])
    threads.fill(seq_id)
    threads.fork(seq_id)
    threads.fill(seq_id, [5])
    names = {"clear", "copy", "_hash", "_move", "write"}
    assert {what for what, _ in held} == names
    assert {owned for _, owned in held} == {coarse}


def test_hashing_is_done_before_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the fingerprints are at hand, no full block's digest is made under the lock."""
    from inms_lab.books import segment

    threads, under = Threads(0), Counter[bool]()
    lock: Any = threads.cache.lock
    block_keys = segment.block_keys

    def noted(*args: Any) -> list[bytes]:
        keys = block_keys(*args)
        under[lock.lock._is_owned()] += len(keys)
        return keys

    monkeypatch.setattr(segment, "block_keys", noted)
    parts = [Part(SYSTEM, "global"), Part([7] * 40)]
    threads.blocks.register_sequence("a", READER, parts)
    assert under[False] == len(SYSTEM) // SIZE + 40 // SIZE
    assert under[True] == 0


def test_a_copy_that_fails_is_taken_back_and_computed_again() -> None:
    toy = Toy(compare=False)
    seq_id = toy.agent("a")
    toy.do(seq_id, "append", [1, 2, 3, 4, 1, 2])
    toy.do(seq_id, "fork")
    copy, store = toy.cache.store.copy, toy.cache.store

    def fails(*_: object) -> None:
        raise OSError("the device went away")

    store.copy = fails  # type: ignore[method-assign]
    request = toy.ask(seq_id, "append", [3])
    with pytest.raises(OSError, match="went away"):
        toy.run()
    toy.cache.check()
    assert toy.ledger.sequences[seq_id].num_computed == 4
    store.copy = copy  # type: ignore[method-assign]
    toy.run()
    assert request.future.result(timeout=0) == 7
    assert toy.states(seq_id) == toy.model.run([1, 2, 3, 4, 1, 2, 3])


# a lab -------------------------------------------------------------------------------------------


def rounds(seed: int, count: int = 5, **options: Any) -> None:
    """Some rounds on one lab."""
    threads = LabThreads(seed, **options)
    try:
        for _ in range(count):
            threads.round(2, 4)
        threads.end()
    finally:
        threads.lab.close()


def test_threads_over_a_lab_corrupt_nothing_and_end() -> None:
    """jupyterlab#19719: a handler races the running cell."""
    for seed in range(RUNS // 20):
        rounds(seed)


def test_a_look_without_the_lock_is_found() -> None:
    error = found(lambda seed: rounds(seed, left_out=True))
    assert error is not None
    assert "torn" in str(error) or not isinstance(error, AssertionError)


class Held(ToyModel):
    """A model whose forward stops at a gate."""

    gate: Gate | None = None

    def forward(self, *args: Any, **options: Any) -> Any:
        if self.gate is not None:
            self.gate()
        return super().forward(*args, **options)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(Held(), config=Config(4, 4, 64, 1000, 400, 400, 400)) as lab:
        yield lab


def test_requests_and_looks_do_not_wait_for_the_step_in_flight(lab: Lab) -> None:
    first, second = lab.agent("first"), lab.agent("second")
    model: Any = lab.model
    model.gate = gate = Gate()
    first.read([1, 2, 3], role=None)
    running = on_a_thread(lab.run_to)
    assert gate.reached.wait(WATCHDOG)
    pending = [second.read([number], role=None) for number in (4, 3, 2)]
    assert second.tokens == []
    assert first.tokens == [1, 2, 3]
    assert first.state == "prefilling"
    with pytest.raises(TokenOutOfRange):
        second.read([99], role=None)
    assert not any(one.done() for one in pending)
    model.gate = None
    gate.opened.set()
    running.result(WATCHDOG)
    assert [one.result() for one in pending] == [1, 2, 3]
    assert second.tokens == [4, 3, 2]


def test_the_order_of_arrival_is_the_order_of_the_log(lab: Lab) -> None:
    """Threads one after the other, while a step is in flight."""
    busy, agent = lab.agent("busy"), lab.agent("a")
    model: Any = lab.model
    model.gate = gate = Gate()
    busy.read([1], role=None)
    running = on_a_thread(lab.run_to)
    assert gate.reached.wait(WATCHDOG)
    for token in (4, 2, 3, 1):
        on_a_thread(lambda token=token: agent.read([token], role=None)).result(WATCHDOG)  # type: ignore[misc]
    model.gate = None
    gate.opened.set()
    running.result(WATCHDOG)
    entered = [e for e in lab.log.events if isinstance(e, Commanded) and e.seq_id == agent.seq_id]
    assert [lab.log.tokens[e.offset] for e in entered] == [4, 2, 3, 1]


def test_a_request_whose_agent_ends_meanwhile_is_answered(lab: Lab) -> None:
    agent = lab.agent("a")
    model: Any = lab.model
    model.gate = gate = Gate()
    agent.read([1], role=None)
    running = on_a_thread(lab.run_to)
    assert gate.reached.wait(WATCHDOG)
    lab.driver.post(lambda: lab.engine.end(agent.seq_id, "fail", "so"))
    pending = agent.read([2], role=None)
    model.gate = None
    gate.opened.set()
    running.result(WATCHDOG)
    with pytest.raises(AgentClosed):
        pending.result()
    with pytest.raises(AgentClosed):
        agent.read([3], role=None)


def script(lab: Lab) -> None:
    """Everything that a notebook does, one call after the other."""
    lab.preload([3, 1, 4, 1], progress=False)
    team = lab.group("t")
    ada, ben = team.agents("ada", "ben")
    ada.read([1, 2], role=None)
    ben.read([2], role=None)
    ada.write(3, role=None)
    team.publish([4, 4, 4], by=ada)
    ben.attach(team)
    fork = ben.fork().result()
    fork.read([1], role=None)
    ben.rollback(1).result()
    lab.run_to()


def test_equal_scripts_give_equal_logs_on_whatever_thread() -> None:
    logs = []
    for turn in range(4):
        with Lab(ToyModel(), config=Config(4, 4, 64, 1000, 400, 400, 400), gate=None) as lab:
            on_a_thread(lambda it=lab: script(it)).result(WATCHDOG) if turn % 2 else script(lab)  # type: ignore[misc]
            logs.append((list(lab.log.events), list(lab.log.tokens)))
    assert all(log == logs[0] for log in logs)


def test_forks_of_one_agent_have_numbers_of_their_own(lab: Lab) -> None:
    agent = lab.agent("a")
    agent.read([1, 2], role=None).result()
    found: list[Agent] = []
    assert together([lambda: found.append(agent.fork().result())] * 6) == []
    assert sorted(fork.title for fork in found) == [f"a/{n}" for n in range(1, 7)]


# texts -------------------------------------------------------------------------------------------


class Modal:
    """A tokenizer that keeps in itself how it takes control tokens, as the real ones do."""

    chat_template = None

    def __init__(self) -> None:
        self.plain = False

    def __call__(
        self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        self.plain = split_special_tokens
        time.sleep(1e-5)
        return {"input_ids": [3 if self.plain else 256 for _ in text]}


def test_a_text_is_plain_whatever_another_thread_encodes() -> None:
    """A forged end of a turn must stay text while others encode the ends of theirs."""
    texts = Text(Modal())

    def encode(plain: bool) -> None:
        for _ in range(100):
            assert texts._ids("x", plain=plain) == [3 if plain else 256]

    assert together([lambda: encode(True), lambda: encode(False)] * 2) == []


def test_a_border_lets_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog itself: who holds a lock for ever is found."""
    monkeypatch.setattr("interleaved.WATCHDOG", 0.05)
    border = Border(lambda: None)  # type: ignore[arg-type]
    with border:
        assert isinstance(on_a_thread(lambda: border.__enter__()).exception(WATCHDOG), TimeoutError)
