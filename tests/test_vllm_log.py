"""vLLM's KV event logs, read as logs of ours: what they tell, in every spelling, and bad files."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inms_lab.books.events import Allocated, Evicted, PoolOpened, Registered, Shared, Stepped
from inms_lab.errors import LogDamaged, LogUnreadable, NotALog
from inms_lab.logs import audit
from inms_lab.logs.history import block_history
from inms_lab.logs.log import Log
from inms_lab.logs.logfile import load, save
from inms_lab.logs.open_log import open_log
from inms_lab.logs.vllm_log import POOL, read_vllm

SIZE = 4


def stored(hashes: list[Any], parent: Any, tokens: list[int], **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
        "token_ids": tokens, "block_size": SIZE, "lora_id": None, "medium": "GPU",
    } | more  # fmt: skip


def removed(*hashes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def text(*first: int) -> list[int]:
    """Blocks whose tokens are numbered from these."""
    return [start + i for start in first for i in range(SIZE)]


STORY = (
    stored(["a", "b"], None, text(0, 10)),
    stored(["c"], "b", text(20)),  # the same chain grows
    stored(["d"], "a", text(30)),  # another one branches off
    removed("c"),
    stored(["e"], None, text(40)),
)


def counts(log: Log) -> dict[str, int]:
    return {k: v for k, v in log.about.items() if isinstance(v, int) and v and k != "block_size"}


def cached(log: Log) -> set[int]:
    return set(log.replay().pools[POOL].cached)


def test_a_small_story(tmp_path: Path) -> None:
    log = read_vllm(write(tmp_path / "kv.jsonl", *STORY))
    assert log.events[0] == PoolOpened(POOL, "common", "", SIZE, 4)
    holders = [e.name for e in log.events if isinstance(e, Registered)]
    assert holders == ["chain 0", "chain 1", "chain 2"]
    written = [e.blocks for e in log.events if isinstance(e, Allocated)]
    assert written == [(0, 1), (2,), (3,), (2,)]
    assert [e.blocks for e in log.events if isinstance(e, Shared)] == [(0, 1), (0,)]
    assert [(e.blocks, e.cause) for e in log.events if isinstance(e, Evicted)] == [
        ((2,), "removed")
    ]
    assert sum(item[1] for e in log.events if isinstance(e, Stepped) for item in e.items) == 20
    assert cached(log) == {0, 1, 2, 3}
    assert not counts(log)
    assert not audit.faults(log.replay())
    assert [c.state for c in block_history(log, POOL, 2)] == [
        *("pending", "held", "held", "cached", "free"),
        *("pending", "held", "held", "cached"),
    ]


def as_list(event: dict[str, Any]) -> list[Any]:
    order = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    return [event["type"], *(event[name] for name in order if name in event)]


def test_all_spellings_tell_the_same(tmp_path: Path) -> None:
    lists = [as_list(event) for event in STORY]
    spellings = {
        "objects": STORY,
        "lists": lists,
        "batch": [{"ts": 1.5, "events": list(STORY)}],
        "listed batch": [[1.5, lists[:2], 0], [2, lists[2:]]],
    }
    logs = [read_vllm(write(tmp_path / name, *lines)) for name, lines in spellings.items()]
    assert all(log.events == logs[0].events for log in logs)
    assert all(log.about == logs[0].about for log in logs)


def test_hashes_may_be_numbers(tmp_path: Path) -> None:
    number = dict(zip("abcde", range(-2, 2**62, 2**60), strict=False))

    def renamed(event: dict[str, Any]) -> dict[str, Any]:
        hashes = [number[h] for h in event["block_hashes"]]
        parent = event.get("parent_block_hash")
        more = {"parent_block_hash": number[parent]} if parent else {}
        return event | {"block_hashes": hashes} | more

    log = read_vllm(write(tmp_path / "kv.jsonl", *map(renamed, STORY)))
    assert log.events == read_vllm(write(tmp_path / "other.jsonl", *STORY)).events


def test_what_is_stored_twice_is_counted_and_what_follows_it_goes_behind_it(tmp_path: Path) -> None:
    again = stored(["a", "x", "b"], None, text(0, 50, 10))
    log = read_vllm(write(tmp_path / "kv.jsonl", STORY[0], again, stored(["y"], "x", text(60))))
    assert counts(log) == {"duplicates": 2}
    assert len(cached(log)) == 4
    assert [e.blocks for e in log.events if isinstance(e, Shared)] == [(0,), (0, 2)]


def test_unknown_blocks_are_counted(tmp_path: Path) -> None:
    lines = (removed("q"), STORY[0], removed("a", "a", "q"), removed("b"), removed("b"))
    log = read_vllm(write(tmp_path / "kv.jsonl", *lines))
    assert counts(log) == {"unknown_removed": 4}
    assert not cached(log)


def test_text_behind_an_unknown_parent_has_a_namespace_of_its_own(tmp_path: Path) -> None:
    lines = (
        stored(["m"], "lost", text(0)),
        stored(["n"], "also lost", text(0)),
        stored(["o"], "m", text(10)),
        stored(["a"], None, text(0)),
    )
    log = read_vllm(write(tmp_path / "kv.jsonl", *lines))
    assert counts(log) == {"unknown_parents": 2}
    books = log.replay()
    assert len(set(books.pools[POOL].keys.values())) == 4, "equal text behind unequal contexts"
    assert len({s.namespace for s in books.sequences.values()}) == 3


def test_a_parent_whose_own_parent_is_gone_is_as_good_as_unknown(tmp_path: Path) -> None:
    lines = (STORY[0], removed("a"), STORY[1], stored(["a"], None, text(0)))
    log = read_vllm(write(tmp_path / "kv.jsonl", *lines))
    assert counts(log) == {"unknown_parents": 1}
    assert len(cached(log)) == 3


@pytest.mark.parametrize(
    "more", [{"lora_name": "sql"}, {"medium": "CPU"}, {"group_idx": 1}, {"extra_keys": [["salt"]]}]
)
def test_adapter_medium_group_and_salt_keep_equal_texts_apart(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    other = stored(["z"], None, text(0), **more)
    log = read_vllm(write(tmp_path / "kv.jsonl", stored(["a"], None, text(0)), other))
    assert len(set(log.replay().pools[POOL].keys.values())) == 2


def test_a_block_is_its_hash_and_its_medium(tmp_path: Path) -> None:
    lines = (stored(["a"], None, text(0)), stored(["a"], None, text(0), medium="CPU"), removed("a"))
    log = read_vllm(write(tmp_path / "kv.jsonl", *lines))
    assert cached(log) == {1}
    offloaded = stored(["a"], None, [], medium="CPU")  # an offloading cache may tell no text
    log = read_vllm(write(tmp_path / "kv.jsonl", STORY[0], offloaded))
    assert counts(log) == {"without_tokens": 1}


def test_clearing_evicts_everything(tmp_path: Path) -> None:
    log = read_vllm(write(tmp_path / "kv.jsonl", CLEARED, *STORY, CLEARED, STORY[0]))
    (gone,) = (e for e in log.events if isinstance(e, Evicted) and e.cause == "cleared")
    assert sorted(gone.blocks) == [0, 1, 2, 3]
    assert len(cached(log)) == 2
    assert not log.replay().live


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    log = read_vllm(write(tmp_path / "kv.jsonl"))
    assert len(log) == 1
    assert log.replay().pools[POOL].spec.num_blocks == 1


@pytest.mark.parametrize("seed", range(30))
def test_any_history_replays_and_ends_with_the_blocks_that_vllm_has(
    tmp_path: Path, seed: int
) -> None:
    rng, lines, present, most = random.Random(seed), [], {}, 1
    tokens = Counter[Any]()
    for number in range(150):
        kind = rng.choices(("store", "remove", "clear"), (60, 30, 1))[0]
        if kind == "store":
            parent = rng.choice([None, *present, *list(present)[-2:], "lost"])
            new = [f"h{number}.{i}" for i in range(rng.randint(1, 3))]
            known = rng.sample(sorted(present), min(len(present), rng.randint(0, 1)))
            hashes = [*known, *new] if rng.random() < 0.2 else new
            words = [rng.randrange(3) for _ in range(SIZE * len(hashes))]
            lines.append(stored(hashes, parent, words))
            present |= dict.fromkeys(new)
            tokens.update(new)
            most = max(most, len(present))
        elif kind == "remove" and present:
            gone = rng.sample(sorted(present), min(len(present), rng.randint(1, 4)))
            lines.append(removed(*gone))
            present = {key: None for key in present if key not in gone}
        elif kind == "clear":
            lines.append(CLEARED)
            present = {}
    log = read_vllm(write(tmp_path / "kv.jsonl", *lines))
    books = log.replay()
    assert books.pools[POOL].spec.num_blocks == most
    assert len(books.pools[POOL].cached) == len(present)
    assert not books.pools[POOL].refs
    assert not audit.faults(books)
    assert sum(len(e.blocks) for e in log.events if isinstance(e, Allocated)) == len(tokens)
    save(log, tmp_path / "ours", redact="private")
    masked = load(tmp_path / "ours")
    assert len(masked) == len(log)
    assert max(masked.tokens) < 0, "nothing of vLLM's texts is public"


def test_a_log_is_opened_by_what_it_begins_with(tmp_path: Path) -> None:
    theirs = write(tmp_path / "kv.jsonl", *STORY)
    log = open_log(theirs)
    save(log, tmp_path / "ours")
    assert open_log(tmp_path / "ours").events == log.events
    (tmp_path / "neither").write_text("a shopping list")
    with pytest.raises(NotALog, match="no gzip file"):
        open_log(tmp_path / "neither")


BAD = {
    "no JSON": "{",
    "no event": {"type": "BlockMoved"},
    "no list of hashes": stored("a", None, text(0)),  # type: ignore[arg-type]
    "a hash that is none": stored([1.5], None, text(0)),
    "a parent that is none": stored(["a"], [], text(0)),
    "too few tokens": stored(["a", "b"], None, text(0)),
    "a token that is none": stored(["a"], None, ["x"] * SIZE),  # type: ignore[list-item]
    "a token that is too large": stored(["a"], None, [2**31] * SIZE),
    "no block size": stored(["a"], None, text(0), block_size=None),
    "a block size of nothing": stored(["a"], None, [], block_size=0),
    "other block sizes": stored(["a"], None, text(0), block_size=2) | {"block_hashes": ["a", "z"]},
    "extra keys that are none": stored(["a"], None, text(0), extra_keys="salt"),
    "a number": 7,
    "an empty list": [],
    "a batch that is none": [1.0, 7],
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: Any) -> None:
    path = write(tmp_path / "kv.jsonl", STORY[0], "placeholder")
    bad = line if line == "{" else json.dumps(line)
    path.write_text(path.read_text().replace('"placeholder"', bad))
    with pytest.raises(LogDamaged, match="line 2"):
        read_vllm(path)
    write(path, {"type": "something else"})
    with pytest.raises(LogUnreadable, match="line 1"):
        read_vllm(path)
