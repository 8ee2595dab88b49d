"""The copy-on-write budget: a storm is spread over steps, in a fair line that can be looked at."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inms_lab import Lab
from inms_lab.books.events import Allocated, Copied, Stepped
from inms_lab.config import Config
from inms_lab.decisions.copies import STORM, CopyLine
from inms_lab.decisions.outcome import StepReport
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain import explain_all
from inms_lab.hindsight.whatif import what_if as compare
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_lab.serving.request import Request

FORKS = 64


def dry_lab(**options: object) -> Lab:
    options.setdefault("block_size", 16)
    options.setdefault("token_budget", 4096)
    options.setdefault("prefill_budget", 4096)
    return Lab(DryModel(100, 4096, 1024), **options)  # type: ignore[arg-type]


def forks_of(lab: Lab, count: int) -> list[Agent]:
    """A context of one and a half blocks, and so many forks of it."""
    agent = lab.agent("a")
    agent.read([1] * 24).result()
    forks = [agent.fork() for _ in range(count)]
    return [fork.result() for fork in forks]


def copies_by_step(lab: Lab) -> list[int]:
    counts, now = [], 0
    for event in lab.log.events:
        now += isinstance(event, Copied)
        if isinstance(event, Stepped):
            counts, now = [*counts, now], 0
    return counts


def allocated_by_step(lab: Lab) -> list[int]:
    counts, now = [], 0
    for event in lab.log.events:
        now += len(event.blocks) if isinstance(event, Allocated) else isinstance(event, Copied)
        if isinstance(event, Stepped):
            counts, now = [*counts, now], 0
    return counts


@pytest.mark.parametrize("budget", [1, 7, 8, 64, 1000])
def test_64_agents_that_diverge_in_one_step_keep_the_peak_under_the_budget(budget: int) -> None:
    with dry_lab(copy_budget=budget) as lab:
        forks = forks_of(lab, FORKS)
        answers = [fork.read([2, 3]) for fork in forks]  # 64 partial blocks with 65 holders
        for answer in answers:
            answer.result()
        told = lab.copies
        assert max(copies_by_step(lab)) == told.peak == min(budget, FORKS)
        assert told.num_copied == FORKS == sum(copies_by_step(lab))
        assert told.longest_wait == -(-FORKS // budget) - 1  # who is last waits for all the others
        assert told.num_waited == max(0, FORKS - budget)
        assert told.waiting == ()
        assert [fork.tokens for fork in forks] == [[1] * 24 + [2, 3]] * FORKS
        lab.check()


def test_the_line_is_served_in_the_order_of_asking() -> None:
    with dry_lab(copy_budget=4) as lab:
        forks = forks_of(lab, 16)
        for fork in reversed(forks):
            fork.read([2])
        lab.run_to()
        copied = [e.seq_id for e in lab.log.events if isinstance(e, Copied)]
        assert copied == sorted(copied)  # all asked before the first step: by registration


def test_who_came_first_goes_first_whatever_comes_later() -> None:
    """Writers that come while others wait stand behind them, though they registered before."""
    with dry_lab(copy_budget=2) as lab:
        forks = forks_of(lab, 12)
        early, late = forks[6:], forks[:6]
        for fork in early:
            fork.read([2])
        asyncio.run(lab.step(1))
        assert lab.copies.waiting == tuple(fork.title for fork in early[2:])
        for fork in late:
            fork.read([3])
        lab.run_to()
        copied = [e.seq_id for e in lab.log.events if isinstance(e, Copied)]
        assert copied == [fork.seq_id for fork in (*early, *late)]
        assert lab.copies.longest_wait == 4  # late came at step 2; the last of them copies at 6


def test_a_waiting_writer_has_nothing_of_its_chunk() -> None:
    """All or nothing: neither a block nor a token of a writer's chunk before it may copy."""
    with dry_lab(copy_budget=1) as lab:
        forks = forks_of(lab, 3)
        for fork in forks:
            fork.read([2] * 40)
        asyncio.run(lab.step(1))
        books = lab.engine.ledger
        reached = [books.sequences[fork.seq_id].num_computed for fork in forks]
        assert reached == [64, 24, 24]
        held = [len(books.sequences[fork.seq_id].segments[-1].blocks) for fork in forks]
        assert held == [4, 2, 2]


def test_an_edit_of_sealed_text_waits_in_the_same_line() -> None:
    with dry_lab(copy_budget=1) as lab:
        lab.preload(list(range(40)))
        agents = [lab.agent(f"a{n}") for n in range(4)]
        lab.run_to()
        lab.text.decode = lambda ids: " ".join(map(str, ids))  # type: ignore[method-assign,assignment]
        lab.text.encode = lambda text, role=None: [*map(int, text.split())]  # type: ignore[method-assign,assignment,union-attr]
        edits = [agent.rewrite("20 21", "90 91") for agent in agents]
        lab.run_to()
        for edit, agent in zip(edits, agents, strict=True):
            edit.result()
            assert agent.tokens[20:22] == [90, 91]
        copied = [e for e in lab.log.events if isinstance(e, Copied)]
        assert [e.seq_id for e in copied] == [agent.seq_id for agent in agents]
        assert lab.copies.peak == 1
        assert lab.copies.longest_wait == 3


def test_who_ends_while_waiting_leaves_the_line() -> None:
    with dry_lab(copy_budget=1) as lab:
        forks = forks_of(lab, 4)
        for fork in forks:
            fork.read([2])
        asyncio.run(lab.step(1))
        assert len(lab.copies.waiting) == 3
        forks[1].close()
        forks[2].close()
        lab.run_to()
        assert lab.copies.waiting == ()
        assert lab.copies.longest_wait == 1  # the fourth did not wait for those that left
        lab.check()


def test_a_waiting_writer_is_told_apart_in_the_log_and_explained() -> None:
    with dry_lab(copy_budget=1) as lab:
        for fork in forks_of(lab, 3):
            fork.read([2])
        lab.run_to()
        waits = [d for d in lab.log.decisions if d.check == 7]
        assert {(d.outcome, d.reason) for d in waits} == {("deferred", STORM)}
        for told in explain_all(lab.log, waits):
            (part,) = told.parts
            room = part.checks[-1]
            assert (part.outcome, part.num_blocks) == ("deferred", 1)
            assert (room.verdict, room.why) == ("no", STORM)
            assert {check.verdict for check in part.checks[:3]} == {"not needed"}
        for made in waits:
            again = compare(lab.log, made)
            assert again.real.decided.outcome == again.other.decided.outcome == "deferred"


def test_the_budget_can_be_changed_while_a_storm_waits() -> None:
    with dry_lab(copy_budget=1) as lab:
        for fork in forks_of(lab, 12):
            fork.read([2])
        asyncio.run(lab.step(1))
        lab.controls.configure(copy_budget=20)
        lab.run_to()
        assert lab.copies.peak == 11
        assert lab.copies.longest_wait == 1


def test_a_budget_of_none_is_refused() -> None:
    """Symptom 28: no small value means "off"."""
    with pytest.raises(BadInput, match="copy_budget must be at least 1"):
        Config(copy_budget=0)


def test_equal_storms_give_equal_logs() -> None:
    def log() -> list[object]:
        with dry_lab(copy_budget=3) as lab:
            for fork in forks_of(lab, 10):
                fork.read([2] * 20)
            lab.run_to()
            return [*lab.log.events, *lab.log.decisions]

    assert log() == log()


def test_a_long_retrieval_takes_no_more_blocks_in_a_step_than_its_budgets() -> None:
    """After a storm of forks each reads 1,000 tokens: a step's new blocks stay within what the
    token budget fills, one begun block for each writer of the step, and the copy budget."""
    budget, copies, size = 256, 4, 16
    with dry_lab(copy_budget=copies, token_budget=budget, prefill_budget=budget) as lab:
        forks = forks_of(lab, 8)
        reports: list[StepReport] = []
        with lab.watching(reports.append):
            for number, fork in enumerate(forks):
                fork.read([number] * 1000)
            lab.run_to()
        taken = allocated_by_step(lab)[-len(reports) :]
        bounds = [budget // size + len(report.chunks) + copies for report in reports]
        assert all(now <= most for now, most in zip(taken, bounds, strict=True))
        assert sum(taken) == 8 * 63  # each: its copy of a half block, and 62 blocks behind it


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(1, 5),
    arrivals=st.lists(st.lists(st.integers(0, 30), max_size=8), min_size=1, max_size=12),
)
def test_nobody_overtakes_in_the_line(budget: int, arrivals: list[list[int]]) -> None:
    """Whoever asks, and whenever: served in order of asking, and none waits longer than the line
    before it needs."""
    line, asked, served = CopyLine(), dict[int, int](), list[int]()
    waiting: list[int] = []
    for step, new in enumerate([*arrivals, *([[]] * 60)], 1):
        line.begin(budget, lambda _: True)
        for who in [*waiting, *(n for n in dict.fromkeys(new) if n not in waiting)]:
            asked.setdefault(who, step)
            if line.left:
                line.took(who, 1)
                served.append(who)
                waiting = [w for w in waiting if w != who]
                longest = step - asked.pop(who)
                assert longest <= line.longest
            else:
                line.wait(who)
                waiting = [*waiting, who] if who not in waiting else waiting
        assert list(line.line) == waiting
        assert line.left >= 0
    assert not waiting
    assert line.longest <= -(-8 * 12 // budget)
    assert line.peak <= budget
    report = line.report(budget, str)
    assert report.num_copied == len(served)
    assert "at most" in repr(report)


def test_a_line_that_still_waits_counts_up_to_now() -> None:
    line = CopyLine()
    for _ in range(4):
        line.begin(1, lambda _: True)
        line.wait(9)
    told = line.report(1, lambda i: f"agent {i}")
    assert (told.longest_wait, told.waiting) == (3, ("agent 9",))
    assert "waiting: agent 9" in repr(told)
    assert all(a <= b for a, b in pairwise((told.num_copied, told.longest_wait)))


def test_who_waited_and_needs_no_copy_after_all_leaves_the_line() -> None:
    """The last holder of a block that all others copied owns it: it writes, and holds up nobody."""
    with dry_lab(copy_budget=1) as lab:
        parent = lab.agent("p")
        parent.read([5] * 12).result()
        forks = [parent, parent.fork().result(), parent.fork().result()]
        other = lab.agent("x")
        other.read([9] * 12).result()
        writes = [fork.write(40, stop=False) for fork in forks]
        asyncio.run(lab.step(6))
        told = lab.copies
        assert (told.num_copied, told.waiting) == (2, ())
        assert told.longest_wait <= 2
        edit = Request(other.seq_id, "rewrite", [8] * 3)
        edit.start, edit.count = 2, 3
        other.ask(edit).result()
        assert other.tokens == [9, 9, 8, 8, 8, *[9] * 7]
        assert [len(write.result().tokens) for write in writes] == [40] * 3
