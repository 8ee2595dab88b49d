"""What must hold before an event may enter the books: one function per event, asked by `apply`.

A plan is tried against these on an overlay before any of it is applied, so an edited plan cannot
bypass a rule. Check numbers are those of the table in ARCHITECTURE.md. Nothing is changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inms_lab.checks import clears, is_written, may_write, same_tokens
from inms_lab.errors import PlanInvalid
from inms_lab.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.label import may_hold, private

if TYPE_CHECKING:
    from inms_lab.ledger import Ledger
    from inms_lab.pool import Pool
    from inms_lab.segment import Segment
    from inms_lab.sequence import Sequence

VERBS = ("append", "write", "stop", "logits", "rollback", "close", "fail", "expire")


def require(condition: object, rule: str) -> None:
    """Raise `PlanInvalid(rule)` unless `condition` holds."""
    if not condition:
        raise PlanInvalid(rule)


def check(books: Ledger, event: Event) -> None:
    """Raise `PlanInvalid` with the rule that `event` would break on these books."""
    try:
        _RULES[type(event)](books, event)
    except (LookupError, ValueError) as error:  # no such holder, pool, block; unequal tuples
        raise PlanInvalid(f"{type(event).__name__} names what does not exist: {error!r}") from error


def _pool_opened(books: Ledger, e: PoolOpened) -> None:
    require(e.pool_id not in books.pools, f"pool {e.pool_id} is open already")
    require(e.num_blocks > 0 and e.block_size > 0, f"pool {e.pool_id} would hold nothing")


def _registered(books: Ledger, e: Registered) -> None:
    require(e.seq_id not in books.sequences, f"holder {e.seq_id} is registered already")
    if e.parent_id >= 0:
        parent = books.sequences[e.parent_id]
        theirs = (parent.name, parent.tenant, parent.clearance, parent.namespace, parent.off)
        mine = (e.name, e.tenant, frozenset(e.clearance), e.namespace, frozenset(e.off))
        require(theirs == mine and parent.is_live, "a fork is another sequence of one principal")


def _commanded(books: Ledger, e: Commanded) -> None:
    seq = books.sequences[e.seq_id]
    require(e.verb in VERBS, f"no command is called {e.verb}")
    require(seq.is_live, f"holder {e.seq_id} is {seq.state}")
    require(e.number == seq.number + 1, f"command {e.number} is out of order")
    if e.verb in ("append", "write"):
        pool = books.pools[e.pool_id]
        require(e.length or e.verb == "write", "a text has at least one token")
        require(e.offset + e.length <= len(books.tokens), "tokens outside the token table")
        require(clears(seq, e.label), f"{seq.name} may not hold {sorted(e.label)} (check 4)")
        require(pool.spec.tier == e.tier, f"{e.pool_id} is not of tier {e.tier}")
        ceiling = frozenset(pool.spec.label)
        require("*" in ceiling or may_hold(e.label, ceiling), f"label too high for {e.pool_id}")
        own = private(seq.name) if e.tier == "private" else ceiling
        require(frozenset(e.label) >= seq.label() | own, "a label joins the text's and all before")
    elif e.verb == "rollback":
        require(0 <= e.count <= seq.num_tokens, "a rollback keeps some of the tokens")
        idle = all(segment.length == segment.computed for segment in seq.segments)
        require(idle, "no rollback within a step")
    elif e.verb == "logits":
        require(seq.num_tokens, "there is no token to predict from")


def _released(books: Ledger, e: Released) -> None:
    require(books.sequences[e.seq_id].kind == "record", "only a record can be released")
    require(e.offset + e.length <= len(books.tokens), "tokens outside the token table")


def _shared(books: Ledger, e: Shared) -> None:
    seq, segment, pool = _end_of(books, e)
    require(segment.length == segment.computed, "blocks are mounted before the step writes")
    first = len(segment.blocks)
    require(first * segment.block_size == segment.length, "mounted blocks start at a block's start")
    require(segment.length < e.length <= len(segment.tokens), "slots and tokens differ")
    _fits(segment, len(e.blocks), e.length)
    for index, block in enumerate(e.blocks, first):
        require(clears(seq, pool.labels.get(block, ())), f"block {block}: label (check 4)")
        if e.cause == "fork":
            donor = books.sequences[seq.parent_id].segments[e.segment]
            there = donor.blocks[index : index + 1] == [block] and e.length <= donor.computed
            same = donor.root == segment.root and donor.chain(index) == segment.chain(index)
            require(there and same, "a fork shares what it has in common with its parent")
            continue
        written = is_written(pool, block)
        require(written or "pending" in seq.off, f"block {block} is not published (check 2)")
        if written:
            same = same_tokens(pool, block, segment, index, seq)
            require(same, f"block {block}: other tokens (check 1)")
            key = pool.keys[block] == segment.key(index)
            require(key, f"block {block}: another fingerprint (checks 3 and 5)")


def _allocated(books: Ledger, e: Allocated) -> None:
    seq, segment, pool = _end_of(books, e)
    require(may_write(seq, pool.spec.tier), f"no {seq.kind} may write to {e.pool_id}")
    require(segment.length < e.length <= len(segment.tokens), "slots and tokens differ")
    if segment.length % segment.block_size:
        require(_owned(pool, segment.blocks[-1]), "the block before is not the writer's alone")
    require(e.blocks == pool.next_free(len(e.blocks)), "not the head of the free queue")
    first = len(segment.blocks)
    keys = tuple(segment.key(first + i) for i in range(len(e.blocks)))
    require(e.keys == keys, "the promised keys are not the content's")
    _fits(segment, len(e.blocks), e.length)


def _copied(books: Ledger, e: Copied) -> None:
    seq, segment, pool = _end_of(books, e)
    source, start = books.pools[e.src_pool], e.index * segment.block_size
    require(e.src in source.refs or e.src in source.cached, "the source holds nothing")
    require(clears(seq, source.labels[e.src]), "the source's label (check 4)")
    require(may_write(seq, pool.spec.tier), f"no {seq.kind} may write to {e.pool_id}")
    require(pool.next_free(1) == (e.dst,), "not the head of the free queue")
    require(0 < e.num_slots <= segment.block_size, "a copy has slots")
    require(start + e.num_slots <= len(segment.tokens), "slots and tokens differ")
    if e.index == len(segment.blocks):
        require(segment.length == segment.computed == start == 0, "a copy begins a segment")
        same = source.tokens[e.src].startswith(segment.tokens[: e.num_slots].tobytes())
        there = same and seq.begins_as(e.segment, source, e.src)
        require(there, f"block {e.src}: other tokens, or behind other text (checks 1 and 5)")
    else:
        entry = (segment.pool_id, segment.blocks[e.index])
        require(entry == (e.src_pool, e.src), "the source is not the table's entry")
        require(start + e.num_slots == segment.computed, "a copy keeps what is written")


def _evicted(books: Ledger, e: Evicted) -> None:
    pool, gone = books.pools[e.pool_id], Counter(e.keys)
    require(len({*e.blocks}) == len(e.blocks), "a block is evicted once")
    left = tuple(len(pool.index.get(key, ())) - gone[key] for key in e.keys)
    require(e.remaining == left, f"the copies that remain are {left}")
    for block, key in zip(e.blocks, e.keys, strict=True):
        overwritten = e.cause == "overwritten" and pool.refs.get(block) == 1
        require(overwritten or block in pool.cached, f"block {block} is no victim")
        require(pool.keys.get(block) == key, f"block {block} has another identity")


def _let_go(books: Ledger, e: Freed | Aborted) -> None:
    _, segment, _ = _end_of(books, e)
    tail = segment.blocks[len(segment.blocks) - len(e.blocks) :]
    require(list(e.blocks) == tail[::-1], "blocks are let go from the end of the table")
    require(e.length <= segment.length, "a release adds no slots")
    _fits(segment, -len(e.blocks), e.length)


def _stepped(books: Ledger, e: Stepped) -> None:
    require(e.step == books.num_steps + 1, f"step {e.step} does not follow {books.num_steps}")
    require(len({item[0] for item in e.items}) == len(e.items), "a holder steps once")
    for seq_id, num_computed, num_sampled, _ in e.items:
        seq = books.sequences[seq_id]
        for segment in seq.segments:
            count = min(num_computed, segment.room)
            pool, size, here = books.pools[segment.pool_id], segment.block_size, segment.computed
            for block in segment.blocks[here // size : -(-(here + count) // size)] if count else ():
                alone = _owned(pool, block) or "pending" in seq.off
                require(alone, f"block {block} is written and has other readers")
            num_computed -= count
        require(num_computed == 0, f"holder {seq_id} computed tokens without slots")
        require(num_sampled <= seq.to_generate, f"holder {seq_id} was not asked for tokens")
        require(not num_sampled or seq.segments[-1].open, "sampled tokens go to an open segment")


def _published(books: Ledger, e: Published) -> None:
    _, segment, pool = _where(books, e)
    for index, (block, key) in enumerate(zip(e.blocks, e.keys, strict=True), e.first):
        require(segment.blocks[index : index + 1] == [block], "a holder publishes its own blocks")
        require(key and key == segment.key(index), "the key is not the content's")
        end = min((index + 1) * segment.block_size, len(segment.tokens))
        require(end <= segment.computed, f"block {block} is not written to its end")
        require(block not in pool.keys, f"block {block} is published already")


def _where(books: Ledger, e: Any) -> tuple[Sequence, Segment, Pool]:
    seq = books.sequences[e.seq_id]
    require(0 <= e.segment < len(seq.segments), f"holder {e.seq_id} has no such segment")
    segment = seq.segments[e.segment]
    require(segment.pool_id == e.pool_id, f"segment {e.segment} is not in {e.pool_id}")
    return seq, segment, books.pools[e.pool_id]


def _end_of(books: Ledger, e: Any) -> tuple[Sequence, Segment, Pool]:
    """Where a table may change: all blocks that stand before are there, none stands behind."""
    seq, segment, pool = _where(books, e)
    full = all(len(s.blocks) * s.block_size >= len(s.tokens) for s in seq.segments[: e.segment])
    last = not any(s.blocks for s in seq.segments[e.segment + 1 :])
    require(full and last, "blocks come and go at the end of what a holder has")
    return seq, segment, pool


def _owned(pool: Pool, block: int) -> bool:
    return pool.refs[block] == 1 and block not in pool.keys


def _fits(segment: Segment, count: int, length: int) -> None:
    blocks = -(-length // segment.block_size)
    require(len(segment.blocks) + count == blocks, f"{length} slots are {blocks} blocks")


_RULES: dict[type, Callable[[Ledger, Any], None]] = {
    PoolOpened: _pool_opened,
    Registered: _registered,
    Commanded: _commanded,
    Released: _released,
    Shared: _shared,
    Allocated: _allocated,
    Copied: _copied,
    Evicted: _evicted,
    Freed: _let_go,
    Aborted: _let_go,
    Stepped: _stepped,
    Published: _published,
}
