"""A log that is written through: what a killed process leaves opens at the moment of its death."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_logfile import played
from test_widgets import BYTES_PER_TOKEN, work
from typer.testing import CliRunner

from inms_lab import Lab, Log
from inms_lab.cli import app
from inms_lab.config import Config
from inms_lab.errors import (
    BadInput,
    JournalInUse,
    JournalNotWritable,
    LogCutShort,
    LogDamaged,
    LogTooLarge,
    LogVersionUnknown,
    NotALog,
)
from inms_lab.logs import audit
from inms_lab.logs.journal import MOST, Journal
from inms_lab.logs.journal_read import read_journal
from inms_lab.logs.log import CHUNK
from inms_lab.logs.open_log import open_log
from inms_lab.model.forward import DryModel
from inms_widgets import View
from inms_widgets.export import page


def grown(log: Log, path: Path, every: int = 5, close: bool = True) -> Journal:
    """A journal of a log that grows, event by event, into what `log` is."""
    out = Log()
    out.about, out.piece = log.about, log.piece
    journal = Journal(out, path)
    ends = [*range(every, len(log), every), len(log)]
    tokens = decisions = 0
    for index, event in enumerate(log.events, 1):
        if tokens < len(log.tokens):  # some come with each event, before it
            part = log.tokens[tokens : tokens + 1 + len(log.tokens) // 8]
            tokens += out.add_tokens(part)[1]
        out.append(event)
        if index in ends:
            new = [d for d in log.decisions[decisions:] if d.stop <= index]
            decisions += len(new)
            out.decisions += new
            journal.write()
    out.durations, out.errors = dict(log.durations), dict(log.errors)
    if close:
        journal.close()
    return journal


def dry(journal: Path | None = None) -> Lab:
    """No model; 200 blocks of 16 tokens in each pool."""
    room = 200 * 16 * BYTES_PER_TOKEN
    config = Config(16, context=2048, global_bytes=room, group_bytes=room, private_bytes=room)
    return Lab(DryModel(100, 2048, BYTES_PER_TOKEN), config=config, journal=journal)


def same(one: Log, other: Log) -> None:
    for name in ("events", "tokens", "decisions", "durations", "errors", "about", "first"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.fixture(scope="module")
def source() -> Log:
    return played(seed=1, count=120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.inmsjournal"


# what is written is what is read ------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 7, 10_000])
def test_nothing_is_lost(source: Log, path: Path, every: int) -> None:
    grown(source, path, every)
    for loaded in (Log.load(path), open_log(path), read_journal(path)):
        same(loaded, source)
        assert loaded.note == ""
        assert loaded.piece
        assert source.piece
        assert [*map(loaded.piece, source.tokens)] == [*map(source.piece, source.tokens)]
    Log.load(path).save(path.with_name("a"))
    source.save(path.with_name("b"))
    assert path.with_name("a").read_bytes() == path.with_name("b").read_bytes()


def test_a_journal_that_begins_late_has_the_snapshot_and_what_was_there(path: Path) -> None:
    log = played(seed=2, count=100)
    log.forget(len(log) // 2)
    journal = Journal(log, path)
    whole = log.copy()
    loaded = Log.load(path)
    assert (loaded.first, loaded.snapshot) == (whole.first, whole.snapshot)
    same(loaded, whole)
    assert loaded.replay().snapshot() == whole.replay().snapshot()
    journal.close()


def test_a_log_that_forgot_what_was_not_written_stops_the_journal(path: Path) -> None:
    """Nothing is left out in silence; `MOST` events are written before any can be forgotten."""
    log = played(seed=3, count=100)
    journal = Journal(Log(first=0), path)
    assert MOST < CHUNK
    journal.log = log
    log.forget(10)
    with pytest.warns(RuntimeWarning, match="forgot the events 0 to 10"):
        journal.write()
    assert not journal.is_open


def test_a_lab_writes_at_each_step_and_its_log_limit_does_not_touch_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inms_lab.logs.log.CHUNK", 64)
    config = Config(4, 0, 64, 6000, 4000, 4000, 20_000, log_limit=2)
    with Lab(DryModel(50, 6000, 1), config=config, journal=path) as lab:
        agent = lab.agent("a")
        agent.read([1, 2, 3]).result()
        agent.write(300).result()
        assert lab.log.first > 0, "nothing was forgotten: this proves nothing"
        total, tail = len(lab.log), lab.log.copy()
        lab.look(lambda: None)  # what was scheduled at the step's end has happened
        loaded = Log.load(path)
        assert (loaded.first, len(loaded)) == (0, total)
        assert loaded.since(tail.first) == tail.events
        assert loaded.replay().snapshot() == lab.engine.ledger.snapshot()
    assert Log.load(path).note == ""
    assert len(Log.load(path)) == len(lab.log)


def test_what_happens_without_a_step_is_written_too(path: Path) -> None:
    with dry(journal=path) as lab:
        lab.agent("a")
        lab.look(lambda: None)
        assert Log.load(path).events == lab.log.events
        lab.agent("b").close().result()
        lab.look(lambda: None)
        assert Log.load(path).events == lab.log.events
        assert Log.load(path).about == lab.log.about


def test_equal_runs_give_equal_journals_but_for_the_seconds(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        with dry(journal=tmp_path / name) as lab:
            agent = lab.agent("a")
            agent.read([1] * 20).result()
            agent.write(5).result()
        log = Log.load(tmp_path / name)
        log.durations.clear()
        log.save(tmp_path / f"{name}.log")
        texts.append((tmp_path / f"{name}.log").read_bytes())
    assert texts[0] == texts[1]


def test_a_journal_can_begin_in_the_middle_of_a_run_and_wait_for_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with dry() as lab:
        agent = lab.agent("a")
        agent.read([1] * 20).result()
        assert lab.journal is None
        journal = lab.keep_journal(path, fsync=True)
        before = len(synced)
        agent.write(3).result()
        lab.look(lambda: None)
        assert before >= 2
        assert len(synced) >= before + 3
        with pytest.raises(BadInput, match="has a journal"):
            lab.keep_journal(path.with_name("other"))
        assert lab.journal is journal
        lab.assert_clean()
    assert Log.load(path).events == lab.log.events


# death --------------------------------------------------------------------------------------------

WRITER = """
import sys
from inms_lab import Log
from inms_lab.logs.journal import Journal
source = Log.load(sys.argv[1])
log = Log()
journal = Journal(log, sys.argv[2])
log.add_tokens(source.tokens)
for number, event in enumerate(source.events, 1):
    log.append(event)
    if number % 3 == 0:
        journal.write()
    if number == 30:
        print("ready", flush=True)
while True:
    pass
"""
LAB = """
import sys
from inms_lab.notebook.lab import Lab
from inms_lab.config import Config
from inms_lab.model.forward import DryModel
config = Config(4, 0, 64, 100_000, 4000, 4000, 400_000)
lab = Lab(DryModel(50, 100_000, 1), config=config, journal=sys.argv[1])
a, b = lab.agent("a"), lab.agent("b")
a.read([1, 2, 3] * 9).result()
b.read([4, 5, 6] * 9).result()
one, two = a.write(40_000), b.write(40_000)
print("ready", flush=True)
one.result(), two.result()
"""


def killed(code: str, *arguments: object, delay: float = 0.0) -> None:
    """Run it in a process and `kill -9` that, in the middle of its work."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01])
def test_a_killed_writer_leaves_the_log_up_to_a_record(
    source: Log, path: Path, delay: float
) -> None:
    saved = path.with_name("source")
    source.save(saved)
    killed(WRITER, saved, path, delay=delay)
    loaded = Log.load(path)
    assert len(loaded) >= 30
    assert loaded.events == source.events[: len(loaded)]
    assert "not closed" in loaded.note
    assert not audit.faults(loaded.replay())


def test_a_killed_lab_is_opened_at_the_moment_of_its_death(path: Path) -> None:
    killed(LAB, path, delay=0.3)
    log = Log.load(path)
    assert f"not closed: the log ends at event {len(log)}" in log.note
    books = log.replay()
    assert books.num_steps > 5
    assert audit.impossible(log) is None
    assert not audit.faults(books)
    assert sum(pool.num_held for pool in books.pools.values()) > 0, "it died with blocks in hand"
    assert [seq.state for seq in books.holders()] == ["decoding", "decoding"]
    log.save(path.with_name("a.inmslog"))
    again = Log.load(path.with_name("a.inmslog"))
    same(again, log)
    assert again.note == ""
    view = View(path)
    try:
        assert view.publisher.status()["problem"] == log.note
        assert log.note in view.fallback()["text/html"]
        assert view.snapshot().num_steps == books.num_steps
    finally:
        view.close()
    assert log.note in page(log)
    shown = CliRunner().invoke(app, ["refs", str(path), "--block", "0", "--pool", "private"])
    assert shown.exit_code == 0
    assert "not closed" in shown.output.replace("\n", " ")
    assert "Allocated" in shown.output
    with dry(journal=path) as lab:
        assert lab.journal
        assert lab.journal.earlier == path.with_name("run.1.inmsjournal")
        same(Log.load(lab.journal.earlier), log)


def test_wherever_the_file_ends_the_log_is_that_of_the_last_whole_record(path: Path) -> None:
    source = played(seed=1, count=25)
    grown(source, path, 3)
    whole, tail = path.read_bytes(), 0
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for stop in range(len(whole)):
        path.write_bytes(whole[:stop])
        if stop < ends[1]:
            kind = (LogCutShort, NotALog)
            with pytest.raises(kind, match=r"ends before its log begins|is empty|no gzip file"):
                Log.load(path)
            continue
        if stop % 7 and stop not in ends and stop + 1 not in ends:
            continue  # every place near the end of a record, and some of the others
        log = Log.load(path)
        assert log.events == source.events[: len(log)]
        assert [d for d in source.decisions if d.stop <= len(log)][: len(log.decisions)] == (
            log.decisions
        )
        cut = stop - max(end for end in ends if end <= stop)
        assert f"not closed: the log ends at event {len(log)}" in log.note
        assert (f"record of {cut} bytes behind it was cut" in log.note) == (cut > 0)
        tail += cut > 0
        assert not audit.faults(log.replay())
    assert tail > 50


def test_a_plan_that_was_written_in_its_middle_did_not_happen(source: Log, path: Path) -> None:
    decided = next(d for d in source.decisions if d.stop - d.at > 1)
    log = Log()
    journal = Journal(log, path)
    log.add_tokens(source.tokens)
    log.decisions.append(decided)  # planning answers before its events are committed
    for index, event in enumerate(source.events[: decided.stop]):
        if index >= decided.at:
            journal.write()
            assert Log.load(path).decisions == []
        log.append(event)
    journal.close()
    assert Log.load(path).decisions == [decided]


# damage -------------------------------------------------------------------------------------------


def records(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def framed(number: int, text: bytes) -> bytes:
    head = b"%08x %08x " % (number, len(text))
    return b"%b%08x %b\n" % (head, zlib.crc32(text, zlib.crc32(head)), text)


def test_damage_in_the_middle_is_an_error_with_its_place(source: Log, path: Path) -> None:
    grown(source, path, 9)
    lines = records(path)
    assert len(lines) > 12
    places = [sum(map(len, lines[:n])) for n in range(len(lines))]
    edits = {
        "a bit": [*lines[:5], lines[5][:40] + bytes((lines[5][40] ^ 1,)) + lines[5][41:]],
        "a number": [*lines[:5], lines[5].replace(b"0000000", b"0000001", 1)],
        "half a record": [*lines[:5], lines[5][: len(lines[5]) // 2]],
        "zeros": [*lines[:5], b"\0" * len(lines[5])],
        "rubbish": [*lines[:5], b"\n\n\xff\n"],
        "a record less": lines[:5],
    }
    for name, kept in edits.items():
        path.write_bytes(b"".join([*kept, *lines[6:]]))
        with pytest.raises(LogDamaged, match=f"byte {places[5]}: damaged, and whole"):
            Log.load(path)
        if name != "a record less":
            path.write_bytes(b"".join(kept))  # nothing whole behind it: that is where it ended
            assert "record of" in Log.load(path).note
    for kept in (
        [*lines[:6], *lines[5:]],
        [*lines[:5], lines[6], lines[5], *lines[7:]],
        [*lines, *lines[3:4]],
    ):
        path.write_bytes(b"".join(kept))
        with pytest.raises(LogDamaged, match="damaged"):
            Log.load(path)


WRONG = {
    "no list": b"{}",
    "a number": b"[5]",
    "no JSON": b"[1,",
    "an unknown part": b'[{"sound":1}]',
    "an unknown event": b'[["Teleported",1]]',
    "deep nesting": b"[" * 100_000,
    "another snapshot": b'[{"snapshot":null}]',
    "a wrong end": b'[{"end":{"events":1,"tokens":0}}]',
    "an about that is none": b'[{"about":5}]',
    "a pool of all memory": b'[["PoolOpened","p","private","",16,1000000000000,[]]]',
    "what cannot have happened": b'[["Stepped",7777,0,[]]]',
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_whole_record_that_makes_no_sense_is_damage(text: bytes, source: Log, path: Path) -> None:
    grown(source, path, 50, close=False).close()
    lines = records(path)[:-1]
    path.write_bytes(b"".join(lines) + framed(len(lines) - 1, text))
    if text == b"{}":
        same(Log.load(path), source)  # nothing came
        return
    with pytest.raises(LogDamaged, match="damaged"):
        Log.load(path)


def test_other_files_and_other_versions(source: Log, path: Path) -> None:
    grown(source, path, 50)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"inms-journal 1", b"inms-journal 2", 1))
    with pytest.raises(LogVersionUnknown, match="version '2', this program reads 1: update"):
        Log.load(path)
    path.write_bytes(b"inms-journal " + b"9" * 1000)
    with pytest.raises(LogCutShort):
        Log.load(path)
    path.write_bytes(whole)
    with pytest.raises(LogTooLarge, match="max_bytes"):
        read_journal(path, max_bytes=len(whole) - 1)
    source.save(path)
    with pytest.raises(NotALog, match=r"no journal: a lab writes one"):
        read_journal(path)
    view = View(path.with_name("absent"))
    assert "absent" in view.publisher.status()["problem"]
    view.close()


# one writer, and files that cannot be written -----------------------------------------------------


def test_two_labs_do_not_write_one_journal(path: Path) -> None:
    with dry(journal=path) as lab:
        for _ in range(2):
            with pytest.raises(JournalInUse, match="being written by another lab"):
                dry(journal=path)
        with pytest.raises(JournalInUse):
            Journal(Log(), path.parent / ".." / path.parent.name / path.name)
        code = f"from inms_lab import Log\nfrom inms_lab.logs.journal import Journal\n" \
            f"Journal(Log(), {str(path)!r})"  # fmt: skip
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "JournalInUse" in other.stderr
        work(lab)
    assert Log.load(path).events == lab.log.events
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing else is left there"


def test_a_journal_that_is_there_is_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = []
    for number in range(3):
        with dry(journal=path) as lab:
            lab.agent(f"agent {number}")
        contents.append(path.read_bytes())
    names = ["run.1.inmsjournal", "run.2.inmsjournal", "run.inmsjournal"]
    assert [path.with_name(name).read_bytes() for name in names] == contents
    assert "kept as run.2.inmsjournal" in capsys.readouterr().out
    path.write_bytes(b"")  # there is nothing in it to keep
    dry(journal=path).close()
    assert len([*path.parent.iterdir()]) == 3


@pytest.mark.parametrize("content", [b"a letter to my mother", b"\x1f\x8b"])
def test_another_file_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(BadInput, match="left alone"):
        dry(journal=path)
    assert path.read_bytes() == content
    path.unlink()
    dry(journal=path).close()


def test_a_place_where_no_file_can_be_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "nowhere" / "a", tmp_path / "file" / "a"):
        with pytest.raises(JournalNotWritable, match=r"cannot be written|no folder"):
            dry(journal=place)
    with pytest.raises(BadInput, match="is no file"):
        dry(journal=tmp_path)
    log = Log()
    log.about["model"] = object()
    with pytest.raises(BadInput, match="cannot be written"):
        Journal(log, tmp_path / "a")
    log.about.clear()
    Journal(log, tmp_path / "a").close()  # the lock was let go


@contextmanager
def no_file_over(num_bytes: int) -> Iterator[None]:
    """What a full disk is like: the system writes a part, then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_the_journal_once_and_not_the_lab(path: Path) -> None:
    with dry(journal=path) as lab:
        agent = lab.agent("a")
        agent.read([1] * 20).result()
        assert lab.journal
        assert lab.journal.is_open
        with warnings.catch_warnings(record=True) as said, no_file_over(3000):
            warnings.simplefilter("always")
            agent.write(60).result()
            lab.look(lambda: None)
        told = [w for w in said if issubclass(w.category, RuntimeWarning)]
        assert len(told) == 1
        assert "the lab goes on without it" in str(told[0].message)
        assert not lab.journal.is_open
        count = lab.journal.num_events
        assert f"ends at event {count}" in lab.journal.problem
        agent.write(5).result()
        lab.assert_clean()
    assert path.stat().st_size <= 3000
    loaded = Log.load(path)
    assert loaded.events == lab.log.events[:count]
    assert 0 < count < len(lab.log)
    assert "behind it" not in loaded.note, "half a record was left there"
    assert lab.log.replay().snapshot() == lab.engine.ledger.snapshot()


def test_a_value_that_is_no_data_stops_it_too(path: Path) -> None:
    log = played(count=20)
    journal = Journal(log, path)
    log.about = {**log.about, "secret": object()}
    log.append(log.events[0])
    with pytest.warns(RuntimeWarning, match="not JSON serializable"):
        journal.write()
    journal.write()
    journal.close()
    assert Log.load(path).about == {k: v for k, v in log.about.items() if k != "secret"}


def test_each_record_is_in_the_file_when_the_step_is_over(path: Path, source: Log) -> None:
    log = Log()
    due: list[Any] = []
    journal = Journal(log, path, soon=due.append)
    log.add_tokens(source.tokens)
    for event in source.events[:10]:
        log.append(event)
    assert due == [journal.write], "asked for once, however much came"
    assert len(Log.load(path)) == 0
    due.pop()()
    assert len(Log.load(path)) == 10
    log.append(source.events[10])
    assert due == [journal.write]
    journal.close()
    assert len(Log.load(path)) == 11
    assert log.on_change is None
