"""The browser's fold of a log equals the live books: node runs it on the logs of random runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from array import array
from base64 import b64encode
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import shifted
from test_ledger import Player
from toy import Toy

from inms_lab.books.events import Commanded, Released
from inms_lab.books.gate import OPEN
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.policy import MODES
from inms_lab.logs.log import Log
from inms_widgets.measures import follow, measure
from inms_widgets.wire import Encoder

NODE = shutil.which("node")
if NODE is None and os.environ.get("INMS_REQUIRE_BROWSER") != "1":
    pytest.skip("no node here: it runs the browser's fold", allow_module_level=True)
CHECK = Path(__file__).with_name("fold_check.mjs")


def fold(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the browser's fold makes of these cases."""
    assert NODE is not None, "install node, or unset INMS_REQUIRE_BROWSER"
    done = subprocess.run(
        [NODE, str(CHECK)], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def base64(words: array[int]) -> str:
    return b64encode(words.tobytes()).decode()


def messages(log: Log, cuts: list[int], keyframe_at: int = 0) -> list[dict[str, Any]]:
    """The log as messages: a keyframe if it does not begin at birth, then stretches of events."""
    encoder, out, known = Encoder(), [], 0
    tokens = base64(log.tokens)
    for start, stop in zip([keyframe_at, *cuts], [*cuts, len(log)], strict=True):
        message: dict[str, Any] = {"from": start, "tokens": tokens, "tokensFrom": 0}
        if start == keyframe_at and keyframe_at:
            message["keyframe"] = base64(encoder.keyframe(log.replay(keyframe_at)))
        message["words"] = base64(encoder.encode(log.events[start:stop]))
        message |= {"strings": encoder.strings[known:], "stringsFrom": known}
        known = len(encoder.strings)
        out.append(message)
    return out


def plain(books: Ledger) -> dict[str, Any]:
    """The books as the browser's fold tells them."""
    pools = {
        name: {
            "refs": {str(block): count for block, count in sorted(pool.refs.items())},
            "shifted": _shifted(books, name),
            "labels": {str(b): "\n".join(sorted(x)) for b, x in sorted(pool.labels.items())},
            "cached": sorted(pool.cached),
            "written": sorted(pool.keys),
            "promised": sorted(pool.promised),
            "free": len(pool.free),
        }
        for name, pool in books.pools.items()
    }
    seqs = [
        [
            *(seq.state, seq.number, seq.to_generate, seq.wants_logits, seq.wanted),
            [
                [
                    *(s.pool_id, s.tier, "\n".join(sorted(s.label)), s.block_size),
                    *(s.first_position, s.encoded, s.is_fragment, s.source),
                    *(s.open, s.indexed, list(s.tokens)),
                    *(list(s.blocks), s.length, s.computed),
                ]
                for s in seq.segments
            ],
        ]
        for seq in books.sequences.values()
    ]
    records = {group: list(ids) for group, ids in books.records.items()}
    return {"pools": pools, "seqs": seqs, "records": records, "step": books.num_steps}


def _shifted(books: Ledger, pool_id: str) -> dict[str, int]:
    """How many have each block as a fragment."""
    segments = (s for seq in books.sequences.values() for s in seq.segments)
    mine = (s for s in segments if s.is_fragment and s.pool_id == pool_id)
    counts = Counter(block for s in mine for block in s.blocks)
    return {str(block): count for block, count in sorted(counts.items())}


def expected(log: Log, at: list[int], start: int = 0) -> list[dict[str, Any]]:
    """The books at these indexes, by the one reducer."""
    books = log.replay(start)
    in_use, counts = follow(books, (), _used(books), {})
    out = []
    for index in at:
        in_use, counts = follow(books, log.events[start:index], in_use, counts)
        row = list(astuple(measure(books, index, in_use, counts)))
        out.append(json.loads(json.dumps({**plain(books), "row": row})))
        start = index
    return out


def _used(books: Ledger) -> dict[str, int]:
    """Blocks in use as a keyframe tells: up to the highest that holds something."""
    return {name: 1 + max([-1, *p.refs, *p.cached]) for name, p in books.pools.items()}


def run(mode: str, seed: int, count: int) -> Toy:
    """Every second run lets fragments through."""
    player = Player(mode, seed, OPEN if seed % 2 and MODES[mode].encodes_records else None)
    for _ in player.play(count):
        pass
    return player.toy


def compare(got: dict[str, Any], want: list[dict[str, Any]]) -> None:
    assert all(got["pushed"])
    for have, need in zip(got["states"], want, strict=True):
        assert set(have["pools"]) == set(need["pools"])
        for name, pool in need["pools"].items():
            assert have["pools"][name] == pool, (name, need["row"])
        assert have["seqs"] == need["seqs"], need["row"]
        assert have == need


@pytest.mark.parametrize("mode", MODES)
def test_the_browsers_fold_equals_the_ledger_in_random_runs(mode: str) -> None:
    """200 runs over all modes: at every keyframe, at random moments (in any order), at the end."""
    rng, cases, wanted, moved = random.Random(mode), [], [], []
    for seed in range({"inms": 100}.get(mode, 50)):
        toy = run(mode, 1000 + seed, 120)
        log = toy.log
        spacing = rng.choice((7, 40, 64))
        cuts = sorted(rng.choices(range(1, len(log)), k=3))
        frames = list(range(0, len(log), spacing))
        at = sorted({*frames, *rng.choices(range(len(log)), k=6), len(log)})
        order = rng.sample(range(len(at)), len(at))  # the scrubber goes to and fro
        cases.append(
            {"messages": messages(log, cuts), "at": [at[i] for i in order], "spacing": spacing}
        )
        states = expected(log, at)
        live = json.loads(json.dumps(plain(toy.ledger)))  # not replayed: the engine's own
        assert states[-1] == {**live, "row": states[-1]["row"]}
        wanted.append([states[i] for i in order])
        moved.append(shifted.shifted(log))
    assert any(moved) == MODES[mode].encodes_records
    for got, want, case, shifts in zip(fold(cases), wanted, cases, moved, strict=True):
        compare(got, want)
        assert got["shifts"] == shifts
        rows = {row[0]: row for row in got["series"]}  # what charts draw: a row an event
        assert list(rows) == list(range(1, got["length"] + 1))
        assert all(rows[state["row"][0]] == state["row"] for state in want if state["row"][0])
        assert got["frames"][0] == 0
        assert set(got["frames"]) <= set(case["at"])


def test_a_log_that_begins_with_a_keyframe_folds_on_from_there() -> None:
    cases, wanted = [], []
    for seed in range(12):
        log = run("inms", 2000 + seed, 80).log
        start = random.Random(seed).randrange(1, len(log))
        at = sorted({start, (start + len(log)) // 2, len(log)})
        cases.append({"messages": messages(log, [], start), "at": at, "spacing": 16})
        wanted.append(expected(log, at, start))
    for got, want in zip(fold(cases), wanted, strict=True):
        compare(got, want)


def test_fragments_detached_cut_forked_and_superseded_fold_from_every_moment_on() -> None:
    """A keyframe at every moment of scripted runs: also before and after a fragment is given up."""
    cases, wanted = [], []
    for log in shifted.logs():
        for start in range(len(log)):
            at = sorted({start, (start + len(log)) // 2, len(log)})
            cases.append({"messages": messages(log, [], start), "at": at, "spacing": 16})
            wanted.append(expected(log, at, start))
    for got, want in zip(fold(cases), wanted, strict=True):
        compare(got, want)


def test_the_scripted_runs_contain_what_they_are_for() -> None:
    team, whole, rest = shifted.logs()
    commands = [[e for e in log.events if isinstance(e, Commanded)] for log in (team, whole, rest)]
    shifts = {
        s.shift
        for index in range(len(team))
        for seq in team.replay(index).sequences.values()
        for s in seq.segments
        if s.is_fragment
    }
    assert {5, 9} <= shifts, "two readers of one record"
    assert any("afresh" in e.cause for e in commands[0])
    assert any(e.verb == "rollback" for e in commands[0])
    assert [e.replaces >= 0 for e in team.events if isinstance(e, Released)] == [False, True]
    for log, sent, left in zip((whole, rest), commands[1:], (0, 4), strict=True):
        (gone,) = [e for e in sent if e.verb == "detach"]
        seq = log.replay().sequences[gone.seq_id]
        kept = [s for s in seq.segments if s.is_fragment]
        assert sum(len(s.tokens) for s in kept) == left
        assert not log.replay().sequences[gone.source].is_live
    assert all(map(shifted.shifted, (team, whole, rest)))
