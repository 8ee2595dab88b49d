"""What a log is re-enacted in: its policy, the pools of another one, and looks at a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inms_lab.books.events import Evicted, PoolOpened
from inms_lab.books.ledger import Ledger
from inms_lab.books.sequence import Sequence as Holder
from inms_lab.decisions.policy import DEFAULT, Inms, Policy, by_name, pool_of
from inms_lab.logs.log import Log

ROOM = 1 << 16  # blocks of each pool where the pools are not those of the log


def policy_of(log: Log) -> Policy:
    """The policy that a log was made under."""
    policy, off = by_name(log.about.get("mode", "inms")), log.about.get("off", ())
    return policy.without(*off) if isinstance(policy, Inms) and off else policy


def reopened(
    policy: Policy, opened: Sequence[PoolOpened], groups: Sequence[str], size: int
) -> Iterator[PoolOpened]:
    """The pools that a policy wants, with ample room, for each tenant of those `opened` its own."""
    tenants = dict.fromkeys(event.tenant for event in opened)
    owner = {group: group.partition("/")[0] for group in groups}
    for tenant in tenants:
        own = (g for g in groups if (owner[g] if owner[g] in tenants else DEFAULT) == tenant)
        for name, tier, label in policy.pools(tuple(own)):
            yield PoolOpened(pool_of(tenant, name), tier, tenant, size, ROOM, label)


def reach(seq: Holder) -> int:
    """Tokens that will have their KV once what is in flight is written."""
    flying = (s.first_position + s.length for s in seq.segments if s.length > s.computed)
    return max((seq.num_computed, *flying))


def owner_of(books: Ledger, event: Evicted) -> int:
    """Who alone holds the block that is overwritten."""
    tables = ((seq.seq_id, s) for seq in books.holders() for s in seq.segments)
    return next(i for i, s in tables if s.pool_id == event.pool_id and event.blocks[0] in s.blocks)
