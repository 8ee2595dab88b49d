"""Lab 11: processes that die and freeze, runs with a leak, and exercise `suspect`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inms_lab.books.events import Commanded, Freed, Registered, Shared, Stepped
from inms_lab.logs import audit
from inms_lab.notebook.lab import Lab
from inms_lessons import EXERCISES, Wrong, check, crashes, examine, leaking, suspecting
from inms_lessons.copies import solutions_in
from inms_lessons.crashes import AgentProcess, num_held, refcounts, wait_until
from inms_lessons.leaking import AWAY, SEEDS, Held, run
from inms_lessons.small_labs import word_lab

LAB = Path(__file__).resolve().parents[1] / "labs" / "11_crashes_and_leaks.ipynb"
BEAT = 0.25  # seconds
PROGRAM = """
import sys
from inms_lab import connect
from inms_lab.errors import InmsError
lab = connect(sys.argv[1])
me = lab.agent(sys.argv[2], groups=["team"])
me.attach("team")
me.read("my own notes on this")
print("ready", flush=True)
for line in sys.stdin:
    try:
        me.read("one more")
        print("read", flush=True)
    except InmsError as error:
        print(type(error).__name__, flush=True)
"""
Rule = Callable[[Any], Any]


# processes --------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> Iterator[Lab]:
    with word_lab(num_blocks=32, heartbeat_interval=BEAT) as made:
        (clerk,) = made.group("team").agents("clerk")
        made.groups["team"].publish("prices are stored in cents", by=clerk)
        yield made


@pytest.fixture
def process(lab: Lab) -> Iterator[AgentProcess]:
    made = AgentProcess(PROGRAM, lab.serve().address, "ada")
    try:
        assert made.hear() == "ready"
        yield made
    finally:
        made.close()


def test_a_killed_process_gives_all_back_without_waiting_for_its_lease(
    lab: Lab, process: AgentProcess
) -> None:
    assert num_held(lab) == 2
    assert refcounts(lab, "group:team") == [2, 2]
    process.kill()
    wait_until(lambda: num_held(lab) == 0)
    assert refcounts(lab, "group:team") == [1, 1]
    (end,) = [e for e in lab.log.events if isinstance(e, Commanded) and e.verb == "expire"]
    assert end.cause == "its process is gone"
    assert process.hear() == ""


def test_a_frozen_one_does_so_when_its_lease_has_run_out_and_is_refused_later(
    lab: Lab, process: AgentProcess
) -> None:
    process.tell()
    assert process.hear() == "read"
    process.freeze()
    before = num_held(lab)
    assert wait_until(lambda: num_held(lab) < before) > 1.5 * BEAT
    assert (num_held(lab), refcounts(lab, "group:team")) == (0, [1, 1])
    (end,) = [e for e in lab.log.events if isinstance(e, Commanded) and e.verb == "expire"]
    assert end.cause == "its lease ran out"
    process.thaw()
    process.tell()
    assert process.hear() == "LeaseExpired"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends with us, not when killed")
@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_a_frozen_process_does_not_outlive_the_notebook(end: str) -> None:
    """It could not end by itself, and would stay for ever."""
    program = "print('ready', flush=True); import time; time.sleep(60)"
    code = (
        "import os\n"
        "from inms_lessons.crashes import AgentProcess\n"
        f"made = AgentProcess({program!r}, '', '')\n"
        "made.hear()\n"
        "made.freeze()\n"
        "print(made.process.pid, flush=True)\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    wait_until(lambda: not _lives(int(done.stdout)))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]


def test_what_a_broken_program_says_is_heard() -> None:
    made = AgentProcess("import nothing_of_this_name", "", "")
    assert made.hear().startswith("Traceback")
    made.close()
    made.close()


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "PATIENCE", 0.02)
    with pytest.raises(TimeoutError):
        wait_until(lambda: False)


# runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*SEEDS, 4])
def test_what_leaks_is_never_used_again_and_all_else_comes_back(seed: int) -> None:
    """By the log alone: who leaks gives no command and is in no step after that; everybody else
    who rests for long is at work again, or is there to be read."""
    story = run(seed)
    log = story.log
    ids = {name: seq_id for seq_id, name in story.names.items()}
    leaked = {ids[name] for name in story.leaked}
    assert len(leaked) == 2
    step, last = 0, dict.fromkeys(ids.values(), 0)
    away = dict.fromkeys(ids.values(), 0)
    for event in log.events:
        step = event.step if isinstance(event, Stepped) else step
        who = [item[0] for item in event.items] if isinstance(event, Stepped) else []
        who += [event.seq_id] if isinstance(event, Commanded) else []
        who += [event.parent_id] if isinstance(event, Registered) and event.parent_id >= 0 else []
        for seq_id in who:
            away[seq_id] = max(away[seq_id], step - last[seq_id]) if last[seq_id] else 0
            last[seq_id] = step
    assert max(last[seq_id] for seq_id in leaked) <= story.forgotten + 1
    assert story.moments[-1].step - story.forgotten > suspecting.IN_TIME
    for name in ("ann", "bob", "planner"):
        assert AWAY[0] < away[ids[name]] <= AWAY[1] + 2, name
        assert story.moments[-1].step - last[ids[name]] <= AWAY[1], name
    assert not audit.faults(log.replay())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_facts_are_those_of_the_books(seed: int) -> None:
    story = run(seed)
    for moment in story.moments:
        books = story.log.replay(moment.index)
        assert books.num_steps == moment.step
        refs = {(p, b): n for p, pool in books.pools.items() for b, n in pool.refs.items()}
        assert {(held.pool, held.block): held.refcount for held in moment.blocks} == refs
        for held in moment.blocks:
            assert len(held.holders) == held.refcount
            assert 0 <= held.unmoved <= moment.step
            for holder in held.holders:
                assert not (holder.has_work and holder.idle > 1), holder
        leaks = [held for held in moment.blocks if story.leaks(moment, held)]
        assert bool(leaks) == (moment.step >= story.forgotten)
    assert {held.refcount for held in leaks} == {1, 2}


@pytest.mark.parametrize("seed", [*SEEDS, 4])
def test_names_in_the_map_have_letters_of_their_own(seed: int) -> None:
    """The map writes the initials of a block's holders."""
    log = run(seed).log
    agents = [e for e in log.events if isinstance(e, Registered) and e.kind == "agent"]
    names = [event.name for event in agents if event.parent_id < 0]
    assert len({name[0] for name in names}) == len(names) == 5


def test_equal_seeds_give_equal_runs_and_others_others() -> None:
    again = leaking.Run(1)
    assert again.log.events == run(1).log.events
    assert again.moments == run(1).moments
    assert run(2).log.events != run(1).log.events


def test_a_fact_moves_when_a_refcount_does() -> None:
    story = run(1)
    before = {}
    for moment in story.moments:
        for held in moment.blocks:
            known = before.get((held.pool, held.block))
            if known is not None and known.refcount != held.refcount:
                assert held.unmoved <= leaking.EVERY
        before = {(held.pool, held.block): held for held in moment.blocks}
    assert any(isinstance(event, Shared) and event.cause == "fork" for event in story.log.events)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_patient_sweep_takes_from_the_forgotten_alone_a_hasty_one_from_others_too(
    seed: int,
) -> None:
    plain, hasty, patient = (run(seed, after) for after in (0, 10, 40))
    for story, more in ((plain, set()), (hasty, {"ann", "bob"}), (patient, set())):
        weak = (e for e in story.log.events if isinstance(e, Freed) and e.cause == "weak")
        names = {story.names[event.seq_id] for event in weak}
        swept = set(story.leaked) if story.suspect_after else set()
        assert names >= swept | more
        assert story is hasty or names == swept
    assert plain.num_leaking > patient.num_leaking == hasty.num_leaking == 0
    assert plain.num_computed == patient.num_computed < hasty.num_computed
    assert plain.num_held > patient.num_held


def test_the_table_has_every_block_once() -> None:
    story = run(1)
    table = story.table(119)
    assert story.at(119).step == 110
    assert table["blocks"].sum() == len(story.at(119).blocks)
    both = table[table["holders"] == ", ".join(story.leaked)]
    assert list(both["refcount"]) == [2]
    assert list(both["kinds"]) == ["agent"]
    assert list(both["idle"]) == ["72 to 75"]
    assert "one is at work" in set(table["idle"])


@pytest.mark.parametrize("seed", [*SEEDS, 4])
def test_the_rows_of_the_leak_are_those_that_the_forgotten_forks_hold_alone(seed: int) -> None:
    story = run(seed)
    table = story.table(110)
    mine = {", ".join(story.leaked), *story.leaked}
    rows = [number for number, who in enumerate(table["holders"]) if who in mine]
    assert story.leaking_rows(110) == rows
    assert rows
    with_planner = table[table["holders"].str.startswith(f"planner, {story.leaked[0]}")]
    assert len(with_planner) == 1
    assert with_planner.index[0] not in rows
    assert story.leaking_rows(10) == []


# answers ----------------------------------------------------------------------------------------


def rests(holder: Any, steps: int = 30) -> bool:
    """What the solution asks of each holder."""
    return holder.kind == "agent" and not holder.has_work and holder.idle > steps


def solution() -> Rule:
    source = solutions_in(json.loads(LAB.read_text("utf-8")))["suspect"]
    exec(source, names := {})  # type: ignore[var-annotated]
    return names["suspect"]  # type: ignore[no-any-return]


def wrong_of(rule: Any) -> Wrong:
    found = examine("suspect", rule)
    assert found is not None
    return found


def test_the_solution_passes_and_so_do_other_ways_to_say_it() -> None:
    rules: list[Rule] = [
        solution(),
        lambda held: min(holder.idle for holder in held.holders) > 24 and held.tier == "private",
        lambda held: all(rests(holder, 50) for holder in held.holders),
        lambda held: all(h.kind == "agent" and h.idle > 24 for h in held.holders),  # as hint 3 says
        lambda held: all(rests(h, 26) for h in held.holders) and held.unmoved > 20,
    ]
    for rule in rules:
        assert examine("suspect", rule) is None


WRONG: dict[str, tuple[Rule, str, str, str]] = {
    "age alone": (
        lambda held: held.unmoved > 20,
        "True, but it is of",
        "kind",
        "group",
    ),
    "age, of what all have in common": (
        lambda held: held.tier == "global" and held.unmoved > 20,
        "True, but it is of the sealed prompt",
        "kind",
        "global",
    ),
    "whoever has no work": (
        lambda held: not any(holder.has_work for holder in held.holders),
        "True, but it is of",
        "kind",
        "group",
    ),
    "no prompt, but a record": (
        lambda held: all(
            h.kind != "prompt" and not h.has_work and h.idle > 30 for h in held.holders
        ),
        "True, but it is of a record that holds",
        "record",
        "group",
    ),
    "age in the private tier": (
        lambda held: held.tier == "private" and held.unmoved > 40,
        "True, but writer is at work",
        "not when a block is read",
        "private",
    ),
    "the private tier without work": (
        lambda held: held.tier == "private" and not any(h.has_work for h in held.holders),
        "and comes back: it waits for a tool",
        "24 steps",
        "private",
    ),
    "the block's age for the holder's": (
        lambda held: held.unmoved > 30 and all(rests(h, 0) for h in held.holders),
        "and comes back: it waits for a tool",
        "is not how long its holder rests",
        "private",
    ),
    "one holder that rests is enough": (
        lambda held: held.tier == "private" and any(rests(h) for h in held.holders),
        "True, but planner is",
        "",
        "private",
    ),
    "the refcount must be 1": (
        lambda held: held.refcount == 1 and all(map(rests, held.holders)),
        "steps after planner (fork 9), idle for",
        "its refcount is 2: several holders can all be forgotten",
        "private",
    ),
    "too patient": (
        lambda held: all(rests(holder, 90) for holder in held.holders),
        "False, 6",
        "too patient",
        "private",
    ),
    "nobody": (
        lambda held: False,
        "False, 6",
        "Which of its facts makes your rule say no?",
        "private",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_shown_the_block_and_what_was_to_be_known(name: str) -> None:
    rule, came, hint, pool = WRONG[name]
    wrong = wrong_of(rule)
    assert came in wrong.came, wrong.words()
    assert hint in wrong.hint, wrong.words()
    assert wrong.block is not None
    assert wrong.block[0].startswith(pool)
    assert wrong.log is run(1).log
    found = next(m for m in run(1).moments if m.index == wrong.index)
    assert f"step {found.step} of run 1" in wrong.where
    assert wrong.block in [(held.pool, held.block) for held in found.blocks]


def test_the_stub_accuses_a_record() -> None:
    exec(EXERCISES["suspect"].stub, names := {})  # type: ignore[var-annotated]
    assert "True, but it is of a record" in wrong_of(names["suspect"]).came


def test_names_are_kept_from_a_rule() -> None:
    by_name: Rule = lambda held: all(  # noqa: E731
        holder.name in run(1).leaked for holder in held.holders
    )
    assert "steps after planner (fork 9)" in wrong_of(by_name).came


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        (None, "None"),
        ("suspect", "'suspect'"),
        (lambda held: None, "None"),
        (lambda held: 1, "1"),
        (lambda held: "yes", "'yes'"),
        (lambda held: held.age > 3, "AttributeError"),
        (lambda: True, "TypeError"),
    ],
)
def test_what_is_no_rule_is_told(answer: Any, came: str) -> None:
    assert came in wrong_of(answer).came


def test_a_check_says_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    check("suspect", lambda held: held.unmoved > 20)
    said = capsys.readouterr().out
    assert "suspect: not yet" in said
    assert "the view stands at event" in said
    check("suspect", solution())
    assert capsys.readouterr().out == "suspect: public checks passed\n"


def test_a_rule_cannot_change_what_it_is_shown() -> None:
    def meddles(held: Held) -> bool:
        held.holders = ()  # type: ignore[misc]
        return False

    assert "FrozenInstanceError" in wrong_of(meddles).came
