"""Do the books balance? Conservation in every pool, refcounts against tables. Could a log have
happened at all? Changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from inms_lab.errors import InmsError
from inms_lab.ledger import Ledger
from inms_lab.pool import Pool

if TYPE_CHECKING:
    from inms_lab.log import Log


def faults(books: Ledger) -> list[str]:
    """Everything that does not add up, in words; empty when all is well."""
    segments = (segment for seq in books.sequences.values() for segment in seq.segments)
    tables = Counter((segment.pool_id, block) for segment in segments for block in segment.blocks)
    refs = {(p, b): n for p, pool in books.pools.items() for b, n in pool.refs.items()}
    wrong = [key for key in refs.keys() | tables.keys() if refs.get(key, 0) != tables[key]]
    return [fault for pool in books.pools.values() for fault in _pool_faults(pool)] + [
        f"{p} block {b}: refcount {refs.get((p, b), 0)}, in {tables[p, b]} tables"
        for p, b in sorted(wrong)
    ]


def _pool_faults(pool: Pool) -> list[str]:
    name, out = pool.spec.pool_id, []
    free, cached, held = set(pool.free), set(pool.cached), set(pool.refs)
    if free & cached or free & held or cached & held:
        out.append(f"{name}: a block is in two states")
    if len(free) + len(cached) + len(held) != pool.spec.num_blocks:
        out.append(f"{name}: free + cached + held is not {pool.spec.num_blocks}")
    if min(pool.refs.values(), default=1) < 1:
        out.append(f"{name}: a refcount below one")
    if set(pool.labels) != cached | held:
        out.append(f"{name}: a block with KV lacks its label, or one without KV has a label")
    if set(pool.keys) != set(pool.tokens) or cached - set(pool.keys) or free & set(pool.keys):
        out.append(f"{name}: a free block is findable, or a cached one is not")
    found = sorted((key, b) for key, blocks in pool.index.items() for b in blocks)
    if found != sorted((key, b) for b, key in pool.keys.items()):
        out.append(f"{name}: the index and the blocks' keys differ")
    if {b: key for key, b in pool.pending.items()} != dict(pool.promised):
        out.append(f"{name}: pending keys and promised blocks differ")
    if not set(pool.promised) <= held - set(pool.keys):
        out.append(f"{name}: a promised block is free, cached or published")
    return out


def impossible(log: Log) -> str | None:
    """The first event of a log that cannot have happened, in words; None: all of them can."""
    count = 0  # events that could
    try:
        books = log.replay(log.first)
        for event in log.events:
            books.apply(event)
            count += 1
    except (InmsError, LookupError, TypeError, ValueError, AttributeError) as error:
        return f"event {log.first + count} cannot have happened ({error})"
    return None
