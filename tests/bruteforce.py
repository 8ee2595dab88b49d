"""An independent model of the books: what the ledger says, found out by slower means.

Fed the same events as the ledger, it keeps only facts: for every holder its text and its block
tables, for every block the context of each written slot, and which blocks are published. It has no
refcounts, no queues, no digests: holders are counted from the tables, states follow from the
counts, content is compared token by token. It knows the events and nothing else of the package.

A *context* is a node of a trie: two slots have the same context exactly if every token before them
is the same, and they themselves. `plain` ignores where segments were cut, `exact` does not.
A fragment's tokens have the contexts that they were encoded in; what comes behind them stands
behind its reader's text *and* that: `chain` says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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

Place = tuple[str, int]  # pool id, block
Context = tuple[int, int]  # plain, exact
SEALED_TIERS = ("global", "group")


class Wrong(AssertionError):
    """An event did what no event may do."""


class Trie:
    """Numbers for contexts."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[Context, Hashable], Context] = {}
        self.made_of: dict[Context, tuple[Context, Hashable]] = {}
        self.num_nodes = 0

    def step(self, behind: Context, mark: Hashable, plain: bool = True) -> Context:
        """The context after `mark`; a mark that is not `plain` (a cut) leaves that half alone."""
        node = self.nodes.get((behind, mark))
        if node is None:
            self.num_nodes += 1
            new = self._number((behind[0], "plain", mark)) if plain else behind[0]
            node = self.nodes[behind, mark] = (new, self.num_nodes)
            self.made_of[node] = (behind, mark)
        return node

    def _number(self, key: Hashable) -> int:
        node = self.nodes.get(((-1, -1), key))
        if node is None:
            self.num_nodes += 1
            node = self.nodes[(-1, -1), key] = (self.num_nodes, self.num_nodes)
        return node[0]


@dataclass
class Part:
    """A segment of a holder: its text with the context of each token, and its block table."""

    pool_id: str
    tier: str
    label: frozenset[str]
    indexed: bool
    size: int  # of a block
    behind: Context
    taint: frozenset[str]  # whose words these tokens have seen, by own logic
    labels: tuple[Any, ...]  # under which it was encoded, one for each part
    encoded: int  # the position of its first token where it was encoded
    open: bool = True
    fragment: bool = False
    tokens: list[int] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)  # in which each token was encoded
    chain: list[Context] = field(default_factory=list)  # what stands behind each of its tokens
    table: list[int] = field(default_factory=list)
    slots: int = 0  # that blocks were handed out for
    written: int = 0


@dataclass
class Holder:
    """Whoever has a table."""

    kind: str
    name: str
    clearance: frozenset[str]
    parent_id: int
    root: Context
    parts: list[Part] = field(default_factory=list)
    to_generate: int = 0
    live: bool = True


class Books:
    """The independent books. `tokens` is the token table beside the log."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.trie = Trie()
        self.pools: dict[str, PoolOpened] = {}
        self.holders: dict[int, Holder] = {}  # those that live or still have blocks
        self.records: dict[str, tuple[int, ...]] = {}
        self.content: dict[Place, list[Context]] = {}  # of each slot that was written
        self.taint: dict[Place, frozenset[str]] = {}  # of everything the block has seen
        self.published: dict[Place, bytes] = {}
        self.content_of: dict[bytes, Hashable] = {}  # every key that ever was
        self.key_of: dict[Hashable, bytes] = {}
        self.counts: Counter[Place] = Counter()
        self.num_steps = 0

    def apply(self, event: Event) -> None:
        """Take one event in; raises `Wrong` if it may not happen."""
        _APPLY[type(event)](self, event)
        self.counts = Counter(place for place, *_ in self.entries())
        self._check()

    # what the tables say --------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[Place, int, Holder, Part, int]]:
        """((pool, block), holder id, holder, part, index in the table) of every table entry."""
        for seq_id, holder in self.holders.items():
            for part in holder.parts:
                for index, block in enumerate(part.table):
                    yield (part.pool_id, block), seq_id, holder, part, index

    def refs(self, pool_id: str) -> dict[int, int]:
        """Holders of each held block, counted from the tables."""
        return {block: n for (pool, block), n in self.counts.items() if pool == pool_id}

    def keys(self, pool_id: str) -> dict[int, bytes]:
        """Published blocks and their keys."""
        return {block: key for (pool, block), key in self.published.items() if pool == pool_id}

    def cached(self, pool_id: str) -> set[int]:
        """Published, held by nobody."""
        return self.keys(pool_id).keys() - self.refs(pool_id).keys()

    def free(self, pool_id: str) -> set[int]:
        """Neither published nor held."""
        every = range(self.pools[pool_id].num_blocks)
        return set(every) - self.refs(pool_id).keys() - self.keys(pool_id).keys()

    def table(self, seq_id: int) -> list[Place]:
        """All entries of a holder's tables, in order."""
        return [place for place, owner, *_ in self.entries() if owner == seq_id]

    # inputs ---------------------------------------------------------------------------------

    def _pool_opened(self, e: PoolOpened) -> None:
        _ask(e.pool_id not in self.pools, "a pool opens once")
        self.pools[e.pool_id] = e

    def _registered(self, e: Registered) -> None:
        root = self.trie.step((0, 0), e.namespace)
        new = Holder(e.kind, e.name, frozenset(e.clearance), e.parent_id, root)
        if e.parent_id >= 0:
            parent = self.holders[e.parent_id]
            _ask(parent.live and parent.clearance == new.clearance, "a fork has one principal")
            for p in parent.parts:
                texts = {"tokens": [*p.tokens], "contexts": [*p.contexts], "chain": [*p.chain]}
                new.parts.append(replace(p, **texts, table=[], slots=0, written=0))
        self.holders[e.seq_id] = new

    def _commanded(self, e: Commanded) -> None:
        holder = self.holders[e.seq_id]
        _ask(holder.live, "the dead command nothing")
        if e.verb in ("append", "write"):
            self._text(holder, e)
        if e.verb == "detach":
            self._detach(holder, e)
        if e.verb == "rollback":
            self._rollback(holder, e.count)
        if e.verb in ("write", "rollback", "stop"):
            holder.to_generate = e.count if e.verb == "write" else 0
        if e.verb in ("close", "fail", "expire"):
            holder.live, holder.to_generate = False, 0
        self._tidy(e.seq_id)

    def _text(self, holder: Holder, e: Commanded) -> None:
        last = holder.parts[-1] if holder.parts else None
        label = frozenset(e.label)
        where = (e.pool_id, e.tier, label, e.indexed)
        packed = last and last.open and not (e.fresh or e.seal)
        tokens = self.tokens[e.offset : e.offset + e.length]
        if e.piece >= 0:
            self._fragment(holder, e, list(tokens))
            return
        if not (packed and where == (last.pool_id, last.tier, last.label, last.indexed)):
            if last:
                last.open = False
            last = self._part(holder, e, len(holder.parts))
            holder.parts.append(last)
        self._extend(last, tokens)
        last.open = not e.seal

    def _part(self, holder: Holder, e: Commanded, number: int) -> Part:
        """An empty part at this place, of the holder's own text."""
        label, size = frozenset(e.label), self.pools[e.pool_id].block_size
        before = holder.parts[:number]
        taint = frozenset().union(*(p.taint for p in before), self._own_taint(holder, e))
        labels = (*(before[-1].labels if before else ()), label)
        behind = self._behind(holder, number)
        _ask(label >= taint, "the label is below what the text has seen")
        _ask(taint <= holder.clearance, "a text for somebody who may not see it")
        first = sum(len(p.tokens) for p in before)
        return Part(e.pool_id, e.tier, label, e.indexed, size, behind, taint, labels, first)

    def _behind(self, holder: Holder, number: int) -> Context:
        if not number:
            return holder.root
        last = holder.parts[number - 1]
        return self.trie.step(last.chain[-1] if last.chain else last.behind, "cut", plain=False)

    def _fragment(self, holder: Holder, e: Commanded, tokens: list[int]) -> None:
        """Tokens of another holder, with the contexts that they have there."""
        donor = self.holders[e.source].parts[e.piece]
        start = e.encoded - donor.encoded
        same = start % donor.size == 0 and donor.tokens[start : start + len(tokens)] == tokens
        _ask(start >= 0 and same, "a fragment of another text")
        _ask(donor.taint <= holder.clearance, "a fragment for somebody who may not see it")
        _ask((donor.pool_id, donor.label) == (e.pool_id, frozenset(e.label)), "moved")
        before = holder.parts[-1] if holder.parts else None
        if before:
            before.open = False
        labels = (*(before.labels if before else ()), ("fragment", donor.labels))
        where = (donor.pool_id, donor.tier, donor.label, donor.indexed, donor.size)
        behind = self._behind(holder, len(holder.parts))
        part = Part(*where, behind, donor.taint, labels, e.encoded, open=False, fragment=True)
        part.tokens, part.contexts = tokens, donor.contexts[start : start + len(tokens)]
        self._rechain(part)
        holder.parts.append(part)

    def _rechain(self, part: Part) -> None:
        """What stands behind each token of a part, anew; own text is encoded there."""
        part.chain = []
        if not part.fragment:
            tokens, part.tokens, part.contexts = part.tokens, [], []
            self._extend(part, tokens)
            return
        for context in part.contexts:
            behind = part.chain[-1] if part.chain else part.behind
            part.chain.append(self.trie.step(behind, ("fragment", context)))

    def _detach(self, holder: Holder, e: Commanded) -> None:
        old = holder.parts[e.count]
        attached = old.fragment or old.tier in SEALED_TIERS
        _ask(attached and not any(p.table for p in holder.parts[e.count + 1 :]), "detached")
        at, tokens = old.written, old.tokens
        old.tokens, old.contexts = tokens[:at], old.contexts[:at]
        old.chain = old.chain[:at]
        number = e.count + bool(at)
        own = self._part(holder, e, number)
        own.taint |= old.taint
        own.tokens, own.open = tokens[at:], False
        holder.parts[e.count : e.count + 1] = [old, own] if at else [own]
        for index in range(number, len(holder.parts)):
            part = holder.parts[index]
            part.behind = self._behind(holder, index)
            before = holder.parts[index - 1].labels if index else ()
            part.labels = (*before, part.labels[-1])
            self._rechain(part)

    def _own_taint(self, holder: Holder, e: Commanded) -> frozenset[str]:
        if e.tier in SEALED_TIERS:
            return frozenset(self.pools[e.pool_id].label)
        return frozenset((f"agent:{holder.name}",) if e.tier == "private" else ())

    def _extend(self, part: Part, tokens: Sequence[int]) -> None:
        for token in tokens:
            behind = part.contexts[-1] if part.contexts else part.behind
            part.tokens.append(token)
            part.contexts.append(self.trie.step(behind, token))
            part.chain.append(part.contexts[-1])

    def _rollback(self, holder: Holder, count: int) -> None:
        first = 0
        for part in holder.parts:
            whole = len(part.tokens)
            keep = max(0, min(whole, count - first))
            if keep < whole:
                del part.tokens[keep:], part.contexts[keep:], part.chain[keep:]
                part.open = part.tier not in SEALED_TIERS and not part.fragment
            first += whole
        holder.to_generate = 0

    def _tidy(self, seq_id: int) -> None:
        """Parts without text or blocks fall off the end, and so do holders."""
        holder = self.holders[seq_id]
        while holder.parts and not holder.to_generate and holder.live:
            if holder.parts[-1].tokens or holder.parts[-1].table:
                break
            holder.parts.pop()
        if not holder.live and not any(part.table for part in holder.parts):
            del self.holders[seq_id]

    def _released(self, e: Released) -> None:
        now = self.records.get(e.group, ())
        _ask(e.replaces in (-1, *now), "nothing to replace")
        if e.replaces >= 0:
            self.records[e.group] = tuple(e.seq_id if r == e.replaces else r for r in now)
        else:
            self.records[e.group] = (*now, e.seq_id)

    # from a plan ----------------------------------------------------------------------------

    def _shared(self, e: Shared) -> None:
        holder, part = self._where(e)
        first = len(part.table)
        _ask(part.slots == part.written == first * part.size, "mounted in mid-block")
        for index, block in enumerate(e.blocks, first):
            place = (e.pool_id, block)
            want = part.contexts[index * part.size : min((index + 1) * part.size, e.length)]
            have = self.content.get(place, [])
            if e.cause == "fork":
                donor = self.holders[holder.parent_id].parts[e.segment]
                _ask(donor.table[index] == block, "not the parent's block")
                have = have[: len(want)]
            else:
                _ask(place in self.published, f"{place} is shared and nobody published it")
            _ask(have == want, f"{place} holds other content than the reader's tokens")
            part.table.append(block)
        part.slots = part.written = e.length
        self._fits(part)

    def _allocated(self, e: Allocated) -> None:
        _, part = self._where(e)
        _ask(not part.fragment, "a fragment is written")
        _ask(len(set(e.blocks)) == len(e.blocks), "a block is handed out twice")
        for block in e.blocks:
            self._take((e.pool_id, block), part.taint)
            part.table.append(block)
        _ask(part.slots < e.length <= len(part.tokens), "slots without tokens")
        part.slots = e.length
        self._fits(part)

    def _take(self, place: Place, taint: frozenset[str]) -> None:
        _ask(place[1] in self.free(place[0]), f"{place} is handed out and is not free")
        self.content[place], self.taint[place] = [], taint

    def _copied(self, e: Copied) -> None:
        _, part = self._where(e)
        source, target, start = (e.src_pool, e.src), (e.pool_id, e.dst), e.index * part.size
        want = part.contexts[start : start + e.num_slots]
        have = self.content.get(source, [])[: e.num_slots]
        _ask([c[0] for c in have] == [c[0] for c in want], f"{source} is not what is copied")
        self._take(target, self.taint[source] | part.taint)
        self.content[target] = list(want)
        if e.index == len(part.table):
            part.table.append(e.dst)
            part.slots = part.written = start + e.num_slots
        else:
            _ask(part.table[e.index] == e.src, "not the writer's block")
            kept = part.written - start
            if self.counts[source] == 1:  # it moved
                _ask(part.slots == part.written, "a block moves while it is written")
                _ask(source not in self.published, f"{source} moves and can be found")
                _ask(source[0] == target[0] and e.dst < e.src, "a block moves up")
                kept = min(kept, part.size)
            _ask(e.num_slots == kept, "a copy keeps what was written")
            part.table[e.index] = e.dst
        self._fits(part)

    def _evicted(self, e: Evicted) -> None:
        for block, key in zip(e.blocks, e.keys, strict=True):
            place = (e.pool_id, block)
            held = 1 if e.cause in ("overwritten", "moved") else 0
            _ask(self.counts[place] == held, f"{place} is evicted and has holders")
            _ask(self.published.pop(place, None) == key, f"{place} has another identity")
        left = self.keys(e.pool_id)
        copies = tuple(sum(key == other for other in left.values()) for key in e.keys)
        _ask(e.remaining == copies, f"copies that remain: {copies}, not {e.remaining}")

    def _freed(self, e: Freed | Aborted) -> None:
        _, part = self._where(e)
        kept = len(part.table) - len(e.blocks)
        _ask(tuple(part.table[kept:][::-1]) == e.blocks, "freed from elsewhere than the end")
        del part.table[kept:]
        part.slots, part.written = e.length, min(part.written, e.length)
        self._fits(part)
        for block in e.blocks:
            place = (e.pool_id, block)
            last = self.counts[place] == 1
            if isinstance(e, Aborted):
                _ask(last and place not in self.published, f"{place} is not pending")
            elif last and e.forget:
                self.published.pop(place, None)
        self._tidy(e.seq_id)

    # completions ----------------------------------------------------------------------------

    def _stepped(self, e: Stepped) -> None:
        self.num_steps += 1
        offset = e.offset
        for seq_id, num_computed, num_sampled, over in e.items:
            holder = self.holders[seq_id]
            for part in holder.parts:
                count = min(num_computed, len(part.table) * part.size - part.written)
                count = min(count, len(part.tokens) - part.written)
                for at in range(part.written, part.written + count):
                    self._write((part.pool_id, part.table[at // part.size]), part, at)
                part.written += count
                part.slots = max(part.slots, part.written)
                num_computed -= count
            _ask(num_computed == 0, "KV without a slot")
            if num_sampled:
                _ask(holder.parts[-1].open, "text behind a seal")
                self._extend(holder.parts[-1], self.tokens[offset : offset + num_sampled])
                holder.to_generate = 0 if over else holder.to_generate - num_sampled
                offset += num_sampled

    def _write(self, place: Place, part: Part, at: int) -> None:
        _ask(self.counts[place] == 1, f"{place} is written while others hold it")
        _ask(place not in self.published, f"{place} is written while it can be found")
        del self.content[place][at % part.size :]  # what a rollback left behind
        _ask(len(self.content[place]) == at % part.size, f"{place} is written with a gap")
        self.content[place].append(part.contexts[at])

    def _published(self, e: Published) -> None:
        holder, part = self._where(e)
        for index, (block, key) in enumerate(zip(e.blocks, e.keys, strict=True), e.first):
            place = (e.pool_id, block)
            want = part.contexts[index * part.size : (index + 1) * part.size]
            whole = len(want) == part.size or not part.open
            _ask(part.table[index] == block, "somebody else's block is published")
            _ask(part.indexed and whole, f"{place} is published before it is full or sealed")
            _ask(self.content[place] == want, f"{place} is published and not written")
            _ask(place not in self.published, f"{place} is published twice")
            self.published[place] = key
            meaning = (tuple(want), index * part.size, part.labels, holder.root)
            _ask(self.content_of.setdefault(key, meaning) == meaning, "one key, two contents")
            _ask(self.key_of.setdefault(meaning, key) == key, "one content, two keys")

    # ----------------------------------------------------------------------------------------

    def _where(self, e: Any) -> tuple[Holder, Part]:
        holder = self.holders[e.seq_id]
        part = holder.parts[e.segment]
        _ask(part.pool_id == e.pool_id, "a segment lies in one pool")
        return holder, part

    def _fits(self, part: Part) -> None:
        _ask(len(part.table) == -(-part.slots // part.size), "blocks and slots differ")

    def _check(self) -> None:
        """Every table entry holds what its reader thinks, and its reader may hold it."""
        for place, seq_id, holder, part, index in self.entries():
            want = part.contexts[index * part.size : min((index + 1) * part.size, part.written)]
            have = self.content[place][: len(want)]
            if holder.live and len(want) == min(part.size, part.written - index * part.size):
                _ask(have == want, f"{place} changed under holder {seq_id}")
            _ask(self.taint[place] <= holder.clearance, f"holder {seq_id} may not hold {place}")


def _ask(condition: object, message: str) -> None:
    if not condition:
        raise Wrong(message)


_APPLY: dict[type, Callable[[Books, Any], None]] = {
    PoolOpened: Books._pool_opened,
    Registered: Books._registered,
    Commanded: Books._commanded,
    Released: Books._released,
    Shared: Books._shared,
    Allocated: Books._allocated,
    Copied: Books._copied,
    Evicted: Books._evicted,
    Freed: Books._freed,
    Aborted: Books._freed,
    Stepped: Books._stepped,
    Published: Books._published,
}
