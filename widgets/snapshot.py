"""What a picture of the pools needs, as plain data: a pure function of the books.

Not here: drawing (picture.py), moments of a log (frames.py), anything that listens to a lab.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inms_lab.books.events import Allocated, Copied, Event, Registered
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.sequence import Sequence
from inms_lab.notebook.usage import held_bytes, independent_blocks

HELD, CACHED, FREE = "held", "cached", "free"


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `holders` name those that hold it, one entry for each place in a table.

    `shifts`: for each of them None, or the shift at which it has the block as a fragment; () where
    all have it in its own place.
    """

    number: int
    state: str  # held, cached or free
    holders: tuple[str, ...] = ()
    shifts: tuple[int | None, ...] = ()

    @property
    def refs(self) -> int:
        """How many hold it."""
        return len(self.holders)

    @property
    def places(self) -> tuple[str, ...]:
        """The holders, each with its shift if it has one: `backend +87`."""
        shifts = self.shifts or (None,) * self.refs
        both = zip(self.holders, shifts, strict=True)
        return tuple(name if at is None else f"{name} {at:+d}" for name, at in both)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool; `blocks` are those that are or were in use, in order, not the whole pool."""

    pool_id: str
    tier: str
    block_size: int
    num_blocks: int
    num_held: int
    num_cached: int
    num_free: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent; `num_shared` of its blocks have another holder too, `num_own` have none;
    `num_shifted` of all of them are fragments' blocks."""

    name: str
    state: str
    num_tokens: int
    num_shared: int
    num_own: int
    num_shifted: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it, after `num_steps` steps.

    `held_bytes` is the KV that is held, `independent_bytes` what the live agents would hold if each
    kept its context alone.
    """

    num_steps: int
    pools: tuple[PoolRow, ...]
    agents: tuple[AgentRow, ...]
    held_bytes: int
    independent_bytes: int

    def __str__(self) -> str:
        counts = ", ".join(f"{pool.pool_id} {pool.num_held} held" for pool in self.pools)
        return f"pools: {counts or 'none'}; {len(self.agents)} agents"


def snapshot_of(
    books: Ledger, bytes_per_token: int, in_use: Mapping[str, int] | None = None
) -> Snapshot:
    """The books as they are. `in_use[pool id]`: show at least so many of a pool's blocks."""
    holders = _holders(books)
    agents = [seq for seq in books.sequences.values() if seq.kind == "agent"]
    size = next((pool.block_size for pool in books.pools.values()), 0)
    floor = in_use or {}
    return Snapshot(
        num_steps=books.num_steps,
        pools=tuple(_pool(p, holders, floor.get(name, 0)) for name, p in books.pools.items()),
        agents=tuple(
            _agent(seq, books, name) for seq, name in zip(agents, names_of(agents), strict=True)
        ),
        held_bytes=held_bytes(books, bytes_per_token),
        independent_bytes=independent_blocks(books) * size * bytes_per_token,
    )


def blocks_in_use(
    events: Iterable[Event], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """How many of each pool's blocks were ever in use, after `events` behind what is `known`."""
    highest = dict(known or {})
    for event in events:
        if isinstance(event, Allocated):
            last = max(event.blocks, default=-1)
        elif isinstance(event, Copied):
            last = event.dst
        else:
            continue
        highest[event.pool_id] = max(highest.get(event.pool_id, 0), last + 1)
    return highest


Held = Mapping[tuple[str, int], list[tuple[str, int | None]]]  # (pool id, block) -> holders


def _holders(books: Ledger) -> Held:
    """The name of each holder and its shift (None: in place), in the order of registering."""
    out: defaultdict[tuple[str, int], list[tuple[str, int | None]]] = defaultdict(list)
    everybody = list(books.sequences.values())
    for seq, name in zip(everybody, names_of(everybody), strict=True):
        for segment in seq.segments:
            shift = segment.shift if segment.is_fragment else None
            for block in segment.blocks:
                out[segment.pool_id, block].append((name, shift))
    return out


def names_of(sequences: Iterable[Sequence | Registered]) -> list[str]:
    """Names of holders; forks of an agent, which have its name, are told apart."""
    return [f"{s.name} (fork {s.seq_id})" if s.parent_id >= 0 else s.name for s in sequences]


def _pool(pool: Pool, holders: Held, in_use: int) -> PoolRow:
    name = pool.spec.pool_id
    seen = max(in_use, 1 + max(pool.refs, default=-1), 1 + max(pool.cached, default=-1))

    def block(number: int) -> Block:
        if number in pool.refs:
            held = holders.get((name, number), [])
            shifts = tuple(shift for _, shift in held)
            moved = any(shift is not None for shift in shifts)
            return Block(number, HELD, tuple(who for who, _ in held), shifts if moved else ())
        return Block(number, CACHED if number in pool.cached else FREE)

    return PoolRow(
        pool_id=name,
        tier=pool.spec.tier,
        block_size=pool.block_size,
        num_blocks=pool.spec.num_blocks,
        num_held=pool.num_held,
        num_cached=len(pool.cached),
        num_free=len(pool.free),
        blocks=tuple(map(block, range(min(seen, pool.spec.num_blocks)))),
    )


def _agent(seq: Sequence, books: Ledger, name: str) -> AgentRow:
    refs = [books.pools[s.pool_id].refs[block] for s in seq.segments for block in s.blocks]
    num_shared = sum(count > 1 for count in refs)
    num_shifted = sum(len(s.blocks) for s in seq.segments if s.is_fragment)
    counts = (num_shared, len(refs) - num_shared, num_shifted)
    return AgentRow(name, seq.state, seq.num_tokens, *counts)
