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
from collections.abc import Iterable, MutableMapping
from itertools import islice
from typing import Any, TypeAlias

from inms_lab.books.events import PoolOpened
from inms_lab.books.overlay import Sheets
from inms_lab.errors import PlanInvalid

Blocks: TypeAlias = tuple[int, ...]
Keys: TypeAlias = tuple[bytes, ...]
_MAPS = ("free", "cached", "refs", "labels", "keys", "tokens", "index", "pending", "promised")


class Pool(Sheets):
    """Blocks `0 .. num_blocks-1` of one tier, tenant and group."""

    def __init__(self, spec: PoolOpened) -> None:
        self.spec, self.block_size = spec, spec.block_size
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
        over.spec, over.block_size, over.below = self.spec, self.block_size, self
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

    def allocate(self, blocks: Blocks, label: tuple[str, ...], keys: Keys = ()) -> None:
        """free -> held, pending; that they head the free queue is a rule's (table_rules.py)."""
        if not self.free.keys() >= {*blocks}:
            raise PlanInvalid(f"blocks of {self.spec.pool_id} that are not free")
        free, pending, promised = self.free, self.pending, self.promised
        for block in blocks:
            del free[block]
        self.refs.update(dict.fromkeys(blocks, 1))
        self.labels.update(dict.fromkeys(blocks, label))
        for block, key in zip(blocks, keys, strict=False):
            if key and key not in pending:
                pending[key], promised[block] = block, key

    def share(self, blocks: Blocks) -> None:
        """cached -> held, or one holder more."""
        cached, refs = self.cached, self.refs
        for block in blocks:
            if block in refs:
                refs[block] += 1
            elif block in cached:
                del cached[block]
                refs[block] = 1
            else:
                raise PlanInvalid(f"block {block} of {self.spec.pool_id} holds nothing to share")

    def release(self, blocks: Blocks, forget: bool = False) -> None:
        """One holder less; the last one leaves a block cached if it has an identity, else free."""
        refs, keys, cached, promised = self.refs, self.keys, self.cached, self.promised
        for block in blocks:
            count = refs.get(block, 0)
            if count > 1:
                refs[block] = count - 1
                continue
            if not count:
                raise PlanInvalid(f"block {block} of {self.spec.pool_id} has no holder to let go")
            del refs[block]
            if block in promised:
                self.withdraw(block)
            if block in keys and not forget:
                cached[block] = None
                continue
            if block in keys:
                self.forget((block,))
            del self.labels[block]
            self.free[block] = None

    def withdraw(self, block: int) -> None:
        """Nobody waits any longer for what `block` was going to hold."""
        if block in self.promised:
            del self.pending[self.promised.pop(block)]

    def publish(self, blocks: Blocks, keys: Keys, texts: Iterable[bytes]) -> None:
        """Held blocks that are fully written become findable, each under its key."""
        refs, known, index = self.refs, self.keys, self.index
        promised, pending = self.promised, self.pending
        for block, key in zip(blocks, keys, strict=True):
            if block not in refs or block in known:
                raise PlanInvalid(f"block {block} of {self.spec.pool_id} cannot be published")
            if block in promised:
                del pending[promised.pop(block)]
            known[block] = key
            index[key] = (*index[key], block) if key in index else (block,)
        self.tokens.update(zip(blocks, texts, strict=True))

    def forget(self, blocks: Blocks) -> None:
        """Blocks lose their identity, here and in the index; other copies of a key remain."""
        keys, tokens, index = self.keys, self.tokens, self.index
        for block in blocks:
            key = keys.pop(block)
            del tokens[block]
            copies = index.pop(key)
            if len(copies) > 1:
                index[key] = tuple(b for b in copies if b != block)

    def evict(self, blocks: Blocks) -> None:
        """cached -> free (a held block only forgets): no identity outlives what it stood for."""
        self.forget(blocks)
        cached, labels, free = self.cached, self.labels, self.free
        for block in blocks:
            if block in cached:
                del cached[block], labels[block]
                free[block] = None

    # ----------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All of it as plain data, orders included."""
        return {"spec": self.spec, **{name: list(getattr(self, name).items()) for name in _MAPS}}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Pool:
        """The pool with this `snapshot()`."""
        pool = cls(state["spec"])
        for name in _MAPS:
            setattr(pool, name, type(getattr(pool, name))(state[name]))
        return pool
