"""Leases by themselves under a clock of the test, then in a lab: threads, tasks, `with` blocks."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from toy import Interrupt, ToyModel

from inms_lab.books.events import Commanded
from inms_lab.config import Config
from inms_lab.errors import AgentClosed, BadInput, InmsError, LeaseExpired, LedgerViolation
from inms_lab.leases import ENDED, LIVE, OVERDUE, REMEMBERED, Leases
from inms_lab.model.forward import DryModel
from inms_lab.notebook.keeper import family
from inms_lab.notebook.lab import Lab

BEAT, LEASE = 5.0, 15.0  # seconds


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(BEAT, clock=clock)


# by themselves -----------------------------------------------------------------------------------


def test_a_lease_is_three_beats_long_and_ends_at_that_very_moment(
    leases: Leases, clock: Clock
) -> None:
    lease = leases.grant("a")
    clock.wait(LEASE - 0.001)
    assert leases.beat("a", lease.epoch)
    clock.wait(LEASE - 0.001)
    assert leases.due() == []
    leases.require("a", lease.epoch)
    clock.wait(0.001)
    assert [found for found, _ in leases.due()] == [lease]


def test_a_late_beat_never_revives_whether_or_not_anybody_has_looked(
    leases: Leases, clock: Clock
) -> None:
    unseen, seen = leases.grant("unseen"), leases.grant("seen")
    clock.wait(LEASE)
    assert not leases.beat("unseen", unseen.epoch), "it ran out before anybody looked"
    assert {lease.holder for lease, _ in leases.due()} == {"unseen", "seen"}
    assert not leases.beat("seen", seen.epoch)
    with pytest.raises(LeaseExpired, match="overdue"):
        leases.require("seen", seen.epoch)
    assert leases.release("seen", seen.epoch)
    assert not leases.beat("seen", seen.epoch)
    assert {lease.holder for lease, _ in leases.due()} == {"unseen"}


def test_epochs_only_go_up_and_a_newer_lease_makes_messages_of_the_old_one_late(
    leases: Leases,
) -> None:
    first, other, second = (leases.grant(holder) for holder in "aba")
    assert first.epoch < other.epoch < second.epoch
    assert not leases.beat("a", first.epoch)
    assert not leases.release("a", first.epoch), "a late release ended the newer lease"
    assert leases.beat("a", second.epoch)
    with pytest.raises(LeaseExpired, match=f"epoch {second.epoch} is live"):
        leases.require("a", first.epoch)
    with pytest.raises(LeaseExpired):
        leases.require("a", second.epoch + 1)
    with pytest.raises(LeaseExpired):
        leases.require("nobody", second.epoch)


@pytest.mark.parametrize("kind", ["function", "thread", "future", "raising"])
def test_an_owner_is_renewed_while_it_lives_and_not_once_after(
    leases: Leases, clock: Clock, kind: str
) -> None:
    end, future = threading.Event(), Future[None]()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()

    def lives() -> bool:
        if end.is_set() and kind == "raising":
            raise OSError("nobody is there")
        return not end.is_set()

    owner = {"thread": thread, "future": future}.get(kind, lives)
    lease = leases.grant("a", owner)
    for _ in range(5):
        clock.wait(10 * LEASE)  # however late the question comes
        assert leases.due() == []
    end.set()
    future.set_result(None)
    thread.join()
    clock.wait(LEASE - 0.001)
    assert leases.due() == [], "it has the rest of its lease"
    clock.wait(0.001)
    assert [found for found, _ in leases.due()] == [lease]
    assert not leases.beat("a", lease.epoch)


def test_a_lapse_is_at_once_and_an_excuse_lengthens_only_what_lives(
    leases: Leases, clock: Clock
) -> None:
    lapsed, excused = leases.grant("lapsed"), leases.grant("excused")
    assert leases.lapse("lapsed", lapsed.epoch, "its process is gone")
    assert not leases.lapse("lapsed", lapsed.epoch, "twice")
    leases.excuse(100)
    clock.wait(100 + LEASE - 0.001)
    assert leases.due() == [(lapsed, "its process is gone")]
    clock.wait(0.001)
    assert [lease for lease, _ in leases.due()] == [lapsed, excused]


def test_the_table_tells_states_ages_and_causes_and_stays_short(
    leases: Leases, clock: Clock
) -> None:
    live, overdue, ended = (leases.grant(name) for name in ("live", "overdue", "ended"))
    clock.wait(4)
    assert leases.release("ended", ended.epoch, "closed")
    clock.wait(LEASE - 4 - 1)
    leases.beat("live", live.epoch)
    clock.wait(2)
    rows = {row.holder: row for row in leases.rows()}
    assert (rows["live"].state, rows["live"].age) == (LIVE, 2)
    assert (rows["overdue"].state, rows["overdue"].epoch) == (OVERDUE, overdue.epoch)
    assert (rows["ended"].state, rows["ended"].age, rows["ended"].cause) == (ENDED, 4, "closed")
    for number in range(5 * REMEMBERED):
        leases.release(number, leases.grant(number).epoch)
    assert len(leases.rows()) == REMEMBERED + 2


@pytest.mark.parametrize("seed", range(20))
def test_no_run_of_operations_revives_an_epoch(seed: int) -> None:
    """Random operations beside a list of what has ended, kept in the plainest way."""
    rng, clock = random.Random(seed), Clock()
    leases = Leases(BEAT, clock=clock)
    beaten: dict[tuple[str, int], float] = {}  # of those that live
    known: list[tuple[str, int]] = []
    for _ in range(400):
        action = rng.choice(("grant", "beat", "beat", "beat", "wait", "wait", "release", "due"))
        which = rng.choice(known) if known else ("nobody", 1)
        for key, at in list(beaten.items()):
            if clock() - at >= LEASE:
                del beaten[key]
        if action == "grant":
            name = rng.choice("abc")
            lease = leases.grant(name)
            assert all(lease.epoch > epoch for _, epoch in known)
            beaten = {key: at for key, at in beaten.items() if key[0] != name}
            known.append((name, lease.epoch))
            beaten[known[-1]] = clock()
        elif action == "beat":
            assert leases.beat(*which) == (which in beaten)
            if which in beaten:
                beaten[which] = clock()
        elif action == "wait":
            clock.wait(rng.choice((1, 4, 9)))
        elif action == "release":
            leases.release(*which)
            beaten.pop(which, None)
        else:
            assert not {(lease.holder, lease.epoch) for lease, _ in leases.due()} & set(beaten)
    live = {(row.holder, row.epoch) for row in leases.rows() if row.state == LIVE}
    assert live == {key for key, at in beaten.items() if clock() - at < LEASE}


def test_threads_at_once_get_epochs_of_their_own_and_lose_no_lease() -> None:
    leases = Leases(BEAT)
    epochs: list[int] = []

    def work(name: str) -> None:
        for _ in range(200):
            lease = leases.grant(name)
            epochs.append(lease.epoch)
            assert leases.beat(name, lease.epoch)
            leases.rows()
            assert leases.due() == []
        assert leases.release(name, lease.epoch)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(set(epochs)) == 6 * 200
    assert leases.num_live == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Leases(0),
        lambda: Leases(float("nan")),
        lambda: Leases(1, beats=0),
        lambda: Leases(1).grant("a", owner="a name"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInput):
        make()


# a lab that keeps them ---------------------------------------------------------------------------

SIZE = 4  # tokens of a block


def made(**options: Any) -> Lab:
    config = Config(SIZE, 0, 64, 1000, 64, 64, 400, debug=True, **options.pop("config", {}))
    return Lab(ToyModel(50), config=config, gate=None, **options)


@pytest.fixture
def lab(clock: Clock) -> Iterator[Lab]:
    with made(clock=clock) as lab:
        lab.preload([1, 2, 3, 4, 5], progress=False)
        yield lab


def held(lab: Lab) -> int:
    """Blocks of the private pool that somebody holds."""
    return lab.look(lambda: lab.engine.ledger.pools["private"].num_held)


def ends(lab: Lab) -> list[tuple[int, str, str]]:
    """Who ended, how and why."""
    verbs = ("close", "fail", "expire")
    commands = [e for e in lab.log.events if isinstance(e, Commanded) and e.verb in verbs]
    return [(e.seq_id, e.verb, e.cause) for e in commands]


def pass_time(lab: Lab, clock: Clock, seconds: float) -> list[str]:
    """Time passes, with a tick each heartbeat; gives who was ended."""
    ended = []
    for _ in range(round(seconds / BEAT)):
        clock.wait(BEAT)
        ended += lab.keeper.tick()
    return ended


def state(lab: Lab, name: str) -> str:
    return next(row.state for holder, row in lab.leases if holder == name)


def test_a_dead_thread_s_agent_and_its_forks_end_within_a_lease_and_a_tick(
    lab: Lab, clock: Clock
) -> None:
    """Threads that return and that raise; the others' outputs are as if nothing had been."""
    agents = {name: lab.agent(name) for name in ("returns", "raises", "stays")}
    done = threading.Event()

    def work(name: str) -> None:
        me = agents[name]
        lab.lease(me)  # this thread is the owner
        me.read([7] * 9).result()
        child = me.fork().result()
        child.read([8] * 3).result()
        child.fork().result()
        if name == "stays":
            done.wait(20)
        elif name == "raises":
            raise RuntimeError("a thread dies of this")

    threads = {name: threading.Thread(target=work, args=(name,)) for name in agents}
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        for thread in threads.values():
            thread.start()
        for name in ("returns", "raises"):
            threads[name].join(20)
    finally:
        threading.excepthook = hook
    while len(lab.forks) < 6:
        time.sleep(0.01)
    before = held(lab)
    assert pass_time(lab, clock, LEASE - BEAT) == []
    assert held(lab) == before
    assert sorted(pass_time(lab, clock, 2 * BEAT)) == ["raises", "returns"]
    assert {fork.state for fork in lab.forks if fork.name != "stays"} == {"reclaimed"}
    assert 0 < held(lab) < before
    assert pass_time(lab, clock, 10 * LEASE) == []
    out = agents["stays"].write(6).result()
    assert out.tokens == lab.model.generate([1, 2, 3, 4, 5] + [7] * 9, 6)
    done.set()
    threads["stays"].join(20)
    assert pass_time(lab, clock, LEASE + BEAT) == ["stays"]
    assert held(lab) == 0
    assert {verb for _, verb, _ in ends(lab)} == {"expire"}
    lab.check()


def test_a_cancelled_task_s_block_gives_everything_back_at_once(lab: Lab) -> None:
    agent = lab.agent("a")

    async def job() -> None:
        with lab.lease(agent) as me:
            await me.read([7] * 9)
            await me.fork()
            assert held(lab) > 0
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(job())
        while not lab.forks:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert held(lab) == 0
    assert [e[1:] for e in ends(lab)] == [("fail", "its block was left by CancelledError")] * 2
    assert state(lab, "a") == ENDED


def test_a_task_that_is_cancelled_outside_a_block_runs_out(lab: Lab, clock: Clock) -> None:
    """Also one that runs on the lab's own loop, as a program does."""
    outside, inside = lab.agent("outside"), lab.agent("inside")

    async def job(me: Any) -> None:
        lab.lease(me)
        await me.read([7] * 9)
        if me is outside:
            await asyncio.sleep(60)

    async def main() -> None:
        await lab.run({inside: job})
        task = asyncio.create_task(job(outside))
        while len(outside.tokens) < 14:
            await asyncio.sleep(0.01)
        assert pass_time(lab, clock, LEASE + BEAT) == ["inside"], "its program has ended"
        task.cancel()
        await asyncio.wait([task])
        assert pass_time(lab, clock, LEASE + BEAT) == ["outside"]

    asyncio.run(main())
    assert held(lab) == 0


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt, SystemExit])
def test_leaving_the_block_ends_the_agent_in_every_way(
    lab: Lab, error: type[BaseException] | None
) -> None:
    with nullcontext() if error is None else pytest.raises(error), lab.lease(lab.agent("a")) as me:
        me.read([7] * 9).result()
        if error is not None:
            raise error("out")
    assert held(lab) == 0
    assert [verb for _, verb, _ in ends(lab)] == ["close" if error is None else "fail"]
    with pytest.raises(AgentClosed):
        me.read([1]).result()
    with pytest.raises(AgentClosed):
        lab.lease(me)


def test_without_auto_recovery_the_dead_stay_marked_until_they_are_recovered(
    clock: Clock,
) -> None:
    with made(clock=clock, config={"auto_recovery": False}) as lab:
        agent, lives = lab.agent("a"), [True]
        agent.read([7] * 9).result()
        lease = lab.lease(agent, owner=lambda: lives[0])
        lives[0] = False
        before = held(lab)
        assert pass_time(lab, clock, 10 * LEASE) == []
        assert held(lab) == before > 0
        assert state(lab, "a") == OVERDUE
        assert "overdue (its lease ran out)" in repr(lab.leases)
        lives[0] = True
        assert not lease.beat()
        assert pass_time(lab, clock, BEAT) == []
        assert state(lab, "a") == OVERDUE, "nothing revives it"
        assert lab.recover() == ["a"]
        assert held(lab) == 0
        assert lab.recover() == []
        assert state(lab, "a") == ENDED


def test_a_released_lease_leaves_the_agent(lab: Lab, clock: Clock) -> None:
    agent = lab.agent("a")
    lease = lab.lease(agent, owner=lambda: False)
    assert lease.release()
    assert not lease.release()
    assert pass_time(lab, clock, 2 * LEASE) == []
    assert agent.state == "registered"


def test_a_fork_has_a_lease_for_itself_and_an_older_lease_is_replaced(
    lab: Lab, clock: Clock
) -> None:
    agent = lab.agent("a")
    agent.read([7] * 9).result()
    child = agent.fork().result()
    first = lab.lease(child, owner=lambda: False)
    second = lab.lease(child, owner=lambda: False)
    assert second.epoch > first.epoch
    assert not first.beat()
    assert second.beat()
    assert pass_time(lab, clock, LEASE + BEAT) == [child.title]
    assert agent.state == "ready"
    assert family(lab.engine.ledger, agent.seq_id) == [agent.seq_id]


def test_an_end_that_fails_is_tried_again_and_told(
    lab: Lab, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        agent = lab.agent(name)
        agent.read([7] * 9).result()
        lab.lease(agent, owner=lambda: False)
    end, fails = lab.engine.end, [True]

    def sometimes(seq_id: int, *rest: Any) -> None:
        if seq_id == lab.agents["a"].seq_id and fails:
            fails.pop()
            raise OSError("the store failed")
        end(seq_id, *rest)

    monkeypatch.setattr(lab.engine, "end", sometimes)
    assert pass_time(lab, clock, LEASE) == ["b"], "one that fails does not keep the others"
    assert state(lab, "a") == OVERDUE
    assert pass_time(lab, clock, BEAT) == ["a"]
    assert held(lab) == 0
    with pytest.raises(OSError, match="the store failed"):
        lab.assert_clean()


def test_a_lab_without_leases_has_no_ticks_and_one_whose_leases_ended_has_none_again() -> None:
    with made(config={"heartbeat_interval": 0.02}) as lab:
        agent = lab.agent("a")
        agent.read([7] * 9).result()
        assert lab.keeper._timer is None
        lab.lease(agent, owner=lambda: False)
        until = time.monotonic() + 20
        while agent.state != "reclaimed" and time.monotonic() < until:
            time.sleep(0.01)  # the lab's own ticks, by the real clock
        assert held(lab) == 0
        while lab.keeper._timer is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert lab.keeper._timer is None
        assert repr(lab.leases).endswith("ended (its lease ran out)")


def test_an_agent_that_ended_otherwise_needs_no_lease(lab: Lab, clock: Clock) -> None:
    agent = lab.agent("a")
    lab.lease(agent, owner=lambda: True)
    agent.close().result()
    assert pass_time(lab, clock, BEAT) == []
    assert state(lab, "a") == ENDED
    assert lab.keeper.leases.num_live == 0


def test_an_interrupted_step_gives_its_pending_blocks_back_and_the_lab_goes_on(
    lab: Lab, clock: Clock
) -> None:
    """What a cell sees that is interrupted in the middle of a step: see also test_remote.py."""
    agent, other = lab.agent("a"), lab.agent("b")
    lab.lease(agent)
    agent.read([7] * 9).result()
    before = held(lab)
    pending = agent.read([8] * 20)
    lab.model.interrupt = True
    with pytest.raises(Interrupt):
        pending.result()
    assert held(lab) == before
    lab.check()
    assert other.write(4).result().tokens == lab.model.generate([1, 2, 3, 4, 5], 4)
    assert len(agent.tokens) == 5 + 9 + 20, "what was asked for is done by the next step"
    assert pass_time(lab, clock, 2 * LEASE) == [], "the thread lives"


def test_bad_owners_and_foreign_agents_are_refused(lab: Lab) -> None:
    with pytest.raises(BadInput):
        lab.lease(lab.agent("a"), owner=3)
    with pytest.raises(BadInput), made() as other:
        lab.lease(other.agent("b"))
    lab.close()
    for act in (lab.recover, lab.serve, lambda: lab.lease(lab.agents["a"])):
        with pytest.raises(InmsError, match="closed"):
            act()
    assert repr(lab.leases) == "no leases"


def test_a_lease_that_ends_while_the_lab_is_read_only_ends_its_agent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be ended then; when the books are right again, the next tick does it."""
    monkeypatch.chdir(tmp_path)
    with Lab(DryModel(100, 256, 1024), block_size=8, pool_bytes="1MiB") as lab:
        agent = lab.agent("a")
        agent.read([1] * 9).result()
        refs = lab.engine.ledger.pools["private"].refs
        block = next(iter(refs))
        held = lab.lease(agent)
        lab.look(lambda: refs.__setitem__(block, refs[block] + 1))
        with pytest.raises(LedgerViolation):
            lab.check()
        with pytest.raises(KeyError), held:
            raise KeyError("the program failed")
        lab.look(lambda: refs.__setitem__(block, refs[block] - 1))
        lab.check()
        assert agent.state == "ready"
        assert lab.keeper.tick() == ["a"]
        assert agent.state == "reclaimed"
        assert not refs
