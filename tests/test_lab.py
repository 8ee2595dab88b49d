"""The lab as a notebook uses it: agents, groups, programs, three ways to drive, bad input."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import torch

from inms_lab import Lab
from inms_lab.books.events import Shared, Stepped
from inms_lab.config import Config
from inms_lab.decisions.policy import Inms
from inms_lab.errors import (
    AgentClosed,
    BadInput,
    ContextTooLong,
    EmptyText,
    InmsError,
    LabClosed,
    NotAMember,
    SealedTier,
    StepInterrupted,
    TextTooLarge,
    TokenOutOfRange,
    UnknownGroup,
)
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_lab.serving.pending import Pending
from inms_lab.serving.request import Request

PROMPT, TOOLS = list(range(40)), list(range(50, 80))
Programs = dict[Agent, Callable[[Agent], Awaitable[object]]]


def dry_lab(**options: object) -> Lab:
    options.setdefault("block_size", 16)
    return Lab(DryModel(100, 2048, 1024), debug=True, **options)  # type: ignore[arg-type]


def scenario(lab: Lab) -> Programs:
    lab.preload(PROMPT, tools=TOOLS)
    team = lab.group("checkout")
    a, b, c = team.agents("architect", "backend", "frontend")

    async def architect(me: Agent) -> object:
        me.read([1, 2, 3] * 10)
        return (await me.write(8)).tokens

    async def backend(me: Agent) -> object:
        me.attach(team)
        me.read([4] * 20)
        await me.write(5)
        child = await me.fork()
        child.read([9] * 5)
        await child.write(3)
        me.read([8] * 3)
        await me.write(2)
        return me.tokens[-5:]

    async def frontend(me: Agent) -> object:
        await asyncio.sleep(0)
        me.read([7, 7, 7])
        await me.write(4)
        raise ValueError("boom")

    team.publish([11] * 30, by=a)
    return {a: architect, b: backend, c: frontend}


def by_run(lab: Lab, programs: Programs) -> None:
    asyncio.run(lab.run(programs))


def by_steps(lab: Lab, programs: Programs) -> None:
    async def steps() -> None:
        for _ in range(60):
            await lab.step()

    lab.start(programs)
    asyncio.run(steps())


def by_index(lab: Lab, programs: Programs) -> None:
    lab.start(programs)
    for index in range(0, 400, 3):
        lab.run_to(index)


def test_the_three_ways_to_drive_give_one_log() -> None:
    logs = []
    for drive in (by_run, by_steps, by_index):
        with dry_lab() as lab:
            drive(lab, scenario(lab))
            results = lab.results()
            assert results["architect"] == [0] * 8
            assert results["backend"] == [8, 8, 8, 0, 0]
            assert isinstance(results["frontend"], ValueError)
            logs.append(list(map(repr, lab.log.events)))
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) > 50


def test_one_failing_program_leaves_the_others_alone_and_is_raised_at_the_end() -> None:
    lab = dry_lab()
    asyncio.run(lab.run(scenario(lab)))
    assert lab.agents["frontend"].state == "reclaimed"
    assert lab.agents["backend"].state == "ready"
    assert "frontend: failed with ValueError('boom')" in repr(lab.results())
    with pytest.raises(ValueError, match="boom"):
        lab.assert_clean()
    lab.close()


def test_the_prompt_is_held_once_and_a_record_is_mounted_where_it_is_a_prefix() -> None:
    with dry_lab() as lab:
        lab.preload(PROMPT, tools=TOOLS)
        team = lab.group("t")
        early, late = team.agents("early", "late")
        team.publish([11] * 30, by=early)
        late.read([5] * 10).result()  # now the record is no prefix of its context
        for agent in (early, late):
            agent.attach(team).result()
        books = lab.engine.ledger
        refs = books.pools["global"].refs
        assert set(refs.values()) == {4}  # the prompt's holder, the record's, two agents
        assert set(books.pools["group:t"].refs.values()) == {2}  # the record's holder, early
        tiers = [s.tier for s in books.sequences[late.seq_id].segments]
        assert tiers == ["global", "global", "private", "private"]
        label = books.sequences[late.seq_id].segments[-1].label
        assert label == ("agent:late", "group:t")  # the join, also where it is computed again
        assert lab.bill().saved > 0.25
        lab.assert_clean()


def test_a_rewritten_prompt_is_copied_for_one_agent_only() -> None:
    with dry_lab() as lab:
        lab.preload(PROMPT)
        one, two = (lab.agent(name) for name in ("one", "two"))
        one.read([90]).result()
        two.read([91]).result()
        two.rewrite("20 21", "77 77") if lab.text.tokenizer else _rewrite(lab, two, 20, [77, 77])
        lab.run_to()
        assert one.tokens[:40] == PROMPT
        assert two.tokens[:40] == [*range(20), 77, 77, *range(22, 40)]
        copied = [e for e in lab.log.events if type(e).__name__ == "Copied"]
        # the tile (64 tokens) that the edit goes through begins at 0: its first block is copied
        places = [(e.src_pool, e.pool_id, e.num_slots) for e in copied]
        assert places == [("global", "private", 16)]
        lab.assert_clean()


def _rewrite(lab: Lab, agent: Agent, start: int, tokens: list[int]) -> None:
    lab.submit(Request(agent.seq_id, "rewrite", tokens, start=start, count=len(tokens)))


def test_fork_rollback_and_logits() -> None:
    with dry_lab() as lab:
        agent = lab.agent("a")
        agent.read([1, 2, 3, 4]).result()
        child = agent.fork().result()
        assert isinstance(child, Agent)
        child.rollback(2).result()
        child.read([9]).result()
        assert (agent.tokens, child.tokens) == ([1, 2, 3, 4], [1, 2, 9])
        assert isinstance(agent.next_logits().result(), torch.Tensor)
        copied = [e for e in lab.log.events if type(e).__name__ == "Copied"]
        assert len(copied) == 1
        lab.assert_clean()


def test_streamed_pieces_are_the_output() -> None:
    class Letters:
        chat_template = None

        def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
            return "".join(chr(97 + i % 26) for i in ids)

        def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
            return {"input_ids": [ord(c) % 100 for c in text]}

    model = DryModel(100, 2048, 1024)
    model.tokenizer = Letters()
    with Lab(model, block_size=16) as lab:
        agent = lab.agent("a")

        async def program(me: Agent) -> list[str]:
            me.read("hello", role=None)
            return [piece async for piece in me.stream(5, stop=False)]

        results = asyncio.run(lab.run({agent: program}))
        assert results["a"] == ["a"] * 5 == list(agent.outputs[0])
        lab.assert_clean()


BAD: list[tuple[type[Exception], str, Callable[[Lab], object]]] = [
    (TokenOutOfRange, "vocabulary", lambda lab: lab.agents["a"].read([3, 100])),
    (TokenOutOfRange, "vocabulary", lambda lab: lab.agents["a"].read([-1])),
    (EmptyText, "at least one word", lambda lab: lab.agents["a"].read([])),
    (EmptyText, "at least one word", lambda lab: lab.agents["a"].read("")),
    (BadInput, "token ids instead of text", lambda lab: lab.agents["a"].read("words")),
    (ContextTooLong, "limit is 2048", lambda lab: lab.agents["a"].read([1] * 2049).result()),
    (ContextTooLong, "limit is 2048", lambda lab: lab.agents["a"].write(3000).result()),
    (TextTooLarge, "larger pool", lambda lab: lab.agents["a"].read([1] * 1200).result()),
    (BadInput, "max_tokens", lambda lab: lab.agents["a"].write(0)),
    (BadInput, "temperature", lambda lab: lab.agents["a"].write(2, temperature=-1)),
    (SealedTier, "preload", lambda lab: lab.agents["a"].read([1], tier="global")),
    (SealedTier, "publish", lambda lab: lab.agents["a"].read([1], tier="group")),
    (UnknownGroup, "no group 'x'", lambda lab: lab.agent("z", groups=["x"])),
    (BadInput, "close it, or run", lambda lab: lab.agent("a")),
    (NotAMember, "not in t", lambda lab: lab.agents["a"].attach(lab.groups["t"])),
    (NotAMember, "not in t", lambda lab: lab.groups["t"].publish([1], by=lab.agents["a"])),
    (EmptyText, "no token", lambda lab: lab.groups["t"].publish([], by=lab.agents["m"])),
    (BadInput, "before the first agent", lambda lab: lab.preload([1, 2])),
    (BadInput, "cannot keep", lambda lab: lab.agents["a"].rollback(99).result()),
    (BadInput, "to drop", lambda lab: lab.agents["a"].rollback(1.5)),
    (BadInput, "whole number", lambda lab: lab.agents["a"].write(2.5)),
    (BadInput, "whole number", lambda lab: lab.agents["a"].write(None)),
    (BadInput, "whole numbers", lambda lab: lab.agents["a"].read([1.5])),
    (BadInput, "whole numbers", lambda lab: lab.agents["a"].read(["a"])),
    (BadInput, "not NoneType", lambda lab: lab.agents["a"].read(None)),
    (BadInput, "no role", lambda lab: lab.agents["a"].read("x", role="kaiser")),
    (BadInput, "temperature", lambda lab: lab.agents["a"].write(2, temperature=float("nan"))),
    (BadInput, "on_token", lambda lab: lab.agents["a"].write(2, on_token=3)),
    (UnknownGroup, "say for whom", lambda lab: lab.agents["a"].attach("t")),
    (BadInput, "agent of this lab", lambda lab: lab.groups["t"].publish([1], by="m")),
    (BadInput, "printable name", lambda lab: lab.agent("")),
    (BadInput, "printable name", lambda lab: lab.group(None)),
    (BadInput, "list of names", lambda lab: lab.agent("z", groups="t")),
    (BadInput, "pass a dict", lambda lab: asyncio.run(lab.run([lab.agents["a"]]))),
    (BadInput, "function to run", lambda lab: asyncio.run(lab.run({"a": print}))),
    (BadInput, "no single segment", lambda lab: lab.agents["a"].rewrite("none", "x")),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_a_named_error_and_the_lab_goes_on(number: int) -> None:
    error, words, act = BAD[number]
    with dry_lab(pool_bytes=1024 * 16 * 64) as lab:
        lab.group("t").agents("m")
        agent = lab.agent("a")
        agent.read([1, 2, 3]).result()
        with pytest.raises(error, match=re.escape(words)):
            act(lab)
        agent.read([4]).result()
        assert agent.tokens == [1, 2, 3, 4]
        lab.assert_clean()


def test_an_agent_after_close_and_a_lab_after_close() -> None:
    lab = dry_lab()
    agent = lab.agent("a")
    agent.read([1] * 20).result()
    agent.close().result()
    assert lab.engine.ledger.pools["private"].num_held == 0
    with pytest.raises(AgentClosed, match="make a new agent"):
        agent.read([1])
    again = lab.agent("a")  # the name is free
    again.read([2]).result()
    lab.close()
    lab.close()
    with pytest.raises(LabClosed):
        again.read([1])
    with pytest.raises(LabClosed):
        lab.agent("b")


def test_no_room_is_an_error_for_the_agent_that_nobody_can_help() -> None:
    with dry_lab(pool_bytes=1024 * 16 * 4) as lab:
        one, two = lab.agent("one"), lab.agent("two")
        one.read([1] * 60).result()
        two.read([2] * 60).result()  # takes the idle agent's KV
        assert len(one.tokens) == 60
        assert (one.state, lab.engine.ledger.sequences[one.seq_id].num_computed) == ("ready", 0)
        one.next_logits().result()  # and it comes back when it is asked for
        children = [one.fork().result() for _ in range(3)]
        for number, child in enumerate(children):
            child.read([number] * 4)
        lab.run_to()
        assert [child.tokens[60:] for child in children] == [[0] * 4, [1] * 4, [2] * 4]
        lab.assert_clean()
    with dry_lab(pool_bytes=1024 * 16 * 2) as lab:
        with pytest.raises(TextTooLarge):
            lab.agent("big").read([1] * 50).result()
        lab.assert_clean()


def test_a_record_that_does_not_fit_is_refused_and_leaves_nothing_behind() -> None:
    config = Config(block_size=16, context=2048, group_bytes=1024 * 16 * 2, debug=True)
    with Lab(DryModel(100, 2048, 1024), config=config) as lab:
        team = lab.group("t")
        (author,) = team.agents("a")
        kept = team.publish([5] * 20, by=author)
        with pytest.raises(TextTooLarge, match="larger pool"):
            team.publish([6] * 20, by=author)
        assert team.records == [kept]
        author.attach(team).result()
        assert author.tokens == [5] * 20
        lab.assert_clean()


class Slow(DryModel):
    """A model whose forward takes its time and looks at `cancel`, as the real one does."""

    def forward(self, spans, store, tile, cancel=None):  # type: ignore[no-untyped-def]
        for _ in range(20):
            time.sleep(0.005)
            if cancel is not None and cancel.is_set():
                raise StepInterrupted("stopped")
        return super().forward(spans, store, tile, cancel)


def test_an_interrupted_run_leaves_the_lab_usable() -> None:
    lab = Lab(Slow(100, 2048, 1024), block_size=16, debug=True)
    agent = lab.agent("a")

    async def program(me: Agent) -> object:
        me.read([1] * 30)
        return await me.write(100)

    async def impatient() -> None:
        task = asyncio.ensure_future(lab.run({agent: program}))
        await asyncio.sleep(0.25)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    lab.check()
    assert agent.state == "ready"
    length = len(agent.tokens)
    agent.write(2).result()
    assert len(agent.tokens) == length + 2
    lab.assert_clean()


def test_an_interrupt_while_a_plain_call_waits() -> None:
    lab = Lab(Slow(100, 2048, 1024), block_size=16, debug=True)
    agent = lab.agent("a")
    agent.read([1] * 30)
    pending = agent.write(100)
    timer = threading.Timer(0.25, lab.driver.interrupt)
    timer.start()
    with pytest.raises(StepInterrupted):
        pending.result()
    lab.check()
    agent.read([2]).result()
    lab.assert_clean()


def test_commands_hammered_from_other_threads() -> None:
    """ipykernel runs button handlers on another thread (jupyterlab#19719): invariants hold."""
    with dry_lab() as lab:
        lab.preload(PROMPT)
        agents = [lab.agent(f"a{i}") for i in range(4)]
        errors: list[BaseException] = []

        def hammer(agent: Agent) -> None:
            try:
                for i in range(20):
                    agent.read([i + 1] * 3)
                    if i % 5 == 4:
                        agent.write(2).result()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=hammer, args=(agent,)) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        lab.run_to()
        assert errors == []
        assert [len(agent.tokens) for agent in agents] == [40 + 60 + 8] * 4
        lab.assert_clean()


def test_awaiting_from_a_notebooks_own_loop_drives_the_lab() -> None:
    async def cell() -> list[int]:
        agent = lab.agent("a")
        pending: Pending[int] = agent.read([1, 2, 3])
        assert await pending == 3
        return (await agent.write(2)).tokens

    with dry_lab() as lab:
        assert asyncio.run(cell()) == [0, 0]
        lab.assert_clean()


def test_result_inside_a_program_says_what_to_do() -> None:
    with dry_lab() as lab:
        agent = lab.agent("a")

        async def program(me: Agent) -> object:
            return me.read([1]).result()

        result = asyncio.run(lab.run({agent: program}))["a"]
        assert isinstance(result, InmsError)
        assert "await" in str(result)


def test_config_refuses_what_cannot_work() -> None:
    with pytest.raises(BadInput, match="divide"):
        Config(block_size=16, tile=24)
    with pytest.raises(BadInput, match="one block"):
        dry_lab(pool_bytes=100)
    with pytest.raises(BadInput, match="no mode"):
        dry_lab(mode="none")


# found by somebody who tried to break it ---------------------------------------------------------


def run(lab: Lab, programs: Programs) -> dict[str, object]:
    return asyncio.run(asyncio.wait_for(lab.run(programs), 20))


def test_a_program_may_wait_for_something_else_and_then_ask_the_engine() -> None:
    async def slow_tool(me: Agent) -> object:
        await asyncio.sleep(0.02)
        me.read([1, 2])
        await asyncio.to_thread(time.sleep, 0.02)
        return (await me.write(2)).tokens

    with dry_lab() as lab:
        assert run(lab, {lab.agent("a"): slow_tool}) == {"a": [0, 0]}
        lab.assert_clean()


def test_a_fork_and_its_parent_have_results_of_their_own() -> None:
    async def program(me: Agent) -> object:
        await me.write(2)
        return me.title

    with dry_lab() as lab:
        parent = lab.agent("a")
        parent.read([1, 2]).result()
        pending = parent.fork()
        child = pending.result()
        assert pending.result() is child
        assert run(lab, {parent: program, child: program}) == {"a": "a", "a/1": "a/1"}


def test_two_runs_at_once_give_each_its_own_results() -> None:
    async def program(me: Agent) -> object:
        me.read([1])
        await me.write(3)
        return me.name

    async def both() -> list[object]:
        return await asyncio.gather(lab.run({a: program}), lab.run({b: program}))

    with dry_lab() as lab:
        a, b = lab.agent("a"), lab.agent("b")
        assert asyncio.run(asyncio.wait_for(both(), 20)) == [{"a": "a"}, {"b": "b"}]


def test_a_program_that_drives_or_closes_its_own_lab_is_told_not_to() -> None:
    async def nested(me: Agent) -> object:
        return await lab.run({})

    async def sync(me: Agent) -> object:
        return lab.run_to()

    async def close(me: Agent) -> object:
        return lab.close()

    with dry_lab() as lab:
        programs = {lab.agent(p.__name__): p for p in (nested, sync, close)}
        results = run(lab, programs)
        assert all("wait for itself" in str(error) for error in results.values())
        assert not lab.closed


def test_a_tool_that_exits_fails_its_agent_only() -> None:
    async def exits(me: Agent) -> object:
        raise SystemExit(3)

    async def goes_on(me: Agent) -> object:
        me.read([1])
        return (await me.write(2)).tokens

    def plain(me: Agent) -> object:
        return 1

    with dry_lab() as lab:
        a, b, c = (lab.agent(name) for name in "abc")
        results = run(lab, {a: exits, b: goes_on, c: plain})
        assert isinstance(results["a"], SystemExit)
        assert results["b"] == [0, 0]
        assert "async def" in str(results["c"])
        assert run(lab, {b: goes_on}) == {"b": [0, 0]}


def test_a_callback_that_exits_stays_with_its_caller() -> None:
    def on_token(piece: str) -> None:
        raise SystemExit(1)

    lab = dry_lab()
    a, b = lab.agent("a"), lab.agent("b")
    a.read([1])
    b.read([1])
    assert a.write(2, on_token=on_token).result().tokens == [0, 0]
    assert b.write(2).result().tokens == [0, 0]
    with pytest.raises(SystemExit):
        lab.assert_clean()
    assert lab.closed


def test_checking_while_the_lab_works_raises_no_false_alarm() -> None:
    with dry_lab() as lab:
        agent = lab.agent("a")
        agent.read([1])
        pending = agent.write(400)
        thread = threading.Thread(target=pending.result)
        thread.start()
        while thread.is_alive():
            lab.check()
        assert len(agent.tokens) == 401


def test_a_cancelled_request_behind_a_refused_one() -> None:
    with dry_lab(context=64) as lab:
        agent, other = lab.agent("a"), lab.agent("b")
        refused, cancelled, behind = agent.read([1] * 500), agent.read([2]), agent.read([3])
        assert cancelled.future.cancel()
        assert other.read([4]).result() == 1
        for pending in (refused, behind):
            with pytest.raises(ContextTooLong):
                pending.result()
        lab.assert_clean()


def test_a_preload_that_fails_leaves_nothing_behind() -> None:
    with dry_lab(context=64) as lab:
        lab.preload([7] * 20, progress=False)
        with pytest.raises(ContextTooLong):
            lab.preload([1] * 10, tools=[2] * 90, progress=False)
        lab.preload([3] * 5, progress=False)
        agent = lab.agent("a")
        agent.read([9]).result()
        assert agent.tokens == [7] * 20 + [3] * 5 + [9]
        refs = lab.engine.ledger.pools["global"].refs
        assert set(refs.values()) == {2}
        lab.assert_clean()


def test_a_record_is_read_once_it_is_read_and_again_after_a_rollback() -> None:
    with dry_lab(context=128) as lab:
        a, b = lab.group("t").agents("a", "b")
        team = lab.groups["t"]
        team.publish([9] * 40, by=a)
        b.read([1] * 100).result()
        with pytest.raises(ContextTooLong):
            b.attach(team).result()
        b.rollback(60).result()
        b.attach(team)
        assert b.attach(team).result() == 80
        b.rollback(20).result()
        b.attach(team).result()
        assert b.tokens == [1] * 40 + [9] * 20 + [9] * 40
        lab.assert_clean()


def test_requests_that_nobody_awaits_keep_their_order() -> None:
    with dry_lab() as lab:
        agent = lab.agent("a")
        agent.read([1, 2, 3])
        agent.rollback(2)
        agent.write(2)
        agent.read([4]).result()
        assert agent.tokens == [1, 0, 0, 4]
        assert [output.tokens for output in agent.outputs] == [[0, 0]]
        lab.assert_clean()


def test_things_of_another_lab_are_refused() -> None:
    async def program(me: Agent) -> object:
        raise ValueError

    with dry_lab() as lab, dry_lab() as other:
        (mine,) = lab.group("t").agents("a")
        (theirs,) = other.group("t").agents("a")
        with pytest.raises(BadInput, match="of this lab"):
            lab.groups["t"].publish([1], by=theirs)
        with pytest.raises(BadInput, match="no group"):
            mine.attach(other.groups["t"])
        with pytest.raises(BadInput, match="another lab"):
            run(lab, {theirs: program})
        assert (mine.state, theirs.state) == ("registered", "registered")
        mine.close().result()
        with pytest.raises(AgentClosed):
            lab.groups["t"].publish([1], by=mine)
        with pytest.raises(AgentClosed):
            mine.attach(lab.groups["t"])


def test_a_lesson_without_the_pending_check_lets_a_reader_in_early_and_the_engine_goes_on() -> None:
    with Lab(DryModel(100, 2048, 1024), block_size=16, mode=Inms().without("pending")) as lab:
        engine = lab.engine
        prompt = engine.register("prompt", "prompt", frozenset())
        reader = engine.register("agent", "a", frozenset({"agent:a"}))
        for seq_id in (prompt, reader):
            lab.submit(Request(seq_id, "append", PROMPT, "global", seal=True))
        lab.run_to()
        shared = next(e for e in lab.log.events if isinstance(e, Shared))
        written = next(i for i, e in enumerate(lab.log.events) if isinstance(e, Stepped))
        assert lab.log.events.index(shared) < written  # mounted before it was written
        assert len(engine.ledger.sequences[reader].tokens()) == len(PROMPT)
