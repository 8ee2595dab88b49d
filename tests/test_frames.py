"""Frames of a log equal what the live engine had at that moment; no widget library is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import shifted
from test_ledger import Player
from test_widgets import dry_lab, work

from inms_lab import Lab
from inms_lab.books.events import Commanded, Copied, Evicted, Shared
from inms_lab.books.gate import OPEN
from inms_lab.decisions.outcome import Decided, Decision
from inms_lab.logs.log import Log
from inms_lab.notebook.usage import bill, slots_used
from inms_widgets import contexts_at, measures_at, snapshot_at, snapshot_of
from inms_widgets.frames import MASK, decision_at, marks, series
from inms_widgets.picture import render_svg
from inms_widgets.recorded import Recording, from_json, to_json
from inms_widgets.snapshot import HELD
from inms_widgets.words import strings


@pytest.fixture
def lab() -> Iterator[Lab]:
    with dry_lab() as lab:
        yield lab


def live(lab: Lab) -> dict[str, Any]:
    """What the engine itself says right now, read off its own objects."""
    books = lab.engine.ledger
    return {
        "shot": snapshot_of(books, lab.log.about["bytes_per_token"]),
        "refs": {name: dict(pool.refs) for name, pool in books.pools.items()},
        "free": sum(len(pool.free) for pool in books.pools.values()),
        "cached": sum(len(pool.cached) for pool in books.pools.values()),
        "tokens": {s.seq_id: list(s.tokens()) for s in books.sequences.values()},
        "tables": {
            s.seq_id: [(x.pool_id, b) for x in s.segments for b in x.blocks]
            for s in books.sequences.values()
        },
        "computed": {s.seq_id: s.num_computed for s in books.sequences.values()},
        "states": {s.seq_id: s.state for s in books.sequences.values()},
        "unused": sum(p.num_held * p.block_size for p in books.pools.values())
        - sum(slots_used(books).values()),
    }


def test_frames_at_each_step_say_what_the_engine_had_then(lab: Lab) -> None:
    moments: dict[int, dict[str, Any]] = {}
    with lab.watching(lambda _: moments.__setitem__(len(lab.log), live(lab))):
        work(lab)
    moments[len(lab.log)] = live(lab)
    assert len(moments) > 20
    for index, then in moments.items():
        shot = snapshot_at(lab.log, index)
        refs = {
            p.pool_id: {b.number: b.refs for b in p.blocks if b.state == HELD} for p in shot.pools
        }
        assert refs == then["refs"]
        assert (shot.agents, shot.held_bytes) == (then["shot"].agents, then["shot"].held_bytes)
        numbers = measures_at(lab.log, index)
        assert (numbers.free, numbers.cached) == (then["free"], then["cached"])
        assert numbers.held == sum(map(len, then["refs"].values()))
        assert numbers.unused == then["unused"]
        for context in contexts_at(lab.log, index):
            tokens = then["tokens"][context.seq_id]
            assert context.num_tokens == len(tokens)
            assert context.state == then["states"][context.seq_id]
            assert "".join(span.text for span in context.spans) == "".join(f"{t} " for t in tokens)
            table = [(s.pool_id, s.block) for s in context.spans if s.block >= 0]
            assert table == then["tables"][context.seq_id]
            assert sum(s.written for s in context.spans) == then["computed"][context.seq_id]
            for span in context.spans:
                assert span.refs == then["refs"][span.pool_id].get(span.block, 0)


def test_the_bill_and_the_frames_count_the_same(lab: Lab) -> None:
    work(lab)
    numbers, money = measures_at(lab.log), lab.driver.call(lambda: bill(lab))
    assert numbers.unused == money.wasted_slots
    assert money.saved == pytest.approx(1 - numbers.held / numbers.alone)


def test_a_series_has_a_row_an_event_and_each_equals_its_moment() -> None:
    player = Player("inms", 5)
    for _ in player.play(150):
        pass
    log = player.toy.log
    rows = series(log)
    assert [row.index for row in rows] == list(range(1, len(log) + 1))
    assert [row.index for row in series(log, 50)][:2] == [50, 100]
    assert series(log, 50)[-1] == rows[-1]
    for row in rows[:: max(1, len(rows) // 15)]:
        assert row == measures_at(log, row.index)
    assert rows[-1].asked >= rows[-1].hits > 0


def test_marks_name_what_happened_up_to_the_cursor() -> None:
    player = Player("inms", 7, OPEN)
    for _ in player.play(300):
        pass
    log = player.toy.log
    found = marks(log)
    moved = shifted.shifted(log)
    assert moved
    assert [mark.index for mark in found if mark.kind == "shift"] == moved
    shares = [i for i, e in enumerate(log.events) if isinstance(e, Shared) and i not in moved]
    assert [mark.index for mark in found if mark.kind == "share"] == shares
    for kind, wanted in (("copy", Copied), ("evict", Evicted)):
        places = [i for i, event in enumerate(log.events) if isinstance(event, wanted)]
        assert [mark.index for mark in found if mark.kind == kind] == places
    fails = [i for i, e in enumerate(log.events) if isinstance(e, Commanded) and e.verb == "fail"]
    assert [mark.index for mark in found if mark.kind == "fail"] == fails
    no = [d.at for d in log.decisions if d.outcome in ("refused", "no room")]
    assert [mark.index for mark in found if mark.kind == "refuse"] == no
    half = len(log) // 2
    assert marks(log, half) == [mark for mark in found if mark.index < half]


def test_a_fragment_is_told_at_its_shift_in_contexts_snapshots_and_measures() -> None:
    """Of the reader's tokens, the block's holders and the charts: against the decisions."""
    for log in shifted.logs():
        num_blocks = 0
        for made in log.decisions:
            for part in made.parts:
                if part.outcome == "shared at a shift":
                    num_blocks += part.num_blocks
                    assert measures_at(log, made.stop).shifted == num_blocks
                    _is_told(log, made, part)
        assert measures_at(log).shifted == num_blocks > 0
        assert {span.shift for span in contexts_at(log)[0].spans} <= {None}, "the source's own"


def _is_told(log: Log, made: Decided, part: Decision) -> None:
    books = log.replay(made.at)
    reader = books.sequences[made.seq_id]
    fragment = reader.segments[part.segment]
    there = books.sequences[fragment.source].segments[-1]  # the source's text is its last
    starts = range(0, len(there.tokens), there.block_size)
    count = len(fragment.tokens)
    (at,) = [i for i in starts if there.tokens[i : i + count] == fragment.tokens]
    shift = fragment.first_position - (there.first_position + at)
    (context,) = [c for c in contexts_at(log, made.stop) if c.seq_id == made.seq_id]
    start = fragment.first_position + part.first * fragment.block_size
    spans = [s for s in context.spans if s.start >= start][: part.num_blocks]
    assert {s.shift for s in spans} == {shift}
    shot = snapshot_at(log, made.stop)
    blocks = {p.pool_id: p.blocks for p in shot.pools}[fragment.pool_id]
    for span in spans:
        assert f"{reader.name} {shift:+d}" in blocks[span.block].places
        assert len(blocks[span.block].shifts) == blocks[span.block].refs
    agents = [a.num_shifted for a in shot.agents if a.name == reader.name]
    assert sum(agents) >= part.num_blocks


def test_the_static_picture_tears_a_fragments_edge_and_says_its_shift() -> None:
    log = shifted.team_run().log
    first = shifted.shifted(log)[0]
    before, after = (render_svg(snapshot_at(log, i)) for i in (first, first + 1))
    assert before.count("<path") == 0
    assert after.count("<path") == 3 + 1, "three blocks, and the legend"
    words = strings()["svg_l_shifted"][0]
    assert words in after
    assert words not in before
    assert "block 0: team/1, backend +5, exact" in after
    assert strings()["svg_agent_shifted"][0].format(3) in after
    shot = snapshot_at(log, first + 1)
    recording = Recording("toy", "", (("", shot),), {})
    assert from_json(json.loads(json.dumps(to_json(recording)))) == recording


def test_an_agent_that_failed_shows_its_traceback(lab: Lab) -> None:
    async def program(me: Any) -> None:
        me.read([1] * 20)
        raise KeyError("a tool broke")

    agent = lab.agent("backend")
    lab.start({agent: program})
    lab.run_to(None)
    (context,) = contexts_at(lab.log)
    assert context.state == "reclaimed"
    assert "KeyError: 'a tool broke'" in context.error
    assert "in program" in context.error
    lab.programs.failures.clear()


def test_a_redacted_log_shows_masks_for_private_text(lab: Lab) -> None:
    from inms_lab.logs.redact import redacted

    work(lab)
    masked = redacted(lab.log)
    for before, after in zip(contexts_at(lab.log), contexts_at(masked), strict=True):
        for mine, theirs in zip(before.spans, after.spans, strict=True):
            assert (mine.block, mine.refs, mine.stop) == (theirs.block, theirs.refs, theirs.stop)
            if mine.tier == "private":  # of it the team's record alone (7) may be read
                assert set(theirs.text) <= {MASK, "7", " "}
            else:
                assert theirs.text == mine.text
    text = "".join(span.text for context in contexts_at(masked) for span in context.spans)
    assert MASK in text


def test_a_decision_frame_has_the_seven_checks(lab: Lab) -> None:
    work(lab)
    for number in range(len(lab.log.decisions)):
        for part in decision_at(lab.log, number).parts:
            assert [check.number for check in part.checks] == [1, 2, 3, 4, 5, 6, 7]


def test_frames_load_no_widget_library() -> None:
    code = (
        "import sys, inms_widgets.frames, inms_widgets.feed, inms_widgets.wire\n"
        "loaded = {'torch', 'transformers', 'ipywidgets', 'anywidget'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
