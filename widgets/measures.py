"""Numbers that a timeline shows for one moment of a log. Pure; `js/fold.js` sums up the same.

Memory is counted in blocks; where pools have blocks of one size, bytes follow by a factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inms_lab.books.events import Allocated, Copied, Event, Shared
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.compact import is_move
from inms_lab.notebook.usage import independent_blocks, slots_used

from .snapshot import blocks_in_use


@dataclass(frozen=True, slots=True)
class Measures:
    """One moment, all pools together.

    `alone`   blocks that the live agents would hold if each kept its context alone
    `unused`  slots of held blocks that no holder uses: the rest of last blocks
    `holes`   free blocks below the highest one that was ever in use
    `stranded` free blocks while some pool is full of held ones: pools never lend
    `hits`    blocks that were found and shared since the log's start; `asked`: those, and the
              blocks that had to be allocated or copied; `shifted`: the hits that were shared at a
              shift, as fragments
    """

    index: int
    step: int
    held: int
    cached: int
    free: int
    alone: int
    unused: int
    holes: int
    stranded: int
    hits: int
    asked: int
    shifted: int


def measure(
    books: Ledger, index: int, in_use: Mapping[str, int], counts: Mapping[str, int]
) -> Measures:
    """The numbers of `books`, which stand at `index`; the rest as `follow` gives it."""
    pools = books.pools.values()
    free = sum(len(pool.free) for pool in pools)
    held = sum(pool.num_held for pool in pools)
    cached = sum(len(pool.cached) for pool in pools)
    slots = sum(pool.num_held * pool.block_size for pool in pools)
    return Measures(
        index=index,
        step=books.num_steps,
        held=held,
        cached=cached,
        free=free,
        alone=independent_blocks(books),
        unused=slots - sum(slots_used(books).values()),
        holes=sum(in_use.values()) - held - cached,
        stranded=free if any(p.num_held == p.spec.num_blocks for p in pools) else 0,
        hits=counts.get("hits", 0),
        asked=counts.get("asked", 0),
        shifted=counts.get("shifted", 0),
    )


def follow(
    books: Ledger,
    events: Iterable[Event],
    in_use: Mapping[str, int],
    counts: Mapping[str, int],
) -> tuple[dict[str, int], Counter[str]]:
    """Apply `events` to the books; gives what the numbers need to know of the past then."""
    events, out = tuple(events), Counter(counts)
    for event in events:
        books.apply(event)
        if isinstance(event, Shared) and event.cause == "hit":
            out["hits"] += len(event.blocks)
            out["asked"] += len(event.blocks)
            out["shifted"] += len(event.blocks) * at_a_shift(books, event)
        elif isinstance(event, Allocated):
            out["asked"] += len(event.blocks)
        elif isinstance(event, Copied):
            out["asked"] += not is_move(books, event)
    return blocks_in_use(events, in_use), out


def at_a_shift(books: Ledger, event: Shared) -> bool:
    """Whether blocks were found for a fragment; `books` are those right before or after it."""
    fragment = books.sequences[event.seq_id].segments[event.segment].is_fragment
    return fragment and event.cause == "hit"
