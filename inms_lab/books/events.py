"""The twelve events: everything that can happen to the books, as immutable values.

A plan is a tuple of these that have not happened yet; the log is a tuple of these that have. Events
hold ints, strings, bytes and tuples: no time, no tensor, no text (token ids live once in the token
table beside the log; events hold `offset, length` into it). One event per decision and pool, with a
tuple of blocks.

Inputs:       PoolOpened Registered Commanded Released
From a plan:  Shared Allocated Copied Evicted Freed
Completions:  Stepped Published
Aborts:       Aborted
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PoolOpened:
    """A pool got its reserved region. `label`: the ceiling of what it may hold ("*": anything)."""

    pool_id: str
    tier: str
    tenant: str
    block_size: int
    num_blocks: int
    label: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A holder exists. `kind`: agent, prompt (sealed, global tier) or record (published)."""

    seq_id: int
    kind: str
    name: str
    tenant: str
    clearance: tuple[str, ...]
    namespace: bytes
    parent_id: int = -1  # the sequence this one was forked from
    off: tuple[str, ...] = ()  # checks that a lesson switched off for it


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command entered at a step boundary. What each verb uses, apart from `seq_id, number`:

    append    tokens (offset, length) as tier, label, pool_id; `seal` closes the segment, `fresh`
              starts a new one even where the text could be packed, `indexed` lets it be found;
              `source` is the holder whose text it is (a record, a prompt), with `piece` >= 0 a
              fragment: the KV of that holder's segment `piece`, from the token on whose key is
              rotated for position `encoded`; `cause` says why there is no fragment
    detach    segment `count` is a fragment whose KV is gone: what is not mounted of it becomes
              text of the holder's own, as tier, label, pool_id, indexed
    write     like append (the turn's opening), then `count` tokens are to be generated
    stop      no more tokens are to be generated
    logits    the next token's logits are wanted once
    rollback  the first `count` tokens are kept
    close | fail | expire   the holder ends; `cause` says why
    """

    seq_id: int
    number: int
    verb: str
    tier: str = ""
    label: tuple[str, ...] = ()
    pool_id: str = ""
    offset: int = 0
    length: int = 0
    count: int = 0
    seal: bool = False
    fresh: bool = False
    indexed: bool = True
    cause: str = ""
    source: int = -1
    piece: int = -1
    encoded: int = -1


@dataclass(frozen=True, slots=True)
class Released:
    """The one declassification: `by` made these tokens readable by the group as record `seq_id`."""

    seq_id: int
    by: str
    group: str
    offset: int
    length: int
    replaces: int = -1  # the record that holds no longer


@dataclass(frozen=True, slots=True)
class Shared:
    """Blocks that exist already were mounted at the end of a segment; `length`: its slots after."""

    seq_id: int
    segment: int
    pool_id: str
    blocks: tuple[int, ...]
    length: int
    cause: str = "hit"  # or "fork"


@dataclass(frozen=True, slots=True)
class Allocated:
    """Blocks left the free queue for a segment. They are pending until `Published` or full.

    `keys[i]` is the key that block i will have ("" where its content is not all known yet);
    `length` is the segment's slots after this allocation has been written.
    """

    seq_id: int
    segment: int
    pool_id: str
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Copy-on-write: the first `num_slots` of `src` now live in `dst` too, in the writer's table.

    If `src` was the table's entry at `index` it is replaced; otherwise `dst` is appended there. If
    nobody else held `src`, it moved (compact.py): it is free now, and `dst` is any block below.
    """

    seq_id: int
    segment: int
    index: int
    src_pool: str
    src: int
    pool_id: str
    dst: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Blocks lost their identity. `remaining[i]`: how many other copies of key i can be found."""

    pool_id: str
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    remaining: tuple[int, ...]
    cause: str = "room"  # "overwritten", "moved": by its only holder; "forgotten": that one ended


@dataclass(frozen=True, slots=True)
class Freed:
    """The last blocks of a segment were let go; `length`: its slots after. Last block first.

    With `forget`, blocks without another holder also lose their identity (private text of a holder
    that ended); without it they stay findable as cached blocks.
    """

    seq_id: int
    segment: int
    pool_id: str
    blocks: tuple[int, ...]
    length: int
    cause: str
    forget: bool = False


@dataclass(frozen=True, slots=True)
class Stepped:
    """One engine step: `items` are (seq_id, tokens computed, tokens sampled, generation is over).

    The sampled tokens lie in the token table from `offset` on, in the order of the items.
    """

    step: int
    offset: int
    items: tuple[tuple[int, int, int, bool], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """Blocks `first ...` of a segment are fully written and can be found under `keys` from now."""

    seq_id: int
    segment: int
    pool_id: str
    first: int
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """A step did not finish: the pending blocks of a segment go back unused."""

    seq_id: int
    segment: int
    pool_id: str
    blocks: tuple[int, ...]
    length: int
    cause: str


Event: TypeAlias = (
    PoolOpened
    | Registered
    | Commanded
    | Released
    | Shared
    | Allocated
    | Copied
    | Evicted
    | Freed
    | Stepped
    | Published
    | Aborted
)
EVENT_TYPES: tuple[type, ...] = (
    PoolOpened,
    Registered,
    Commanded,
    Released,
    Shared,
    Allocated,
    Copied,
    Evicted,
    Freed,
    Stepped,
    Published,
    Aborted,
)
