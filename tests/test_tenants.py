"""Tenants: one's plans, work and results are functions of its own history, whatever the others do.

Symptom 30 (Mooncake#3741): an over-quota tenant silently loses writes, a loud one starves a quiet
one. Here the order is documented (evict own, own idle agents give way, own later ones, then refused
with the reason), pools never lend, and each agent may have a floor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import one_thread, tiny  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from inms_lab import Lab
from inms_lab.books.events import Allocated, Commanded, Copied, Event, Evicted, Freed, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.books.lifecycle import LIVE
from inms_lab.decisions.outcome import Plan
from inms_lab.errors import (
    BadInput,
    InmsError,
    NotAMember,
    ParcelRefused,
    PlanInvalid,
    PoolExhausted,
    TextTooLarge,
    UnknownGroup,
)
from inms_lab.hindsight.whatif import what_if
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.tenants import Tenant

SIZE = 8
TOKEN = 1024  # bytes of the dry model's KV for a token


def dry_lab(**options: Any) -> Lab:
    options.setdefault("block_size", SIZE)
    return Lab(DryModel(100, 512, TOKEN), **options)


def blocks(count: int) -> int:
    return count * SIZE * TOKEN


def small(lab: Lab, name: str, private: int = 16, **more: Any) -> Tenant:
    quotas = {
        "private_bytes": blocks(private),
        "group_bytes": blocks(16),
        "global_bytes": blocks(8),
    }
    return lab.tenant(name, **(quotas | more))


# what a tenant is ------------------------------------------------------------------------------


def test_a_tenant_has_pools_prompt_groups_and_agents_of_its_own() -> None:
    with dry_lab(debug=True, pool_bytes=blocks(16)) as lab:
        lab.preload([1] * 20)
        acme = small(lab, "acme")
        acme.preload([2] * 12)
        team, other = acme.group("team"), lab.group("team")
        agent, mine = acme.agent("a", groups=["team"]), lab.agent("a", groups=["team"])
        team.publish([5] * 16, by=agent)
        other.publish([6] * 16, by=mine)
        agent.attach(team).result()
        mine.attach(other).result()
        assert agent.tokens == [2] * 12 + [5] * 16
        assert mine.tokens == [1] * 20 + [6] * 16
        assert (agent.name, team.name, agent.tenant) == ("acme/a", "acme/team", "acme")
        own = {"acme/global", "group:acme/team", "acme/private"}
        used = {s.pool_id for s in lab.engine.ledger.sequences[agent.seq_id].segments}
        assert used <= own
        assert {
            p for p, pool in lab.engine.ledger.pools.items() if pool.spec.tenant == "acme"
        } == own
        assert lab.tenant("acme") is acme
        assert [*acme.agents] == ["acme/a"]
        assert [*acme.groups] == ["acme/team"]
        assert "acme: 1 agents, 1 groups" in repr(acme)
        lab.assert_clean()


REFUSED: list[tuple[type[InmsError], str, Callable[[Lab], object]]] = [
    (BadInput, "no slash", lambda lab: lab.tenant("a/b")),
    (BadInput, "no colon", lambda lab: lab.tenant("group:mine")),
    (BadInput, "would have", lambda lab: lab.tenant("new", private_bytes=1 << 60)),
    (BadInput, "smaller floor", lambda lab: small(lab, "new", 4, floor_bytes=blocks(5))),
    (BadInput, "printable", lambda lab: lab.tenant("")),
    (BadInput, "no setting 'block_size'", lambda lab: lab.tenant("new", block_size=4)),
    (BadInput, "chosen once", lambda lab: lab.tenant("acme", token_budget=4)),
    (BadInput, "do not hold one block", lambda lab: lab.tenant("new", private_bytes=1)),
    (BadInput, "name of the tenant acme", lambda lab: lab.agent("acme/a")),
    (BadInput, "name of the tenant acme", lambda lab: lab.group("acme/team")),
    (BadInput, "name of this tenant", lambda lab: lab.tenant("taken")),
    (BadInput, "exists", lambda lab: lab.tenant("acme").agent("a")),
    (UnknownGroup, "no group 'mine'", lambda lab: lab.tenant("acme").agent("b", groups=["mine"])),
    (NotAMember, "not in acme/team", lambda lab: attach_across(lab)),
]


def attach_across(lab: Lab) -> object:
    return lab.agents["quiet"].attach(lab.groups["acme/team"])


@pytest.mark.parametrize(("kind", "words", "act"), REFUSED)
def test_bad_input_is_refused_by_name(
    kind: type[InmsError], words: str, act: Callable[[Lab], object]
) -> None:
    with dry_lab() as lab:
        acme = small(lab, "acme")
        acme.group("team")
        lab.group("mine")
        acme.agent("a")
        lab.agent("quiet")
        lab.agent("taken/a")
        before = len(lab.log)
        with pytest.raises(kind, match=words):
            act(lab)
        assert len(lab.log) == before


def test_the_door_refuses_text_in_another_tenants_pool() -> None:
    """Check 3 once more: an edited plan cannot put text where another tenant's lies."""
    with dry_lab() as lab:
        acme = small(lab, "acme")
        agent, foreign = acme.agent("a"), lab.agent("b")
        agent.read([1] * 20).result()
        foreign.read([1] * 20).result()
        made = next(e for e in lab.log.events if isinstance(e, Commanded) and e.seq_id == 1)
        forged = replace(made, number=2, pool_id="acme/private")
        with pytest.raises(PlanInvalid, match="another tenant's"):
            lab.look(lambda: lab.engine.cache.commit(Plan(len(lab.log), (forged,))))


# isolation -------------------------------------------------------------------------------------


def told(log: Any, tenant: str) -> Iterator[tuple[Any, ...]]:
    """The events of one tenant, with its own numbering of holders, steps and texts."""
    books, ids = Ledger(log.tokens), dict[int, int]()
    for event in log.events:
        books.apply(event)
        if isinstance(event, Stepped):
            ours = [item for item in event.items if item[0] in ids]
            if ours:
                yield ("Stepped", *((ids[item[0]], *item[1:]) for item in ours))
            continue
        seq_id = getattr(event, "seq_id", None)
        pool = books.pools.get(getattr(event, "pool_id", ""))
        seq = books.sequences.get(seq_id) if seq_id is not None else None
        owner = seq.tenant if seq is not None else pool.spec.tenant if pool is not None else ""
        if owner != tenant:
            continue
        if seq_id is not None:
            ids.setdefault(seq_id, len(ids))
        yield (type(event).__name__, *_plain(event, ids, log))


def _plain(event: Event, ids: dict[int, int], log: Any) -> Iterator[Any]:
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name in ("seq_id", "parent_id", "source", "replaces"):
            yield ids.get(value, value if value < 0 else None)
        elif field.name == "offset":
            yield log.tokens[value : value + event.length].tolist()  # type: ignore[union-attr]
        else:
            yield value


Script = list[list[tuple[Any, ...]]]  # for each step what is asked before it


def script(seed: int, steps: int = 25) -> Script:
    """A random history of a few agents in one team: texts, forks, cuts, records, ends."""
    rng = random.Random(seed)
    out: Script = [[("agent",), ("agent",)]]
    for _ in range(steps):
        asked: list[tuple[Any, ...]] = []
        for _ in range(rng.randrange(4)):
            who, size = rng.randrange(3), rng.choice((3, 9, 20, 40))
            word = rng.randrange(1, 6)
            asked.append(
                rng.choice(
                    (
                        ("read", who, [word] * size),
                        ("read", who, [word] * size),
                        ("write", who, rng.randrange(1, 6)),
                        ("fork", who),
                        ("fork", who),
                        ("fork", who),
                        ("publish", who, [rng.randrange(6, 9)] * size),
                        ("rollback", who, rng.randrange(6)),
                        ("attach", who),
                        ("publish", who, [rng.randrange(6, 9)] * size),
                        ("replace", who, [rng.randrange(6, 9)] * size),
                        ("close", who),
                        ("agent",),
                        ("all", [word] * 3),
                    )
                )
            )
        out.append(asked)
    return out


class Actor:
    """Plays a script for one tenant; who has ended is replaced by nobody."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.count = tenant, 0
        self.team = tenant.group("t")
        self.agents: list[Agent] = []
        self.logits: list[tuple[int, Any]] = []

    def play(self, asked: list[tuple[Any, ...]]) -> None:
        for verb, *args in asked:
            with suppress(InmsError):  # nobody there, no room: a function of its own history too
                self._act(verb, args)

    def _act(self, verb: str, args: list[Any]) -> None:
        if verb == "agent":
            self.count += 1
            self.agents.append(self.tenant.agent(f"a{self.count}", groups=["t"]))
            return
        if verb == "all":
            for agent in self.agents:
                if agent.state in LIVE:
                    agent.read(args[0])
            return
        agent = self.agents[args[0] % len(self.agents)]
        if agent.state not in LIVE:
            return
        if verb == "read":
            agent.read(args[1])
            self.logits.append((len(self.logits), agent.next_logits()))
        elif verb == "write":
            agent.write(args[1])
        elif verb == "fork":
            agent.fork().future.add_done_callback(self._born(agent))
        elif verb == "rollback" and len(agent.tokens) > args[1]:
            agent.rollback(args[1])
        elif verb == "attach":
            agent.attach(self.team)
        elif verb == "publish":
            self.tenant.lab.driver.call(lambda: self.team.publish(args[1], by=agent))
        elif verb == "replace" and self.team.records:
            old = self.team.records[0]
            publish = self.team.publish
            self.tenant.lab.driver.call(lambda: publish(args[1], by=agent, replaces=old))
        elif verb == "close":
            agent.close()

    def _born(self, parent: Agent) -> Callable[[Any], None]:
        def born(future: Any) -> None:
            if not future.cancelled() and future.exception() is None:
                child = Agent(
                    parent.lab, parent.name, future.result(), parent.groups, parent.tenant
                )
                self.agents.append(parent.lab.adopt(child))

        return born


def together(model: Any, scripts: dict[str, Script], steps: int = 40) -> tuple[Lab, dict[str, Any]]:
    """A lab in which these tenants play their scripts, step by step; it is closed."""
    lab = Lab(model, block_size=SIZE)
    token = lab.engine.cache.store.bytes_per_token
    quotas = {"private_bytes": 24 * SIZE * token, "group_bytes": 16 * SIZE * token}
    budgets = {"token_budget": 32, "prefill_budget": 16, "copy_budget": 1}
    actors = {}
    for name in scripts:
        tenant = lab.tenant(name, global_bytes=8 * SIZE * token, **quotas, **budgets)
        tenant.preload([9] * 12, progress=False)
        actors[name] = Actor(tenant)
    for number in range(steps):
        for name, asked in scripts.items():
            actors[name].play(asked[number] if number < len(asked) else [])
        lab.look(lambda: lab.engine.step())
    lab.run_to()
    lab.check()
    answers = {
        name: [
            (number, pending.future.result().clone())
            for number, pending in actor.logits
            if not pending.future.exception()
        ]
        for name, actor in actors.items()
    }
    lab.close()
    return lab, answers


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), other=st.integers(0, 10_000))
def test_a_tenants_plans_are_a_function_of_its_own_history(seed: int, other: int) -> None:
    """Events, decisions and their order, with a loud neighbour or alone."""
    model = DryModel(100, 512, TOKEN)
    alone, _ = together(model, {"b": script(seed)})
    crowd, _ = together(model, {"a": script(other, 35), "b": script(seed)})
    mine = list(told(alone.log, "b"))
    assert mine == list(told(crowd.log, "b"))
    assert len(mine) > 20


def test_the_property_is_not_vacuous() -> None:
    """Over some scripts there are evictions, preemptions, copies, waits for the copy budget and
    failures for want of room; and two different histories differ."""
    seen = set()
    for seed in range(12):
        lab, _ = together(DryModel(100, 512, TOKEN), {"b": script(seed)})
        for event in lab.log.events:
            seen |= {type(event)}
            if isinstance(event, Freed):
                seen |= {event.cause}
            if isinstance(event, Commanded) and event.verb == "fail":
                seen |= {"fail"}
        seen |= {d.check for d in lab.log.decisions if d.outcome == "deferred"}
    assert {Evicted, Copied, "preempted", "fail", 7} <= seen
    one, other = (
        [*told(together(DryModel(100, 512, TOKEN), {"b": script(n)})[0].log, "b")] for n in (1, 2)
    )
    assert one != other


@pytest.mark.parametrize("seed", [3, 4])
def test_a_tenants_results_are_the_same_bits_alone_and_beside_others(seed: int) -> None:
    alone, mine = together(tiny(), {"b": script(seed, 12)}, 20)
    crowd, both = together(tiny(), {"a": script(seed + 50, 12), "b": script(seed, 12)}, 20)
    assert list(told(alone.log, "b")) == list(told(crowd.log, "b"))
    assert [n for n, _ in mine["b"]] == [n for n, _ in both["b"]]
    assert mine["b"]
    for (_, one), (_, other) in zip(mine["b"], both["b"], strict=True):
        assert torch.equal(one, other)


def work(lab: Lab, tenant: str) -> tuple[int, int, int]:
    """Tokens computed, blocks allocated and slots copied for a tenant."""
    computed = allocated = copied = 0
    for kind, *rest in told(lab.log, tenant):
        if kind == "Stepped":
            computed += sum(item[1] for item in rest)
        elif kind == "Allocated":
            allocated += len(rest[3])
        elif kind == "Copied":
            copied += rest[7]
    return computed, allocated, copied


def test_work_is_the_same_whether_or_not_another_holds_the_text() -> None:
    secret, own = [7] * 64, [8] * 40

    def probe(held: bool, policy: str = "inms") -> tuple[int, int, int]:
        lab = dry_lab(mode=policy, pool_bytes=blocks(64))
        victim = small(lab, "victim", 64)
        spy = small(lab, "spy", 64)
        victim.preload(secret if held else own, progress=False)
        victim.agent("v").read(secret if held else own).result()
        agent = spy.agent("s")
        agent.read(secret).result()
        agent.fork().result().read(secret).result()
        lab.close()
        return work(lab, "spy")

    assert probe(True) == probe(False)
    assert probe(True, "global") == probe(False, "global")  # tenants are apart in every mode

    def within_one(held: bool) -> int:
        """Not vacuous: two agents of one tenant in mode global, and it shows."""
        with dry_lab(mode="global", pool_bytes=blocks(64)) as lab:
            lab.agent("v").read(secret if held else own).result()
            before = sum(isinstance(e, Allocated) for e in lab.log.events)
            lab.agent("s").read(secret).result()
            return sum(isinstance(e, Allocated) for e in lab.log.events) - before

    assert within_one(True) < within_one(False)


# quotas and floors -----------------------------------------------------------------------------


def test_30_over_its_quota_a_tenant_evicts_its_own_then_is_refused_with_the_reason() -> None:
    with dry_lab(debug=True, pool_bytes=blocks(16)) as lab:
        loud, quiet = small(lab, "loud"), small(lab, "quiet")
        still = quiet.agent("q")
        still.read([1] * 64).result()
        first, second = loud.agent("first"), loud.agent("second")
        first.read([2] * 64).result()
        first.rollback(64).result()  # eight cached blocks
        begun = len(lab.log)
        second.read([3] * 100).result()  # thirteen blocks of sixteen: five are evicted
        first.read([4] * 30).result()
        with pytest.raises(TextTooLarge, match="give the tenant loud more private_bytes"):
            second.read([5] * 40).result()  # more than its quota ever holds
        events = lab.log.events[begun:]
        order = [
            (type(e).__name__, e.cause)
            for e in events
            if isinstance(e, (Evicted, Freed)) and e.cause in ("room", "preempted")
        ]
        assert order[0] == ("Evicted", "room")  # its own cached blocks first
        assert ("Freed", "preempted") in order  # then its own agent without work
        touched = {e.pool_id for e in events if isinstance(e, (Evicted, Freed, Allocated))}
        assert touched == {"loud/private"}
        team = loud.group("t")
        writer = loud.agent("w", groups=["t"])
        team.publish([6] * 100, by=writer)
        with pytest.raises(PoolExhausted, match="give the tenant loud more group_bytes"):
            team.publish(
                [7] * 50, by=writer, behind="prompt"
            )  # records are held: nobody can give way
        assert [record.tokens[0] for record in team.records] == [6]
        failed = [e.cause for e in lab.log.events if isinstance(e, Commanded) and e.verb == "fail"]
        assert any("nobody can give way" in cause for cause in failed)
        assert len(lab.engine.ledger.sequences[still.seq_id].segments[-1].blocks) == 8
        lab.check()


def flood(lab: Lab, tenant: Tenant) -> tuple[int, Agent]:
    """A loud agent takes all that it can get while a quiet one goes on; how many blocks the quiet
    one has left, and who it is."""
    quiet, loud = tenant.agent("quiet"), tenant.agent("loud")
    quiet.read([1] * 32).result()
    noise = loud.read([2] * 8 * 14)
    lab.run_to()
    noise.result()
    return len(lab.engine.ledger.sequences[quiet.seq_id].segments[-1].blocks), quiet


def test_an_agents_floor_cannot_be_taken_by_a_loud_neighbour() -> None:
    with dry_lab(debug=True, pool_bytes=blocks(16)) as lab:
        without, _ = flood(lab, small(lab, "open"))
        assert without == 0
        kept, quiet = flood(lab, small(lab, "kept", floor_bytes=blocks(2)))
        assert kept == 2
        quiet.read([3] * 4).result()  # and what it asks for next, it gets
        lab.check()


def test_who_is_below_its_floor_takes_from_who_is_above() -> None:
    """The loud one registered first and works: without a floor nobody younger stops it."""

    def late(floor: int) -> bool:
        with dry_lab(pool_bytes=blocks(16), token_budget=256, prefill_budget=256) as lab:
            tenant = small(lab, "t", floor_bytes=blocks(floor))
            loud, quiet = tenant.agent("loud"), tenant.agent("quiet")
            loud.read([2] * 8 * 15).result()
            loud.write(8, stop=False)  # at work, and at the pool's end
            answer = quiet.read([3] * 16)
            for _ in range(3):
                lab.look(lambda: lab.engine.step())
            return answer.future.done() and answer.future.exception() is None

    assert late(2)
    assert not late(0)


def test_floors_are_promised_only_as_far_as_the_pool_goes() -> None:
    with dry_lab(pool_bytes=blocks(16)) as lab:
        tenant = small(lab, "t", private=5, floor_bytes=blocks(2) - 1)  # rounded up to two blocks
        first = tenant.agent("a")
        tenant.agent("b")
        with pytest.raises(PoolExhausted, match="cannot have a floor of 2 blocks: 2 agents"):
            tenant.agent("c")
        first.fork().result()  # a fork has no floor of its own
        first.close().result()
        tenant.agent("c")  # though the fork goes on: what it holds can be taken


def test_a_tenants_storm_is_its_own() -> None:
    with dry_lab(pool_bytes=blocks(64)) as lab:
        small(lab, "calm", 32)
        stormy = small(lab, "stormy", 64, copy_budget=1)
        agent = stormy.agent("a")
        agent.read([1] * 12).result()
        forks = [agent.fork().result() for _ in range(5)]
        for number, fork in enumerate(forks):
            fork.read([number + 2])
        lab.run_to()
        assert (stormy.copies.peak, stormy.copies.longest_wait) == (1, 4)
        assert lab.copies.num_copied == 0


def test_what_if_knows_whose_pools_they_are() -> None:
    with dry_lab(pool_bytes=blocks(64)) as lab:
        acme = small(lab, "acme", 64)
        acme.preload([2] * 16, progress=False)
        team = acme.group("t")
        a, b = acme.agent("a", groups=["t"]), acme.agent("b", groups=["t"])
        team.publish([5] * 16, by=a)
        b.attach(team).result()
        b.read([3] * 20).result()
        for made in lab.log.decisions:
            for mode in ("inms", "global", "independent"):
                told = what_if(lab.log, made, mode=mode)
                assert told.real.decided.outcome == "planned"


def test_a_tenant_whose_making_failed_can_be_made_with_other_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with dry_lab() as lab:
        reserve = lab.engine.cache.store.open

        def full(pool_id: str, num_slots: int) -> None:
            if pool_id == "big/private":
                raise OSError(12, "Cannot allocate memory")
            reserve(pool_id, num_slots)

        with monkeypatch.context() as patch:
            patch.setattr(lab.engine.cache.store, "open", full)
            with pytest.raises(BadInput, match="big/private cannot have 128 blocks"):
                lab.tenant("big", private_bytes=blocks(128))
        assert "big" not in lab.tenants
        agent = lab.tenant("big", private_bytes=blocks(8)).agent("a")
        agent.read([1] * 20).result()
        assert lab.engine.ledger.pools["big/private"].spec.num_blocks == 8
        lab.check()


def test_a_tenants_records_leave_and_come_back_to_a_tenant_of_that_name(tmp_path: Path) -> None:
    def team_of(lab: Lab, name: str) -> tuple[Any, Agent]:
        tenant = lab.tenant(name)
        tenant.preload([1] * 16, progress=False)
        team = tenant.group("shop")
        return team, tenant.agent("a", groups=["shop"])

    with Lab(tiny(), block_size=SIZE) as one, Lab(tiny(), block_size=SIZE) as two:
        team, agent = team_of(one, "acme")
        file = team.export(team.publish([5] * 20, by=agent, role=None), tmp_path / "r", by=agent)
        mine, reader = team_of(two, "acme")
        computed = two.engine.num_computed
        record = mine.import_record(file, by=reader)
        assert two.engine.num_computed == computed
        assert two.engine.ledger.sequences[record.seq_id].tenant == "acme"
        reader.attach(record).result()
        other, stranger = team_of(two, "other")
        with pytest.raises(ParcelRefused, match="another tenant: 'acme', here 'other'"):
            other.import_record(file, by=stranger)
        two.check()


@pytest.mark.parametrize("first", [False, True])
def test_a_prompt_cut_before_it_was_mounted_is_as_if_it_had_been(first: bool) -> None:
    """Half of a sealed block is nowhere to be found: the rest becomes the agent's own text."""
    with Lab(tiny(), block_size=SIZE) as lab:
        lab.preload(list(range(20)), progress=False)
        agent = lab.agent("a")
        if first:
            agent.next_logits().result()
        agent.rollback(9)
        agent.read([50, 51]).result()
        assert agent.tokens == [*range(11), 50, 51]
        plain = lab.agent("b")
        plain.rollback(20).result()
        plain.read([*range(11), 50, 51]).result()
        assert torch.allclose(agent.next_logits().result(), plain.next_logits().result(), atol=2e-4)
        lab.check()


def test_a_floor_and_forks_in_a_pool_that_is_too_small_end_with_a_refusal() -> None:
    """An idle parent keeps its floor; its two forks cannot both get on, and one after the other is
    told so: nobody takes blocks from another that do not help him."""
    with dry_lab(
        mode="independent", pool_bytes=blocks(4), floor_bytes=blocks(2), token_budget=7
    ) as lab:
        lab.preload([1] * 9, progress=False)
        parent = lab.agent("a")
        parent.read([3] * 12)
        forks = [parent.fork(), parent.fork()]
        turns = iter(range(400))
        lab.driver.run_sync(lambda: next(turns) == 399 or not lab.engine.has_work)
        assert not lab.engine.has_work
        told = [e.cause for e in lab.log.events if isinstance(e, Commanded) and e.verb == "fail"]
        assert len(told) == 2
        assert all("nobody can give way" in cause for cause in told)
        assert [fork.result().state for fork in forks] == ["reclaimed"] * 2
