"""The three calls of the block interface, driven by a toy engine and by nothing else."""

from __future__ import annotations

import pytest

from inms_lab.attention.store import NoStore
from inms_lab.books import label
from inms_lab.books.events import PoolOpened
from inms_lab.books.fingerprint import Namespace
from inms_lab.decisions.policy import MODES
from inms_lab.errors import AgentClosed, EmptyText, PoolExhausted, SealedTier
from inms_lab.logs import audit
from inms_lab.serving.blocks import Blocks, Part, Place
from inms_lab.serving.cache import KVCache

SYSTEM, RULES = list(range(10)), list(range(50, 63))
READER = label.group("t") | label.private("a")
OTHER = label.group("t") | label.private("b")


class Memory:
    """KV as a dict from (pool, slot) to the context that was attended to: a toy model."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.cache = KVCache(NoStore(1), debug=True)
        for pool_id, tier, ceiling in MODES["inms"].pools(("t",)):
            spec = PoolOpened(pool_id, tier, "default", 4, num_blocks, ceiling)
            self.cache.record(spec)
        self.blocks = Blocks(self.cache, MODES["inms"], Namespace(model="toy"))
        self.kv: dict[tuple[str, int], tuple[int, ...]] = {}
        self.computed = 0

    def fill(self, seq_id: int, tokens: list[int] | None = None) -> list[str]:
        """Write blocks until the sequence is complete; gives the outcomes."""
        outcomes = []
        while True:
            written = self.blocks.write_block(seq_id, lambda p: self.put(seq_id, p), tokens or ())
            tokens = None
            if written.num_tokens == 0:
                return outcomes
            outcomes.append(written.outcome)

    def put(self, seq_id: int, place: Place) -> None:
        context = self.cache.ledger.sequences[seq_id].tokens()
        for i in range(place.num_tokens):
            seen = tuple(context[: place.position + i + 1])
            self.kv[place.pool_id, place.slot + i] = seen
            self.computed += 1

    def is_right(self, seq_id: int) -> bool:
        """Every mounted slot holds the KV of exactly this sequence's context."""
        seq = self.cache.ledger.sequences[seq_id]
        context = tuple(seq.tokens())
        return all(
            self.kv[s.pool_id, s.blocks[i // 4] * 4 + i % 4] == context[: s.first_position + i + 1]
            for s in seq.segments
            for i in range(s.computed)
        )


def with_prefix() -> Memory:
    memory = Memory()
    prompt = [Part(SYSTEM, "global")]
    memory.fill(memory.blocks.register_sequence("prompt", label.PUBLIC, prompt, "prompt")[0])
    record = [Part(SYSTEM, "global"), Part(RULES, "group", "t")]
    seq_id, mounted = memory.blocks.register_sequence("rec", label.group("t"), record, "record")
    assert mounted == len(SYSTEM)
    memory.fill(seq_id)
    return memory


def test_a_second_reader_mounts_the_global_and_group_prefix_and_computes_only_its_own() -> None:
    memory = with_prefix()
    parts = [Part(SYSTEM, "global"), Part(RULES, "group", "t"), Part([7, 8, 9])]
    before = memory.computed
    first, mounted = memory.blocks.register_sequence("a", READER, parts)
    assert mounted == len(SYSTEM) + len(RULES)
    assert memory.fill(first) == ["computed"]
    second, mounted = memory.blocks.register_sequence("b", OTHER, parts)
    assert mounted == len(SYSTEM) + len(RULES)
    memory.fill(second)
    assert memory.computed - before == 6
    assert memory.is_right(first)
    assert memory.is_right(second)
    books = memory.cache.ledger
    system = books.sequences[first].segments[0]
    assert [books.pools["global"].refs[b] for b in system.blocks] == [4, 4, 4]


def test_private_text_is_shared_with_nobody_and_goes_back_at_the_end() -> None:
    memory = with_prefix()
    secret = [Part(SYSTEM, "global"), Part(list(range(70, 82)))]
    first, _ = memory.blocks.register_sequence("a", READER, secret)
    memory.fill(first)
    second, mounted = memory.blocks.register_sequence("b", OTHER, secret)
    assert mounted == len(SYSTEM)
    memory.fill(second)
    own = [memory.cache.ledger.sequences[s].segments[1].blocks for s in (first, second)]
    assert not set(own[0]) & set(own[1])
    memory.blocks.destroy_sequence(first)
    memory.blocks.destroy_sequence(second)
    pool = memory.cache.ledger.pools["private"]
    assert (pool.num_held, len(pool.cached), len(pool.index)) == (0, 0, 0)


def test_a_write_that_raises_takes_the_block_back() -> None:
    memory = with_prefix()
    seq_id, _ = memory.blocks.register_sequence("a", READER, [Part([1, 2, 3, 4, 5])])
    held = memory.cache.ledger.pools["private"].num_held

    def broken(place: Place) -> None:
        raise OSError("the device went away")

    with pytest.raises(OSError, match="went away"):
        memory.blocks.write_block(seq_id, broken)
    assert memory.cache.ledger.pools["private"].num_held == held
    assert memory.fill(seq_id) == ["computed", "computed"]
    assert memory.is_right(seq_id)


def test_what_cannot_be_done_is_said_by_name() -> None:
    memory = Memory(num_blocks=2)
    with pytest.raises(EmptyText):
        memory.blocks.register_sequence("a", READER, [Part([])])
    seq_id, _ = memory.blocks.register_sequence("a", READER, [Part([1] * 4)])
    memory.fill(seq_id)
    other, _ = memory.blocks.register_sequence("b", OTHER, [Part([2] * 8)])
    assert memory.blocks.write_block(other, lambda p: memory.put(other, p)).outcome == "computed"
    with pytest.raises(PoolExhausted):
        memory.blocks.write_block(other, lambda p: memory.put(other, p))
    memory.blocks.destroy_sequence(seq_id)
    assert memory.fill(other) == ["computed"]
    with pytest.raises(AgentClosed):
        memory.blocks.destroy_sequence(seq_id)
    assert audit.faults(memory.cache.ledger) == []


def test_a_shared_prefix_that_nobody_encoded_is_taken_as_private_text() -> None:
    memory = Memory()
    seq_id, mounted = memory.blocks.register_sequence("a", READER, [Part(SYSTEM, "global")])
    assert mounted == 0
    memory.fill(seq_id)
    assert memory.cache.ledger.pools["global"].num_held == 0
    assert memory.is_right(seq_id)
    record = [Part(RULES, "group", "t")]
    sealed, _ = memory.blocks.register_sequence("c", label.group("t"), record, "prompt")
    with pytest.raises(SealedTier):
        memory.fill(sealed)


def test_a_place_ends_where_its_segment_ends() -> None:
    """A sealed text that ends within a block, and own text behind it: each has places of its own,
    and the other call's slots are never part of one."""
    memory = Memory()
    parts = [Part(SYSTEM, "global"), Part([7, 8, 9])]  # nobody encoded the first: it is private
    seq_id, mounted = memory.blocks.register_sequence("a", READER, parts)
    assert mounted == 0
    places: list[Place] = []

    def put(place: Place) -> None:
        places.append(place)
        memory.put(seq_id, place)

    while memory.blocks.write_block(seq_id, put).num_tokens:
        pass
    assert [place.num_tokens for place in places] == [4, 4, 2, 3]
    assert memory.is_right(seq_id)
