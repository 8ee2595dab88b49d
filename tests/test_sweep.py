"""The sweep: what an idle agent keeps for long becomes weak, and nothing but time is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from harness import one_thread, tiny  # noqa: F401

from inms_lab import Lab
from inms_lab.books.events import Freed, Shared
from inms_lab.decisions.sweep import WEAK, Ages
from inms_lab.errors import BadInput
from inms_lab.hindsight.reenact import Reenactment
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent

SIZE = 8


def lab(model: Any = None, **options: Any) -> Lab:
    options.setdefault("block_size", SIZE)
    options.setdefault("pool_bytes", "1MiB")
    return Lab(model or DryModel(100, 1024, 1024), debug=True, **options)


def held(agent: Agent) -> int:
    segments = agent.lab.engine.ledger.sequences[agent.seq_id].segments
    return sum(len(s.blocks) for s in segments)


def weak(log: Log) -> list[Freed]:
    return [e for e in log.events if isinstance(e, Freed) and e.cause == WEAK]


def busy(lab: Lab, agent: Agent, steps: int) -> None:
    """An agent works for so many steps."""
    if not agent.tokens:
        agent.read([2, 2])
    agent.write(steps, stop=False)
    asyncio.run(lab.step(steps))


def test_what_an_idle_agent_keeps_becomes_weak_and_is_found_again() -> None:
    with lab(suspect_after=10) as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 20).result()
        worker.read([2] * 8).result()
        busy(it, worker, 7)
        assert held(idle) == 3
        busy(it, worker, 4)
        assert held(idle) == 0
        (event,) = weak(it.log)
        assert (event.seq_id, len(event.blocks), event.forget) == (idle.seq_id, 3, False)
        assert idle.tokens == [1] * 20
        assert idle.state == "ready"
        before = it.engine.num_computed
        idle.read([3]).result()
        hits = [e for e in it.log.events if isinstance(e, Shared) and e.seq_id == idle.seq_id]
        assert sum(len(e.blocks) for e in hits) == 2  # the two full ones, by ordinary lookup
        assert it.engine.num_computed - before <= 5 + 1 + it.engine.config.token_budget // 512
        it.assert_clean()


def test_a_working_agent_a_prompt_and_a_record_are_never_suspect() -> None:
    with lab(suspect_after=5) as it:
        it.preload([9] * 16)
        team = it.group("t")
        worker, reader = team.agents("worker", "reader")
        team.publish([8] * 16, by=worker)
        reader.attach(team).result()
        busy(it, worker, 40)
        assert weak(it.log) == []
        assert held(reader) == 4  # the prompt and the record: shared tiers are not swept
        it.check()


def test_younger_blocks_at_the_end_keep_the_older_ones_before_them() -> None:
    with lab(suspect_after=10) as it:
        slow, worker = it.agent("slow"), it.agent("worker")
        slow.read([1] * 16).result()
        busy(it, worker, 8)
        slow.read([2] * 8).result()
        busy(it, worker, 6)
        assert held(slow) == 3  # two are fourteen steps old, but the last one is not
        assert it.suspects(1)[0].blocks == (0, 1, *it.suspects(1)[0].blocks[2:])
        busy(it, worker, 6)
        assert held(slow) == 0


def test_a_block_that_two_forks_keep_is_weak_when_both_let_go() -> None:
    with lab(suspect_after=10) as it:
        parent, worker = it.agent("parent"), it.agent("worker")
        parent.read([1] * 16).result()
        child = parent.fork().result()
        busy(it, worker, 12)
        assert held(parent) == held(child) == 0
        pool = it.engine.ledger.pools["private"]
        assert len(pool.cached) == 2
        assert len(weak(it.log)) == 2


def test_without_a_setting_nothing_is_swept_and_one_may_still_look() -> None:
    with lab() as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 20).result()
        busy(it, worker, 30)
        assert weak(it.log) == []
        (suspect,) = it.suspects(20)
        assert (suspect.name, suspect.keep, len(suspect.blocks)) == ("idle", 0, 3)
        assert suspect.age >= 29
        assert "idle" in repr(suspect)
        assert it.suspects(1000) == []
        with pytest.raises(BadInput, match="At least 1"):
            it.suspects()


def test_ages_are_counted_in_steps_from_the_events_alone() -> None:
    with lab(suspect_after=7) as it:
        a, b = it.agent("a"), it.agent("b")
        a.read([1] * 30).result()
        busy(it, b, 20)
        a.read([4] * 9).result()
        busy(it, b, 5)
        ages = Ages()
        ages.follow(it.engine.ledger, it.log.events)
        it.suspects(1)
        mine, pool = it.engine.planner.ages, it.engine.ledger.pools["private"]
        assert {n: ages.of(pool, n) for n in pool.refs} == {n: mine.of(pool, n) for n in pool.refs}


def test_a_log_that_forgot_its_beginning_counts_from_where_it_is_left() -> None:
    with lab(suspect_after=0, log_limit=50) as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 16).result()
        busy(it, worker, 10)
        it.look(lambda: it.log.forget(len(it.log)))
        assert it.suspects(1) == []  # nothing is known of what came before
        busy(it, worker, 5)
        assert [s.name for s in it.suspects(5)] == ["idle"]


def test_weak_blocks_are_the_first_to_go_and_the_next_agent_gets_them() -> None:
    size = 16 * SIZE * 1024
    with lab(suspect_after=5, pool_bytes=size) as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 8 * 10).result()
        busy(it, worker, 8)
        worker.read([2] * 8 * 12).result()
        assert worker.state == "ready"
        assert idle.tokens == [1] * 80
        idle.read([3]).result()  # and it comes back: the worker gives way
        it.assert_clean()


def test_results_are_the_same_bits_with_and_without_a_sweep() -> None:
    def logits(after: int) -> tuple[torch.Tensor, int]:
        with lab(tiny(), suspect_after=after, gate=None) as it:
            it.preload(list(range(10)), progress=False)
            idle, worker = it.agent("idle"), it.agent("worker")
            idle.read(list(range(30, 60))).result()
            for _ in range(3):
                busy(it, worker, 5)
                worker.rollback(5).result()
            idle.read([7, 8, 9]).result()
            return idle.next_logits().result(), len(weak(it.log))

    swept, count = logits(4)
    kept, none = logits(0)
    assert count > 0
    assert none == 0
    assert torch.equal(swept, kept)


def test_a_log_with_a_sweep_replays_and_is_enacted_again() -> None:
    with lab(suspect_after=6) as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 20).result()
        busy(it, worker, 10)
        idle.read([2] * 3).result()
        assert weak(it.log)
        assert it.log.replay().snapshot() == it.engine.ledger.snapshot()
        again = Reenactment(it.log)
        again.move(len(it.log))
        mine = again.books.sequences[idle.seq_id]
        assert mine.num_computed == it.engine.ledger.sequences[idle.seq_id].num_computed


def test_a_positive_number_of_steps_is_never_off() -> None:
    """Symptom 28."""
    with lab(suspect_after=1) as it:
        idle, worker = it.agent("idle"), it.agent("worker")
        idle.read([1] * 8).result()
        busy(it, worker, 3)
        assert held(idle) == 0
    with pytest.raises(BadInput, match="suspect_after must be at least 0"):
        lab(suspect_after=-1)


def test_a_compaction_does_not_make_a_block_young() -> None:
    with lab(suspect_after=10) as it:
        gone, idle, worker = it.agent("gone"), it.agent("idle"), it.agent("worker")
        gone.read([3] * 20).result()
        idle.read([1] * 20).result()
        gone.close().result()
        busy(it, worker, 6)
        assert it.compact() > 0
        busy(it, worker, 5)
        assert held(idle) == 0


def test_a_tenants_blocks_age_by_its_own_steps() -> None:
    """What a neighbour does makes nothing of one's own weak, nor any later."""

    def events(loud: bool) -> list[str]:
        with lab(suspect_after=10) as it:
            mine, theirs = it.tenant("mine", private_bytes=1 << 20), it.tenant("theirs")
            idle, worker = mine.agent("idle"), mine.agent("worker")
            idle.read([1] * 20).result()
            noise = theirs.agent("noise")
            if loud:
                busy(it, noise, 60)
            busy(it, worker, 7)
            if loud:
                busy(it, noise, 60)
            before = held(idle)
            busy(it, worker, 6)
            return [
                repr(before),
                repr(held(idle)),
                *(e.cause for e in weak(it.log) if e.seq_id < 2),
            ]

    assert events(True) == events(False) == ["3", "0", WEAK]
