"""Memory that is taken and not used, at both levels: slots within blocks, blocks within pools; and
what of it the operating system has. `trim` gives the pages of free blocks back, `compact` first
moves private blocks together. On the lab's thread only, between two steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from inms_lab.books.events import Copied
from inms_lab.books.pool import Pool
from inms_lab.decisions.compact import PRIVATE, plan_compact
from inms_lab.notebook.usage import slots_used
from inms_lab.serving.cache import KVCache

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolWaste:
    """One pool; blocks, and bytes of KV.

    `unused`    bytes of held blocks' slots that no holder uses (internal)
    `stranded`  free blocks that other pools, which are full of held ones, cannot have (external:
                what isolation costs right now)
    `holes`     free blocks below a held or cached one
    `resident`  bytes of the region that are in memory, in whole pages; None: nobody can tell
    `used`      bytes of held and cached blocks
    """

    pool_id: str
    num_blocks: int
    held: int
    cached: int
    free: int
    unused: int
    stranded: int
    holes: int
    resident: int | None
    used: int


@dataclass(frozen=True, slots=True)
class Waste:
    """All pools of a lab; `full`: those without a free or cached block."""

    pools: tuple[PoolWaste, ...]
    full: tuple[str, ...]

    @property
    def unused(self) -> int:
        """Bytes of held blocks that hold nothing."""
        return sum(pool.unused for pool in self.pools)

    @property
    def stranded(self) -> int:
        """Free blocks that a full pool cannot have."""
        return sum(pool.stranded for pool in self.pools)

    def __repr__(self) -> str:
        names = ("held", "cached", "free", "holes", "stranded", "unused", "used", "resident")
        rows: list[tuple[str, ...]] = [("pool", *names)]
        for p in self.pools:
            counts = (str(getattr(p, name)) for name in names[:5])
            rows.append((p.pool_id, *counts, *map(_size, (p.unused, p.used, p.resident))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(w) if not i else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        full = ", ".join(self.full)
        note = f"{full}: no room left, and {self.stranded} blocks are free elsewhere"
        return "\n".join((*lines, note if full else "no pool is full: isolation costs nothing now"))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What came back by pool, in bytes, and why nothing could where that is so."""

    by_pool: dict[str, int]
    why: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(self.by_pool.values())

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {_size(n)}" for name, n in self.by_pool.items() if n)
        return self.why or f"{_size(self.num_bytes)} given back" + (f" ({parts})" if parts else "")


def waste(cache: KVCache) -> Waste:
    """The books and the store of a lab as they are."""
    pools = cache.ledger.pools
    full = tuple(name for name, pool in pools.items() if not pool.num_available())
    used: Counter[str] = Counter()
    for (pool_id, _), slots in slots_used(cache.ledger).items():
        used[pool_id] += slots
    return Waste(tuple(_of(cache, pool, used, bool(full)) for pool in pools.values()), full)


def _of(cache: KVCache, pool: Pool, used: Counter[str], wanted: bool) -> PoolWaste:
    name, per_token = pool.spec.pool_id, cache.store.bytes_per_token
    taken = pool.num_held + len(pool.cached)
    top = 1 + max([-1, *pool.refs, *pool.cached])
    return PoolWaste(
        pool_id=name,
        num_blocks=pool.spec.num_blocks,
        held=pool.num_held,
        cached=len(pool.cached),
        free=len(pool.free),
        unused=(pool.num_held * pool.block_size - used[name]) * per_token,
        stranded=len(pool.free) if wanted else 0,
        holes=top - taken,
        resident=cache.store.resident(name),
        used=taken * pool.block_size * per_token,
    )


def trim(cache: KVCache) -> Trimmed:
    """Give the system every whole page that lies in free blocks only. What is held or cached keeps
    its pages; a block that is handed out again is zero, as ever."""
    back = {
        name: cache.store.give_back(name, pool.free, pool.block_size)
        for name, pool in cache.ledger.pools.items()
        if pool.free
    }
    why = next((given.why for given in back.values() if given.why), "")
    return Trimmed({name: given.num_bytes for name, given in back.items()}, why)


def compact(cache: KVCache, most: int | None = None) -> int:
    """Move blocks of the private pools down, at most `most` in each; gives how many moved."""
    moved = 0
    for name, pool in cache.ledger.pools.items():
        if pool.spec.tier == PRIVATE:
            plan = plan_compact(cache.ledger, len(cache.log), name, most)
            stale = cache.commit(plan)
            assert stale is None, "one thread owns the ledger"
            moved += sum(isinstance(event, Copied) for event in plan.events)
    return moved


def _size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "?"
    return f"{num_bytes / MIB:,.2f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:,.0f} KiB"
