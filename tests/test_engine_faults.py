"""What goes wrong, and what must not: a step that dies half-way loses nothing, bad input is refused
by name, nobody is failed who could go on, and equal scripts give equal logs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from harness import (
    PLENTY,
    VOCABULARY,
    Bench,
    Op,
    Player,
    Program,
    World,
    differences,
    one_thread,  # noqa: F401
    random_world,
    tiny,
    words,
)

import inms_lab.serving.engine
from inms_lab import errors
from inms_lab.books import label
from inms_lab.books.events import Aborted
from inms_lab.errors import StepInterrupted
from inms_lab.serving.request import Request
from inms_lab.serving.sample import Sampling

ROOT = Path(__file__).parents[1]
RNG = random.Random(1)
PROMPT, TEXT = words(RNG, 21), words(RNG, 30)


class Broken(Exception):
    """Something that nobody expected."""


# --- a step that does not finish ---------------------------------------------------------------


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Calls `what` in the second layer of every third forward."""
    plan: dict[str, Any] = {"what": None, "calls": 0}
    layer = tiny().model.model.layers[1]
    healthy = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        plan["calls"] += 1
        if plan["what"] is not None and plan["calls"] % 3 == 2:
            plan["what"]()
        return healthy(*args, **kwargs)

    monkeypatch.setattr(layer, "forward", forward)
    return plan


def interrupted(world: World, room: int, breaking: dict[str, Any], error: BaseException) -> Bench:
    """The world's programs, going on after every step that dies of `error`."""
    bench = world.bench(tiny(), budget=world.budget, private=room)
    breaking["what"] = raising(error)
    step, died = bench.engine.step, []

    def patient() -> Any:
        for _ in range(9):
            try:
                return step()
            except type(error) as caught:
                died.append(caught)
                check_nothing_is_lost(bench)
        raise AssertionError("no step comes through")

    bench.engine.step = patient  # type: ignore[method-assign]
    bench.run(*world.programs)
    breaking["what"] = None
    assert len(died) > 5
    return bench


def check_nothing_is_lost(bench: Bench) -> None:
    """The books balance, nothing is half allocated, and the log tells the same."""
    bench.engine.cache.check()
    for seq in bench.engine.ledger.sequences.values():
        assert all(part.length == part.computed for part in seq.segments), seq.name
    assert bench.engine.log.replay().snapshot() == bench.engine.ledger.snapshot()


def raising(error: BaseException) -> Callable[[], None]:
    def what() -> None:
        raise error

    return what


@pytest.mark.parametrize("error", [Broken(), KeyboardInterrupt()], ids=["error", "keyboard"])
def test_a_forward_that_dies_half_way_loses_nothing(
    error: BaseException, breaking: dict[str, Any]
) -> None:
    for seed in (3, 4):
        world = random_world(seed, "ab")
        singles = {p.name: world.alone(tiny(), p) for p in world.programs}
        room = max(single.peak for single in singles.values()) + 2
        bench = interrupted(world, room, breaking, error)
        assert any(isinstance(event, Aborted) for event in bench.engine.log.events)
        for name, single in singles.items():
            assert not differences(bench, single, name)


def test_a_step_stopped_from_another_thread_loses_nothing(breaking: dict[str, Any]) -> None:
    world = random_world(8, "ab")
    singles = {p.name: world.alone(tiny(), p) for p in world.programs}

    def what() -> None:
        thread = threading.Thread(target=bench.engine.cancel.set)
        thread.start()
        thread.join()

    bench = world.bench(tiny(), budget=world.budget)
    step, stopped = bench.engine.step, []

    def patient() -> Any:
        try:
            return step()
        except StepInterrupted as error:
            assert bench.engine.cancel.is_set()
            stopped.append(error)
            check_nothing_is_lost(bench)
            bench.engine.cancel.clear()
            return None

    breaking["what"] = what
    bench.engine.step = patient  # type: ignore[method-assign]
    bench.run(*world.programs)
    breaking["what"] = None
    assert len(stopped) > 3
    assert any(isinstance(event, Aborted) for event in bench.engine.log.events)
    for name, single in singles.items():
        assert not differences(bench, single, name)


def test_an_interrupt_while_planning_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two sequences is hit; what was allocated for the first goes back."""
    bench = Bench(tiny(), prompt=PROMPT)
    programs = [Program(name, (Op("prompt"), Op("read", TEXT))) for name in "ab"]
    for program in programs:
        player = bench.agent(program.name, *program.ops)
        for op in program.ops:
            bench.ask(player, op)
        player.ops.clear()
    healthy, calls = inms_lab.serving.planning.plan_extend, []

    def plan_extend(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return healthy(*args)

    monkeypatch.setattr(inms_lab.serving.planning, "plan_extend", plan_extend)
    with pytest.raises(KeyboardInterrupt):
        bench.step()
    assert any(isinstance(event, Aborted) for event in bench.engine.log.events)
    check_nothing_is_lost(bench)
    bench.run()
    for program in programs:
        assert bench.sequence(program.name).num_computed == len(PROMPT) + len(TEXT)


def test_a_turn_without_opening_survives_an_interrupt(breaking: dict[str, Any]) -> None:
    """Nothing but a sealed text stands before the first generated token."""
    ops = (Op("prompt"), Op("read", TEXT, seal=True, waits=False), Op("write", count=3))
    world = World(PROMPT, (), (Program("a", ops),), block_size=8, tile=0, budget=64)
    single = world.alone(tiny(), world.programs[0])
    bench = world.bench(tiny())
    breaking["what"] = raising(Broken())
    breaking["calls"] = 1  # the very next forward
    bench.agent("a", *ops)
    with pytest.raises(Broken):
        bench.run()
    breaking["what"] = None
    bench.run()
    assert not differences(bench, single, "a")


# --- bad input ---------------------------------------------------------------------------------

TOO_LONG = tuple(range(60)) * 10
BAD: dict[str, tuple[type[Exception], tuple[Op, ...], str]] = {
    "empty text": (errors.EmptyText, (Op("read"),), "at least one word"),
    "empty context": (errors.EmptyText, (Op("write", count=2),), "at least one word"),
    "no context": (errors.EmptyText, (Op("logits"),), "at least one word"),
    "negative id": (errors.TokenOutOfRange, (Op("read", (-1,)),), "tokenizer"),
    "id too large": (errors.TokenOutOfRange, (Op("read", (3, VOCABULARY)),), "tokenizer"),
    "too long": (errors.ContextTooLong, (Op("read", TOO_LONG),), "roll back"),
    "too much to write": (errors.ContextTooLong, (Op("write", (1,), 600),), "roll back"),
    "too large": (errors.TextTooLarge, (Op("read", TOO_LONG[:90]),), "larger pool"),
    "no count": (errors.BadInput, (Op("write", (1,), 0),), "at least one"),
    "rollback beyond": (errors.BadInput, (Op("read", (1,)), Op("rollback", count=2)), "keep 2"),
    "rewrite beyond": (errors.BadInput, (Op("read", (1,)), Op("rewrite", (2,), 1, 1)), "tokens"),
    "after the end": (errors.AgentClosed, (Op("close"), Op("read", (1,))), "new agent"),
}


def answer(bench: Bench, player: Player, op: Op) -> Any:
    """The engine's answer to one op, with whatever it raises."""
    future = bench.ask(player, op)
    bench.drain()
    return future.result(timeout=0)


def assert_usable(bench: Bench) -> None:
    """A new agent is served as if nothing had happened, and the books balance."""
    player = bench.agent("next")
    assert len(answer(bench, player, Op("write", TEXT[:9], 3))) == 3
    answer(bench, player, Op("close"))
    bench.engine.cache.check()
    assert bench.engine.log.replay().snapshot() == bench.engine.ledger.snapshot()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_changes_nothing(case: str) -> None:
    kind, (*before, bad), advice = BAD[case]
    bench = Bench(tiny(), prompt=PROMPT, private=9)
    player = bench.agent("a")
    for op in before:
        answer(bench, player, op)
    state = bench.engine.ledger.snapshot()
    with pytest.raises(kind, match=advice):
        answer(bench, player, bad)
    assert bench.engine.ledger.snapshot() == state
    assert_usable(bench)


def test_an_agent_cannot_write_to_a_sealed_tier() -> None:
    bench = Bench(tiny(), prompt=PROMPT)
    for tier, group in (("global", ""), ("group", "g")):
        player = bench.agent("a")
        future = bench.engine.submit(Request(player.seq_id, "append", TEXT, tier, group)).future
        later = bench.ask(player, Op("read", TEXT))
        bench.drain()
        with pytest.raises(errors.SealedTier, match=f"may write {tier} text"):
            future.result(timeout=0)
        with pytest.raises(errors.InmsError):
            later.result(timeout=0)
        assert bench.sequence("a").state == "reclaimed"
    assert_usable(bench)


def test_a_pool_that_is_held_by_others_is_exhausted() -> None:
    """Prompts hold their blocks for good, and nobody can give way."""
    bench = Bench(tiny(), prompt=PROMPT, common=5)
    second = bench.engine.register("prompt", "second", label.PUBLIC)
    request = Request(second, "append", TEXT, "global", seal=True)
    future = bench.engine.submit(request).future
    bench.drain()
    with pytest.raises(errors.PoolExhausted, match="larger pool"):
        future.result(timeout=0)
    assert_usable(bench)


def test_requests_behind_an_end_are_answered() -> None:
    bench = Bench(tiny(), prompt=PROMPT)
    player = bench.agent("a")
    futures = [
        bench.ask(player, op) for op in (Op("read", TEXT), Op("close"), Op("write", count=2))
    ]
    bench.drain()
    for future in futures[2:]:
        with pytest.raises(errors.AgentClosed):
            future.result(timeout=0)
    assert_usable(bench)


def test_an_edit_behind_a_short_prompt_is_copied() -> None:
    """The prompt is shorter than a block, the edited record begins behind it."""
    for length in (3, 8, 11):
        bench = Bench(tiny(), prompt=PROMPT[:length], tile=8)
        bench.publish("nobody", "g", TEXT)
        edit = Op("rewrite", (5, 6), 2, start=length + 12)
        bench.run(Program("a", (Op("prompt"), Op("attach"), edit, Op("logits"))))
        assert bench.happened()["copied"] == 1


# --- nobody fails who could go on ----------------------------------------------------------------


@pytest.mark.parametrize("budget", [3, 6, 10])
@pytest.mark.parametrize("room", [9, 10, 12])
def test_twins_that_wait_for_each_other_give_way(room: int, budget: int) -> None:
    """A child writes blocks that its parent waits for, and the parent holds the last free ones."""
    bench = Bench(tiny(), prompt=PROMPT[:8], block_size=4, budget=budget, private=room)
    parent = bench.agent("p", Op("prompt"), Op("read", TEXT[:1]))
    bench.run()
    answer(bench, parent, Op("fork"))
    child = bench.players[-1]
    for player in (parent, child):
        bench.ask(player, Op("write", count=12))
    bench.drain()
    text = Op("read", words(RNG, 4 * (room - 4)), fresh=True, seal=True)
    one = bench.ask(child, text)
    bench.step()
    other = bench.ask(parent, text)
    bench.drain(200)
    assert one.exception(timeout=0) is None
    assert other.exception(timeout=0) is None


# --- equal scripts, equal logs; seeded samples ---------------------------------------------------


def log_digest(seed: int) -> str:
    """Every event and token of a random run, in one digest."""
    world = random_world(seed)
    bench = world.together(tiny(every_row=False), room=PLENTY // 8)
    events = "\n".join(map(repr, bench.engine.log.events)).encode()
    return blake2b(events + bench.engine.log.tokens.tobytes()).hexdigest()


def test_equal_scripts_give_equal_logs_byte_for_byte_in_every_process() -> None:
    here = [log_digest(seed) for seed in (1, 2)]
    assert here == [log_digest(seed) for seed in (1, 2)]
    assert len(set(here)) == 2
    code = (
        "import sys, torch; torch.set_num_threads(1); sys.path[:0] = ['tests', '.']\n"
        "from test_engine_faults import log_digest\n"
        "print(*(log_digest(seed) for seed in (1, 2)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == here, done.stderr


def test_seeded_samples_do_not_depend_on_company_or_preemption() -> None:
    def program(name: str, temperature: float, seed: int) -> Program:
        how = Sampling(temperature, 0.95, seed)
        turn = Op("write", TEXT[:5], 8, sampling=how)
        return Program(name, (Op("prompt"), Op("read", words(random.Random(name), 25)), turn, turn))

    programs = tuple(program(name, 0.9, 7) for name in "abc")
    world = World(PROMPT, (), programs, block_size=4, tile=0, budget=9)
    alone = {p.name: answers(world.alone(tiny(), p), p.name) for p in programs}
    together = world.together(tiny(), room=16)
    assert together.happened()["preempted"]
    assert {name: answers(together, name) for name in alone} == alone
    first = program("a", 0.9, 7)
    others = (program("a", 0.9, 8), program("a", 0.0, 7))
    drawn = [answers(world.alone(tiny(), p), "a") for p in (first, *others)]
    assert drawn[0] == alone["a"]
    assert len(set(map(str, drawn))) == 3


def answers(bench: Bench, name: str) -> list[Any]:
    """What an agent generated."""
    player = next(p for p in bench.players if p.name == name)
    return [future.result() for op, future in player.answers if op.verb == "write"]
