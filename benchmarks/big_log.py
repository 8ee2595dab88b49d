"""A large log for benchmarks of the views, made without an engine: agents come, read and go.

The events fold as an engine's would; only their number is out of the ordinary.
"""

from __future__ import annotations

import random
from collections import deque

from inms_lab.books.events import (
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Shared,
    Stepped,
)
from inms_lab.logs.log import Log

SIZE = 16  # tokens in a block
PROMPT = 32  # blocks that every agent shares
CHUNK = 8  # blocks of one read


class BigLog:
    """`events` of a pool of `num_blocks` private blocks that is used to `fill`."""

    def __init__(self, num_blocks: int, fill: float = 0.9, seed: int = 0) -> None:
        self.log = Log()
        self.log.about = {"bytes_per_token": 46080, "mode": "inms", "model": "synthetic"}
        self.log.piece = lambda token: b"word%d " % token
        self.log.add_tokens(range(4096))
        self.rng = random.Random(seed)
        self.num_blocks, self.least = num_blocks, round(num_blocks * (1 - fill))
        self.free = deque(range(num_blocks))
        self.agents: deque[tuple[int, list[int], list[int]]] = deque()
        self.seq_id = self.step = 0
        self._put(PoolOpened("global", "global", "default", SIZE, 2 * PROMPT))
        self._put(PoolOpened("private", "private", "default", SIZE, num_blocks, ("*",)))
        self._prompt()

    def _put(self, event: Event) -> None:
        self.log.events.append(event)

    def grow(self, num_events: int) -> Log:
        """Go on until the log has so many events."""
        while len(self.log.events) < num_events:
            self._agent()
        del self.log.events[num_events:]
        return self.log

    def fill(self) -> Log:
        """Go on until the pool is as full as it gets."""
        while len(self.free) > self.least + 64 * CHUNK:
            self._agent()
        return self.log

    def _prompt(self) -> None:
        self._put(Registered(0, "prompt", "prompt", "default", (), b"\0" * 16))
        where, tokens, blocks = (0, 0, "global"), PROMPT * SIZE, tuple(range(PROMPT))
        keys = tuple(b"%016d" % block for block in blocks)
        what = {"tier": "global", "pool_id": "global", "length": tokens, "seal": True}
        self._put(Commanded(0, 1, "append", **what))
        self._put(Allocated(*where, blocks, keys, tokens))
        self._wrote(0, tokens)
        self._put(Published(*where, 0, blocks, keys))
        self.seq_id = 1

    def _wrote(self, seq_id: int, count: int) -> None:
        self.step += 1
        self._put(Stepped(self.step, 0, ((seq_id, count, 0, False),)))

    def _agent(self) -> None:
        seq, self.seq_id = self.seq_id, self.seq_id + 1
        name, own, numbers = f"agent-{seq % 12}", [], [2]
        label = (f"agent:{name}",)
        self._put(Registered(seq, "agent", name, "default", label, b"\0" * 16))
        start = {"tier": "global", "pool_id": "global", "length": PROMPT * SIZE, "seal": True}
        self._put(Commanded(seq, 1, "append", **start))
        self._put(Shared(seq, 0, "global", tuple(range(PROMPT)), PROMPT * SIZE))
        for number in range(self.rng.randint(4, 40)):
            while len(self.free) < self.least + CHUNK:
                self._end()
            tokens = CHUNK * SIZE
            what = {"tier": "private", "label": label, "pool_id": "private", "length": tokens}
            self._put(Commanded(seq, 2 + number, "append", **what))
            blocks = tuple(self.free.popleft() for _ in range(CHUNK))
            keys = tuple(b"%08d%08d" % (seq, block) for block in blocks)
            before = len(own)
            own.extend(blocks)
            self._put(Allocated(seq, 1, "private", blocks, keys, len(own) * SIZE))
            self._wrote(seq, tokens)
            self._put(Published(seq, 1, "private", before, blocks, keys))
            numbers[0] = 3 + number
        if self.rng.random() < 0.1 and self.free:
            dst = self.free.popleft()
            self._put(Copied(seq, 1, len(own) - 1, "private", own[-1], "private", dst, SIZE))
            key = b"%08d%08d" % (seq, own[-1])
            self._put(Evicted("private", (own[-1],), (key,), (0,)))
            self.free.append(own[-1])
            own[-1] = dst
        self.agents.append((seq, own, numbers))

    def _end(self) -> None:
        seq, own, numbers = self.agents.popleft()
        self._put(Commanded(seq, numbers[0], "close", cause="closed"))
        self._put(Freed(seq, 1, "private", tuple(own[::-1]), 0, "close", forget=True))
        shared = tuple(range(PROMPT))[::-1]
        self._put(Freed(seq, 0, "global", shared, 0, "close"))
        self.free.extend(own[::-1])
