"""One pool of blocks: the free queue, the cached blocks, refcounts and the index of fingerprints.

A block is in exactly one state:
    free     no holder, no identity     order: next to be handed out first
    cached   no holder, findable        order: next to be evicted first (least recently let go,
                                        within one release the last block first: a prefix outlives
                                        its tail)
    held     `refs[block]` holders      pending until written; findable once published
Pools never lend blocks to each other. Only `Ledger.apply` calls the verbs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from itertools import islice
from typing import Any

from inms_lab.errors import PlanInvalid
from inms_lab.events import PoolOpened
from inms_lab.overlay import Layered

_MAPS = ("free", "cached", "refs", "labels", "keys", "tokens", "index", "pending", "promised")


class Pool:
    """Blocks `0 .. num_blocks-1` of one tier, tenant and group."""

    def __init__(self, spec: PoolOpened) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.free: MutableMapping[int, None] = OrderedDict.fromkeys(range(spec.num_blocks))
        self.cached: MutableMapping[int, None] = OrderedDict()
        self.refs: MutableMapping[int, int] = {}
        self.labels: MutableMapping[int, tuple[str, ...]] = {}  # of held and cached blocks
        self.keys: MutableMapping[int, bytes] = {}  # identity of published blocks
        self.tokens: MutableMapping[int, bytes] = {}  # their token ids, int32, for the comparison
        self.index: MutableMapping[bytes, tuple[int, ...]] = {}  # key -> copies, oldest first
        self.pending: MutableMapping[bytes, int] = {}  # key -> block that is being written
        self.promised: MutableMapping[int, bytes] = {}  # the same, by block

    def overlay(self) -> Pool:
        """A pool over this one; its changes stay in it."""
        over = object.__new__(Pool)
        over.spec, over.block_size = self.spec, self.block_size
        for name in _MAPS:
            setattr(over, name, Layered(getattr(self, name)))
        return over

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder."""
        return len(self.refs)

    def num_available(self) -> int:
        """Blocks that an allocation can have: free ones, and cached ones after eviction."""
        return len(self.free) + len(self.cached)

    def next_free(self, count: int) -> tuple[int, ...]:
        """The `count` blocks that would be handed out next."""
        return tuple(islice(self.free, count))

    # the verbs ------------------------------------------------------------------------------

    def allocate(self, block: int, label: tuple[str, ...], key: bytes = b"") -> None:
        """free -> held, pending: the head of the free queue only."""
        if next(iter(self.free), None) != block:
            raise PlanInvalid(f"block {block} of {self.spec.pool_id} is not next in the free queue")
        del self.free[block]
        self.refs[block] = 1
        self.labels[block] = label
        if key and key not in self.pending:
            self.pending[key], self.promised[block] = block, key

    def share(self, block: int) -> None:
        """cached -> held, or one holder more."""
        if block in self.cached:
            del self.cached[block]
        elif block not in self.refs:
            raise PlanInvalid(f"block {block} of {self.spec.pool_id} holds nothing to share")
        self.refs[block] = self.refs.get(block, 0) + 1

    def release(self, block: int, forget: bool = False) -> None:
        """One holder less; the last one leaves it cached if it has an identity, else free."""
        count = self.refs.get(block, 0)
        if count < 1:
            raise PlanInvalid(f"block {block} of {self.spec.pool_id} has no holder to let go")
        if count > 1:
            self.refs[block] = count - 1
            return
        del self.refs[block]
        self.withdraw(block)
        if block in self.keys and not forget:
            self.cached[block] = None
            return
        if block in self.keys:
            self.forget(block)
        del self.labels[block]
        self.free[block] = None

    def withdraw(self, block: int) -> None:
        """Nobody waits any longer for what `block` was going to hold."""
        key = self.promised.pop(block, None)
        if key is not None:
            del self.pending[key]

    def publish(self, block: int, key: bytes, tokens: bytes) -> None:
        """A held block that is fully written becomes findable under `key`."""
        if block not in self.refs or block in self.keys:
            raise PlanInvalid(f"block {block} of {self.spec.pool_id} cannot be published (again)")
        self.withdraw(block)
        self.keys[block] = key
        self.tokens[block] = tokens
        self.index[key] = (*self.index.get(key, ()), block)

    def forget(self, block: int) -> None:
        """A block loses its identity, here and in the index; other copies of its key remain."""
        key = self.keys[block]
        remaining = tuple(b for b in self.index[key] if b != block)
        if remaining:
            self.index[key] = remaining
        else:
            del self.index[key]
        del self.keys[block], self.tokens[block]

    def evict(self, block: int) -> None:
        """cached -> free (a held block only forgets): no identity outlives what it stood for."""
        self.forget(block)
        if block in self.cached:
            del self.cached[block], self.labels[block]
            self.free[block] = None

    # ----------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All of it as plain data, orders included."""
        return {"spec": self.spec, **{name: list(getattr(self, name).items()) for name in _MAPS}}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Pool:
        """The pool with this `snapshot()`."""
        pool = cls(state["spec"])
        for name in _MAPS:
            kind = OrderedDict if name in ("free", "cached") else dict
            setattr(pool, name, kind(state[name]))
        return pool
