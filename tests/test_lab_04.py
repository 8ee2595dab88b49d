"""Lab 04: each fault turns at its event; what the check says of a wrong number, and where."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from inms_lab.books.events import Commanded, Evicted, Registered, Released, Shared
from inms_lab.logs.log import Log
from inms_lessons import check, examine
from inms_lessons.culprits import CASES, digest
from inms_lessons.exercises import exercise
from inms_lessons.planted import planted
from inms_lessons.told import told
from inms_lessons.wrong import Wrong
from inms_widgets.snapshot import names_of
from inms_widgets.view import View

Say = Callable[..., Wrong]


@cache
def truth() -> dict[str, int]:
    """The numbers that the digests stand for (test_planted.py asks the generator for them)."""
    return {name: _undigested(name) for name in CASES}


def _undigested(name: str) -> int:
    numbers = range(len(planted(name)))
    return next(n for n in numbers if digest(name, n) == CASES[name].digest)


def wrong(**answers: Any) -> Wrong:
    """What the check says of the right answers with these in their places."""
    found = examine("culprits", truth() | answers)
    assert found is not None
    return found


def number_of(log: Log, kind: type, at: int = 0, **has: Any) -> int:
    """The first event of a kind, from `at` on, whose fields are these."""
    found = ((n, e) for n, e in enumerate(log.events) if n >= at and isinstance(e, kind))
    return next(n for n, e in found if all(getattr(e, k) == v for k, v in has.items()))


def id_of(log: Log, name: str) -> int:
    return log.events[number_of(log, Registered, name=name)].seq_id  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CASES)
def test_each_fault_turns_at_its_event(name: str) -> None:
    log, number, case = planted(name), truth()[name], CASES[name]
    assert type(log.events[number]) is case.kind
    assert not case.there(log, number)
    assert case.there(log, len(log))  # and so the symptom is there at the end
    assert len(log) - number > 3000
    later = range(number + 1 + 40 * (name == "hog"), len(log), 500)  # it takes a few steps to read
    assert all(case.there(log, n) for n in later)


def test_the_solution_passes_and_numbers_of_numpy_do_too() -> None:
    assert examine("culprits", truth()) is None
    assert examine("culprits", {name: np.int64(n) for name, n in truth().items()}) is None


def test_the_stub_fails_politely() -> None:
    names: dict[str, Any] = {}
    exec(exercise("culprits").stub, names)
    assert list(names["answers"]) == list(CASES)
    found = examine("culprits", names["answers"])
    assert found is not None
    assert "leak (0 of 5 are right)" in found.words()
    assert "none yet" in found.words()
    assert (found.log, found.moment) == (planted("leak"), len(planted("leak")))


@pytest.mark.parametrize("answer", [None, "x", 7, [1, 2, 3, 4, 5], float("nan")])
def test_what_is_no_dict(answer: Any) -> None:
    found = examine("culprits", answer)
    assert found is not None
    assert "a dict with the keys leak, gap, secret, hog, mount" in found.expected
    assert type(answer).__name__ in found.came


@pytest.mark.parametrize(
    "answer",
    [
        True,
        "496",
        1.5,
        -1,
        10**30,
        pytest.param(10**5000, id="huge"),
        float("nan"),
        [3],
        "x" * 999,
        np.array([1, 2]),
    ],
)
def test_what_is_no_event_shows_the_symptom(answer: Any) -> None:
    found = wrong(gap=answer)
    assert found.where == "gap (4 of 5 are right)"
    assert "which is no event" in found.came
    assert f"0 to {len(planted('gap')) - 1}" in found.expected
    assert len(found.words()) < 500
    assert (found.log, found.moment) == (planted("gap"), len(planted("gap")))


def test_a_number_that_is_wrong_is_told_before_one_that_is_missing() -> None:
    found = examine("culprits", {"secret": 17, "hog": 3, "mount": truth()["mount"], "else": 1})
    assert found is not None
    assert found.where == "secret (1 of 5 are right)"


def seen(found: Wrong, name: str, number: int, *words: str) -> None:
    """The view is at the event that was named, just after it, and the words are there."""
    assert found.log is planted(name)
    assert found.moment == number + 1
    said = " ".join(found.words().split())  # it is broken into lines
    for word in (told(planted(name), number), *words):
        assert word in said, said


def test_leak_the_failing_record_an_innocent_and_a_silent_one_without_notes() -> None:
    log = planted("leak")
    fails = number_of(log, Commanded, verb="fail")
    seen(wrong(leak=fails), "leak", fails, "consequence at most", "Look earlier")
    seen(wrong(leak=300), "leak", 300, "still gives commands", "shows later")
    culprit = log.events[truth()["leak"]].seq_id  # type: ignore[union-attr]
    live = [s for s in log.replay().holders() if s.kind == "agent" and s.seq_id != culprit]
    idle = min(live, key=lambda s: s.seq_id)  # never closed either, silent even longer
    last = max(n for n, e in enumerate(log.events) if _commands(e, idle.seq_id))
    seen(wrong(leak=last), "leak", last, idle.name)
    assert not any(s.pool_id == "group:shop" and s.blocks for s in idle.segments)


def _commands(event: Any, seq_id: int) -> bool:
    return isinstance(event, Commanded) and event.seq_id == seq_id


def test_gap_a_later_and_larger_rollback_and_the_promise_itself() -> None:
    log, rita = planted("gap"), id_of(planted("gap"), "rita")
    rolls = [n for n, e in enumerate(log.events) if _commands(e, rita) and e.verb == "rollback"]
    assert len(rolls) > 10
    before, after = max(r for r in rolls if r < truth()["gap"]), rolls[-1]
    seen(wrong(gap=before), "gap", before, "rita rolls back", "rita has the rule", "shows later")
    seen(wrong(gap=after), "gap", after, "has lost the rule", "Look earlier")
    promise = max(n for n, e in enumerate(log.events) if _commands(e, rita) and e.verb == "write")
    seen(wrong(gap=promise), "gap", promise, "rita is to write", "consequence")
    seen(wrong(gap=3), "gap", 3, "has not read it yet")


def test_secret_the_private_reading_the_encoding_and_the_repetition() -> None:
    log, right = planted("secret"), truth()["secret"]
    vera = id_of(log, "vera")
    reading = next(
        n for n, e in enumerate(log.events) if _commands(e, vera) and "safe" in told(log, n)
    )
    seen(wrong(secret=reading), "secret", reading, "vera is given", "is not out")
    notice = number_of(log, Released, by="vera")
    assert notice < right
    seen(wrong(secret=notice), "secret", notice, "is not out", "shows later")
    encoding = number_of(log, Commanded, at=right, seq_id=log.events[right].seq_id)  # type: ignore[union-attr]
    seen(wrong(secret=encoding), "secret", encoding, "a consequence", "Look earlier")
    repeated = number_of(log, Released, by="ida")
    seen(
        wrong(secret=repeated),
        "secret",
        repeated,
        "ida publishes",
        "already before this event the word is out",
    )


def test_hog_the_eviction_another_long_reading_and_the_reader_who_waits() -> None:
    log, right = planted("hog"), truth()["hog"]
    evicted = next(n for n in range(right, len(log)) if CASES["hog"].there(log, n + 1))
    assert isinstance(log.events[evicted], Evicted)
    seen(wrong(hog=evicted), "hog", evicted, "a consequence: which Commanded event")
    assert wrong(hog=evicted).block is not None
    reads = [n for n, e in enumerate(log.events) if isinstance(e, Commanded) and e.length > 1000]
    assert min(reads) < right < max(reads)
    seen(wrong(hog=min(reads)), "hog", min(reads), "is there", "shows later")
    seen(wrong(hog=max(reads)), "hog", max(reads), "is gone", "Look earlier")
    lea = id_of(log, "lea")
    assert not [
        e for e in log.events if isinstance(e, Shared) and (e.seq_id, e.segment) == (lea, 1)
    ]


def test_a_fork_is_called_as_in_the_picture() -> None:
    log = planted("mount")
    fork = next(e for e in log.events if isinstance(e, Registered) and e.parent_id >= 0)
    drawn = dict(
        zip(log.replay().sequences, names_of(log.replay().sequences.values()), strict=True)
    )
    assert drawn[fork.seq_id] == f"{fork.name} (fork {fork.seq_id})"
    assert told(log, log.events.index(fork)).split(": ")[1].startswith(drawn[fork.seq_id])


def test_mount_the_registration_a_fork_and_the_second_one() -> None:
    log, right = planted("mount"), truth()["mount"]
    zoe = number_of(log, Registered, name="zoe")
    seen(wrong(mount=zoe), "mount", zoe, "without the check of the label", "nobody holds")
    fork = number_of(log, Shared, cause="fork")
    seen(wrong(mount=fork), "mount", fork, "(fork)", "shows later")
    second = number_of(log, Shared, at=right + 1, seq_id=id_of(log, "bo"), pool_id="private")
    seen(wrong(mount=second), "mount", second, "bo mounts", "already before this event")


def test_the_view_is_moved_where_it_shows_that_log(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(planted("gap"), parts=("bar", "map"))
    check("culprits", truth() | {"gap": 2000}, view=view)
    assert (view.look["index"], "the view above" in capsys.readouterr().out) == (2001, True)
    assert "gap (4 of 5 are right)" in view.look["note"]
    check("culprits", truth() | {"secret": 3000}, view=view)
    assert "below: the view stands at event 3001" in capsys.readouterr().out
    assert view.look["index"] == 2001
    check("culprits", truth(), view=view)
    assert capsys.readouterr().out == "culprits: public checks passed\n"
    view.close()
