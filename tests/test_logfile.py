"""Logs as files: nothing is lost, equal logs are equal bytes, and bad files are told apart."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_ledger import Player
from toy import Toy

from inms_lab import Log
from inms_lab.books.events import EVENT_TYPES
from inms_lab.books.gate import OPEN
from inms_lab.decisions.policy import MODES
from inms_lab.errors import (
    BadInput,
    LogCutShort,
    LogDamaged,
    LogTooLarge,
    LogUnreadable,
    LogVersionUnknown,
    NotALog,
)
from inms_lab.logs.logcode import event_of, event_row, pack, unpack
from inms_lab.logs.logfile import MASKED, VERSION, load, save


def played(mode: str = "inms", seed: int = 0, count: int = 250) -> Log:
    player = Player(mode, seed, gate=OPEN if seed % 2 else None)  # every second with fragments
    for _ in player.play(count):
        pass
    log = player.toy.log
    log.piece = lambda token: bytes((0xF0 + token,))  # no text by themselves
    log.errors[1] = 'Traceback\n  "quoted" \u00e9\nValueError: no'
    return log


def cut_off(log: Log, index: int) -> Log:
    """The log as if everything before `index` had been forgotten."""
    log.forget(index)
    return log


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def put(path: Path, lines: list[Any]) -> Path:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode("utf-8", "surrogatepass")))
    return path


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost(tmp_path: Path, mode: str, seed: int) -> None:
    log, rng, path = played(mode, seed), random.Random(seed), tmp_path / "a.inms"
    if seed % 2:
        cut_off(log, rng.randrange(1, len(log)))
    log.save(path)
    loaded = Log.load(path)
    assert loaded.events == log.events
    assert loaded.tokens == log.tokens
    assert loaded.snapshot == log.snapshot
    assert loaded.decisions == log.decisions
    assert any(d.parts for d in log.decisions)
    assert (loaded.durations, loaded.errors) == (log.durations, log.errors)
    assert (loaded.about, loaded.first, len(loaded)) == (log.about, log.first, len(log))
    assert loaded.piece
    assert log.piece
    assert [*map(loaded.piece, log.tokens)] == [*map(log.piece, log.tokens)]
    assert (loaded.piece(99), loaded.piece(-7)) == (b"?", MASKED)
    for index in {log.first, rng.randint(log.first, len(log)), len(log)}:
        assert loaded.replay(index).snapshot() == log.replay(index).snapshot()


def test_equal_logs_are_equal_bytes_and_a_loaded_one_is_equal(tmp_path: Path) -> None:
    names = [tmp_path / name for name in "abc"]
    for path in names[:2]:
        log = played(seed=3)
        log.durations = {step: step / 7 for step in log.durations}
        log.save(path)
    load(names[0]).save(names[2])
    first, second, third = (path.read_bytes() for path in names)
    assert first == second == third
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"], "nothing is left over"


def test_every_kind_of_event_was_written(tmp_path: Path) -> None:
    played(seed=1, count=900).save(tmp_path / "a")
    written = {line[0] for line in lines_of(tmp_path / "a") if isinstance(line, list)}
    assert written == {kind.__name__ for kind in EVENT_TYPES}


def test_only_tokens_that_occur_have_pieces(tmp_path: Path) -> None:
    log = Log()
    log.add_tokens([7, 300, 7])
    log.piece = lambda token: b"%d" % token
    log.save(tmp_path / "a")
    (pieces,) = (line["pieces"] for line in lines_of(tmp_path / "a") if "pieces" in line)
    assert sorted(pieces) == ["300", "7"]
    log.piece = None
    log.save(tmp_path / "a")
    assert load(tmp_path / "a").piece is None


def test_a_file_that_is_there_survives_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    log = played(count=20)
    log.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    log.about["model"] = object()
    with pytest.raises(BadInput, match="written as JSON"):
        log.save(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == before
    with pytest.raises(BadInput, match="nothing, private, all"):
        log.save(tmp_path / "a", redact="some")


def test_a_log_is_saved_while_it_goes_on(tmp_path: Path) -> None:
    log = played(count=60)
    part = log.copy()
    log.save(tmp_path / "before")
    log.events.append(log.events[0])
    log.add_tokens([1, 2])
    part.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


# coding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_events_and_snapshots_survive_json(seed: int) -> None:
    log = played(seed=seed)
    for event in log.events:
        again = event_of(json.loads(json.dumps(event_row(event))))
        assert again == event
        assert type(again) is type(event)
    snapshot = log.replay().snapshot()
    again = unpack(json.loads(json.dumps(pack(snapshot))))
    assert again == snapshot
    assert repr(again) == repr(snapshot), "types and orders too"


WRONG_EVENTS: dict[str, Any] = {
    "unknown": ["Teleported", 1],
    "of no type": [],
    "a number as a name": [3],
    "too few fields": ["Published", 0, 0, "private", 0, [1]],
    "too many fields": ["Released", 0, "a", "g", 0, 0, -1, 0],
    "a truth for a number": ["Released", True, "a", "g", 0, 0],
    "a number for a truth": ["Stepped", 1, 0, [[0, 1, 0, 1]]],
    "a fraction": ["Released", 0.5, "a", "g", 0, 0],
    "text for a list": ["Allocated", 0, 0, "p", "12", [], 4],
    "no hex": ["Published", 0, 0, "p", 0, [1], ["zz"]],
    "an item too short": ["Stepped", 1, 0, [[0, 1, 0]]],
    "null": ["Released", None, "a", "g", 0, 0],
    "an object": ["Released", {}, "a", "g", 0, 0],
    "a number of more than 32 bits": ["Released", 1 << 31, "a", "g", 0, 0],
    "half a surrogate pair": ["Released", 0, "\ud800", "g", 0, 0],
    "a pool of all memory": ["PoolOpened", "p", "private", "", 16, 10**12, []],
}


@pytest.mark.parametrize("data", WRONG_EVENTS.values(), ids=WRONG_EVENTS)
def test_wrong_events_are_damage(tmp_path: Path, data: Any) -> None:
    played(count=20).save(tmp_path / "a")
    lines = lines_of(tmp_path / "a")
    first = next(i for i, line in enumerate(lines) if isinstance(line, list))
    lines[first + 2] = data
    with pytest.raises(LogDamaged, match=f"line {first + 3}: damaged"):
        load(put(tmp_path / "b", lines))


# bad files ----------------------------------------------------------------------------------------

Edit = Callable[[list[Any]], list[Any]]
EDITS: dict[str, tuple[type[LogUnreadable], str, Edit]] = {
    "nothing": (LogCutShort, "is empty", lambda lines: []),
    "of a later version": (
        LogVersionUnknown,
        f"of version 7, this program reads {VERSION}: update it",
        lambda lines: [lines[0] | {"version": 7}, *lines[1:]],
    ),
    "something else": (NotALog, "is no log", lambda lines: [{"format": "zip"}]),
    "a list": (NotALog, "is no log", lambda lines: [[1, 2], *lines]),
    "text": (NotALog, "no header", lambda lines: ["once upon a time\n"]),
    "a header without fields": (
        NotALog,
        "no header",
        lambda lines: [{"format": "inms-log", "version": VERSION}],
    ),
    "a header with a wrong index": (
        LogDamaged,
        "header",
        lambda lines: [lines[0] | {"first": -1}],
    ),
    "no end line": (LogCutShort, "end line is missing", lambda lines: lines[:-1]),
    "only a header": (LogCutShort, "end line is missing", lambda lines: lines[:1]),
    "half a line": (LogCutShort, "not finished", lambda lines: [*lines[:5], '["Stepp']),
    "an event less": (LogDamaged, "not what it says", lambda lines: [*lines[:-2], lines[-1]]),
    "a table less": (
        LogDamaged,
        "not what it says",
        lambda lines: [line for line in lines if "tokens" not in line],
    ),
    "two ends": (LogDamaged, "follows the end", lambda lines: [*lines, lines[-1]]),
    "no snapshot line": (LogDamaged, "line 2", lambda lines: [lines[0], *lines[2:]]),
    "two snapshots": (LogDamaged, "line 3", lambda lines: [*lines[:2], *lines[1:]]),
    "an unknown section": (
        LogDamaged,
        "line 3",
        lambda lines: [*lines[:2], {"sound": 1}, *lines[2:]],
    ),
    "two sections in a line": (
        LogDamaged,
        "line 3",
        lambda lines: [*lines[:2], {"tokens": [], "errors": {}}, *lines[2:]],
    ),
    "an empty object": (LogDamaged, "line 3", lambda lines: [*lines[:2], {}, *lines[2:]]),
    "a number": (LogDamaged, "line 3", lambda lines: [*lines[:2], 5, *lines[2:]]),
    "no JSON": (LogDamaged, "line 4", lambda lines: [*lines[:3], "[1,\n", *lines[3:]]),
    "not a number": (LogDamaged, "NaN", lambda lines: [*lines[:3], '{"x":NaN}\n']),
    "no text at all": (LogDamaged, "line 4", lambda lines: [*lines[:3], "\udcff\n"]),
    "endless nesting": (LogDamaged, "line 3", lambda lines: [*lines[:2], "[" * 100_000 + "\n"]),
    "a snapshot without parts": (
        LogDamaged,
        "line 2",
        lambda lines: [lines[0], {"snapshot": {"dict": []}}, *lines[2:]],
    ),
    "a snapshot of unknown types": (
        LogDamaged,
        "line 2",
        lambda lines: [lines[0], {"snapshot": {"call": "print"}}, *lines[2:]],
    ),
    "tokens that are text": (
        LogDamaged,
        "whole numbers",
        lambda lines: [*lines[:2], {"tokens": ["1"]}, *lines[2:]],
    ),
    "tokens that are too large": (
        LogDamaged,
        "too large",
        lambda lines: [*lines[:2], {"tokens": [2**40]}, *lines[2:]],
    ),
    "a piece that is none": (
        LogDamaged,
        "line 3",
        lambda lines: [*lines[:2], {"pieces": {"1": "*"}}, *lines[2:]],
    ),
    "a duration that is none": (
        LogDamaged,
        "wrong type",
        lambda lines: [*lines[:2], {"durations": {"1": "long"}}, *lines[2:]],
    ),
    "a decision that is none": (
        LogDamaged,
        "fields",
        lambda lines: [*lines[:2], {"decided": [1]}, *lines[2:]],
    ),
}


@pytest.mark.parametrize(("error", "words", "edit"), EDITS.values(), ids=EDITS)
def test_bad_files_are_told_apart(
    tmp_path: Path, error: type[LogUnreadable], words: str, edit: Edit
) -> None:
    played(count=30).save(tmp_path / "a")
    with pytest.raises(error, match=words):
        load(put(tmp_path / "b", edit(lines_of(tmp_path / "a"))))


def test_a_file_that_was_cut_anywhere_is_noticed(tmp_path: Path) -> None:
    played(count=60).save(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    assert len(load(tmp_path / "a")) > 20
    for stop in {*range(0, len(whole), 97), *range(len(whole) - 12, len(whole))}:
        (tmp_path / "b").write_bytes(whole[:stop])
        with pytest.raises((LogCutShort, NotALog)):
            load(tmp_path / "b")


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_is_noticed(tmp_path: Path, seed: int) -> None:
    """But for those that mean nothing: bits that fill up the last byte of the stream, or another
    way to write the same bytes (a repetition taken from another place where the same stands)."""
    log = played(count=30)
    log.save(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    data = bytearray(whole)
    at = random.Random(seed).randrange(10, len(data))
    data[at] ^= 1 << seed % 8
    (tmp_path / "b").write_bytes(data)
    try:
        found = load(tmp_path / "b")
    except LogUnreadable:
        return
    assert gzip.decompress(data) == gzip.decompress(whole), "noticed by nobody"
    assert (found.events, found.tokens) == (log.events, log.tokens)


def test_random_damage_of_a_line_is_a_named_error_or_another_log(tmp_path: Path) -> None:
    log = played(count=30)
    cut_off(log, 20)
    log.save(tmp_path / "a")
    text = gzip.decompress((tmp_path / "a").read_bytes())
    for seed in range(300):
        rng, data = random.Random(seed), bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 4)] = rng.choice(
                (b"", b"9", b'"', b"]", b"null", b"\xff")
            )
        (tmp_path / "b").write_bytes(gzip.compress(bytes(data), 1))
        with suppress(LogUnreadable):
            load(tmp_path / "b")


def test_what_is_no_gzip_file_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}")
    with pytest.raises(NotALog, match=r"no gzip file: a log is saved with log\.save"):
        load(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")


def test_rubbish_behind_the_end_is_damage(tmp_path: Path) -> None:
    played(count=20).save(tmp_path / "a")
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes() + b"and more")
    with pytest.raises(LogDamaged, match="compressed data"):
        load(tmp_path / "b")


def test_a_file_that_unpacks_to_too_much_is_not_read_to_its_end(tmp_path: Path) -> None:
    log = played(count=30)
    save(log, tmp_path / "a")
    size = len(gzip.decompress((tmp_path / "a").read_bytes()))
    assert load(tmp_path / "a", max_bytes=size).events == log.events
    with pytest.raises(LogTooLarge, match="max_bytes"):
        load(tmp_path / "a", max_bytes=size - 1)
    bomb = [*lines_of(tmp_path / "a")[:2], " " * 50_000_000]
    put(tmp_path / "b", bomb)
    with pytest.raises(LogTooLarge):
        load(tmp_path / "b", max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["Allocated",0,', '["Allocated",99,'),
        ('"bytes_per_token":1', '"bytes_per_token":"abc"'),
        ('["Stepped",1,', '["Stepped",7,'),
    ],
)
def test_a_log_that_cannot_have_happened_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """Valid lines, impossible books: a view, a table and a page would break on them later."""
    toy = Toy()
    toy.do(toy.agent("a"), "append", [1, 2, 3, 4, 1])
    path = tmp_path / "run.inmslog"
    toy.log.save(path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert text.count(old) == 1, text
    path.write_bytes(gzip.compress(text.replace(old, new).encode()))
    with pytest.raises(LogDamaged):
        Log.load(path)
