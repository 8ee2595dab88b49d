"""Events in a line of words, as lessons say them: fragments, and records that hold no longer."""

from __future__ import annotations

import shifted

from inms_lab.books.events import Commanded, Released
from inms_lessons.told import told


def test_a_fragment_says_whose_it_is_and_where_it_was_encoded() -> None:
    log = shifted.team_run().log
    lines = {
        (log.replay(number).sequences[e.seq_id].name, e.encoded): told(log, number)
        for number, e in enumerate(log.events)
        if isinstance(e, Commanded) and e.piece >= 0
    }
    assert all("tokens of group text" in line for line in lines.values())
    whose = {key: line.rpartition("a fragment of ")[2] for key, line in lines.items()}
    assert whose["frontend", 6] == "team/1, encoded for position 6"
    assert whose["frontend", 14] == "team/1, encoded for position 14"
    assert whose["backend", 6] == "team/1 v2, encoded for position 6"  # the last one that it has


def test_what_is_computed_all_the_same_says_why() -> None:
    log = shifted.team_run().log
    afresh = next(
        number
        for number, e in enumerate(log.events)
        if isinstance(e, Commanded) and "afresh" in e.cause
    )
    assert told(log, afresh).endswith("(computed afresh, beside a fragment)")


def test_a_fragment_that_is_given_up_says_whose_kv_is_gone() -> None:
    log = shifted.gone_run(whole=False).log
    (gone,) = [
        number
        for number, e in enumerate(log.events)
        if isinstance(e, Commanded) and e.verb == "detach"
    ]
    line = told(log, gone)
    assert "reader makes what is left of a fragment of donor its own text" in line
    assert line.endswith("(the fragment's KV is gone)")


def test_a_new_version_names_the_record_that_it_takes_the_place_of() -> None:
    log = shifted.team_run().log
    first, second = [n for n, e in enumerate(log.events) if isinstance(e, Released)]
    assert "publishes to team, as team/1: " in told(log, first)
    assert "publishes to team, as team/1 v2 in place of team/1: " in told(log, second)
