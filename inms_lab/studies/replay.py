"""A trace played through the real books: door, plans, log. What is found in the cache, by whom?

Each request is a holder: registered, its leading blocks mounted as far as they are found, the rest
written and published, then ended, so that its blocks stay in the cache. A block of a trace of ids
is 16 tokens made from its number. There is one pool, as in mode `global`: equal text is found by
everybody.

The cache keeps `capacity` blocks *between* requests: the pool has room for the longest request on
top, and after each request what is too much is evicted, least recently let go first; within one
request the last block first, so that a prefix outlives its tail.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from inms_lab.attention.store import NoStore
from inms_lab.books.events import Allocated, Commanded, PoolOpened, Registered, Shared
from inms_lab.books.fingerprint import Namespace
from inms_lab.decisions.completion import Done, completed
from inms_lab.decisions.freeing import evicted, freed
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import COMMON
from inms_lab.errors import BadInput
from inms_lab.logs.log import Log
from inms_lab.serving.cache import KVCache
from inms_lab.studies.trace import Request

SIZE = 16  # tokens that stand for a block
ALL = 1 << 30  # a budget for any request
GLOBAL, GROUP, PRIVATE, FOREIGN, UNKNOWN = TIERS = (
    "global",  # the tool definitions or the system prompt that the request begins with
    "group",  # text that another agent of the session has computed
    "private",  # the agent's own
    "foreign",  # text of another session: equal, but nothing says that it may be shared
    "unknown",  # the trace does not say who asked
)


@dataclass(slots=True)
class Tally:
    """Requests, their blocks, and how many of these were found before the first that was not."""

    requests: int = 0
    blocks: int = 0
    hits: int = 0
    with_hits: int = 0  # requests

    def add(self, blocks: int, hits: int) -> None:
        """One request more."""
        self.requests += 1
        self.blocks += blocks
        self.hits += hits
        self.with_hits += hits > 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `hit_rate` has no value where there is no block."""
        rate = round(self.hits / self.blocks, 4) if self.blocks else None
        counts = {"requests": self.requests, "blocks": self.blocks, "hits": self.hits}
        return {**counts, "requests_with_hits": self.with_hits, "hit_rate": rate}


@dataclass(slots=True)
class Played:
    """What a replay has found. `tiers`: hits by whose text it was; `first`: the first request of
    every agent, `joining` of those whose session had another agent before."""

    capacity: int
    unique: int
    all: Tally = field(default_factory=Tally)
    first: Tally = field(default_factory=Tally)
    joining: Tally = field(default_factory=Tally)
    agents: dict[str, Tally] = field(default_factory=dict)
    tiers: Counter[str] = field(default_factory=Counter)


class Player:
    """The books of one replay, and the door to them."""

    def __init__(
        self, capacity: int, longest: int, block_size: int = SIZE, decisions: bool = False
    ) -> None:
        self.cache = KVCache(NoStore(1))
        self.log, self.books = self.cache.log, self.cache.ledger
        self.capacity, self.decisions = capacity, decisions
        self.namespace, self.num_holders = Namespace().root(), 0
        spec = PoolOpened(COMMON, COMMON, "", block_size, capacity + longest)
        self.cache.record(spec)
        self.pool = self.books.pools[COMMON]

    def play(self, name: str, tokens: array[int]) -> tuple[tuple[int, ...], list[int]]:
        """One request from beginning to end; gives the blocks that were found in front, and those
        that were computed."""
        seq_id, record = self.num_holders, self.cache.record
        self.num_holders += 1
        record(Registered(seq_id, "agent", name, "", (), self.namespace))
        where = (COMMON, (), COMMON, *self.log.add_tokens(tokens))
        record(Commanded(seq_id, 1, "append", *where))
        found, computed = self._mount(seq_id), list[int]()
        seq = self.books.sequences[seq_id]
        while seq.num_computed < len(tokens):
            plan = self._plan(seq_id, ALL)
            self.cache.commit(plan)
            if plan.chunk is None:
                continue  # what was found behind a gap is mounted first
            for event in plan.events:
                if isinstance(event, Allocated):
                    computed += event.blocks
            for event in completed(self.books, 0, (Done(plan.chunk, 0, False),)):
                record(event)
        record(Commanded(seq_id, 2, "close"))
        for event in freed(seq, 0, "close"):
            record(event)
        self._trim()
        return found, computed

    def _mount(self, seq_id: int) -> tuple[int, ...]:
        plan = self._plan(seq_id, 0)
        self.cache.commit(plan)
        return plan.events[0].blocks if plan.events and isinstance(plan.events[0], Shared) else ()

    def _plan(self, seq_id: int, budget: int) -> Plan:
        plan = plan_extend(self.books, len(self.log), seq_id, budget)
        assert isinstance(plan, Plan), "one request at a time, and there is room for each"
        if self.decisions:
            self.log.decide(seq_id, budget, plan)
        return plan

    def _trim(self) -> None:
        """Evict what is more than the capacity."""
        cached = self.pool.cached
        excess = len(cached) - self.capacity
        if excess > 0:
            victims = tuple(islice(cached, excess))
            self.cache.record(evicted(self.pool, victims, "room", ()))


def enough(requests: Sequence[Request], capacity: int) -> int:
    """The capacity, or all blocks of the trace if these are fewer: room for more changes nothing,
    and books for it would take memory."""
    return min(capacity, sum(len(request.blocks) for request in requests))


def tokens_of(request: Request) -> array[int]:
    """A text's own tokens, or those that stand for its blocks: 16 numbers each, nobody else's."""
    if request.tokens is not None:
        return request.tokens
    import numpy as np

    first = np.frombuffer(request.blocks, np.int32)[:, None] * SIZE
    return array("i", (first + np.arange(SIZE, dtype=np.int32)).tobytes())


def replay(
    requests: Sequence[Request],
    capacity: int | None = None,
    block_size: int = SIZE,
    *,
    keep_log: bool = False,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Played, Log]:
    """Play all requests; without a capacity nothing is ever evicted. `keep_log` also keeps what
    planning decided, for the view. `tick` is called after each request."""
    unique = len({number for request in requests for number in request.blocks})
    played = Played(unique if capacity is None else capacity, unique)
    if played.capacity < 1:
        raise BadInput(f"a cache of {capacity} blocks keeps nothing: give at least one")
    longest = max(-(-len(r.tokens) // block_size) if r.tokens else len(r.blocks) for r in requests)
    player = Player(enough(requests, played.capacity), longest, block_size, keep_log)
    authors = [""] * player.pool.spec.num_blocks  # who has computed a block
    sessions = {request.holder: request.session for request in requests}
    begun: set[str] = set()  # sessions
    for request in requests:
        holder, blocks = request.holder, len(request.blocks)
        found, computed = player.play(holder, tokens_of(request))
        hits = min(len(found), blocks)
        played.all.add(blocks, hits)
        if holder not in played.agents:
            played.agents[holder] = Tally()
            played.first.add(blocks, hits)
            if request.session in begun:
                played.joining.add(blocks, hits)
            begun.add(request.session)
        played.agents[holder].add(blocks, hits)
        played.tiers.update(_tiers(request, found[:hits], authors, sessions))
        for block in computed:
            authors[block] = holder
        tick()
    log = player.log
    log.about = {"mode": "replay", "block_size": block_size, "capacity": played.capacity}
    return played, log


def _tiers(
    request: Request, found: Sequence[int], authors: list[str], sessions: dict[str, str]
) -> dict[str, int]:
    """How many of these blocks are whose."""
    if not request.agent:
        return {UNKNOWN: len(found)}
    out = Counter({GLOBAL: min(request.num_global, len(found))})
    for author, count in Counter(authors[b] for b in found[request.num_global :]).items():
        same = GROUP if sessions[author] == request.session else FOREIGN
        out[PRIVATE if author == request.holder else same] += count
    return out


def curve(
    requests: Sequence[Request], capacities: Iterable[int], block_size: int = SIZE
) -> dict[int, float]:
    """Capacity -> hit rate, each played through books of its own."""
    rates = {}
    for capacity in capacities:
        played, _ = replay(requests, capacity, block_size)
        rates[capacity] = round(played.all.hits / played.all.blocks, 4)
    return rates
