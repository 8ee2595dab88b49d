"""What-if against the truth: the same plan where nothing changed, and real runs of other modes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from test_ledger import Player
from toy import Toy, ToyModel

from inms_lab.books.events import Allocated, Evicted, Freed, Released, Shared
from inms_lab.books.gate import OPEN
from inms_lab.decisions.outcome import Decided
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.errors import BadInput
from inms_lab.hindsight.reenact import Reenactment
from inms_lab.hindsight.reopened import policy_of
from inms_lab.hindsight.whatif import parts_of, what_if
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab

SYSTEM = [1, 2, 3, 4, 0, 1]
GOAL = [2, 2, 3, 3, 1]
HELLO = [4, 4, 3, 3, 2, 2, 1, 1, 0]
ROOMY = (60, 60, 400)


@cache
def played(mode: str, seed: int) -> Log:
    player = Player(mode, seed, gate=OPEN if seed % 2 else None)  # every second with fragments
    for _ in player.play(200):
        pass
    return player.toy.log


def first_trouble(log: Log) -> int:
    """The index at which somebody first lost a block, waited, or found no room."""
    lost = (
        index
        for index, e in enumerate(log.events)
        if (isinstance(e, Evicted) and e.cause == "room")
        or (isinstance(e, Freed) and e.cause == "preempted")
    )
    waited = (d.at for d in log.decisions if d.outcome in ("no room", "deferred"))
    return min((*lost, *waited, len(log)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_changes_where_nothing_is_changed(mode: str, seed: int) -> None:
    log = played(mode, seed)
    trouble = first_trouble(log)
    quiet = [d for d in log.decisions if d.at < trouble]
    assert quiet
    for made in quiet:
        same = what_if(log, made)
        assert same.words == "the same plan"
        assert same.real == same.other
        events = tuple(log.events[made.at : made.stop])  # an edit's copy may stand before them
        assert same.real.events[len(same.real.events) - len(events) :] == events
        assert same.real.decided == made


@pytest.mark.parametrize("mode", MODES)
def test_books_are_the_logs_where_nothing_is_changed(mode: str) -> None:
    for seed in range(6, 12):
        log = played(mode, seed)
        trouble = first_trouble(log)
        at = max(d.at for d in log.decisions if d.at < trouble)
        play, books = Reenactment(log), log.replay(at)
        play.move(at)
        for pool_id, pool in books.pools.items():
            assert list(pool.free) == list(play.books.pools[pool_id].free)
            assert pool.refs == play.books.pools[pool_id].refs
            assert pool.keys == play.books.pools[pool_id].keys
        for seq_id, seq in books.sequences.items():
            there = play.books.sequences[seq_id]
            assert [s.blocks for s in seq.segments] == [s.blocks for s in there.segments]


@cache
def model(seed: int) -> ToyModel:
    """One model for the modes of a seed: equal contexts are continued equally in all of them."""
    return ToyModel()


class Program:
    """One random program, which every mode can run: nothing in it depends on the mode."""

    def __init__(self, mode: str, seed: int, size: int = 4) -> None:
        self.rng = random.Random(seed)
        self.toy = Toy(mode, size=size, tile=size, blocks=ROOMY, compare=False, model=model(seed))
        self.shares = MODES[mode].encodes_prompts
        self.agents: list[int] = []
        self._shared()
        for _ in range(40):
            self._act()
            self.toy.run()

    def _shared(self) -> None:
        toy, kinds = self.toy, ("prompt", "record")
        clearances = (frozenset[str](), frozenset({"group:team"}))
        self.prompt, self.record = map(toy.engine.register, kinds, kinds, clearances)
        self.system = toy.log.add_tokens(SYSTEM)[0]
        self.goal = toy.log.add_tokens(GOAL)[0]
        toy.cache.record(Released(self.record, "author", "team", self.goal, len(GOAL)))
        for holder in (self.prompt, self.record) if self.shares else ():
            self._read_system(holder)
        if self.shares:
            self._read_goal(self.record, record=-1)
        toy.run()

    def _read_system(self, seq_id: int) -> None:
        self.toy.ask(seq_id, "append", SYSTEM, tier="global", seal=True, offset=self.system)

    def _read_goal(self, seq_id: int, record: int) -> None:
        where: dict[str, Any] = {"tier": "group", "group": "team", "seal": True}
        self.toy.ask(seq_id, "append", GOAL, offset=self.goal, record=record, **where)

    def _act(self) -> None:
        rng, toy = self.rng, self.toy
        action = rng.choice(("new", "read", "read", "write", "write", "fork", "back", "end"))
        if action == "new" or not self.agents:
            seq_id = toy.agent(rng.choice("ab"))
            self.agents.append(seq_id)
            if rng.random() < 0.7:  # the others read the goal, if they do, behind another context
                self._read_system(seq_id)
            if rng.random() < 0.5:
                self._read_goal(seq_id, self.record if self.shares else -1)
            return
        seq_id = rng.choice(self.agents)
        text = rng.choice((HELLO, HELLO[:6], [rng.randrange(5) for _ in range(7)]))
        if action == "read":
            toy.ask(seq_id, "append", text)
            if rng.random() < 0.3:
                self._read_goal(seq_id, self.record if self.shares else -1)
        elif action == "write":
            toy.ask(seq_id, "write", text[:3], count=rng.randint(1, 6))
        elif action == "fork":
            self.agents.append(toy.do(seq_id, "fork"))
        elif action == "back":
            count = toy.ledger.sequences[seq_id].num_tokens
            toy.do(seq_id, "rollback", count=max(min(count, 6), count - rng.randint(0, 6)))
        else:
            self.agents.remove(seq_id)
            toy.do(seq_id, "close")


@cache
def program(mode: str, seed: int, size: int = 4) -> Program:
    return Program(mode, seed, size)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("was", "mode", "size"),
    [
        ("inms", "independent", 4),
        ("inms", "global", 4),
        ("inms", "inms", 2),
        ("inms", "inms", 8),
        ("inms", "global", 8),
        ("global", "inms", 4),
        ("global", "independent", 4),
        ("independent", "global", 4),
    ],
)
def test_a_real_run_in_that_mode_holds_as_many_blocks(
    was: str, mode: str, size: int, seed: int
) -> None:
    log, other = program(was, seed).toy.log, program(mode, seed, size).toy
    play = Reenactment(log, mode, size)
    play.move(len(log))
    if (was, mode) == ("independent", "global"):  # nobody kept the prompt in independent
        held = {p: pool.num_held for p, pool in play.books.pools.items()}
        assert 0 <= other.held()["common"] - held["common"] <= 4
        return
    tokens = {i: list(s.tokens()) for i, s in other.ledger.sequences.items()}
    for seq in play.books.holders():
        assert list(seq.tokens()) == tokens[seq.seq_id]
        assert [len(s.blocks) for s in seq.segments] == [
            len(s.blocks) for s in other.ledger.sequences[seq.seq_id].segments
        ]
    held = {pool_id: pool.num_held for pool_id, pool in play.books.pools.items()}
    assert held == other.held()


def test_every_decision_of_a_run_can_be_asked_in_every_mode_and_size() -> None:
    log = program("inms", 3).toy.log
    for made in log.decisions:
        for mode in MODES:
            other = what_if(log, made, mode=mode).other
            assert other.mode == mode
            assert mode != "independent" or other.num_shared == 0
        assert what_if(log, made, block_size=1).other.block_size == 1


# --- stories ---------------------------------------------------------------------------------


def reader() -> tuple[Toy, int, Decided]:
    """An agent that mounts the prompt and computes a text of its own in one decision."""
    toy = Toy()
    toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.ask(agent, "append", SYSTEM, tier="global", seal=True)
    toy.do(agent, "append", HELLO)
    made = toy.log.decisions[-1]
    assert [p.outcome for p in made.parts] == ["shared", "computed"]
    return toy, agent, made


def test_without_sharing_the_prompt_is_computed_by_its_reader() -> None:
    toy, _, made = reader()
    there = what_if(toy.log, made, mode="independent")
    assert (there.real.num_shared, there.real.num_allocated) == (2, 3)
    assert (there.other.num_shared, there.other.num_allocated) == (0, 5)
    assert (there.real.num_bytes, there.other.num_bytes) == (12, 20)
    assert there.words == (
        "shares 0 blocks instead of 2; allocates 5 blocks instead of 3; "
        "takes 0.01953 KiB instead of 0.01172 KiB"
    )
    assert dict(there.real.held) == {"global": 2, "group:team": 0, "private": 0}
    assert dict(there.other.held) == {"private": 0}


def test_one_pool_for_all_shares_what_another_said() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", HELLO)
    toy.do(second, "append", HELLO)
    made = toy.log.decisions[-1]
    there = what_if(toy.log, made, mode="global")
    assert there.real.num_shared == 0
    assert there.other.events[0] == Shared(second, 0, "common", (0, 1), 8, "hit")
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    without = what_if(toy.log, made, mode=inms.without("label")).other
    assert without.events[0] == Shared(second, 0, "private", (0, 1), 8, "hit")


def test_another_block_size_rounds_otherwise() -> None:
    toy, agent, made = reader()
    there = what_if(toy.log, made, block_size=8).other
    assert there.events == (
        Shared(agent, 0, "global", (0,), 6, "hit"),
        *there.events[1:],
    )
    assert (there.block_size, there.num_allocated, there.num_bytes) == (8, 2, 16)


def test_an_agents_text_may_not_be_global() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO)
    made = toy.log.decisions[-1]
    there = what_if(toy.log, made, tier="global")
    assert (there.other.decided.outcome, there.other.decided.check) == ("refused", 4)
    assert there.words == "refused instead of planned: no agent may write global text"
    assert there.other.events == ()
    group = what_if(toy.log, made, tier="group:team").other
    assert (group.decided.outcome, group.decided.check) == ("refused", 4)
    assert what_if(toy.log, made, tier="private").words == "the same plan"


def test_a_text_of_a_group_that_the_reader_is_not_in_is_refused() -> None:
    toy = Toy(groups=("team", "others"))
    agent = toy.agent("a", "team")
    toy.agent("b", "others")
    toy.do(agent, "append", HELLO)
    there = what_if(toy.log, toy.log.decisions[-1], tier="group:others").other
    assert (there.decided.outcome, there.decided.check) == ("refused", 4)
    assert "may not hold ['group:others']" in there.decided.reason


def test_behind_private_text_nothing_becomes_public() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO)
    toy.do(agent, "append", GOAL)
    there = what_if(toy.log, toy.log.decisions[-1], tier="global")
    assert there.words == "the same plan; it stays private: what stands before it is more secret"


def test_a_prompt_that_is_private_is_computed_by_each() -> None:
    toy, _, made = reader()
    there = what_if(toy.log, made, tier="private", part=0).other
    assert there.num_shared == 0
    assert [type(e) for e in there.events] == [Allocated, Allocated]
    assert {e.pool_id for e in there.events if isinstance(e, Allocated)} == {"private"}
    with pytest.raises(BadInput, match="has no part 2"):
        what_if(toy.log, made, tier="private", part=2)


def test_behind_the_prompt_an_agents_text_may_not_be_global() -> None:
    toy, _, made = reader()
    there = what_if(toy.log, made, tier="global")
    assert there.words == "refused instead of planned: no agent may write global text"


def test_what_the_log_does_not_say_is_refused_by_name() -> None:
    log = program("independent", 0).toy.log
    made = log.decisions[-1]
    with pytest.raises(BadInput, match="nobody encoded the sealed texts"):
        what_if(log, made, mode="inms")
    with pytest.raises(BadInput, match="has no tiers"):
        what_if(log, made, tier="global")
    log = program("inms", 0).toy.log
    with pytest.raises(BadInput, match="no tier is called 'team'"):
        what_if(log, log.decisions[-1], tier="team")
    with pytest.raises(BadInput, match="no mode is called"):
        what_if(log, log.decisions[-1], mode="pooled")
    with pytest.raises(BadInput, match="at least one token"):
        what_if(log, log.decisions[-1], block_size=0)
    cut = log.copy()
    cut.forget(30)
    with pytest.raises(BadInput, match="begins with a snapshot"):
        what_if(cut, cut.decisions[-1])


def test_the_policy_of_a_log_has_its_switches() -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    policy = inms.without("label", "tokens")
    assert policy_of(Toy(policy, compare=False).log) == policy
    for mode in MODES.values():
        assert policy_of(Toy(mode).log) == mode


def test_an_answer_that_is_no_plan_is_about_one_run_of_blocks() -> None:
    for seed in range(6):
        log = played("inms", seed)
        for made in log.decisions:
            books = log.replay(made.at)
            parts = parts_of(books, made)
            assert parts == made.parts or made.outcome != "planned"
            if made.outcome == "planned":
                continue
            (part,) = parts
            segment = books.sequences[made.seq_id].segments[part.segment]
            assert part.outcome == made.outcome
            last = (part.first + part.num_blocks - 1) * segment.block_size
            assert segment.computed // segment.block_size <= part.first
            assert part.num_blocks > 0
            assert last < len(segment.tokens)
            full = [i for i, s in books.sequences.items() if s.num_tokens == s.num_computed]
            for seq_id in full[:1]:
                with pytest.raises(BadInput, match="could go on"):
                    parts_of(books, replace(made, seq_id=seq_id))


@pytest.mark.parametrize("was", MODES)
def test_unruly_runs_can_be_enacted_again_in_every_mode_and_tier(was: str) -> None:
    asked, noes = 0, set[str]()
    for seed in range(3):
        log = played(was, seed)
        for mode, size in (("global", None), ("independent", None), ("global", 3), (was, 8)):
            play = Reenactment(log, mode, size)
            play.move(len(log))
            for seq in play.books.holders():
                if seq.kind == "agent" or play.policy.encodes_prompts:
                    assert seq.tokens() == play.real.sequences[seq.seq_id].tokens()
        for made in log.decisions[::11]:
            for tier in ("global", "group:team", "private"):
                try:
                    there = what_if(log, made, mode="inms", tier=tier).other.decided
                except BadInput as error:
                    noes.add(str(error))
                    continue
                asked += 1
                assert there.outcome != "refused" or there.check == 4
    assert asked > 0
    assert all("forked" in text or "does not tell" in text for text in noes)


def test_a_record_whose_holder_is_gone_is_not_mounted_in_another_mode_either() -> None:
    def story(mode: str) -> Log:
        lab = Lab(DryModel(100, 2048, 1024), mode=mode, block_size=4)
        team = lab.group("t")
        writer, reader = team.agents("writer", "reader")
        team.publish([1] * 8, by=writer, role=None)
        gone = team.records[0].seq_id
        lab.driver.call(lambda: lab.engine.end(gone, "close", "housekeeping"))
        reader.attach(team).result()
        lab.close()
        return lab.log

    def outcomes(decided: Decided) -> list[tuple[str, int]]:
        return [(part.outcome, part.num_blocks) for part in decided.parts]

    logs = {mode: story(mode) for mode in MODES}
    (truth,) = [d for d in logs["inms"].decisions if d.seq_id == 1]
    (made,) = [d for d in logs["global"].decisions if d.seq_id == 1]
    assert outcomes(truth) == [("computed", 2)]
    asked = what_if(logs["global"], made, mode="inms").other.decided
    assert asked is not None
    assert outcomes(asked) == outcomes(truth)
