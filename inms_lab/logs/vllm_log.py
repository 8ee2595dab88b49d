"""vLLM's KV events (BlockStored, BlockRemoved, AllBlocksCleared) read as a log of ours.

A file has JSON lines, each an event or a batch of them, as vLLM's own encoding spells them:
    {"type": "BlockStored", "block_hashes": [...], ...}     or   ["BlockStored", [...], ...]
    {"ts": 1.5, "events": [...]}                            or   [1.5, [...], rank]
vLLM tells which blocks can be found, not who holds them. So there is one pool, "vllm", and a holder
for each chain of blocks: it shares its parent's blocks, computes and publishes the others, and lets
go, so that they are cached; it goes on when the chain grows. Where the text before a block is not
known, a namespace stands for it. A block is its hash, medium and cache group. `about` counts:
    duplicates        stored again while present       unknown_removed   removed while not present
    unknown_parents   chains behind unknown text       without_tokens    stored blocks without text
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inms_lab.books.events import (
    Allocated,
    Commanded,
    Event,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Shared,
    Stepped,
)
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.freeing import evicted
from inms_lab.errors import LogDamaged, LogTooLarge, NotALog
from inms_lab.logs.log import Log
from inms_lab.logs.logcode import ints

Run = tuple[Hashable, list[Hashable], list[int]]  # the block before, new blocks, their tokens
MAX_TOKENS = 1 << 22  # and four for each byte of the file: a chain that branches often has much
POOL, TIER, CLEARED = "vllm", "common", "AllBlocksCleared"
COUNTS = ("duplicates", "unknown_removed", "unknown_parents", "without_tokens")
_STORED = "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys"
FIELDS = {  # in the order of the tagged lists
    "BlockStored": (*_STORED.split(), "group_idx"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    CLEARED: (),
}


@dataclass(slots=True)
class _Node:
    """A block that can be found: its place, its text, and what stands before it."""

    block: int
    tokens: tuple[int, ...]
    parent: _Node | None
    namespace: bytes
    is_there: bool = True
    holder: int = -1  # whose last block it is, while that chain may still grow


def read_vllm(path: str | Path) -> Log:
    """The log that a file of vLLM's KV events tells of; it replays like one of ours."""
    books = _Books(*_survey(Path(path)), MAX_TOKENS + 4 * Path(path).stat().st_size)
    for _, record in _records(Path(path)):
        books.take(record)
    return books.finish()


def _survey(path: Path) -> tuple[int, int]:
    """(block size, most blocks that are there at once) of the file; checks every line."""
    size, most, present = 0, 1, set[Hashable]()
    for at, record in _records(path):
        if record["type"] == "BlockStored" and record["token_ids"]:
            size = size or record["block_size"]
            if record["block_size"] != size:
                raise LogDamaged(f"{at}: blocks of {size} and of {record['block_size']} tokens")
            present.update(record["keys"])
            most = max(most, len(present))
        elif record["type"] != "BlockStored":
            present -= present if record["type"] == CLEARED else set(record["keys"])
    return max(1, size), most


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place in the file, event as an object with all of its fields) in order."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            at = f"{path}, line {number}"
            try:
                for item in _items(json.loads(line)) if line.strip() else ():
                    yield at, _record(item)
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                wrong = NotALog if number == 1 else LogDamaged
                raise wrong(f"{at} is no KV event of vLLM: {error!r:.80}") from None


def _items(data: Any) -> list[Any]:
    """The events of a line."""
    if isinstance(data, list):
        return [data] if data[:1] and isinstance(data[0], str) else list(data[1])
    return list(data["events"]) if "events" in data else [data]


def _record(item: Any) -> dict[str, Any]:
    kind = item["type"] if isinstance(item, dict) else item[0]
    record: dict[str, Any] = dict.fromkeys(FIELDS[kind])
    record |= item if isinstance(item, dict) else dict(zip(FIELDS[kind], item[1:], strict=False))
    hashes = [] if kind == CLEARED else record["block_hashes"]
    if not isinstance(hashes, list) or not all(type(h) in (int, str) for h in hashes):
        raise ValueError("block hashes are whole numbers or strings")
    parent, extra = record.get("parent_block_hash"), record.get("extra_keys")
    if kind == "BlockStored":
        size, count = record["block_size"], len(ints(record["token_ids"]))
        if type(parent) not in (int, str, type(None)) or not isinstance(extra, list | None):
            raise ValueError("no usable parent_block_hash or extra_keys")
        if type(size) is not int or size < 1 or count not in (0, size * len(hashes)):
            raise ValueError(f"{count} tokens do not fill {len(hashes)} blocks of {size}")
    where = (str(record.get("medium")), str(record.get("group_idx")))
    behind = None if parent is None else (parent, *where)
    return {**record, "type": kind, "keys": [(h, *where) for h in hashes], "behind": behind}


class _Books:
    """Our books beside what vLLM tells; every event passes the rules as it is made."""

    def __init__(self, size: int, count: int, most: int) -> None:
        self.size, self.most, self.log, self.counts = size, most, Log(), dict.fromkeys(COUNTS, 0)
        self.books = Ledger(self.log.tokens)
        self.nodes: dict[Hashable, _Node] = {}
        self._put(PoolOpened(POOL, TIER, "", size, count))

    def take(self, record: dict[str, Any]) -> None:
        """One event of vLLM's."""
        if record["type"] == CLEARED:
            self._remove(list(self.nodes), "cleared")
        elif record["type"] == "BlockRemoved":
            known = [key for key in dict.fromkeys(record["keys"]) if key in self.nodes]
            self.counts["unknown_removed"] += len(record["keys"]) - len(known)
            self._remove(known, "removed")
        elif not record["token_ids"]:
            self.counts["without_tokens"] += len(record["keys"])
        else:
            for run in self._runs(record):
                self._store(record, run)

    def finish(self) -> Log:
        """The log; chains that could still have grown end with it."""
        for seq_id in list(self.books.live):
            self._close(seq_id, "end of the log")
        self.log.about = {"mode": "vllm", "block_size": self.size, **self.counts}
        return self.log

    def _put(self, event: Event) -> None:
        self.books.apply(event)
        self.log.append(event)

    def _runs(self, record: dict[str, Any]) -> Iterator[Run]:
        """The new blocks of a stored event, cut where one is there already."""
        run: Run = (record["behind"], [], [])
        for index, key in enumerate(record["keys"]):
            if key in self.nodes or key in run[1]:
                self.counts["duplicates"] += 1
                if run[1]:
                    yield run
                run = (key, [], [])
            else:
                run[1].append(key)
                run[2].extend(record["token_ids"][index * self.size : (index + 1) * self.size])
        if run[1]:
            yield run

    def _store(self, record: dict[str, Any], run: Run) -> None:
        behind, keys, tokens = run
        path = self._path(behind)
        unknown = behind if behind is not None and not path else None
        self.counts["unknown_parents"] += unknown is not None
        namespace = path[0].namespace if path else _namespace(record, unknown)
        seq_id = self._holder(path, namespace)
        self._append(seq_id, tokens)
        blocks = self._compute(seq_id, path, len(keys))
        before = path[-1] if path else None
        for index, (key, block) in enumerate(zip(keys, blocks, strict=True)):
            text = tuple(tokens[index * self.size : (index + 1) * self.size])
            before = self.nodes[key] = _Node(block, text, before, namespace)
        self.nodes[keys[-1]].holder = seq_id

    def _path(self, behind: Hashable) -> list[_Node]:
        """The blocks of a text up to `behind`; none if one of them is gone."""
        path, node = [], self.nodes.get(behind)
        while node is not None:
            path.append(node)
            node = node.parent
        return path[::-1] if all(node.is_there for node in path) else []

    def _holder(self, path: list[_Node], namespace: bytes) -> int:
        """The chain that ends with `path`, or a new one with its text."""
        if path and path[-1].holder >= 0:
            holder, path[-1].holder = path[-1].holder, -1
            return holder
        seq_id = len(self.books.sequences)
        self._put(Registered(seq_id, "agent", f"chain {seq_id}", "", (), namespace))
        if path:
            self._append(seq_id, [token for node in path for token in node.tokens])
        return seq_id

    def _append(self, seq_id: int, tokens: list[int]) -> None:
        offset, length = self.log.add_tokens(tokens)
        if offset + length > self.most:
            raise LogTooLarge(f"chains of these events have over {self.most} tokens in all")
        number = self.books.sequences[seq_id].number + 1
        self._put(Commanded(seq_id, number, "append", TIER, (), POOL, offset, length))

    def _compute(self, seq_id: int, path: list[_Node], count: int) -> tuple[int, ...]:
        """Mount the path's blocks, compute `count` behind them, publish, and let all go."""
        segment, first = self.books.sequences[seq_id].segments[0], len(path)
        if path:
            self._put(Shared(seq_id, 0, POOL, tuple(n.block for n in path), first * self.size))
        blocks = self.books.pools[POOL].next_free(count)
        keys = segment.keys_of(first, first + count)
        self._put(Allocated(seq_id, 0, POOL, blocks, keys, (first + count) * self.size))
        done = (seq_id, count * self.size, 0, False)
        self._put(Stepped(self.books.num_steps + 1, 0, (done,)))
        self._put(Published(seq_id, 0, POOL, first, blocks, keys))
        self._put(Freed(seq_id, 0, POOL, tuple(segment.blocks[::-1]), 0, "stored"))
        return blocks

    def _remove(self, keys: Iterable[Hashable], cause: str) -> None:
        """Blocks are no longer findable; chains that end there cannot grow."""
        gone = [self.nodes.pop(key) for key in keys]
        for node in gone:
            node.is_there = False
            if node.holder >= 0:
                self._close(node.holder, cause)
        if blocks := tuple(node.block for node in gone):
            self._put(evicted(self.books.pools[POOL], blocks, cause, ()))

    def _close(self, seq_id: int, cause: str) -> None:
        number = self.books.sequences[seq_id].number + 1
        self._put(Commanded(seq_id, number, "close", cause=cause))


def _namespace(record: dict[str, Any], unknown: Hashable) -> bytes:
    """What stands before a text: its adapter, medium, cache group and extra keys; and where it is
    not known, the block before."""
    what = (record["lora_name"] or record["lora_id"], record["medium"], record["group_idx"])
    extra = (record["extra_keys"] or [None])[0]
    return Namespace("vllm", adapter=str(what), salt=json.dumps([extra, unknown])).root()
