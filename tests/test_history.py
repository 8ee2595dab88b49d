"""A block's history against the replayed ledger, the table of events, and the refcount logger."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from test_cli import run
from test_ledger import Player
from toy import Toy

from inms_lab.books.events import Allocated, Commanded, PoolOpened, Published, Registered, Stepped
from inms_lab.books.gate import OPEN
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.policy import MODES
from inms_lab.errors import BadInput
from inms_lab.logs.history import REFCOUNT, Change, block_history, pools_with, to_pandas
from inms_lab.logs.log import Log
from inms_lab.serving.cache import KVCache


def play(mode: str, seed: int, count: int = 250) -> Log:
    player = Player(mode, seed, gate=OPEN if seed % 2 else None)  # every second with fragments
    for _ in player.play(count):
        pass
    return player.toy.log


_played = cache(play)


def played(mode: str, seed: int, count: int = 250) -> Log:
    """The log of a run; nobody else has it."""
    return _played(mode, seed, count).copy()


def holders(books: Ledger, pool_id: str, block: int) -> Counter[str]:
    return Counter(
        seq.name
        for seq in books.sequences.values()
        for segment in seq.segments
        if segment.pool_id == pool_id
        for _ in range(segment.blocks.count(block))
    )


def is_pending(books: Ledger, pool_id: str, block: int) -> bool:
    tables = [
        (segment, segment.blocks.index(block))
        for seq in books.sequences.values()
        for segment in seq.segments
        if segment.pool_id == pool_id and block in segment.blocks
    ]
    return any(index * s.block_size >= s.computed for s, index in tables)


def state_of(books: Ledger, pool_id: str, block: int) -> str:
    pool = books.pools[pool_id]
    if block in pool.refs:
        return "pending" if is_pending(books, pool_id, block) else "held"
    return "cached" if block in pool.cached else "free"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begins", ["at birth", "with a snapshot"])
def test_a_history_is_what_the_ledger_goes_through(mode: str, seed: int, begins: str) -> None:
    log, rng = played(mode, seed), random.Random(seed)
    if begins == "with a snapshot":
        log.forget(rng.randrange(1, len(log) // 2))
    opened = [p.spec for p in log.replay().pools.values()]
    for spec in rng.sample(opened, min(2, len(opened))):
        block = rng.randrange(min(spec.num_blocks, 12))
        changes = block_history(log, spec.pool_id, block)
        compare(log, spec, block, {c.index: c for c in changes})


def compare(log: Log, spec: PoolOpened, block: int, changes: dict[int, Change]) -> None:
    books = Ledger.replay(log.snapshot, (), log.tokens)
    state, refs = "free", 0
    if spec.pool_id in books.pools:
        state = state_of(books, spec.pool_id, block)
        refs = books.pools[spec.pool_id].refs.get(block, 0)
    lives = int(state != "free")
    for index, event in enumerate(log.events, log.first):
        books.apply(event)
        if spec.pool_id not in books.pools:
            continue
        pool, before = books.pools[spec.pool_id], (state, refs)
        state, refs = state_of(books, spec.pool_id, block), pool.refs.get(block, 0)
        change = changes.get(index)
        if change is None:
            assert before == (state, refs), f"nothing is told of event {index}, {event}"
            continue
        lives += before[0] == "free" and refs > 0
        assert (change.before, change.after, change.state) == (before[1], refs, state), event
        assert change.generation == lives - 1
        assert Counter(change.holders) == holders(books, spec.pool_id, block)
        assert change.event == type(event).__name__


@pytest.mark.parametrize("seed", range(3))
def test_changes_follow_each_other(seed: int) -> None:
    log = played("inms", seed)
    for pool_id in ("private", "global"):
        for block in range(6):
            changes = block_history(log, pool_id, block)
            assert [c.index for c in changes] == sorted({c.index for c in changes})
            assert all(one.after == two.before for one, two in pairwise(changes))
            assert all(one.step <= two.step for one, two in pairwise(changes))
            assert all(c.holder and c.seq_id >= 0 for c in changes if c.event != "Evicted")


def test_a_small_story() -> None:
    toy = Toy()
    one = toy.agent("one")
    toy.do(one, "append", [1, 2, 3, 4, 0])
    two = toy.do(one, "fork")
    toy.do(two, "append", [4])
    toy.do(one, "close", cause="closed")
    told = [
        (c.step, c.event, c.cause, c.holder, c.before, c.after, c.state, c.holders)
        for c in block_history(toy.log, "private", 1)
    ]
    assert told == [
        (1, "Allocated", "", "one", 0, 1, "pending", ("one",)),
        (1, "Stepped", "", "one", 1, 1, "held", ("one",)),
        (2, "Shared", "fork", "one", 1, 2, "held", ("one", "one")),
        (2, "Copied", "", "one", 2, 1, "held", ("one",)),
        (3, "Freed", "close", "one", 1, 0, "free", ()),
    ]
    (copy, *_) = block_history(toy.log, "private", 2)
    assert (copy.event, copy.before, copy.after, copy.state) == ("Copied", 0, 1, "held")


def test_what_does_not_exist_is_named() -> None:
    log = played("inms", 0, 40)
    with pytest.raises(BadInput, match="private has blocks 0 to 29, there is no 30"):
        block_history(log, "private", 30)
    with pytest.raises(BadInput, match="there is no -1"):
        block_history(log, "private", -1)
    with pytest.raises(BadInput, match="no pool is called 'gpu'; there are: global, group:team"):
        block_history(log, "gpu", 0)
    assert pools_with(log, 29) == []
    assert "private" in pools_with(log, 0)


# table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 100])
def test_the_table_has_a_row_for_every_event(cut: int) -> None:
    log = played("inms", 2)
    log.forget(cut)
    table = to_pandas(log)
    assert list(table["index"]) == list(range(log.first, len(log)))
    assert list(table["event"]) == [type(e).__name__ for e in log.events]
    kinds = table.dtypes.map(str)
    assert set(kinds[["index", "step", "num_blocks", "tokens"]]) == {"int64"}
    assert list(kinds[["event", "seq_id", "duration"]]) == ["category", "Int64", "float64"]
    assert set(kinds[["holder", "pool", "cause"]]) == {"string"}
    books = log.replay()
    named = table[table["seq_id"].notna()]
    assert all(books.sequences[row.seq_id].name == row.holder for row in named.itertuples())
    nobody = table[table["seq_id"].isna()]
    assert set(nobody["event"]) <= {"PoolOpened", "Evicted", "Stepped"}
    assert (table["num_blocks"] == table["blocks"].map(len)).all()
    appended = sum(e.length for e in log.events if isinstance(e, Commanded))
    assert table.loc[table["event"] == "Commanded", "tokens"].sum() == appended
    steps = table[table["event"] == "Stepped"]
    assert list(steps["step"]) == [e.step for e in log.events if isinstance(e, Stepped)]
    assert (steps["duration"] == steps["step"].map(log.durations)).all()
    for event, step in zip(log.events, table["step"], strict=True):
        last = max((s for s in steps["step"] if s <= step), default=0)
        assert step >= last
        if isinstance(event, Published):
            assert step in set(steps["step"])


def test_what_a_step_waits_for_belongs_to_it() -> None:
    toy = Toy()
    toy.do(toy.agent("a"), "append", [1, 2, 3, 4])
    toy.do(0, "append", [1])
    table = toy.log.to_pandas()
    steps = {
        kind: list(table.loc[table["event"] == kind.__name__, "step"])
        for kind in (Registered, Commanded, Allocated, Stepped, Published)
    }
    assert steps == {
        Registered: [1],
        Commanded: [1, 2],
        Allocated: [1, 2],
        Stepped: [1, 2],
        Published: [1],
    }


def test_an_empty_log_is_an_empty_table() -> None:
    table = to_pandas(Log())
    assert len(table) == 0
    assert "duration" in table.columns


# logger -----------------------------------------------------------------------------------------

LINE = re.compile(r"(.+) block (\d+): refcount (\d+) -> (\d+), (\w+)( [^,]+)?, (.*)")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_every_change_of_a_refcount_is_one_line(
    mode: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=REFCOUNT.name)
    log = play(mode, seed)
    refs, names = Counter[tuple[str, int]](), {s.name for s in log.replay().sequences.values()}
    for record in caplog.records:
        match = LINE.fullmatch(record.getMessage())
        assert match, record.getMessage()
        pool_id, block, old, new, kind, _, name = match.groups()
        assert refs[pool_id, int(block)] == int(old)
        assert abs(int(new) - int(old)) == 1
        refs[pool_id, int(block)] = int(new)
        assert kind in ("Allocated", "Shared", "Copied", "Freed", "Aborted")
        assert name in names
    assert len(caplog.records) > 50
    pools = log.replay().pools
    assert {key: n for key, n in refs.items() if n} == {
        (pool_id, block): n for pool_id, pool in pools.items() for block, n in pool.refs.items()
    }


def test_the_logger_is_quiet_and_costs_nothing_unless_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = played("inms", 0)
    assert not [r for r in caplog.records if r.name == REFCOUNT.name]

    class NoTensors:
        bytes_per_token = 1

        def open(self, *_: object) -> None: ...
        def clear(self, *_: object) -> None: ...
        def copy(self, *_: object) -> None: ...

    cache = KVCache(NoTensors())  # type: ignore[arg-type]
    cache.log.add_tokens(log.tokens)
    start = time.perf_counter()
    for event in log.events:
        cache.record(event)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    for _ in log.events:
        REFCOUNT.isEnabledFor(logging.DEBUG)
    assert time.perf_counter() - start < 0.1 * whole


# command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refs") / "a.inms"
    played("inms", 10, 120).save(path)
    return path


def test_the_command_prints_a_table_or_json(saved: Path) -> None:
    out = run("refs", str(saved), "--block", "0", "--pool", "private")
    assert out.returncode == 0, out.stderr
    assert "block 0 of private" in out.stdout
    assert "0 -> 1" in out.stdout
    out = run("refs", str(saved), "--block", "0", "--pool", "private", "--json")
    told = json.loads(out.stdout)
    changes = block_history(Log.load(saved), "private", 0)
    assert [(t["index"], t["after"]) for t in told] == [(c.index, c.after) for c in changes]


def test_the_pool_may_be_left_out_where_it_is_clear(saved: Path, tmp_path: Path) -> None:
    out = run("refs", str(saved), "--block", "0")
    assert out.returncode == 2
    assert "BadInput: block 0 is used in" in out.stderr
    assert "choose one with --pool" in out.stderr
    out = run("refs", str(saved), "--block", "29")
    assert "block 29 was never used" in out.stderr
    out = run("refs", str(saved), "--block", "30", "--pool", "private")
    assert "private has blocks 0 to 29, there is no 30" in out.stderr
    theirs = tmp_path / "kv.jsonl"
    theirs.write_text('["BlockStored", [7], null, [1, 2], 2, null, "GPU"]\n')
    out = run("refs", str(theirs), "--block", "0", "--json")
    assert [change["event"] for change in json.loads(out.stdout)] == [
        *("Allocated", "Stepped", "Published", "Freed")
    ]


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing")
    out = run("refs", str(tmp_path / "a"), "--block", "0")
    assert out.returncode == 2
    assert out.stderr.startswith("NotALog: ")
    assert out.stderr.count("\n") == 1
