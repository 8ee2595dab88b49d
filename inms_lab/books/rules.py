"""What must hold before an event may enter the books: one function per event.

A plan is tried against these on an overlay before any of it is applied, so an edited plan cannot
bypass a rule. Check numbers are those of the table in ARCHITECTURE.md. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inms_lab.books import table_rules
from inms_lab.books.checks import clears, may_write
from inms_lab.books.events import (
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
from inms_lab.books.label import may_hold, private
from inms_lab.books.table_rules import require, where
from inms_lab.errors import PlanInvalid

if TYPE_CHECKING:
    from inms_lab.books.ledger import Ledger
    from inms_lab.books.pool import Pool
    from inms_lab.books.sequence import Sequence

VERBS = ("append", "write", "detach", "stop", "logits", "rollback", "close", "fail", "expire")


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
    require(e.count >= 0, "a negative number of tokens")
    require(e.source < 0 or e.source in books.sequences, f"there is no holder {e.source}")
    if e.verb in ("append", "write"):
        pool = books.pools[e.pool_id]
        require(e.length or e.verb == "write", "a text has at least one token")
        _in_table(books, e.offset, e.length)
        require(clears(seq, e.label), f"{seq.name} may not hold {sorted(e.label)} (check 4)")
        if e.piece >= 0:
            _is_fragment(books, seq, e)
        else:
            _is_placed(pool, seq, e, seq.label())
    elif e.verb == "rollback":
        require(e.count <= seq.num_tokens, "a rollback keeps some of the tokens")
        idle = all(segment.length == segment.computed for segment in seq.segments)
        require(idle, "no rollback within a step")
    elif e.verb == "detach":
        before = seq.segments[: e.count + 1]
        gone = before[e.count]
        ended = gone.source >= 0 and not books.sequences[gone.source].is_live
        lost = gone.is_fragment or (ended and not may_write(seq, gone.tier))
        require(lost, "only what another holder's KV stood for is detached")
        require(gone.computed < len(gone.tokens), "what is mounted whole is not detached")
        require(clears(seq, e.label), f"{seq.name} may not hold {sorted(e.label)} (check 4)")
        _is_placed(books.pools[e.pool_id], seq, e, frozenset().union(*(s.label for s in before)))
    elif e.verb == "logits":
        require(seq.num_tokens, "there is no token to predict from")


def _in_table(books: Ledger, offset: int, length: int) -> None:
    there = offset >= 0 and length >= 0 and offset + length <= len(books.tokens)
    require(there, "tokens outside the token table")


def _is_placed(pool: Pool, seq: Sequence, e: Commanded, before: frozenset[str]) -> None:
    """Text of the holder's own: its pool and tier agree, its label joins its own and all before."""
    require(pool.spec.tier == e.tier, f"{e.pool_id} is not of tier {e.tier}")
    require(pool.spec.tenant == seq.tenant, f"{e.pool_id} is another tenant's (check 3)")
    ceiling = frozenset(pool.spec.label)
    require("*" in ceiling or may_hold(e.label, ceiling), f"label too high for {e.pool_id}")
    own = private(seq.name) if e.tier == "private" else ceiling
    require(frozenset(e.label) >= before | own, "a label joins the text's and all before")


def _is_fragment(books: Ledger, seq: Sequence, e: Commanded) -> None:
    """KV of another holder's sealed segment, whole blocks or up to its end, under its own label."""
    source = books.sequences[e.source]
    donor = source.segments[e.piece]
    require(source.namespace == seq.namespace, "a fragment is of the same namespace (check 3)")
    theirs = (donor.pool_id, donor.tier, donor.label, donor.indexed)
    require(theirs == (e.pool_id, e.tier, e.label, e.indexed), "a fragment keeps pool and label")
    start = e.encoded - donor.encoded
    stop, size = start + e.length, donor.block_size
    whole = stop % size == 0 or stop == len(donor.tokens)
    require(start >= 0 and start % size == 0 and whole, "a fragment has whole blocks")
    same = donor.tokens[start:stop] == books.tokens[e.offset : e.offset + e.length]
    require(same, "a fragment has the text that it stands for (check 1)")
    require(e.seal and not donor.open and e.verb == "append", "a fragment is sealed text")


def _released(books: Ledger, e: Released) -> None:
    require(books.sequences[e.seq_id].kind == "record", "only a record can be released")
    replaced = e.replaces in (-1, *books.records.get(e.group, ()))
    require(replaced, f"record {e.replaces} does not hold in {e.group}: it cannot be replaced")
    _in_table(books, e.offset, e.length)


def _stepped(books: Ledger, e: Stepped) -> None:
    require(e.step == books.num_steps + 1, f"step {e.step} does not follow {books.num_steps}")
    require(len({item[0] for item in e.items}) == len(e.items), "a holder steps once")
    _in_table(books, e.offset, sum(num_sampled for _, _, num_sampled, _ in e.items))
    for seq_id, num_computed, num_sampled, _ in e.items:
        require(num_computed >= 0 and num_sampled >= 0, "a negative number of tokens")
        seq = books.sequences[seq_id]
        for segment in seq.segments:
            count = min(num_computed, segment.room)
            pool, size, here = books.pools[segment.pool_id], segment.block_size, segment.computed
            mine = segment.blocks[here // size : -(-(here + count) // size)] if count else []
            refs, keys = pool.refs, pool.keys
            others = [block for block in mine if refs[block] != 1 or block in keys]
            alone = not others or "pending" in seq.off
            require(alone, f"blocks {others} are written and have other readers")
            num_computed -= count
        require(num_computed == 0, f"holder {seq_id} computed tokens without slots")
        require(num_sampled <= seq.to_generate, f"holder {seq_id} was not asked for tokens")
        require(not num_sampled or seq.segments[-1].open, "sampled tokens go to an open segment")


def _published(books: Ledger, e: Published) -> None:
    _, segment, pool = where(books, e)
    stop = e.first + len(e.blocks)
    mine = e.first >= 0 and segment.blocks[e.first : stop] == [*e.blocks]
    require(mine, "a holder publishes its own blocks")
    keys = segment.keys_of(e.first, stop)
    require(all(keys) and e.keys == keys, "the keys are not the content's")
    end = min(stop * segment.block_size, len(segment.tokens))
    require(end <= segment.computed, f"block {e.blocks[-1]} is not written to its end")
    require(pool.keys.keys().isdisjoint(e.blocks), "one of the blocks is published already")


_RULES: dict[type, Callable[[Ledger, Any], None]] = {
    PoolOpened: _pool_opened,
    Registered: _registered,
    Commanded: _commanded,
    Released: _released,
    Shared: table_rules.shared,
    Allocated: table_rules.allocated,
    Copied: table_rules.copied,
    Evicted: table_rules.evicted,
    Freed: table_rules.let_go,
    Aborted: table_rules.let_go,
    Stepped: _stepped,
    Published: _published,
}
