"""The four classic complaints, each provoked on a lab: the cause is named, with its first event.

And for each what looks like it and is ordinary: that is not accused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shifted
from test_ledger import Player
from toy import ToyModel
from typer.testing import CliRunner

from inms_lab.books.events import Allocated, Commanded, Copied, Registered, Released, Shared
from inms_lab.books.gate import OPEN, Calibration, Gate
from inms_lab.cli import app
from inms_lab.config import Config
from inms_lab.decisions.policy import Inms, Policy
from inms_lab.errors import BadInput, PoolExhausted
from inms_lab.hindsight.diagnose import BALANCE, diagnose
from inms_lab.hindsight.findings import COMPLAINTS, GROWTH, QUALITY, ROOM, STORM, Diagnosis, Finding
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lessons.culprits import CASES, digest
from inms_lessons.planted import planted

GOOD = shifted.MEASURED
POOR = Gate(calibration=Calibration("toy", 0.9, (0.7, 1.1), 0.6, (0.5, 0.7), 50, 1.5, 0.01))
TEXT = [1, 2, 3, 4, 0, 1, 2, 3, 4, 1]


@contextmanager
def small_lab(
    blocks: tuple[int, int, int] = (8, 16, 32), mode: str | Policy = "inms", **options: Any
) -> Iterator[Lab]:
    """Blocks of four tokens; so many in the global, a group's and the private pool."""
    config = Config(4, 4, 64, 1000, *(4 * count for count in blocks))
    model = ToyModel()
    model.fragments = True
    with Lab(model, config=config, mode=mode, **options) as lab:
        yield lab


def only(found: Diagnosis, complaint: str) -> Finding:
    """The one finding."""
    (finding,) = found.findings
    assert finding.complaint == complaint, found
    assert finding.advice
    assert finding.because
    return finding


def nothing(found: Diagnosis) -> None:
    assert found.findings == (), found
    assert repr(found).startswith("nothing found\nlooked at\n")


def events(lab: Lab, kind: type) -> list[int]:
    """The indexes of the events of a kind."""
    return [n for n, event in enumerate(lab.log.events) if type(event) is kind]


# quality dropped --------------------------------------------------------------------------------


def read_elsewhere(lab: Lab) -> int:
    """Two agents read a team's record behind texts of their own; gives the first shift's event."""
    team = lab.group("team")
    a, b, c = team.agents("a", "b", "c")
    a.read([4] * 3).result()
    record = team.publish(TEXT, by=a, role=None)
    c.attach(record).result()  # in its own place
    here = len(lab.log)
    for agent in (a, b):
        agent.read([2, 2, 3]).result()
        agent.attach(record).result()
    return next((n for n in events(lab, Shared) if n >= here), -1)


@pytest.mark.parametrize(
    ("mode", "gate", "cause"),
    [
        (Inms().without("gate"), POOR, "the gate is off"),
        ("inms", OPEN, "a gate without bounds"),
        ("inms", replace(POOR, max_kl=5.0, min_agreement=None), "a gate with loose bounds"),
    ],
)
def test_a_fragment_that_the_default_gate_would_not_let_through(
    mode: Policy, gate: Gate, cause: str
) -> None:
    with small_lab(mode=mode, gate=gate) as lab:
        first = read_elsewhere(lab)
        found = only(lab.diagnose(), QUALITY)
        assert (found.cause, found.index) == (cause, first)
        assert "the default gate" in found.because
        assert "shift of +" in found.event
        assert found.block is not None
        assert found.block[0] == "group:team"


@pytest.mark.parametrize("mode", ["inms", Inms().without("gate")])
def test_a_fragment_within_the_default_gate_is_not_accused(mode: Policy) -> None:
    with small_lab(mode=mode, gate=GOOD) as lab:
        read_elsewhere(lab)
        found = lab.diagnose()
        nothing(found)
        assert found.looked_at["fragments shared at a shift or behind other text"] >= 2


@pytest.mark.parametrize("gate", [None, POOR])
def test_what_the_gate_held_back_is_not_accused(gate: Gate | None) -> None:
    with small_lab(gate=gate) as lab:
        assert read_elsewhere(lab) == -1
        nothing(lab.diagnose())


def private_twice(lab: Lab) -> None:
    """The same words behind other words, of two forks; and of two agents."""
    a, b = lab.agent("a"), lab.agent("b")
    a.read([1, 1, 1, 1, 2, 2, 2, 2]).result()
    a.read([2, 2, 2, 2, 3]).result()
    b.read([4, 4, 4, 4, 2, 2, 2, 2]).result()
    b.read([3, 3, 3, 3]).result()


def test_without_the_position_check_a_block_behind_another_text_is_named() -> None:
    with small_lab(mode=Inms().without("position", "label"), gate=None) as lab:
        private_twice(lab)
        found = lab.diagnose()
        causes = {finding.cause: finding for finding in found}
        assert set(causes) == {"the position check is off", "the label check is off"}
        first = causes["the position check is off"]
        event = lab.log.events[first.index]
        assert isinstance(event, Shared)
        assert first.index == events(lab, Shared)[0]
        assert "another text" in first.because


def test_without_the_label_check_a_block_of_somebody_elses_text_is_named() -> None:
    with small_lab(mode=Inms().without("label"), gate=None) as lab:
        a, b = lab.agent("a"), lab.agent("b")
        for agent in (a, b):
            agent.read([1, 1, 1, 1, 2]).result()
        found = only(lab.diagnose(), QUALITY)
        assert found.cause == "the label check is off"
        assert found.index == events(lab, Shared)[0]
        assert "agent:a" in found.because
        assert "without('label')" in found.advice


@pytest.mark.parametrize("check", ["label", "position", "tokens", "pending"])
def test_a_switched_off_check_that_did_no_harm_is_not_accused(check: str) -> None:
    with small_lab(mode=Inms().without(check), gate=None) as lab:
        lab.preload([1, 1, 1, 1])
        a, b = lab.agent("a"), lab.agent("b")
        for agent, token in ((a, 2), (b, 3)):
            agent.read([token] * 6).result()
        assert events(lab, Shared)
        nothing(lab.diagnose())


def test_without_the_token_check_two_texts_with_one_fingerprint_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import inms_lab.books.segment as segment

    monkeypatch.setattr(segment, "block_keys", lambda p, la, at, t, n: [b"k"] * (len(t) // n))
    with small_lab(mode=Inms().without("tokens", "label"), gate=None) as lab:
        a, b = lab.agent("a"), lab.agent("b")
        a.read([1, 1, 1, 1, 2]).result()
        b.read([3, 3, 3, 3, 3]).result()
        found = lab.diagnose()
        assert found.about(QUALITY).cause == "the token check is off"  # type: ignore[union-attr]
        assert found.about(QUALITY).index == events(lab, Shared)[0]  # type: ignore[union-attr]


# out of memory with free memory -----------------------------------------------------------------


def published(lab: Lab, texts: list[list[int]]) -> tuple[Agent, PoolExhausted]:
    """Records of these texts, of which the last finds no room."""
    team = lab.group("team")
    (author,) = team.agents("author")
    for text in texts[:-1]:
        team.publish(text, by=author, role=None, behind="prompt")
    with pytest.raises(PoolExhausted) as caught:
        team.publish(texts[-1], by=author, role=None, behind="prompt")
    return author, caught.value


def whole(count: int, start: int = 0) -> list[int]:
    """A text of so many whole blocks."""
    return [(start + n * n) % 5 for n in range(4 * count)]


def test_a_full_pool_beside_free_ones_is_isolation_from_where_it_lacked_room() -> None:
    with small_lab(blocks=(8, 4, 32), gate=None) as lab:
        published(lab, [whole(2), whole(1, 1), whole(3, 2)])
        found = only(lab.diagnose(), ROOM)
        assert found.cause == "isolation"
        taken = [n for n in events(lab, Allocated) if lab.log.events[n].pool_id == "group:team"]  # type: ignore[union-attr]
        assert found.index == taken[0]  # 4 blocks, 2 of them taken: no room for 3
        assert "slots of private" in found.because
        assert "group_bytes" in found.advice


def test_a_pool_that_is_full_while_all_are_full_is_not_accused() -> None:
    with small_lab(blocks=(1, 4, 2), gate=None) as lab:
        lab.preload(whole(1))
        (busy,) = lab.group("team").agents("busy")
        busy.read(whole(2, 3)).result()
        published(lab, [whole(2), whole(2, 1), whole(1, 2)])
        found = lab.diagnose()
        nothing(found)
        assert found.looked_at["holders that failed for want of room"] == 1


def test_a_pool_with_much_unused_in_its_blocks_is_named_with_the_first_such_block() -> None:
    with small_lab(blocks=(8, 4, 32), gate=None) as lab:
        published(lab, [whole(1), [1], [2], [3], whole(1, 2)])
        found = only(lab.diagnose(), ROOM)
        assert found.cause == "partly filled blocks"
        taken = [n for n in events(lab, Allocated) if lab.log.events[n].pool_id == "group:team"]  # type: ignore[union-attr]
        assert found.index == taken[1]
        assert "9 of the 16 slots" in found.because
        assert "block_size" in found.advice


def test_superseded_records_that_an_idle_reader_keeps_are_named() -> None:
    with small_lab(blocks=(8, 4, 32), gate=None) as lab:
        team = lab.group("team")
        author, reader = team.agents("author", "reader")
        old = team.publish(whole(2), by=author, role=None, behind="prompt")
        reader.attach(old).result()
        team.publish(whole(2, 1), by=author, role=None, behind="prompt", replaces=old)
        here = events(lab, Released)[1]
        with pytest.raises(PoolExhausted):
            team.publish(whole(2, 2), by=author, role=None, behind="prompt")
        found = only(lab.diagnose(), ROOM)
        assert (found.cause, found.index) == ("idle holders", here)
        assert set(found.holders) >= {"reader"}
        assert found.block is not None
        assert found.block[0] == "group:team"


def test_preemption_that_helps_is_no_complaint() -> None:
    with small_lab(blocks=(8, 4, 8), gate=None) as lab:
        a, b = lab.agent("a"), lab.agent("b")
        a.read(whole(6)).result()
        b.read(whole(6, 1)).result()
        assert any(getattr(e, "cause", "") == "preempted" for e in lab.log.events)
        nothing(lab.diagnose())


# out of memory after a long write ---------------------------------------------------------------


async def forks(parent: Agent, count: int, closed: bool = False) -> list[Agent]:
    """So many forks of a context that ends within a block."""
    made = [await parent.fork() for _ in range(count)]
    for child in made if closed else ():
        await child.close()
    return made


def stormed(copy_budget: int, num_forks: int = 12) -> Iterator[Lab]:
    """Many forks of one context write into its last block together, in a pool that is too small."""
    with small_lab(blocks=(8, 4, 12), gate=None, copy_budget=copy_budget) as lab:
        parent = lab.agent("parent")
        parent.read(whole(3)[:-1]).result()

        async def spread(me: Agent) -> None:
            made = await forks(me, num_forks)
            await asyncio.gather(*(child.read([n % 5]) for n, child in enumerate(made)))

        asyncio.run(lab.run({parent: spread}))
        yield lab


def test_a_storm_of_copies_is_named_with_its_first_copy() -> None:
    for lab in stormed(copy_budget=100):
        found = only(lab.diagnose(), STORM)
        copies = events(lab, Copied)
        assert len(copies) >= 8
        assert (found.cause, found.index) == ("copy-on-write storm", copies[0])
        assert "wrote into block" in found.event
        assert "copy_budget" in found.advice


def test_copies_that_fit_are_not_accused() -> None:
    for lab in stormed(copy_budget=100, num_forks=6):
        assert len(events(lab, Copied)) >= 5
        nothing(lab.diagnose())


def test_a_lack_of_room_after_much_new_text_is_no_storm_though_a_few_copied() -> None:
    with small_lab(blocks=(8, 4, 14), gate=None) as lab:
        parent = lab.agent("parent")
        parent.read(whole(3)[:-1]).result()

        async def grow(me: Agent) -> None:
            made = await forks(me, 4)
            await asyncio.gather(*(child.read(whole(3, n)) for n, child in enumerate(made)))

        asyncio.run(lab.run({parent: grow}))
        assert events(lab, Copied)
        assert any(getattr(e, "cause", "") == "preempted" for e in lab.log.events)
        nothing(lab.diagnose())


# slow growth ------------------------------------------------------------------------------------


def works(lab: Lab, agent: Agent, steps: int) -> None:
    """An agent that writes for so many steps and forgets it again."""
    agent.write(steps, role=None, stop=False).result()
    agent.rollback(steps).result()


def test_forks_that_nobody_closes_are_named_from_the_first_on() -> None:
    with small_lab(gate=None) as lab:
        worker = lab.agent("worker")
        worker.read(whole(2)[:-1]).result()
        for number in range(4):
            child = worker.fork().result()
            child.read([number, 1]).result()
            works(lab, worker, 20)
        works(lab, worker, 20)
        found = only(lab.diagnose(idle_after=16), GROWTH)
        first = next(n for n in events(lab, Registered) if lab.log.events[n].parent_id >= 0)  # type: ignore[union-attr]
        assert (found.cause, found.index) == ("forks that nobody closes", first)
        assert found.because.startswith("4 holders (worker) have nothing to do")
        nothing(lab.diagnose(idle_after=1000))


def test_forks_that_are_closed_and_forks_of_one_moment_are_not_accused() -> None:
    with small_lab(gate=None) as lab:
        worker = lab.agent("worker")
        worker.read(whole(2)[:-1]).result()
        for number in range(4):
            child = worker.fork().result()
            child.read([number, 1]).result()
            works(lab, worker, 20)
            child.close().result()
        for number, child in enumerate([worker.fork().result() for _ in range(4)]):
            child.read([number]).result()
        works(lab, worker, 40)
        found = lab.diagnose(idle_after=16)
        nothing(found)
        assert found.looked_at["live holders"] == 5


def test_agents_that_are_made_and_left_are_named() -> None:
    with small_lab(gate=None) as lab:
        worker = lab.agent("worker")
        worker.read(whole(1)).result()
        for number in range(3):
            lab.agent(f"helper {number}").read(whole(2, number)).result()
            works(lab, worker, 20)
        found = only(lab.diagnose(idle_after=16), GROWTH)
        assert found.cause == "agents that nobody closes"
        assert found.index == events(lab, Registered)[1]
        assert found.holders == ("helper 0", "helper 1", "helper 2")


def test_a_team_that_rests_and_one_that_comes_back_are_not_accused() -> None:
    with small_lab(gate=None) as lab:
        worker = lab.agent("worker")
        worker.read(whole(1)).result()
        team = [lab.agent(f"helper {n}") for n in range(3)]
        for number, agent in enumerate(team):
            agent.read(whole(2, number)).result()
        works(lab, worker, 40)
        nothing(lab.diagnose(idle_after=16))
        late = [lab.agent(f"late {n}") for n in range(2)]
        for agent in late:
            agent.read(whole(1)).result()
            works(lab, worker, 20)
        for agent in (*team, *late):
            agent.read([1]).result()  # they come back
        nothing(lab.diagnose(idle_after=16))


def test_growth_of_those_who_work_is_not_accused() -> None:
    with small_lab(gate=None) as lab:
        agents = []
        for number in range(5):
            agents.append(lab.agent(f"a{number}"))
            for agent in agents:
                agent.read([number, 2]).result()
                agent.write(5, role=None, stop=False).result()
        nothing(lab.diagnose(idle_after=30))


def test_superseded_records_whose_readers_rest_are_named_from_the_first_on() -> None:
    with small_lab(blocks=(8, 32, 32), gate=None) as lab:
        team = lab.group("team")
        author, *readers = team.agents("author", "r0", "r1", "r2")
        record = team.publish(whole(1), by=author, role=None, behind="prompt")
        for number, reader in enumerate(readers, 1):
            reader.attach(record).result()
            text = whole(1, number)
            record = team.publish(text, by=author, role=None, behind="prompt", replaces=record)
            works(lab, author, 20) if author.tokens else author.read([1]).result()
        works(lab, author, 20)
        found = only(lab.diagnose(idle_after=16), GROWTH)
        assert found.cause == "superseded records that idle readers hold"
        assert found.index == events(lab, Released)[1]
        assert found.holders == ("r0", "r1", "r2")
        for reader in readers:
            reader.close().result()
        works(lab, author, 20)
        nothing(lab.diagnose(idle_after=16))


def test_a_labs_suspect_after_says_when_a_holder_is_idle() -> None:
    with small_lab(gate=None) as lab:
        lab.agent("a").read([1]).result()
        log = lab.log.copy()
        for number in range(4):
            lab.agent(f"b{number}").read([1, 2]).result()
        log = lab.log.copy()
        log.about = {**log.about, "suspect_after": 1}
        assert only(diagnose(log), GROWTH).cause == "agents that nobody closes"
        log.about = {**log.about, "suspect_after": 0}
        nothing(diagnose(log))


# logs of others ---------------------------------------------------------------------------------


def test_what_lab_04_asks_for_is_found_in_its_logs() -> None:
    """Thousands of events with one planted fault, whose place is known as a digest only."""
    mount = diagnose(planted("mount")).about(QUALITY)
    assert mount is not None
    assert mount.cause == "the label check is off"
    assert digest("mount", mount.index) == CASES["mount"].digest
    leak = diagnose(planted("leak")).about(ROOM)
    assert leak is not None
    assert (leak.cause, leak.holders) == ("idle holders", ("jon",))
    events = planted("leak").events
    commands = [n for n, event in enumerate(events) if isinstance(event, Commanded)]
    (last,) = (n for n in commands if digest("leak", n) == CASES["leak"].digest)
    ids = {item[0] for item in events[leak.index].items}  # type: ignore[union-attr]
    assert events[last].seq_id in ids  # type: ignore[union-attr]
    assert last < leak.index  # the last step of that command
    assert not [n for n in commands if n > last and events[n].seq_id == events[last].seq_id]  # type: ignore[union-attr]
    nothing(diagnose(planted("gap")))


# what it says -----------------------------------------------------------------------------------


def test_a_busy_lab_is_not_accused_of_anything() -> None:
    """Forks, records, evictions, preemptions, all sorts of ends: and no complaint of quality."""
    for seed in range(4):
        player = Player("inms", seed, GOOD)
        for _ in player.play(200):
            pass
        found = diagnose(player.toy.log)
        assert found.about(QUALITY) is None, found
        assert found.looked_at["events"] == len(player.toy.log)


def test_a_log_that_was_cut_off_is_judged_by_what_is_left() -> None:
    player = Player("inms", 3, OPEN)
    for _ in player.play(200):
        pass
    log = player.toy.log.copy()
    whole_log = diagnose(log)
    log.forget(len(log) // 2)
    found = diagnose(log)
    assert found.looked_at["events"] == len(log.events) < whole_log.looked_at["events"]
    assert all(log.first <= finding.index <= len(log) for finding in found)


def test_it_prints_well_and_is_plain_data() -> None:
    with small_lab(gate=OPEN) as lab:
        first = read_elsewhere(lab)
        found = lab.diagnose()
    lines = repr(found).splitlines()
    assert lines[0] == QUALITY
    assert lines[1] == "  cause    a gate without bounds"
    assert lines[2].startswith(f"  first    event {first}: ")
    assert max(map(len, lines)) <= 100
    assert json.loads(json.dumps(found.as_dict()))["findings"][0]["index"] == first
    page = found._repr_html_()
    assert "<b>quality dropped</b>" in page
    assert "nothing found" not in page
    assert len(found) == len(list(found)) == 1
    assert all(found.about(complaint) is None for complaint in COMPLAINTS[1:])
    with pytest.raises(BadInput, match="slow growth"):
        found.about("it is slow")


def test_books_that_do_not_balance_are_said_first() -> None:
    with small_lab(gate=None) as lab:
        lab.agent("a").read(whole(2)).result()
        lab.engine.ledger.pools["private"].refs[0] += 1
        found = lab.diagnose()
        assert found.findings[0].complaint == BALANCE
        assert "refcount 2, in 1 tables" in found.findings[0].because
        lab.engine.ledger.pools["private"].refs[0] -= 1
        nothing(lab.diagnose())


def test_the_command_tells_the_same_of_a_saved_log(tmp_path: Path) -> None:
    path = tmp_path / "run.inmslog"
    with small_lab(gate=OPEN) as lab:
        read_elsewhere(lab)
        lab.log.save(path)
        told, found = lab.diagnose(), diagnose(Log.load(path))
    assert found.as_dict() == told.as_dict()
    run = CliRunner().invoke(app, ["diagnose", str(path)])
    assert run.exit_code == 0
    assert run.stdout == f"{found!r}\n"
    run = CliRunner().invoke(app, ["diagnose", str(path), "--json"])
    assert json.loads(run.stdout) == json.loads(json.dumps(found.as_dict()))
    run = CliRunner().invoke(app, ["diagnose", str(path), "--idle-after", "0"])
    assert isinstance(run.exception, BadInput)
