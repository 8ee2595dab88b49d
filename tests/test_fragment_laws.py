"""Non-interference with fragments: records that are used at other places, at a shift.

The laws of test_noninterference.py, for programs whose agents attach records behind text of their
own. (a) to (d) hold in mode inms; without the label check, and in mode global, (a), (b) and (c)
each break, for then a record is the author's own KV, which attended to the author's secrets.
"""

from __future__ import annotations

import random

import pytest
import torch
from harness import (
    Bench,
    Op,
    Program,
    World,
    one_thread,  # noqa: F401
    shifting,
    tiny,
    words,
)
from test_noninterference import (
    LONGER,
    OTHER,
    PROMPT,
    SECRET,
    TEXT,
    B,
    assert_eventful,
    is_poisoned,
    is_same_for_b,
    random_programs,
    room_for,
)

from inms_lab.books import label
from inms_lab.books.events import Commanded
from inms_lab.books.gate import OPEN
from inms_lab.decisions.policy import Inms, Policy

MORE = Op("attach", count=2)  # behind whatever stands there: a fragment


def fragments(run: Bench, name: str) -> int:
    """How often this agent and its forks were given a fragment."""
    seqs = {i for i, n in run.capture.names.items() if n.split("/")[0] == name}
    events = run.engine.log.events
    return sum(isinstance(e, Commanded) and e.seq_id in seqs and e.piece >= 0 for e in events)


def with_fragments(seed: int, secret_seed: int) -> World:
    """Random programs in which B attaches a record behind its own text too."""
    world = random_programs(seed, secret_seed)
    programs = []
    for program in world.programs:
        at = next((i for i, op in enumerate(program.ops) if op.verb == "fork"), 4)
        ops = program.ops if program.name == "a" else (*program.ops[:at], MORE, *program.ops[at:])
        programs.append(Program(program.name, ops, program.group, program.arrives))
    return World(world.prompt, world.records, tuple(programs), *astuple_of(world))


def astuple_of(world: World) -> tuple[int, int, int]:
    return world.block_size, world.tile, world.budget


def together(world: World, room: int, **options: object) -> Bench:
    return world.together(shifting(), room, gate=OPEN, **options)


@pytest.mark.parametrize("seed", range(6))
def test_poison_beyond_the_clearance_changes_nothing(seed: int) -> None:
    """Law (a), and (d): not vacuous."""
    world = with_fragments(seed, seed)
    room = room_for(world)
    clean, poisoned = (together(world, room, poison_beyond=beyond) for beyond in (None, B))
    for run in (clean, poisoned):
        assert_eventful(run)
        assert fragments(run, "b")
    assert is_poisoned(poisoned)
    assert is_same_for_b(clean, poisoned)


@pytest.mark.parametrize("seed", range(6))
def test_the_private_text_of_others_and_its_length_change_nothing(seed: int) -> None:
    """Law (b), and (d)."""
    worlds = [with_fragments(seed, secret_seed) for secret_seed in (10 * seed, 10 * seed + 1)]
    room = max(room_for(world) for world in worlds)
    runs = [together(world, room) for world in worlds]
    for run in runs:
        assert_eventful(run)
        assert fragments(run, "b")
    assert is_same_for_b(*runs)


def publisher(secret: tuple[int, ...]) -> Program:
    """Reads a secret, then a text behind it, and publishes that text."""
    draft = (Op("read", secret, fresh=True), Op("read", TEXT, seal=True))
    return Program("a", (Op("prompt"), *draft, Op("publish", TEXT)))


READER = Program(
    "b", (Op("prompt"), Op("read", OTHER), Op("attach"), Op("write", count=4)), arrives=9
)


def run_with(policy: Policy | str, secret: tuple[int, ...], **options: object) -> Bench:
    bench = Bench(shifting(), policy, prompt=PROMPT, gate=OPEN, **options)
    return bench.run(publisher(secret), READER)


def breaks(policy: Policy | str) -> tuple[bool, bool, bool]:
    """Whether the laws (a) poison, (b) secret, (c) blind break under this policy."""
    runs = [run_with(policy, secret) for secret in (SECRET, LONGER)]
    assert all(fragments(run, "b") for run in runs)
    poisoned = run_with(policy, SECRET, poison_beyond=B)
    records = [record_bytes(run) for run in runs]
    return (
        not is_same_for_b(runs[0], poisoned),
        not is_same_for_b(*runs),
        records[0] != records[1],
    )


def record_bytes(run: Bench) -> bytes:
    """The KV that the published record stands for."""
    ((record, context),) = run.published
    assert label.private("a") <= context
    part = run.engine.ledger.sequences[record].segments[-1]
    region = run.engine.cache.store.regions[part.pool_id].unflatten(3, (-1, part.block_size))
    return region[:, :, :, part.blocks].numpy().tobytes()


def test_the_three_laws_hold_in_inms() -> None:
    assert breaks("inms") == (False, False, False)


def test_each_breaks_without_the_label_check_alone() -> None:
    assert breaks(Inms().without("label")) == (True, True, True)


def test_each_breaks_in_mode_global() -> None:
    assert breaks("global") == (True, True, True)


def test_a_record_at_the_place_where_it_was_encoded_is_exact() -> None:
    """A fragment used where it is in fact a prefix: the same bits as full prefill."""
    reader = Program("b", (Op("prompt"), Op("attach"), Op("write", count=4)), arrives=9)
    run = Bench(shifting(), prompt=PROMPT, gate=OPEN).run(publisher(SECRET), reader)
    assert not fragments(run, "b")
    assert logits_of(run) == logits_of(alone(Op("attach"), gate=None))


def alone(*ops: Op, gate: object = OPEN, **options: object) -> Bench:
    """B alone behind the prompt; a record with TEXT is there beforehand."""
    bench = Bench(shifting(), prompt=PROMPT, gate=gate, **options)
    bench.publish("nobody", "g", TEXT)
    bench.drain()
    return bench.run(Program("b", (Op("prompt"), *ops, Op("write", count=4))))


def logits_of(run: Bench) -> list[bytes]:
    return [data for key, data in sorted(run.capture.asked.items(), key=lambda item: item[0][1])]


def test_every_block_computed_afresh_is_full_prefill() -> None:
    """100 % recompute: bit for bit what a reader computes that shares nothing."""
    read = Op("read", OTHER)
    truth = logits_of(alone(read, Op("attach"), gate=None))
    assert logits_of(alone(read, Op("attach", afresh=(0, 1)))) == truth
    assert logits_of(alone(read, Op("attach"))) != truth


def distance(afresh: tuple[int, ...], seed: int) -> float:
    read = Op("read", words(random.Random(seed), 20))
    truth = logits_of(alone(read, Op("attach"), gate=None, block_size=2))
    got = logits_of(alone(read, Op("attach", afresh=afresh), block_size=2))
    rows = (torch.frombuffer(bytearray(b), dtype=torch.float32) for b in (got[0], truth[0]))
    a, b = rows
    return float((a - b).norm())


def test_the_error_falls_as_more_is_computed_afresh() -> None:
    """First blocks of eight, as EPIC does it, on the mean of several contexts."""
    found = [sum(distance(tuple(range(n)), seed) for seed in range(8)) for n in (0, 4, 6, 8)]
    assert found[-1] == 0
    assert found == sorted(found, reverse=True)


def test_without_the_gate_check_a_gate_that_refuses_is_passed() -> None:
    from inms_lab.books.gate import Gate

    strict = Gate(max_kl=0.0)
    ops = (Op("read", OTHER), Op("attach"))
    assert not fragments(alone(*ops, gate=strict), "b")
    assert fragments(alone(*ops, gate=strict, policy=Inms().without("gate")), "b")


def test_without_position_keys_are_read_as_if_nothing_had_moved() -> None:
    ops = (Op("read", OTHER), Op("attach"))
    truth = logits_of(alone(*ops, gate=None))
    shifted, unshifted = (
        logits_of(alone(*ops, policy=policy)) for policy in ("inms", Inms().without("position"))
    )
    assert shifted != unshifted != truth


def test_tiny_models_without_an_admission_share_no_fragments() -> None:
    bench = Bench(tiny(), prompt=PROMPT, gate=OPEN).run(publisher(SECRET), READER)
    assert not fragments(bench, "b")
    whys = {e.cause for e in bench.engine.log.events if isinstance(e, Commanded) and e.source >= 0}
    assert "position: it was not admitted" in whys
