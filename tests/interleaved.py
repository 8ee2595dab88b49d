"""Threads over one memory, interleaved at random: seeded turns at the borders of critical sections.

The lock of a cache is an attribute, so a test puts one in its place that gives other threads a turn
before it is taken and after it is let go. What is checked does not depend on the interleaving: each
slot that a sequence reads holds the KV of just its context, and the books balance at the end.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from inms_lab.books import label
from inms_lab.books.events import PoolOpened
from inms_lab.books.fingerprint import Namespace
from inms_lab.decisions.policy import MODES
from inms_lab.errors import AgentClosed, PoolExhausted, SequenceBusy
from inms_lab.logs import audit
from inms_lab.serving.blocks import Blocks, Part, Place
from inms_lab.serving.cache import KVCache
from inms_lab.serving.commands import entry
from inms_lab.serving.request import Request

WATCHDOG = 20.0  # seconds after which a thread is taken to wait for ever
SIZE = 4
SYSTEM, RULES = list(range(10)), list(range(50, 63))
TEXTS = ([70, 71, 72], [80] * 6, [90, 91, 92, 93, 94, 95, 96, 97, 98])


class Chance:
    """Called where other threads may come in between: a turn for them now and then."""

    def __init__(self, seed: int) -> None:
        self.seed, self.mine = seed, threading.local()

    def __call__(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.4:
            time.sleep(0.0 if drawn < 0.34 else 1e-5)

    @property
    def rng(self) -> random.Random:
        """A generator of this thread's own."""
        if not hasattr(self.mine, "rng"):
            self.mine.rng = random.Random(f"{self.seed} {threading.current_thread().name}")
        return self.mine.rng  # type: ignore[no-any-return]


class Border:
    """A lock with a turn for others at both ends; `left_out`: it keeps nobody out."""

    def __init__(self, chance: Chance, left_out: bool = False) -> None:
        self.chance, self.left_out = chance, left_out
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.chance()
        if not self.left_out and not self.lock.acquire(timeout=WATCHDOG):
            raise TimeoutError("a lock is waited for, for ever")

    def __exit__(self, *_: object) -> None:
        if not self.left_out:
            self.lock.release()
        self.chance()


@contextmanager
def watched() -> Iterator[None]:
    """Threads change as often as they can; should everything stop, all stacks are printed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    faulthandler.dump_traceback_later(3 * WATCHDOG, exit=False)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.setswitchinterval(before)


def together(works: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Run these on threads of their own, to their ends; gives what they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(WATCHDOG)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(work,), name=f"t{n}", daemon=True)
        for n, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            raise TimeoutError("a thread waits for ever")
    return errors


class Slots:
    """A store whose KV is the context that was attended to; others get a turn in between."""

    bytes_per_token = 1

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.kv: dict[str, list[tuple[int, ...] | None]] = {}

    def open(self, pool_id: str, num_slots: int) -> None:
        self.kv[pool_id] = [None] * num_slots

    def close(self) -> None:
        self.kv.clear()

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        for block in blocks:
            for slot in range(block * block_size, (block + 1) * block_size):
                self.kv[pool_id][slot] = None
            self.chance()

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        (src_pool, src), (dst_pool, dst) = source, target
        for at in range(num_slots):
            self.chance()
            self.kv[dst_pool][dst + at] = self.kv[src_pool][src + at]


class Threads:
    """Threads that register, fork, write and destroy sequences of one memory."""

    def __init__(
        self,
        seed: int,
        make: Callable[..., Blocks] = Blocks,
        left_out: bool = False,
        num_private: int = 14,
        **options: Any,
    ) -> None:
        self.chance = Chance(seed)
        self.store = Slots(self.chance)
        self.cache = KVCache(self.store)
        for pool_id, tier, ceiling in MODES["inms"].pools(("t",)):
            count = num_private if tier == "private" else 8
            self.cache.record(PoolOpened(pool_id, tier, "default", SIZE, count, ceiling))
        space = Namespace(model="toy", tenant="default")
        self.blocks = make(self.cache, MODES["inms"], space, **options)
        self.known: list[int] = []  # sequences that anybody may destroy
        self.seen: dict[str, int] = {}  # what happened how often
        prompt = [Part(SYSTEM, "global")]
        self.fill(self.blocks.register_sequence("prompt", label.PUBLIC, prompt, "prompt")[0])
        self.cache.lock = Border(self.chance, left_out)  # type: ignore[assignment]

    def run(self, num_threads: int = 4, num_ops: int = 6) -> None:
        """One interleaving; raises what any thread raised, or what is wrong at the end."""
        errors = together([lambda: self.work(num_ops)] * num_threads)
        if errors:
            raise errors[0]
        self.end()

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    # one thread -----------------------------------------------------------------------------

    def work(self, num_ops: int) -> None:
        rng, mine = self.chance.rng, list[int]()
        for _ in range(num_ops):
            drawn = rng.random()
            try:
                if not mine or drawn < 0.3:
                    mine.append(self.register(rng))
                    self.fill(mine[-1])
                elif drawn < 0.5:
                    mine += self.fork(rng.choice(mine))
                elif drawn < 0.85:
                    self.fill(rng.choice(mine), rng.choice(TEXTS)[: rng.randrange(1, 9)])
                else:
                    self.blocks.destroy_sequence(rng.choice(self.known))
                    self.count("destroyed")
            except AgentClosed:  # somebody destroyed it
                self.count("closed")
            except SequenceBusy:
                self.count("busy")
            except PoolExhausted:
                self.count("no room")
                self.destroy(mine.pop(0))

    def register(self, rng: random.Random) -> int:
        """An agent of one of two principals; or the team's record, which all encode at once."""
        rules = Part(RULES, "group", "t")
        parts = [Part(SYSTEM, "global")]
        if rng.random() < 0.3:
            seq_id, _ = self.blocks.register_sequence(
                "rec", label.group("t"), [*parts, rules], "record"
            )
        else:
            name = f"p{rng.randrange(2)}"
            own = Part(rng.choice(TEXTS))
            parts += [rules] * (rng.random() < 0.5) + [own]
            clearance = label.group("t") | label.private(name)
            seq_id, _ = self.blocks.register_sequence(name, clearance, parts)
        self.known.append(seq_id)
        return seq_id

    def fork(self, seq_id: int) -> list[int]:
        """Another sequence of the same principal: its first write copies."""
        with self.cache.lock:
            seq = self.cache.ledger.sequences[seq_id]
            if not seq.is_live or seq.kind != "agent" or seq_id in self.blocks.busy:
                return []
            child = len(self.cache.ledger.sequences)
            request = Request(seq_id, "fork")
            where = (self.cache.ledger, self.cache.log, self.blocks.policy)
            self.cache.commit(entry(*where, request, 1 << 30))
        self.known.append(child)
        return [child]

    def destroy(self, seq_id: int) -> None:
        try:
            self.blocks.destroy_sequence(seq_id)
        except AgentClosed:
            self.count("closed")

    def fill(self, seq_id: int, tokens: Sequence[int] = ()) -> None:
        """Write until the sequence is complete, or somebody else's write is waited for too long."""
        patience = 30
        while patience:
            if self.cache.ledger.sequences[seq_id].kind != "agent":
                tokens = ()
            written = self.blocks.write_block(seq_id, lambda p: self.put(seq_id, p), tokens)
            tokens = ()
            self.count(written.outcome)
            if written.outcome == "deferred":
                patience -= 1
                time.sleep(1e-5)
            elif not written.num_tokens:
                return

    def put(self, seq_id: int, place: Place) -> None:
        """The toy engine: read what is there, then write, a slot at a time."""
        seq = self.cache.ledger.sequences[seq_id]
        context = tuple(seq.tokens())
        self.right(seq_id, context, place.position)
        slots = self.store.kv[place.pool_id]
        for at in range(place.num_tokens):
            assert slots[place.slot + at] is None, "a slot was not cleared, or somebody writes here"
            self.chance()
            slots[place.slot + at] = context[: place.position + at + 1]
        self.right(seq_id, context, place.position)
        for at in range(place.num_tokens):
            mine = context[: place.position + at + 1]
            assert slots[place.slot + at] == mine, "somebody else wrote here"

    # what must hold -------------------------------------------------------------------------

    def right(self, seq_id: int, context: tuple[int, ...], stop: int) -> None:
        """The slots before position `stop` hold the KV of just this context."""
        for segment in self.cache.ledger.sequences[seq_id].segments:
            for at in range(max(0, min(segment.computed, stop - segment.first_position))):
                slot = segment.blocks[at // SIZE] * SIZE + at % SIZE
                wanted = context[: segment.first_position + at + 1]
                found = self.store.kv[segment.pool_id][slot]
                assert found == wanted, f"foreign KV is read in {segment.pool_id}: {found}"

    def end(self) -> None:
        """Balanced books, equal to what the log makes of them; nothing found that is not so."""
        cache = self.cache
        cache.lock = threading.RLock()
        for pool_id, pool in cache.ledger.pools.items():
            for block in pool.keys:
                for at in range(len(pool.tokens[block]) // 4):
                    kv = self.store.kv[pool_id][block * SIZE + at]
                    token = int.from_bytes(pool.tokens[block][4 * at : 4 * at + 4], "little")
                    assert kv is not None, "a block can be found and was not written"
                    assert kv[-1] == token, "a block can be found under another text"
        assert not self.blocks.busy, "a call has ended and its sequence is busy"
        assert not self.blocks.copies.readers, "a copy has ended and is waited for"
        for seq in reversed(cache.ledger.holders()):
            self.right(seq.seq_id, tuple(seq.tokens()), len(seq.tokens()))
            assert all(s.length == s.computed for s in seq.segments), "a write is left half-way"
            self.blocks.destroy_sequence(seq.seq_id)
        assert audit.faults(cache.ledger) == []
        assert cache.log.replay().snapshot() == cache.ledger.snapshot()
        assert not any(pool.num_held for pool in cache.ledger.pools.values())
        assert not cache.ledger.pools["private"].cached
