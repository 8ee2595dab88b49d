"""Non-interference: what B is given is a function of B's commands and of public and released text.

    (a) poison   NaN in every slot that B may not hold, before every forward, changes no bit of B's
    (b) secret   another agent's private text and its length change no bit of B's
    (c) blind    two agents with different private context publish one text: the same bytes
    (d) and the runs are not vacuous: a record whose author had private context was attached, blocks
        were evicted, agents were preempted

Then every check is switched off in turn, and the law that it upholds must break.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import replace

import pytest
import torch
from harness import (
    RECORD,
    Bench,
    Op,
    Program,
    World,
    one_thread,  # noqa: F401
    random_ops,
    tiny,
    words,
)

from inms_lab.books import label, segment
from inms_lab.books.events import Shared
from inms_lab.books.fingerprint import digest
from inms_lab.decisions.policy import Global, Inms, Policy

B = label.group("g") | label.private("b")  # B's clearance
RNG = random.Random(0)
PROMPT, TEXT, OTHER, SECRET, LONGER = (words(RNG, n) for n in (24, 16, 16, 16, 37))


def random_programs(seed: int, secret_seed: int) -> World:
    """A reader, an author and others. The others' private texts and commands are drawn from
    `secret_seed`; prompt, records and all of B's program are not. C reads what B is going to read,
    behind the same prefix: whoever looks by content alone finds C's blocks."""
    rng, secret = random.Random(seed), random.Random(f"secret {secret_seed}")
    prompt, texts = words(rng, 9, 40), [words(rng, 30) for _ in range(3)]
    records = tuple(words(rng, RECORD) for _ in range(3))
    block = rng.choice((4, 8, 16))
    grid = block, rng.choice((0, block // 2, block * 2)), rng.randint(1, 40)
    public = (Op("prompt"), Op("attach"), Op("attach", count=1), Op("read", texts[0], seal=True))
    b = random_ops(rng, texts, len(prompt) + len(texts[0]), 3, attached=2)[3:]
    story = [Op("prompt"), Op("read", words(secret, 5, 40)), Op("write", count=5)]
    for tokens in records:
        story += [Op("publish", tokens), Op("read", words(secret, 1, 30)), Op("write", count=3)]
    texts.append(words(secret, 30))
    c = random_ops(secret, texts, len(prompt) + len(texts[0]), 3, attached=2)[3:]
    d = random_ops(secret, texts, len(prompt), 3, attached=1)
    programs = (
        Program("a", tuple(story)),
        Program("c", (*public, *c)),
        Program("b", (*public, *b), arrives=rng.randint(4, 20)),
        Program("d", d, arrives=secret.randint(0, 20)),
    )
    return World(prompt, records, programs, *grid)


def room_for(world: World) -> int:
    """Blocks with which every agent fits alone, and not much more."""
    return max(world.alone(tiny(), p).peak for p in world.programs) + 2


def assert_eventful(run: Bench) -> None:
    """Law (d)."""
    seen = run.happened()
    assert seen["preempted"], seen
    assert seen["evicted"], seen
    reader, shared = run.sequence("b").seq_id, set()
    for event in run.engine.log.events:
        if isinstance(event, Shared) and event.seq_id == reader:
            shared.update((event.pool_id, block) for block in event.blocks)
    for record, context in run.published:
        part = run.engine.ledger.sequences[record].segments[-1]
        if label.private("a") <= context and shared >= {(part.pool_id, b) for b in part.blocks}:
            return
    raise AssertionError("no record of an author with private context was attached")


def is_same_for_b(run: Bench, other: Bench) -> bool:
    """Whether B was asked the same and given the same, to the bit (what was mounted in one run and
    computed, or lost in time, in the other cannot be compared)."""
    mine, theirs = run.capture.of("b"), other.capture.of("b")
    twice = [k for bench in (run, other) for k in bench.capture.conflicts if k[0][0] == "b"]
    asked = [{k for what, k in given if what == "asked"} for given in (mine, theirs)]
    assert asked[0], "B was given nothing"
    both = mine.keys() & theirs.keys()
    return not twice and asked[0] == asked[1] and all(mine[k] == theirs[k] for k in both)


# the laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_poison_beyond_the_clearance_changes_nothing(seed: int) -> None:
    world = random_programs(seed, seed)
    room = room_for(world)
    clean = world.together(tiny(), room)
    poisoned = world.together(tiny(), room, poison_beyond=B)
    assert_eventful(clean)
    assert_eventful(poisoned)
    assert is_poisoned(poisoned)
    assert is_same_for_b(clean, poisoned)


def is_poisoned(run: Bench) -> bool:
    """Whether the poison reached anybody at all."""
    rows = (
        torch.frombuffer(bytearray(row), dtype=torch.float32) for row in run.capture.rows.values()
    )
    return any(row.isnan().any() for row in rows)


@pytest.mark.parametrize("seed", range(4))
def test_the_private_text_of_others_and_its_length_change_nothing(seed: int) -> None:
    worlds = [random_programs(seed, secret_seed) for secret_seed in (10 * seed, 10 * seed + 1)]
    assert worlds[0].programs[0].ops != worlds[1].programs[0].ops
    room = max(room_for(world) for world in worlds)
    runs = [world.together(tiny(), room) for world in worlds]
    for run in runs:
        assert_eventful(run)
    assert is_same_for_b(*runs)


def test_a_record_has_the_same_bytes_whoever_publishes_it() -> None:
    assert len(record_bytes("inms")) == 1


def test_without_label_and_position_a_record_would_depend_on_its_author() -> None:
    assert len(record_bytes(replace(Global(), off=frozenset({"label", "position"})))) > 1


def record_bytes(policy: Policy | str) -> set[bytes]:
    """The KV of one text, published by three authors with different private contexts."""
    found = set()
    for secret, group in ((SECRET, "g"), (LONGER, "g"), (OTHER, "h")):
        run = Bench(tiny(), policy, prompt=PROMPT, budget=11)
        draft = (Op("read", secret, fresh=True), Op("read", TEXT, fresh=True, seal=True))
        ops = (Op("prompt"), *draft, Op("publish", TEXT))
        run.run(Program("a", ops, group))
        ((record, context),) = run.published
        assert label.private("a") <= context
        part = run.engine.ledger.sequences[record].segments[-1]
        region = run.engine.cache.store.regions[part.pool_id].unflatten(3, (-1, part.block_size))
        found.add(region[:, :, :, part.blocks].numpy().tobytes())
    return found


# what each check is for -------------------------------------------------------------------------


def poison_is_felt(policy: Policy | str) -> bool:
    """B reads what A read before, behind the same prefix: does B notice NaN in A's blocks?"""
    same = (Op("prompt"), Op("read", TEXT, seal=True))
    programs = Program("a", same), Program("b", (*same, Op("write", count=4)), arrives=4)
    world = World(PROMPT, (), programs, block_size=8, tile=0, budget=64)
    clean, poisoned = (
        world.bench(tiny(), policy, poison_beyond=beyond).run(*programs) for beyond in (None, B)
    )
    return not is_same_for_b(clean, poisoned)


def test_without_the_label_check_b_holds_a_block_of_a() -> None:
    assert not poison_is_felt("inms")
    assert poison_is_felt(Inms().without("label"))


def test_sharing_by_content_alone_lets_b_hold_a_block_of_a() -> None:
    assert poison_is_felt("global")
    assert not poison_is_felt("independent")


def secret_is_felt(policy: Policy | str) -> bool:
    """B reads a text that A read behind a secret: does the secret change what B is given?"""
    runs = []
    for secret in (SECRET, OTHER, LONGER):
        draft = (Op("read", secret, fresh=True), Op("read", TEXT, fresh=True, seal=True))
        a = Program("a", (Op("prompt"), *draft))
        ops = (Op("prompt"), Op("read", TEXT, fresh=True, seal=True), Op("write", count=4))
        runs.append(Bench(tiny(), policy, prompt=PROMPT).run(a, Program("b", ops, arrives=4)))
    return not all(is_same_for_b(runs[0], run) for run in runs[1:])


def test_without_label_and_position_a_secret_of_a_reaches_b() -> None:
    """Law (b) survives without the label check alone, and must: a key covers every token before the
    block, so a block of A's that B finds was computed behind the very tokens that B has, and holds,
    to the bit, what B would compute. What leaks then is only that A had read the same (law (a), and
    time). As soon as a key covers the content alone, A's block carries A's secret to B."""
    assert not secret_is_felt("inms")
    assert not secret_is_felt(Inms().without("label"))
    assert secret_is_felt(Inms().without("label", "position"))


def logits_after(policy: Policy | str, *ops: Op) -> torch.Tensor:
    """What one agent is given at the end of its script."""
    run = Bench(tiny(), policy, prompt=PROMPT).run(Program("b", (*ops, Op("logits"))))
    return run.players[-1].answers[-1][1].result()


BEHIND = (Op("prompt"), Op("read", SECRET, fresh=True), Op("read", TEXT, fresh=True, seal=True))
BACK = Op("rollback", count=len(PROMPT))
TAIL = Op("read", (1, 2, 3))


def test_without_position_a_block_is_read_behind_another_text() -> None:
    straight = (Op("prompt"), Op("read", TEXT, fresh=True, seal=True), TAIL)
    detour = (*BEHIND, BACK, *straight[1:])
    truth = logits_after("inms", *straight)
    assert torch.equal(truth, logits_after("inms", *detour))
    assert not torch.equal(truth, logits_after(Inms().without("position"), *detour))


def colliding(parent: bytes, mark: bytes, position: int, tokens: array[int]) -> bytes:
    """A digest that misses the tokens."""
    return digest(mark, b"%d:%d" % (position, len(tokens)))


def all_colliding(
    parent: bytes, mark: bytes, position: int, tokens: array[int], size: int
) -> list[bytes]:
    """That of each full block."""
    starts = range(0, len(tokens) // size * size, size)
    return [colliding(parent, mark, position + at, tokens[at : at + size]) for at in starts]


def test_without_comparing_tokens_a_collision_gives_a_foreign_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (Op("read", tokens, seal=True) for tokens in (TEXT, OTHER))
    truth, foreign = (logits_after("inms", Op("prompt"), text, TAIL) for text in (other, one))
    assert not torch.equal(truth, foreign)
    monkeypatch.setattr(segment, "block_key", colliding)
    monkeypatch.setattr(segment, "block_keys", all_colliding)
    detour = (Op("prompt"), one, BACK, other, TAIL)
    assert torch.equal(truth, logits_after("inms", *detour))
    assert torch.equal(foreign, logits_after(Inms().without("tokens"), *detour))


def race(policy: Policy | str) -> tuple[torch.Tensor, Counter[str]]:
    """A parent wants a block of which its child has written five tokens of eight."""
    bench = Bench(tiny(), policy, prompt=PROMPT, budget=5)
    parent = bench.agent("b", Op("prompt"))
    bench.run()
    bench.ask(parent, Op("fork"))
    bench.step()
    bench.ask(bench.players[-1], Op("read", TEXT, seal=True))
    bench.step()
    bench.ask(parent, Op("read", (*TEXT, *OTHER)))
    future = bench.ask(parent, Op("logits"))
    bench.drain()
    return future.result(), bench.outcomes


def test_without_waiting_for_pending_blocks_half_a_block_is_read() -> None:
    truth = logits_after("inms", Op("prompt"), Op("read", (*TEXT, *OTHER)))
    patient, outcomes = race("inms")
    assert outcomes["Deferred"]
    assert torch.equal(patient, truth)
    assert not torch.equal(race(Inms().without("pending"))[0], truth)
