"""The prepared logs of lab 04: what their generator makes, and what runs once more."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inms_lab.books.events import Allocated, Freed, Registered, Released
from inms_lab.errors import BadInput
from inms_lab.logs.audit import faults
from inms_lab.logs.log import Log
from inms_lessons.culprits import CASES, digest
from inms_lessons.planted import LOGS, NAMES, planted, without
from inms_lessons.told import told

sys.path.append(str(Path(__file__).parents[1] / "tools"))


@cache
def made(name: str) -> tuple[Log, int]:
    """What the generator makes, and the number of its fault's event."""
    import plant_faults

    return plant_faults.made(name)


def number_of(log: Log, kind: type, at: int = 0, **has: Any) -> int:
    """The first event of a kind, from `at` on, whose fields are these."""
    found = ((n, e) for n, e in enumerate(log.events) if n >= at and isinstance(e, kind))
    return next(n for n, e in found if all(getattr(e, k) == v for k, v in has.items()))


@pytest.mark.parametrize("name", NAMES)
def test_a_prepared_log_is_what_its_generator_makes(name: str) -> None:
    log, again = planted(name), made(name)[0]
    assert log.events == again.events
    assert log.tokens == again.tokens
    assert (log.decisions, log.about) == (again.decisions, again.about)
    assert 4000 < len(log) < 15_000
    assert not faults(log.replay())
    assert not log.durations
    assert name == "split" or digest(name, made(name)[1]) == CASES[name].digest


def test_the_logs_are_small_and_none_is_left_over() -> None:
    logs = sorted(LOGS.glob("*.inmslog"))
    assert [path.name for path in logs] == sorted(f"{n}.inmslog" for n in NAMES)
    assert sum(path.stat().st_size for path in LOGS.iterdir()) < 600_000


def test_nothing_but_the_names_and_digests_is_in_the_code() -> None:
    for path in LOGS.parent.rglob("*.py"):
        words = path.read_text("utf-8").replace("(", " ").replace(",", " ").split()
        assert not {str(number) for number in (made(name)[1] for name in CASES)} & set(words), (
            path.name
        )


@pytest.mark.parametrize("name", ["split", "leak", "mount"])
def test_the_inputs_of_a_log_give_the_same_log_again(name: str) -> None:
    log = planted(name)
    again = without(log)
    assert again.events == log.events
    assert again.tokens == log.tokens


def test_without_its_cause_a_symptom_is_gone() -> None:
    split = planted("split")
    assert _preempted(split) > 10
    assert not _preempted(without(split, made("split")[1]))
    nobody = without(split, number_of(split, Registered, name="pia"))
    assert "pia" not in {e.name for e in nobody.events if isinstance(e, Registered)}
    kept = without(planted("gap"), made("gap")[1])
    assert not CASES["gap"].there(kept, len(kept))
    silent = without(planted("secret"), made("secret")[1])
    assert [e.by for e in silent.events if isinstance(e, Released)].count("vera") == 1


def _preempted(log: Log) -> int:
    return sum(isinstance(e, Freed) and e.cause == "preempted" for e in log.events)


def test_what_cannot_be_left_out_or_opened() -> None:
    log = planted("split")
    for number in (number_of(log, Allocated), -1, len(log)):
        with pytest.raises(BadInput, match="only an input"):
            without(log, number)
    with pytest.raises(BadInput, match="split, leak, gap"):
        planted("lost")


def test_a_prepared_log_cannot_be_spoilt() -> None:
    log, events = planted("gap"), list(planted("gap").events)
    for spoil in (log.events.clear, log.events.pop, log.events.reverse, log.decisions.clear):
        with pytest.raises(BadInput, match="cannot be changed"):
            spoil()
    with pytest.raises(BadInput, match="cannot be changed"):
        del log.events[3]
    copy = log.copy()
    copy.events.clear()
    assert log.events == events


def test_a_log_whose_beginning_is_gone_is_told_but_not_run_again() -> None:
    cut = planted("mount").copy()
    cut.forget(1000)
    for number in range(1000, 1400):
        assert told(cut, number) == told(planted("mount"), number)
    with pytest.raises(BadInput, match="cut off"):
        without(cut)


@pytest.mark.parametrize("name", NAMES)
def test_every_event_can_be_told(name: str) -> None:
    log = planted(name)
    for number in range(0, len(log), 7):
        assert told(log, number).startswith(
            f"event {number}, {type(log.events[number]).__name__}: "
        )
