"""Symptoms that users of other systems reported, of the engine's bookkeeping: they must not happen.

Each test names the report in its docstring; the kind of fault is tested, not the one input. The toy
engine compares its books with an independent model, and every slot's content, at every event.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from toy import Interrupt, TensorModel, Toy, plain

from inms_lab.attention.tiles import merge, merge_state
from inms_lab.books.events import Allocated, Copied, Event, Evicted, Freed, Published, Shared
from inms_lab.books.fingerprint import Namespace, digest, label_bytes
from inms_lab.books.label import group, private
from inms_lab.decisions.freeing import plan_preempt
from inms_lab.decisions.outcome import NoRoom, Plan, Stale
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import MODES
from inms_lab.errors import LedgerViolation, PlanInvalid, PoolExhausted
from inms_lab.logs import audit

ROOT = Path(__file__).resolve().parents[1]
TEXT = [1, 2, 3, 4, 0, 1, 2, 3]


# --- 1: found, then given away ----------------------------------------------------------------


def cached_text() -> tuple[Toy, int, int]:
    """A cached text, a reader who wants it, and another who wants the room."""
    toy = Toy("global", blocks=(1, 1, 4))
    writer, reader, other = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.do(writer, "append", TEXT)
    toy.enter(writer, "close")
    toy.enter(reader, "append", TEXT)
    toy.enter(other, "append", [3, 3, 3, 3] * 4)
    return toy, reader, other


@pytest.mark.parametrize("reader_first", [True, False])
def test_01_a_found_block_is_pinned_by_the_commit_that_finds_it(reader_first: bool) -> None:
    """vllm#37076, #37164: a found block is given away before it is pinned, and another request's
    KV is read. Both plans are made on the same books; whichever is committed second is stale."""
    toy, reader, other = cached_text()
    at = len(toy.log)
    plans = {who: plan_extend(toy.ledger, at, who, 1000) for who in (reader, other)}
    hit, taking = plans[reader], plans[other]
    assert isinstance(hit, Plan)
    assert isinstance(taking, Plan)
    assert [type(e) for e in hit.events] == [Shared]
    assert [type(e) for e in taking.events] == [Evicted, Allocated]
    first, second = (reader, other) if reader_first else (other, reader)
    plan = plans[first]
    assert isinstance(plan, Plan)
    assert toy.cache.commit(plan) is None
    late = plans[second]
    assert isinstance(late, Plan)
    assert isinstance(toy.cache.commit(late), Stale)
    again = plan_extend(toy.ledger, len(toy.log), second, 1000)
    if reader_first:
        assert again == NoRoom(other, "common", 4, 2)  # not the two that the reader holds
    else:
        assert again == NoRoom(reader, "common", 2, 0)  # a miss: the text is gone


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("budget", [3, 8, 100])
def test_01_no_order_of_arrival_gives_a_reader_foreign_kv(order: list[int], budget: int) -> None:
    """vllm#37076, #37164, over orders of arrival and step sizes; content is checked at each."""
    toy = Toy("global", blocks=(1, 1, 6), budget=budget)
    writer = toy.agent("w")
    toy.do(writer, "append", TEXT)
    toy.enter(writer, "close")
    agents = [toy.agent(name) for name in "abc"]
    texts = [TEXT, [*TEXT[:4], 3, 3, 3, 3, 1], [2] * 12]
    turns = {n: toy.ask(agents[n], "write", texts[n], count=3) for n in order}
    toy.run()
    for n, turn in turns.items():
        assert turn.future.result(timeout=0) == toy.model.generate(texts[n], 3)


# --- 2: findable before it is written ---------------------------------------------------------


def test_02_a_pending_block_is_no_hit_and_an_abort_leaves_nothing_to_find() -> None:
    """vllm#41400: a block is findable before its KV is written; after an abort it stays so."""
    toy = Toy()
    writer = toy.agent("a")
    toy.do(writer, "append", TEXT[:4])
    pool = toy.ledger.pools["private"]
    before = dict(pool.index)
    toy.enter(writer, "append", [*TEXT[4:], 3])
    toy.engine.plan()
    assert dict(pool.index) == before
    assert len(pool.pending) == 1
    reader = toy.agent("a")
    toy.enter(reader, "append", TEXT)
    plan = plan_extend(toy.ledger, len(toy.log), reader, 100)
    assert isinstance(plan, Plan)
    assert plan.events == (Shared(reader, 0, "private", (0,), 4, "hit"),)
    assert plan.chunk is None
    toy.engine.end(writer, "fail", "cancelled")  # exactly the pending blocks lose their promise
    assert not pool.pending
    assert not pool.promised
    assert toy.do(reader, "append", [1]) == len(TEXT) + 1


@pytest.mark.parametrize("budget", [1, 2, 4, 5, 9, 100])
def test_02_a_step_interrupted_at_any_size_leaves_the_index_as_it_was(budget: int) -> None:
    """vllm#41400: the same for a step that stops in the middle of its forward."""
    toy = Toy(budget=budget)
    first, second = toy.agent("a"), toy.agent("a")
    toy.do(first, "append", [1] * 4)
    turns = [toy.ask(agent, "append", TEXT * 2) for agent in (first, second)]
    pool = toy.ledger.pools["private"]
    before = dict(pool.index), dict(pool.keys)
    held = dict(pool.refs)
    toy.model.interrupt = True
    with pytest.raises(Interrupt):
        toy.step()
    assert (dict(pool.index), dict(pool.keys)) == before
    assert (dict(pool.refs), dict(pool.pending)) == (held, {})
    toy.run()
    assert [turn.future.result(timeout=0) for turn in turns] == [20, 16]


# --- 4, 5, 6: identity ------------------------------------------------------------------------


def churn(toy: Toy, rng: random.Random) -> list[int]:
    """An agent reads a text of three blocks, of which the first may have been seen, and ends."""
    agent = toy.agent(rng.choice("ab"))
    text = [rng.randrange(2) for _ in range(4)] + [rng.randrange(5) for _ in range(8)]
    toy.do(agent, "append", text)
    toy.enter(agent, "close")
    return text


def test_04_a_reused_block_has_no_old_key_anywhere() -> None:
    """vllm#44237, kvcached#362: a reused block keeps its old hash."""
    toy = Toy("global", blocks=(1, 1, 6))
    pool = toy.ledger.pools["common"]
    old: dict[int, bytes] = {}
    reused = 0

    def look(event: Event) -> None:
        nonlocal reused
        assert len(pool.index) <= pool.spec.num_blocks
        if isinstance(event, Allocated):
            for block in event.blocks:
                reused += block in old
                assert block not in pool.keys
                assert block not in pool.tokens
                assert all(block not in blocks for blocks in pool.index.values())
        old.update(pool.keys)

    toy.on_event.append(look)
    rng = random.Random(4)
    for _ in range(40):
        churn(toy, rng)
    assert reused > 3 * pool.spec.num_blocks


def test_05_after_churn_a_hit_is_this_text_and_nothing_else() -> None:
    """local-inference-lab/vllm#480: after heavy churn a hit returns foreign text. (The slots of
    every holder are compared with its own tokens after every step of this run.)"""
    toy = Toy("global", blocks=(1, 1, 16), model=TensorModel())
    counts: Counter[str] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, Shared | Allocated | Evicted):
            counts[type(event).__name__] += len(event.blocks)

    toy.on_event.append(count)
    rng = random.Random(5)
    for _ in range(100):
        churn(toy, rng)
    assert counts["Evicted"] > 3 * 16
    assert counts["Shared"] > 20
    last = toy.agent("c")
    toy.do(last, "append", TEXT)
    assert toy.states(last) == toy.model.run(TEXT)


def test_06_a_consumer_of_events_knows_when_the_last_copy_is_gone() -> None:
    """vllm#48933, dynamo#8012, llm-d-kv-cache#680: of two copies of one hash the first removal
    makes consumers forget the live one. Here one that believes what events say stays right."""
    toy = Toy("global", blocks=(1, 1, 5))
    pool = toy.ledger.pools["common"]
    known: set[bytes] = set()
    seen_copies = 0

    def consume(event: Event) -> None:
        nonlocal seen_copies
        if isinstance(event, Published):
            known.update(event.keys)
        elif isinstance(event, Evicted):
            seen_copies += any(event.remaining)
            for key, left in zip(event.keys, event.remaining, strict=True):
                if not left:
                    known.discard(key)
        assert known == set(pool.index)

    toy.on_event.append(consume)
    rng = random.Random(6)
    for _ in range(60):
        slow, fast = toy.agent("a"), toy.agent("b")
        text = [rng.randrange(2) for _ in range(4)]
        toy.do(slow, "append", text[:3])
        toy.do(fast, "append", text)
        toy.do(slow, "append", [*text[3:], *(rng.randrange(5) for _ in range(6))])
        for agent in (slow, fast):
            toy.enter(agent, "close")
    assert seen_copies > 5


# --- 7, 11: keys ------------------------------------------------------------------------------


def test_07_equal_strings_in_different_fields_give_different_keys() -> None:
    """vllm#44701, sglang#24638: adapter "X" and salt "X" give one key."""
    texts = [f.name for f in fields(Namespace) if f.type == "str"]
    roots = {name: replace(Namespace(), **{name: "X"}).root() for name in texts}
    assert len(set(roots.values())) == len(texts) == 5
    shifted = Namespace(adapter="X", tenant="Y").root(), Namespace(adapter="Y", tenant="X").root()
    joined = Namespace(adapter="XY").root(), Namespace(tenant="XY").root()
    assert len({*shifted, *joined}) == 4
    assert Namespace(weight_version=1).root() != Namespace(model="1").root()
    assert len({label_bytes(group("X")), label_bytes(private("X")), label_bytes(("X",))}) == 3
    assert digest(b"a", b"bc") != digest(b"ab", b"c") != digest(b"abc")


def test_11_fresh_processes_agree_on_every_key_without_environment_variables() -> None:
    """LMCache#1139, #2136, #2511: the same tokens hash differently per process."""
    code = (
        "from array import array\n"
        "from inms_lab.books.fingerprint import Namespace, block_key, cut, label_bytes\n"
        "root = Namespace(model='m', adapter='x', tenant='t').root()\n"
        "label = label_bytes({f'agent:{n}' for n in 'abcdefgh'} | {'group:g'})\n"
        "for i in range(5):\n"
        "    root = block_key(root, label, 16 * i, array('i', range(i, i + 16)))\n"
        "    print(root.hex(), cut(root, 16 * i + 3).hex())\n"
    )
    outputs = []
    for seed in ("0", "1", "4242", None):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        if seed is not None:
            environment["PYTHONHASHSEED"] = seed
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert len(outputs[0].split()) == 10
    assert len(set(outputs)) == 1


# --- 12: totals -------------------------------------------------------------------------------


def test_12_idle_steps_change_no_total() -> None:
    """sglang#35270, mllm#656: totals drift or go negative, even when idle."""
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "write", TEXT, count=3)
    before = plain(toy.ledger)
    for _ in range(20):
        assert toy.step() is None
    assert plain(toy.ledger) == before
    assert not toy.engine.has_work


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pool: pool.refs.__setitem__(0, 2), "refcount 2, in 1 tables"),
        (lambda pool: pool.refs.__setitem__(0, -1), "refcount below one"),
        (lambda pool: pool.refs.pop(0), "refcount 0, in 1 tables"),
        (lambda pool: pool.free.__setitem__(0, None), "in two states"),
        (lambda pool: pool.free.popitem(), "is not 16"),
        (lambda pool: pool.keys.pop(0), "a free block is findable"),
        (lambda pool: pool.index.clear(), "the index and the blocks' keys differ"),
        (lambda pool: pool.labels.pop(0), "lacks its label"),
        (lambda pool: pool.pending.__setitem__(b"x", 0), "pending keys"),
        (lambda pool: pool.promised.__setitem__(9, b"x"), "promised block"),
    ],
)
def test_12_a_violation_is_reported_with_the_last_events_and_not_fatal(
    damage: object, words: str
) -> None:
    """sglang#35270, mllm#656: the server kills itself over a counter."""
    toy = Toy(compare=False)
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT)
    kept = toy.log.replay().pools["private"]
    toy.cache.check()
    damage(toy.ledger.pools["private"])  # type: ignore[operator]
    with pytest.raises(LedgerViolation, match=words) as caught:
        toy.cache.check()
    assert "the last events were" in str(caught.value)
    assert "Published(" in str(caught.value)
    toy.ledger.pools["private"] = kept  # the log still knows
    toy.cache.check()
    assert toy.do(agent, "write", [1], count=2) == toy.model.generate([*TEXT, 1], 2)


# --- 13, 15: freed once, unpinned once --------------------------------------------------------


@pytest.mark.parametrize("mode", ["inms", "global"])
@pytest.mark.parametrize("cut", range(11))
def test_13_a_cut_frees_each_block_once_and_leaves_the_neighbours_alone(
    mode: str, cut: int
) -> None:
    """sglang#5221, #36457: a split frees or corrupts the neighbour's block."""
    toy = Toy(mode)
    text = [*TEXT, 4, 4]
    parent = toy.agent("a")
    toy.do(parent, "append", text)
    child = toy.do(parent, "fork")
    pool = toy.ledger.pools["private" if mode == "inms" else "common"]
    freed: Counter[int] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, Freed):
            freed.update(b for b in event.blocks if b not in pool.refs)

    toy.on_event.append(count)
    toy.enter(child, "rollback", count=cut)
    assert not freed  # the parent still has them all
    assert toy.states(parent) == toy.model.run(text)
    toy.do(child, "append", [3, 3])
    assert toy.states(child) == toy.model.run([*text[:cut], 3, 3])
    assert toy.states(parent) == toy.model.run(text)
    toy.enter(parent, "close")
    assert toy.states(child) == toy.model.run([*text[:cut], 3, 3])
    toy.enter(child, "close")
    assert freed == Counter(range(len(freed)))
    assert pool.num_held == 0


def test_15_letting_go_of_what_nobody_holds_is_an_error() -> None:
    """LMCache#3381, #2785, vllm#44100: pins go negative."""
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT)
    freed = Freed(agent, 0, "private", (1, 0), 0, "test")
    assert toy.cache.commit(Plan(len(toy.log), (freed,))) is None
    before = plain(toy.ledger)
    with pytest.raises(PlanInvalid):
        toy.cache.commit(Plan(len(toy.log), (freed,)))
    with pytest.raises(PlanInvalid):
        toy.ledger.pools["private"].release((0,))
    assert plain(toy.ledger) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["close", "fail", "expire", "rollback", "preempt", "interrupt"])
def test_15_every_way_out_ends_with_zero_pins(mode: str, way: str) -> None:
    """LMCache#3381, #2785, vllm#44100: pins last for ever after an abort."""
    toy = Toy(mode, budget=6)
    agent = toy.agent("a")
    toy.ask(agent, "append", TEXT)
    turn = toy.ask(agent, "write", [2], count=30)
    toy.step()
    if way == "interrupt":
        toy.model.interrupt = True
        with pytest.raises(Interrupt):
            toy.step()
        assert sum(toy.held().values()) == 2  # what the first step wrote, no more
        toy.engine.end(agent, "fail", "interrupted")
    elif way == "preempt":
        pool_id = toy.table(agent)[0][0]
        plan = plan_preempt(toy.ledger, len(toy.log), -1, pool_id)
        assert plan is not None
        toy.cache.commit(plan)
    elif way == "rollback":
        toy.run()
        toy.enter(agent, "rollback", count=0)
    else:
        toy.step()
        toy.engine.end(agent, way, "test")
        assert turn.future.exception(timeout=0) is not None
    assert set(toy.held().values()) == {0}
    assert not any(pool.pending or pool.promised for pool in toy.ledger.pools.values())
    assert not audit.faults(toy.ledger)


# --- 17, 18: forks ----------------------------------------------------------------------------


def test_17_a_fork_with_too_few_blocks_is_all_or_nothing_and_the_caller_is_told() -> None:
    """transformers#46117: a fork with too few blocks crashes the engine."""
    toy = Toy(blocks=(1, 1, 3))
    parent = toy.agent("a")
    toy.do(parent, "append", [*TEXT, 4])
    children = [toy.do(parent, "fork") for _ in range(3)]  # forking itself takes no block
    assert dict(toy.ledger.pools["private"].refs) == {0: 4, 1: 4, 2: 4}
    toy.enter(children[0], "append", [1])
    before = plain(toy.ledger)
    no = NoRoom(children[0], "private", needed=1, available=0)
    assert plan_extend(toy.ledger, len(toy.log), children[0], 9) == no
    assert plain(toy.ledger) == before
    turns = [toy.ask(child, "write", [3], count=1) for child in children]
    toy.run()
    errors = [turn.future.exception(timeout=0) for turn in turns]
    assert errors[0] is None  # the others gave way, and came back
    assert all(error is None or isinstance(error, PoolExhausted) for error in errors)
    assert toy.do(parent, "logits").argmax() == toy.model.generate([*TEXT, 4], 1)[0]


def test_17_a_fork_that_nobody_can_make_room_for_is_told_and_the_parent_is_untouched() -> None:
    """transformers#46117: the same where the parent is sealed and never gives way."""
    toy = Toy(blocks=(1, 3, 1))
    record = toy.record("team", TEXT[:5])
    other = toy.record("team", [3, 3])
    child = toy.do(record, "fork")
    before = toy.states(record)
    text = toy.ask(child, "append", [1], tier="group", group="team")
    toy.run()
    error = text.future.exception(timeout=0)
    assert isinstance(error, PoolExhausted)
    assert "close agents or give the lab a larger pool" in str(error)
    assert toy.states(record) == before
    assert toy.table(record) == [("group:team", [0, 1])]
    assert toy.table(other) == [("group:team", [2])]
    assert dict(toy.ledger.pools["group:team"].refs) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("first", ["parent", "child"])
@pytest.mark.parametrize("length", range(5, 9))
def test_18_the_first_divergent_write_copies_and_the_reader_sees_the_same_bytes(
    first: str, length: int
) -> None:
    """vllm#46384: a second writer on a shared partial block changes the first one's tail."""
    toy = Toy(model=TensorModel())
    parent = toy.agent("a")
    text = [*TEXT, 4][:length]
    toy.do(parent, "append", text)
    child = toy.do(parent, "fork")
    writer, reader = (parent, child) if first == "parent" else (child, parent)
    store, shared = toy.cache.store, toy.table(reader)[0][1]
    region = store.regions["private"]  # type: ignore[attr-defined]
    slots = [b * 4 + i for b in shared for i in range(4)][:length]
    before = region[:, :, :, slots].clone()
    assert before.any()
    assert toy.do(writer, "write", [0], count=3) == toy.model.generate([*text, 0], 3)
    assert torch.equal(region[:, :, :, slots], before)
    assert toy.table(reader) == [("private", shared)]
    copies = [e for e in toy.log.events if isinstance(e, Copied)]
    partial = length % 4
    assert [(e.seq_id, e.index, e.num_slots) for e in copies] == (
        [(writer, length // 4, partial)] if partial else []
    )
    assert toy.do(reader, "write", [2], count=3) == toy.model.generate([*text, 2], 3)
    assert toy.states(reader)[:length] == toy.model.run(text)


def test_18_writing_into_the_sealed_tier_is_refused_by_the_door() -> None:
    """vllm#46384: the same fault from the other side: a plan that writes where others read."""
    toy = Toy(model=TensorModel())
    prompt = toy.prompt(TEXT[:6])
    agent = toy.agent("a")
    toy.do(agent, "append", TEXT[:6], tier="global", seal=True)
    before = toy.cache.store.regions["global"].clone()  # type: ignore[attr-defined]
    toy.do(agent, "rollback", count=5)
    toy.do(agent, "write", [3], count=4)
    after = toy.cache.store.regions["global"]  # type: ignore[attr-defined]
    assert torch.equal(before, after)
    assert toy.table(agent)[0] == ("global", [0, 1])
    assert toy.states(prompt) == toy.model.run(TEXT[:6])


# --- 25: attention states ---------------------------------------------------------------------


def state(num_keys: int, rows: int = 3, dim: int = 4, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Attention of `rows` queries over `num_keys` keys, dense: out [N, D] and lse [N]."""
    generator = torch.Generator().manual_seed(100 * num_keys + seed)
    queries = torch.randn(rows, dim, generator=torch.Generator().manual_seed(7))
    keys, values = torch.randn(2, num_keys, dim, generator=generator)
    scores = queries @ keys.T
    if num_keys == 0:
        return torch.zeros(rows, dim), torch.full((rows,), -torch.inf)
    return torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1)


def dense(*parts: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same over the concatenation of parts (number of keys, seed)."""
    queries = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))
    drawn = [
        torch.randn(2, n, 4, generator=torch.Generator().manual_seed(100 * n + seed))
        for n, seed in parts
    ]
    keys, values = torch.cat(drawn, dim=1)
    scores = queries @ keys.T
    return torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1)


def test_25_two_empty_states_merge_to_an_empty_one() -> None:
    """flashinfer#4051: merging two empty attention states gives NaN."""
    empty = state(0)
    out, lse = merge_state(*empty, *empty)
    assert torch.equal(out, torch.zeros(3, 4))
    assert not lse.isnan().any()
    assert (lse < -1e20).all()
    full = state(5)
    again = merge_state(out, lse, *full)
    assert torch.equal(again[0], full[0])
    assert torch.equal(again[1], full[1])
    many, _ = merge(torch.zeros(5, 3, 4), torch.full((5, 3), -torch.inf))
    assert torch.equal(many, torch.zeros(3, 4))


@pytest.mark.parametrize("num_keys", [1, 2, 16])
def test_25_the_empty_state_is_the_identity_on_both_sides(num_keys: int) -> None:
    """flashinfer#4051: prefix 0, suffix 0."""
    full, empty = state(num_keys), state(0)
    for out, lse in (merge_state(*full, *empty), merge_state(*empty, *full)):
        assert torch.equal(out, full[0])
        assert torch.equal(lse, full[1])


@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 7, 16), (16, 1, 3), (0, 5, 2), (64, 64, 1)])
def test_25_merging_is_associative_and_equals_dense_attention(lengths: tuple[int, ...]) -> None:
    """flashinfer#4051: one block, unequal lengths."""
    a, b, c = (state(n, seed=i) for i, n in enumerate(lengths))
    left = merge_state(*merge_state(*a, *b), *c)
    right = merge_state(*a, *merge_state(*b, *c))
    want = dense(*((n, i) for i, n in enumerate(lengths)))
    for out, lse in (left, right):
        assert torch.allclose(out, want[0], atol=1e-6, rtol=0)
        assert torch.allclose(lse, want[1], atol=1e-6, rtol=0)
    assert torch.allclose(left[0], right[0], atol=1e-6, rtol=0)
    out, _ = merge(torch.stack([s[0] for s in (a, b, c)]), torch.stack([s[1] for s in (a, b, c)]))
    assert torch.allclose(out, want[0], atol=1e-6, rtol=0)


def test_25_merging_survives_very_unequal_weights() -> None:
    """flashinfer#4051: a state that weighs nothing beside the other changes nothing."""
    out, _ = state(4)
    high, low = torch.full((3,), 300.0), torch.full((3,), -300.0)
    merged, lse = merge_state(out, high, out + 1, low)
    assert torch.equal(merged, out)
    assert torch.equal(lse, high)


# --- 32: between processes --------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child process begins as a copy")
def test_32_what_a_child_process_writes_into_kv_is_not_seen_by_its_parent() -> None:
    """ray#12317, #59084, sglang#37822, livekit/agents#7117: one process's write is seen by another.
    Here of KV: a region is a map of the process's own, so a child has a copy as soon as it writes.
    (Weights in shared pages are another matter.)"""
    code = (
        "import os, torch\n"
        "torch.set_num_threads(1)\n"
        "from inms_lab.attention.store import KVStore\n"
        "store = KVStore(num_layers=2, num_kv_heads=1, head_dim=2)\n"
        "store.open('p', 8)\n"
        "region = store.regions['p']\n"
        "region[..., :4, :] = 1\n"
        "told, tell = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = bool((region[..., :4, :] == 1).all())\n"
        "    region.fill_(7)\n"
        "    os.write(tell, b'written' if same and bool((region == 7).all()) else b'failed')\n"
        "    os._exit(0)\n"
        "print(os.read(told, 9).decode(), os.waitpid(child, 0)[1], region.sum().item())\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["written", "0", "32.0"], done.stderr
