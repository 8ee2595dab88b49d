"""The exercise frame: predictions, checks with a time limit, views that move, resets, copies."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inms_lab.cli import app
from inms_lab.errors import BadInput
from inms_lab.logs.log import Log
from inms_lessons import EXERCISES, Wrong, check, examine, frame, reset, reveal
from inms_lessons.copies import (
    FIRST,
    all_facts,
    for_students,
    solutions_in,
    solved,
    source,
    stubs_in,
)
from inms_lessons.limit import TookTooLong, limited
from inms_lessons.small_labs import letter_lab
from inms_lessons.wrong import shown
from inms_widgets.dashboard import Dashboard
from inms_widgets.view import View

LABS = Path(__file__).resolve().parents[1] / "labs"
NOTEBOOKS = sorted(LABS.glob("[0-9]*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


# --- predictions ------------------------------------------------------------------------------


def test_a_prediction_is_shown_beside_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    for guess in (None, ..., 8, 24):
        reveal(guess, 8, "blocks")
    assert capsys.readouterr().out.splitlines() == [
        "blocks: 8 (no guess was written down)",
        "blocks: 8 (no guess was written down)",
        "blocks: 8, as you expected",
        "blocks: 8; you expected 24",
    ]


# --- checks -----------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[Log]:
    lab = letter_lab()
    lab.agent("ada").read("mintrose").result()
    yield lab.log
    lab.close()


def answering(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of every exercise answers this from now on, or does it if it can be called."""
    monkeypatch.setattr(
        "inms_lessons.exercises.Exercise.check",
        lambda self, *answer: found(*answer) if callable(found) else found,
    )
    monkeypatch.setattr("inms_lessons.exercises.Exercise.wanted", lambda self: ["answer"])


def test_a_check_that_passes_says_that_public_checks_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """otter-grader#138: "all tests passed" while hidden ones fail."""
    answering(None, monkeypatch)
    check("order", 1)
    assert capsys.readouterr().out == "order: public checks passed\n"


def test_a_failed_check_moves_the_view_that_shows_its_log(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = Dashboard(log)
    answering(Wrong("2", "1", "here", "look", log, 3, ("private", 1)), monkeypatch)
    check("order", 1, view=view)
    out = capsys.readouterr().out
    for line in (
        "order: not yet",
        "at        here",
        "expected  2",
        "came      1",
        "hint      look",
    ):
        assert line in out
    assert "the view above stands at event 3" in out
    look = view.view.look
    assert (look["index"], look["pool"], look["block"]) == (3, "private", 1)
    assert look["note"] == "here: expected 2; came 1"
    assert not frame._opened
    view.close()


def test_a_failed_check_opens_a_view_where_none_shows_its_log_and_closes_it_the_next_time(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = View(Log())
    answering(Wrong("2", "1", log=log), monkeypatch)
    check("order", 1, view=other)
    assert f"below: the view stands at event {len(log)}" in capsys.readouterr().out
    opened = frame._opened["order"]
    assert opened.shown is log
    assert not other.look
    answering(None, monkeypatch)
    check("order", 1)
    assert opened.closed
    assert not frame._opened
    other.close()


class Rude(Exception):
    def __str__(self) -> str:
        raise self


class Unspeakable:
    def __repr__(self) -> str:
        raise SystemExit


def rude() -> None:
    raise Rude


ENDS = {
    "KeyError: 'nothing'": lambda: {}["nothing"],
    "SystemExit: 3": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: signal.default_int_handler(2, None),
    "an error of type Rude that cannot be shown": rude,
    "JSONDecodeError": lambda: json.loads("{"),
}


@pytest.mark.parametrize("said", ENDS)
def test_a_check_does_not_raise_whatever_the_answer_does(
    said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(lambda answer: answer(), monkeypatch)
    check("order", ENDS[said])
    out = capsys.readouterr().out
    assert f"came      {said}" in out
    assert "scan_once" not in out, "a line of the library's, not the student's"


def test_the_line_of_an_error_is_the_students_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> object:
        return json.loads("{")  # the student's own line

    answering(lambda answer: answer(), monkeypatch)
    check("order", wrong)
    assert 'in `return json.loads("{")' in capsys.readouterr().out.replace("\n            ", " ")


def test_no_answer_and_too_many_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    check("order")
    check("order", ...)
    assert capsys.readouterr().out.count("none yet") == 2
    check("figure", 1)
    out = capsys.readouterr().out
    assert 'check("figure", row, gib)' in out
    assert "1 answers" in out


def test_what_is_handed_in_is_said_on_one_short_line() -> None:
    """Nor can it forge a line of the check's."""
    assert shown("x" * 10**6) == "'" + "x" * 58 + "…"
    assert shown(Unspeakable()) == "a value of type Unspeakable that cannot be shown"
    forged = Wrong("a\norder: public checks passed", "b" * 10**6, "c\nd").words()
    assert not [line for line in forged.splitlines() if not line.startswith("  ")]
    assert len(forged) < 2000
    assert max(map(len, forged.splitlines())) <= 100


def test_what_is_printed_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def much(_: object) -> None:
        for _ in range(10_000):
            print("x" * 99)

    answering(much, monkeypatch)
    check("order", 1)
    out = capsys.readouterr().out
    assert len(out) < 5000
    assert out.endswith("996,000 more characters were printed\norder: public checks passed\n")


def test_a_view_that_is_none_is_left_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(Wrong("2", "1", log=log), monkeypatch)
    check("order", 1, view=3)  # type: ignore[arg-type]
    assert "below" in capsys.readouterr().out
    reset("order", view="x")  # type: ignore[arg-type]


def test_a_guess_of_any_kind_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    reveal(np.arange(3), 3, "x")
    reveal(10**5000, 3, "x")
    reveal("nobody", "nobody", "x")
    assert capsys.readouterr().out.splitlines()[2] == "x: nobody, as you expected"


def forever() -> None:
    while True:
        pass


def deaf() -> None:
    while True:
        try:  # noqa: SIM105
            time.sleep(0.01)
        except:  # noqa: E722
            pass


def late() -> int:
    with contextlib.suppress(BaseException):
        forever()
    return 7


@pytest.mark.parametrize("never", [forever, deaf, late, lambda: time.sleep(30)])
def test_an_answer_that_takes_too_long_is_stopped(
    never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(lambda answer: answer(), monkeypatch)
    quick = replace(EXERCISES["order"], seconds=0.2)
    monkeypatch.setitem(EXERCISES, "order", quick)
    started, owner = time.monotonic(), signal.getsignal(signal.SIGINT)
    found = examine("order", never)
    assert time.monotonic() - started < 5
    assert found is not None
    assert (found.expected, found.came) == ("an answer in time", "stopped after 0.2 seconds")
    assert "never ends" in found.hint
    assert signal.getsignal(signal.SIGINT) is owner
    assert examine("order", lambda: None) is None, "and nothing comes late"


def test_the_stop_button_stops_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def begins() -> None:
        begun.set()
        forever()

    def press() -> None:
        begun.wait()
        signal.raise_signal(signal.SIGINT)

    answering(lambda answer: answer(), monkeypatch)
    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        examine("order", begins)


def test_interrupts_that_come_late_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent without a pause, many of them come when the code has ended already."""
    monkeypatch.setattr("inms_lessons.limit.AGAIN", 0.0)
    owner, count = signal.getsignal(signal.SIGINT), threading.active_count()
    for _ in range(100):
        with pytest.raises(TookTooLong):
            limited(0.005, forever)
        assert signal.getsignal(signal.SIGINT) is owner
        assert sys.gettrace() is None or sys.gettrace().__module__ != "inms_lessons.limit"
    assert threading.active_count() == count


def test_the_time_limit_holds_in_other_threads_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(TookTooLong):
            pool.submit(limited, 0.2, forever).result(10)
        assert pool.submit(limited, 5, lambda: 7).result(10) == 7


def test_an_unknown_exercise_is_named() -> None:
    with pytest.raises(BadInput, match="no exercise 'nothing'; there are: order"):
        check("nothing", 1)


def test_a_reset_gives_the_stub_back_and_the_view_goes_to_now(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(Wrong("2", "1", log=log, index=2), monkeypatch)
    view = View(log)
    check("order", 1, view=view)
    check("order", 1)
    opened = frame._opened["order"]
    reset("order", view=view)
    assert opened.closed
    assert view.look["index"] == -1
    assert EXERCISES["order"].stub in capsys.readouterr().out
    view.close()


# --- a view that is told where to look --------------------------------------------------------


def test_a_view_points_only_at_what_there_is(log: Log) -> None:
    view = View(log)
    for bad in ({"index": len(log) + 1}, {"index": -1}, {"decision": len(log.decisions)}):
        with pytest.raises(BadInput, match="there is no"):
            view.point(**bad)
    view.point(decision=0)
    assert view.look["index"] == log.decisions[0].stop
    view.point()
    assert view.look["index"] == -1
    assert view.look["number"] == 2, "told again, it looks again"
    view.close()


def test_decisions_keep_their_numbers_where_a_log_was_cut_off() -> None:
    with letter_lab() as lab:
        ada = lab.agent("ada")
        for text in ("mint", "rose", "sage", "dill"):
            ada.read(text).result()
    log = lab.log
    whole = [(number, made.stop) for number, made in log.decisions_since(0)]
    log.forget(whole[1][1] + 1)
    assert log.first_decision > 0
    view = View(log)
    number, stop = whole[-1]
    assert Wrong("a", "b", log=log, decision=number).moment == stop
    view.point(decision=number)
    assert (view.look["decision"], view.look["index"]) == (number, stop)
    view.point(stop - 1, decision=number)
    assert view.look["index"] == stop - 1, "a moment that is asked for goes first"
    with pytest.raises(BadInput, match="no decision 0: the log has"):
        view.point(decision=0)
    view.close()


@pytest.mark.parametrize("block", [7, "private:3", ("private",), ("private", "3"), (3, "private")])
def test_a_block_is_named_by_pool_and_number(log: Log, block: Any) -> None:
    view = View(log)
    with pytest.raises(BadInput, match="pool and number"):
        view.point(block=block)
    view.close()


def test_the_picture_for_pages_without_a_kernel_shows_the_moment_and_the_note(log: Log) -> None:
    view = View(log)
    view.point(1, note="before <anything>")
    picture = view.fallback()["text/html"]
    assert "before &lt;anything&gt;" in picture
    assert ">ada<" not in picture, "ada is not there yet at event 1"
    view.point()
    assert ">ada<" in view.fallback()["text/html"]
    view.close()


# --- the labs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_exercise_has_its_stub_its_check_its_hints_and_its_reset(path: Path) -> None:
    notebook = read(path)
    stubs, solutions = stubs_in(notebook), solutions_in(notebook)
    here = {name for name, one in EXERCISES.items() if one.lab == path.name[:2]}
    assert stubs.keys() == solutions.keys() == here
    code = "\n".join(source(c) for c in notebook["cells"] if c["cell_type"] == "code")
    text = "\n".join(source(c) for c in notebook["cells"] if c["cell_type"] == "markdown")
    for name in here:
        assert stubs[name] == EXERCISES[name].stub.rstrip(), f"{name}: the stub's file differs"
        assert stubs[name] != solutions[name]
        assert f'check("{name}", ' in code
        assert f'# reset("{name}"' in code
    assert text.count("<summary>Hint") >= 2 * len(here)
    assert re.search(r"^guess\w* = None", code, re.MULTILINE), "no prediction"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_solved_copy_is_the_lab_with_its_solutions(path: Path) -> None:
    """Nothing is written twice: `tools/run_labs.py` makes the copy and runs it."""
    copy = read(LABS / "solutions" / path.name)
    wanted = [(c["cell_type"], source(c)) for c in solved(read(path))["cells"]]
    assert [(c["cell_type"], source(c)) for c in copy["cells"]] == wanted
    printed = "".join(
        "".join(o.get("text", "")) for c in copy["cells"] for o in c.get("outputs", ())
    )
    for name in stubs_in(copy):
        assert f"{name}: public checks passed" in printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_with_the_stubs_every_check_fails_politely(path: Path) -> None:
    printed = "".join(
        "".join(o.get("text", "")) for c in read(path)["cells"] for o in c.get("outputs", ())
    )
    for name in stubs_in(read(path)):
        assert f"{name}: not yet" in printed


def test_labs_and_readme_agree_on_questions_and_minutes() -> None:
    text = (LABS / "README.md").read_text("utf-8")
    numbers = [fact.number for fact in all_facts(LABS)]
    assert numbers == [f"{number:02}" for number in range(len(NOTEBOOKS))]
    for fact in all_facts(LABS):
        (row,) = [line for line in text.splitlines() if f"]({fact.file})" in line]
        for word in (fact.title, fact.question, f"| {fact.minutes} |", fact.level):
            assert word in row, f"{fact.file}: {word!r} is not in the README's row"
        assert ("●" in row) == fact.on_path
    assert [fact.number for fact in all_facts(LABS) if fact.on_path] == ["00", "02"]


def test_words_are_explained_in_two_languages_and_every_link_leads_somewhere() -> None:
    glossary = (LABS / "GLOSSARY.md").read_text("utf-8")
    entries = re.split(r"^## ", glossary, flags=re.MULTILINE)[1:]
    words = {entry.split("\n", 1)[0] for entry in entries}
    for entry in entries:
        assert re.fullmatch(r"[a-z-]+\n\n[^\n]+\n\n\*\*[^\n]*[\u4e00-\u9fff][^\n]*\n*", entry), (
            entry
        )
    linked = set()
    for path in [*NOTEBOOKS, *LABS.glob("*.md")]:
        text = path.read_text("utf-8")
        linked |= set(re.findall(r"\]\(GLOSSARY\.md#([^)]+)\)", text))
        for file in re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))\)", text):
            assert (LABS / file).exists(), f"{path.name} links to {file}"
    assert linked <= words, f"not in the glossary: {sorted(linked - words)}"


# --- copies for students ----------------------------------------------------------------------


def test_a_students_copy_has_no_solution_and_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["labs", "--student", str(tmp_path / "course")])
    assert not ended.value.code
    assert "jupyterlab" in capsys.readouterr().out
    copies = sorted((tmp_path / "course").glob("*.ipynb"))
    assert [path.name for path in copies] == [path.name for path in NOTEBOOKS]
    for path, original in zip(copies, NOTEBOOKS, strict=True):
        text, copy = path.read_text("utf-8"), read(path)
        assert "Solution" not in text
        for solution in solutions_in(read(original)).values():
            own = [line for line in solution.splitlines()[1:] if len(line) > 25]
            given = source_of_all(original)
            assert not [line for line in own if line not in given and line in text]
        assert stubs_in(copy) == stubs_in(read(original))
        assert "<summary>Hint" in text
        assert not [c for c in copy["cells"] if c.get("outputs") or c.get("execution_count")]
    assert (tmp_path / "course" / "GLOSSARY.md").exists()
    readme = (tmp_path / "course" / "README.md").read_text("utf-8").lower()
    for word in ("solution", "teacher", "folded"):
        assert word not in readme


def source_of_all(path: Path) -> str:
    """All that stands in a lab outside of its folded solutions, which come last in their cells."""
    texts = [source(cell) for cell in read(path)["cells"]]
    return "\n".join(text.split("<details><summary>Solution")[0] for text in texts)


def test_a_students_work_is_never_overwritten(tmp_path: Path) -> None:
    for_students(LABS, tmp_path)
    with pytest.raises(BadInput, match="already holds 00_start_here"):
        for_students(LABS, tmp_path)


def test_the_labs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["labs"])
    out = capsys.readouterr().out
    assert "00_start_here.ipynb" in out
    assert "45-minute path" in out
    assert FIRST.match("# Exercise: order")
