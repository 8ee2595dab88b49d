"""The audit finds whatever is wrong with the books, says what is known of it, and nothing dies.

Symptom 12 (sglang#35270, mllm#656: totals drift; the server kills itself when idle): a violation is
reported with the block's history and a saved log, and the lab goes on read-only.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ledger import Player
from toy import Toy, ToyModel

from inms_lab.books.gate import OPEN
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import _MAPS, Pool
from inms_lab.books.segment import Segment
from inms_lab.config import Config
from inms_lab.errors import LabReadOnly, LedgerViolation
from inms_lab.logs import audit
from inms_lab.logs import violation as violations
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_widgets import View

# what may be broken -----------------------------------------------------------------------------


@cache
def played(mode: str, seed: int) -> Toy:
    """A random run with forks, records, fragments, evictions and broken off steps."""
    player = Player(mode, seed, OPEN)
    for _ in player.play(120):
        pass
    return player.toy


def other(value: Any, rng: random.Random) -> Any:
    """A value of the same type that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 7))
    if isinstance(value, (str, bytes)):
        return value + value[:1] if value else type(value)(b"?" if value == b"" else "?")
    if isinstance(value, frozenset):
        return value ^ {"agent:nobody"}
    if isinstance(value, tuple):
        return (*value, value[0] if value else "nobody")
    if isinstance(value, array):
        return value[:-1] if value else array("i", [1])
    if isinstance(value, list):
        return [*value, value[0] if value else 0]
    if isinstance(value, dict):
        return {**value, "nobody": (0,)}
    return object()


def damage_map(values: Any, rng: random.Random) -> str:
    """Take an entry out, put one in, change one, or change the order; says what was done."""
    keys = list(values)
    ways = ["add", *["remove", "change"] * bool(keys)]
    if len(keys) > 1 and isinstance(values, OrderedDict):
        ways.append("order")
    way = rng.choice(ways)
    if way == "add":
        new = max(keys) + 1 if keys and isinstance(keys[0], int) else 3
        made = {bytes: b"another key"}.get(type(keys[0]) if keys else int, new)
        values[made] = other(values[keys[0]], rng) if keys else 1
    elif way == "remove":
        del values[rng.choice(keys)]
    elif way == "order":
        values.move_to_end(keys[0])
    else:
        key = rng.choice(keys)
        if values[key] is None:  # a set: another member in its place
            del values[key]
            values[max(keys) + 1] = None
        else:
            values[key] = other(values[key], rng)
    return way


def damage(books: Ledger, rng: random.Random) -> str:
    """Change one single field of the books; says which."""
    kind = rng.choice(("map", "map", "pool", "holder", "segment", "segment", "books"))
    if kind in ("map", "pool"):
        pool = rng.choice(list(books.pools.values()))
        name = rng.choice(_MAPS) if kind == "map" else "block_size"
        if kind == "pool":
            pool.block_size += 1
            return "pool.block_size"
        return f"pool.{name}: {damage_map(getattr(pool, name), rng)}"
    seq = rng.choice(list(books.sequences.values()))
    if kind == "segment" and seq.segments:
        segment = rng.choice(seq.segments)
        name = rng.choice([n for n in Segment.__slots__ if n != "keys" or segment.keys])
        setattr(segment, name, other(getattr(segment, name), rng))
        return f"segment.{name}"
    if kind == "books":
        name = rng.choice(("records", "num_steps", "live"))
        setattr(books, name, other(getattr(books, name), rng))
        return name
    name = rng.choice([n for n in vars(seq) if n != "segments"])
    setattr(seq, name, other(getattr(seq, name), rng))
    return f"holder.{name}"


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(("inms", "global")), st.integers(0, 2), st.integers(0, 10**9))
def test_any_single_field_of_the_books_that_is_changed_by_hand_is_found(
    mode: str, run: int, seed: int
) -> None:
    toy, rng = played(mode, run), random.Random(seed)
    at = rng.randrange(20, len(toy.log))  # also in the middle of a step
    books, told = toy.log.replay(at), toy.log.replay(at)
    assert not audit.faults(books)
    assert not audit.against(toy.log, books, told)
    what = damage(books, rng)
    found = audit.faults(books) or audit.against(toy.log, books, told)
    assert found, what
    assert all(isinstance(fault.text, str) and fault.text for fault in found)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.integers(0, 10**9), st.sampled_from((-1, 1, 2)))
def test_a_wrong_refcount_is_found_without_any_log_and_the_block_is_named(
    run: int, seed: int, by: int
) -> None:
    toy, rng = played("inms", run), random.Random(seed)
    books = toy.log.replay(rng.randrange(20, len(toy.log)))
    held = [(p, b) for p, pool in books.pools.items() for b in pool.refs]
    if not held:
        return
    pool_id, block = rng.choice(held)
    books.pools[pool_id].refs[block] += by
    assert (pool_id, block) in [fault.block for fault in audit.faults(books)]


# a lab ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(ToyModel(), config=Config(4, 4, 16, 1000, 400, 400, 400, debug=True)) as made:
        yield made


async def writes(me: Agent) -> int:
    await me.read([1, 2, 3, 4, 1])
    return len((await me.write(30, role=None, stop=False)).tokens)


def broken(lab: Lab, steps: int = 4) -> LedgerViolation:
    """A lab whose books somebody changed while an agent was writing."""
    lab.group("team")
    lab.start({lab.agent("a", groups=["team"]): writes})
    lab.run_to(len(lab.log) + 5)
    lab.engine.ledger.pools["private"].refs[0] += 1
    with pytest.raises(LedgerViolation) as caught:
        lab.run_to()
    assert lab.violation is caught.value
    return caught.value


def test_a_violation_tells_the_fault_its_origin_the_events_and_the_blocks_history(
    lab: Lab, folder: Path
) -> None:
    error = broken(lab)
    assert error.fault == "private block 0: refcount 2, in 1 tables"
    assert (error.block, error.at) == (("private", 0), len(lab.log))
    lines = str(error).splitlines()
    assert lines[0] == error.fault
    assert "something changed them that was no event" in lines[1]
    last = lines.index("the last events were")
    assert lines[last + 5] == f"  {lab.log.events[-1]!r}"
    told = lines[lines.index("what the log says of block 0 of private") + 1 :]
    assert "Allocated, a: refcount 0 -> 1, pending, held by a" in told[0]
    assert "Published, a: refcount 1 -> 1, held, held by a" in "\n".join(told)
    assert error.path in lines[-1]


def test_the_saved_log_is_opened_at_that_moment_with_the_block_pinned(
    lab: Lab, folder: Path
) -> None:
    error = broken(lab)
    (path,) = folder.iterdir()
    assert path.samefile(error.path)
    log = Log.load(path)
    assert log.events == lab.log.events
    assert not audit.faults(log.replay())  # the log still knows
    for lang, said in (("en", "did not balance at event"), ("zh", "账目不平")):
        view = View(path, lang=lang)
        assert (view.look["index"], view.look["pool"], view.look["block"]) == (
            error.at, "private", 0,
        )  # fmt: skip
        assert said in view.look["note"]
        assert error.fault in view.look["note"]
        view.close()


@pytest.mark.parametrize(
    "wrong", [[], {"at": "x"}, {"at": -1}, {"at": 10**9}, {"at": 2, "pool": 3}]
)
def test_what_a_file_says_of_its_violation_is_not_trusted(wrong: Any) -> None:
    log = played("inms", 0).log.copy()
    log.about = {**log.about, "violation": wrong}
    view = View(log)
    assert not view.look.get("pool")
    view.close()


def test_a_lab_whose_books_do_not_balance_goes_on_read_only(lab: Lab, folder: Path) -> None:
    broken(lab)
    a, before = lab.agents["a"], len(lab.log)
    changes: list[Callable[[], Any]] = [
        lambda: a.read([1]),
        lambda: a.write(1),
        lambda: a.next_logits(),
        lambda: a.rollback(1),
        lambda: a.fork(),
        lambda: a.close(),
        lambda: a.attach([1, 2], group=lab.groups["team"]),
        lambda: lab.agent("b"),
        lambda: lab.group("other"),
        lambda: lab.preload([1, 2]),
        lambda: lab.groups["team"].publish([1, 2], by=a),
        lambda: lab.start({a: writes}),
        lambda: lab.run_to(),
        lambda: lab.tenant("other"),
        lambda: lab.lease(a),
        lambda: lab.compact(),
        lambda: lab.serve(),
    ]
    for change in changes:
        with pytest.raises(LabReadOnly, match=r"read-only since event .* make a new lab"):
            change()
    assert len(lab.log) == before
    assert a.tokens[:5] == [1, 2, 3, 4, 1]
    for look in (lab.bill, lab.reused, lab.log.to_pandas, lambda: repr(lab), lambda: repr(a)):
        assert look() is not None
    lab.log.save(folder / "mine.inmslog")
    assert isinstance(lab.results()["a"], LabReadOnly)  # the program was told
    with pytest.raises(LedgerViolation):
        lab.check()
    lab.close()
    assert lab.engine.cache.store.slots == {}  # type: ignore[attr-defined]
    assert len(lab.log) == before


def test_a_lab_can_be_asserted_clean_and_is_closed_all_the_same(lab: Lab, folder: Path) -> None:
    broken(lab)
    with pytest.raises((LedgerViolation, LabReadOnly)):
        lab.assert_clean()
    assert lab.closed


def test_the_live_view_says_so_and_goes_on_saying_so(lab: Lab, folder: Path) -> None:
    view = View(lab)
    error = broken(lab)
    for _ in range(2):
        told = ["read_only", error.at, error.fault]
        assert view.publisher.status()["problem"] == told
        with pytest.raises(LabReadOnly):
            lab.run_to()
    view.close()


def test_without_debug_a_check_finds_it_and_one_that_finds_nothing_opens_the_door(
    folder: Path,
) -> None:
    with Lab(ToyModel(), config=Config(4, 4, 16, 1000, 400, 400, 400)) as lab:
        a = lab.agent("a")
        a.read([1, 2, 3, 4, 1]).result()
        lab.engine.ledger.sequences[a.seq_id].number += 1  # only the log knows
        with pytest.raises(LedgerViolation, match="a: number is 2, by the log 1"):
            lab.check()
        with pytest.raises(LabReadOnly):
            a.read([1])
        lab.engine.ledger.sequences[a.seq_id].number -= 1
        lab.check()
        a.read([1]).result()
        lab.controls.configure(debug=True)
        a.read([1]).result()
        lab.assert_clean()


def test_in_debug_mode_it_is_found_after_the_step_even_if_no_refcount_is_wrong(
    lab: Lab, folder: Path
) -> None:
    a = lab.agent("a")
    a.read([1, 2, 3, 4, 1]).result()
    lab.engine.ledger.sequences[a.seq_id].clearance |= {"agent:b"}
    with pytest.raises(LedgerViolation, match=r"a: clearance is .*, by the log"):
        a.read([1]).result()
    assert lab.violation is not None


def test_a_fault_of_the_reducer_is_told_with_the_first_event_that_it_spoiled(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = lab.agent("a")
    a.read([1, 2, 3, 4, 1, 2, 3, 4]).result()
    share = Pool.share

    def twice(self: Pool, blocks: tuple[int, ...]) -> None:
        share(self, blocks)
        self.refs[blocks[0]] += 1

    monkeypatch.setattr(Pool, "share", twice)
    with pytest.raises(LedgerViolation, match="refcount 3, in 2 tables") as caught:
        a.fork().result()
    wrong = len(lab.log) - 1
    assert type(lab.log.events[wrong]).__name__ == "Shared"
    said = f"by the log itself, event {wrong} is the first after which private block 0"
    assert said in str(caught.value)
    assert violations.first_fault(lab.log)[0] == wrong  # type: ignore[index]
    monkeypatch.undo()
    assert violations.first_fault(lab.log) is None


def test_the_first_of_many_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long log the books are looked at now and then, and closely where they went wrong."""
    toy = played("inms", 1)
    forks = [n for n, e in enumerate(toy.log.events) if getattr(e, "cause", "") == "fork"]
    assert len(toy.log) > 2 * violations.LOOKS
    assert len(forks) > 2
    copy, share = toy.log.copy(), Pool.share

    def once(self: Pool, blocks: tuple[int, ...]) -> None:
        share(self, blocks)
        if len(self.refs) and blocks == toy.log.events[forks[1]].blocks:  # type: ignore[union-attr]
            self.refs[blocks[0]] += 1

    monkeypatch.setattr(Pool, "share", once)
    found = violations.first_fault(copy)
    assert found is not None
    books = toy.log.replay(found[0])
    assert not audit.faults(books)
    books.reduce(toy.log.events[found[0]])
    assert audit.faults(books)


# the file ---------------------------------------------------------------------------------------


def kept(folders: list[Path]) -> LedgerViolation:
    error = LedgerViolation("it does not add up")
    error.at, error.block, error.fault = 40, ("private", 1), "it"
    violations.keep(played("inms", 0).log, error, folders)
    return error


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    first, second = kept([tmp_path]), kept([tmp_path])
    assert first.path != second.path
    assert {Path(first.path).name, Path(second.path).name} == {
        "violation-at-40.inmslog",
        "violation-at-40-2.inmslog",
    }
    assert len(list(tmp_path.iterdir())) == 2


def test_where_one_folder_cannot_be_written_the_next_is_taken(tmp_path: Path) -> None:
    assert Path(kept([tmp_path / "none", tmp_path]).path).parent == tmp_path


def test_that_the_log_could_not_be_saved_is_told_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = kept([tmp_path / "none"])
    assert error.path == ""
    assert "could not be saved" in str(error)
    monkeypatch.setattr(Log, "save", lambda *_: 1 / 0)
    error = kept([tmp_path])
    assert "could not be saved (division by zero)" in str(error)
    assert not list(tmp_path.iterdir())
    assert "the log is in" not in str(violations.read_only(error))


def test_what_cannot_have_happened_is_left_out_of_the_file(tmp_path: Path) -> None:
    log = played("inms", 0).log.copy()
    log.events.insert(60, log.events[59])
    wrong = audit.first_impossible(log)
    assert wrong is not None
    error = LedgerViolation("it does not add up")
    violations.keep(log, error, [tmp_path])
    saved = Log.load(error.path)
    assert len(saved) == wrong[0] == saved.about["violation"]["at"]
    assert f"event {wrong[0]} of the log cannot have happened" in violations.origin(log)
