"""The explain path's index by content: what lies in any pool, whoever may hold it.

`Shadow` is a fold of the log beside a ledger; `sift` asks checks 1 to 5 of every block that holds
the same tokens. Serving looks up typed keys only and never sees most of these blocks; nothing here
influences it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

from inms_lab.books import checks
from inms_lab.books.checks import NO, NOT_ASKED, YES, CheckResult, Dropped, result
from inms_lab.books.events import Aborted, Commanded, Copied, Event, Evicted, Freed, Stepped
from inms_lab.books.fingerprint import DIGEST_BYTES
from inms_lab.books.ledger import Ledger
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence

Site: TypeAlias = tuple[str, int]  # pool id, block


@dataclass(frozen=True, slots=True)
class Facts:
    """What a block's KV was computed behind. `before`: digest of every earlier token id, without
    labels and cuts. (b"" and -1 where a log begins with a snapshot in which nobody holds it.)"""

    namespace: bytes
    tenant: str
    before: bytes
    position: int


class Shadow:
    """Blocks with written KV, held or cached, findable or not: by their tokens, with their facts.

    Built from books as they are (their tables, and what lies cached); `follow` keeps it in step.
    """

    def __init__(self, books: Ledger) -> None:
        self.sites: dict[bytes, dict[Site, None]] = {}  # tokens (int32 bytes) -> blocks, oldest
        self.tokens: dict[Site, bytes] = {}  # the same, by block
        self.facts: dict[Site, Facts] = {}
        for seq in books.holders():
            self._wrote(seq, 0, seq.num_computed)
        for pool_id, pool in books.pools.items():
            for block, tokens in pool.tokens.items():  # published: whatever their holders cut since
                self._put((pool_id, block), tokens)
                self.facts.setdefault((pool_id, block), Facts(b"", pool.spec.tenant, b"", -1))

    def follow(self, books: Ledger, event: Event) -> None:
        """What `event` changes; call it after `books.apply(event)`."""
        if isinstance(event, Stepped):
            for seq_id, count, _, _ in event.items:
                seq = books.sequences[seq_id]
                self._wrote(seq, seq.num_computed - count, seq.num_computed)
        elif isinstance(event, Copied):
            seq = books.sequences[event.seq_id]
            start = seq.segments[event.segment].first_position
            start += event.index * seq.segments[event.segment].block_size
            self._wrote(seq, start, start + event.num_slots)
            if event.src in books.pools[event.src_pool].free:
                self._forget((event.src_pool, event.src))  # it moved
        elif isinstance(event, Evicted):
            for block in {*event.blocks} - books.pools[event.pool_id].refs.keys():
                self._forget((event.pool_id, block))  # a holder keeps its own
        elif isinstance(event, (Freed, Aborted)):
            pool = books.pools[event.pool_id]
            for block in event.blocks:
                if block in pool.free:
                    self._forget((event.pool_id, block))
            self._shorten(books, event.seq_id)
        elif isinstance(event, Commanded) and event.verb == "rollback":
            self._shorten(books, event.seq_id)

    def _wrote(self, seq: Sequence, start: int, stop: int) -> None:
        """The slots of positions `[start, stop)` hold KV; text behind a cut counts no longer."""
        before = Before(seq)
        for segment in seq.segments:
            if segment.is_fragment:
                continue  # it was written elsewhere
            low = max(0, start - segment.first_position)
            high = min(segment.computed, len(segment.tokens), stop - segment.first_position)
            size = segment.block_size
            for index in range(low // size, -(-high // size)) if low < high else ():
                site = (segment.pool_id, segment.blocks[index])
                end = min((index + 1) * size, segment.computed, len(segment.tokens))
                self._put(site, segment.tokens[index * size : end].tobytes())
                if site not in self.facts:
                    at = segment.first_position + index * size
                    self.facts[site] = Facts(seq.namespace, seq.tenant, before(at), at)

    def _shorten(self, books: Ledger, seq_id: int) -> None:
        """What a cut left of a block that nobody else holds and nobody can find."""
        seq = books.sequences[seq_id]
        last = next((s for s in reversed(seq.segments) if s.blocks), None)
        left = min(last.computed, len(last.tokens)) if last is not None else 0
        if last is None or -(-left // last.block_size) != len(last.blocks):
            return  # nothing is left, or more is to be freed
        block, pool = last.blocks[-1], books.pools[last.pool_id]
        alone = pool.refs.get(block) == 1 and block not in pool.keys
        if alone and (last.pool_id, block) in self.tokens:
            self._wrote(seq, last.first_position + left - 1, last.first_position + left)

    def _put(self, site: Site, tokens: bytes) -> None:
        if site in self.tokens:
            self._remove(site)
        self.tokens[site] = tokens
        self.sites.setdefault(tokens, {})[site] = None

    def _forget(self, site: Site) -> None:
        if site in self.tokens:
            self._remove(site)
            del self.facts[site]

    def _remove(self, site: Site) -> None:
        tokens = self.tokens.pop(site)
        del self.sites[tokens][site]
        if not self.sites[tokens]:
            del self.sites[tokens]


class Before:
    """Digests of what stands before rising positions of one text, hashed once."""

    def __init__(self, seq: Sequence) -> None:
        self._seq, self._hash, self._at = seq, blake2b(digest_size=DIGEST_BYTES), 0

    def __call__(self, position: int) -> bytes:
        for segment in self._seq.segments:
            low, high = (max(0, at - segment.first_position) for at in (self._at, position))
            self._hash.update(segment.tokens[low:high])
        self._at = position
        return self._hash.digest()


# --- checks 1 to 5 of every candidate ---------------------------------------------------------


@dataclass(slots=True)
class Sifted:
    """The blocks that are left after each check (from 0: all that there are), and the others."""

    left: list[tuple[Site, ...]]
    dropped: list[Dropped] = field(default_factory=list)

    def answer(self, number: int, fails: int) -> CheckResult:
        """What check `number` answered, where the first one that fails is `fails` (6: none)."""
        if number > fails:
            return result(number, NOT_ASKED)
        before, left = len(self.left[number - 1]), len(self.left[number])
        dropped = tuple(d for d in self.dropped if d.check == number)
        if number < fails:
            return result(number, YES, left, f"{left} of {before} blocks", dropped)
        why = "; ".join(f"block {d.block} of {d.pool_id}: {d.why}" for d in dropped)
        return result(number, NO, left, why or "no block holds these tokens", dropped)


def sift(books: Ledger, shadow: Shadow, seq: Sequence, number: int, index: int) -> Sifted:
    """Ask checks 1 to 5, in order, for block `index` of the holder's segment `number`."""
    segment = seq.segments[number]
    key, tokens = segment.key(index), segment.block_tokens(index)
    reader = _Reader(shadow, seq, segment, index, key, tokens)
    pool, sites = books.pools[segment.pool_id], dict(shadow.sites.get(tokens, {}))
    sites.update(((segment.pool_id, block), None) for block in checks.candidates(pool, key))
    if key in pool.pending:
        sites[segment.pool_id, pool.pending[key]] = None
    out = Sifted([tuple(sites)])
    for check, ask in enumerate((_content, _written, _namespace, _label, _position), 1):
        answers = [(site, ask(reader, books.pools[site[0]], site)) for site in out.left[-1]]
        out.left.append(tuple(site for site, (why, _) in answers if not why))
        lost = ((site, answer) for site, answer in answers if answer[0])
        out.dropped += [Dropped(*site, check, why, refused) for site, (why, refused) in lost]
    return out


@dataclass(frozen=True, slots=True)
class _Reader:
    shadow: Shadow
    seq: Sequence
    segment: Segment
    index: int
    key: bytes
    tokens: bytes


Answer: TypeAlias = tuple[str, bool]  # why a block drops out ("": it does not); a refusal
_YES: Answer = ("", False)


def _content(r: _Reader, pool: Pool, site: Site) -> Answer:
    known = site[1] in pool.tokens and site not in r.shadow.sites.get(r.tokens, {})
    if known and not checks.same_tokens(pool, site[1:], r.segment, r.index, r.seq):
        return "other tokens under the same fingerprint", False
    return _YES


def _written(r: _Reader, pool: Pool, site: Site) -> Answer:
    if not r.segment.indexed:
        return "in this mode nobody's text is looked up", False
    if not r.key:
        return "the reader's own block is not full: its text may still grow", False
    if checks.is_written(pool, site[1]) or (site[1] in pool.promised and "pending" in r.seq.off):
        return _YES
    if pool.promised.get(site[1]) == r.key:
        return "it is being written", False
    return "it is not published: not full yet, or no longer what was published", False


def _namespace(r: _Reader, pool: Pool, site: Site) -> Answer:
    facts = r.shadow.facts.get(site)
    if facts is None or not facts.namespace or facts.namespace == r.seq.namespace:
        return _YES
    if facts.tenant != r.seq.tenant:
        return f"it belongs to the tenant {facts.tenant}", True
    return "another model, weight version, adapter or salt", True


def _label(r: _Reader, pool: Pool, site: Site) -> Answer:
    label = pool.labels[site[1]]
    if not checks.clears(r.seq, label):
        return f"its label {words(label)} is not within the clearance of {r.seq.name}", True
    if site[0] != r.segment.pool_id:
        return f"it lies there: this text is looked up in {r.segment.pool_id} only", False
    if label != r.segment.label and "label" not in r.seq.off:
        return f"its label is {words(label)}, this text's is {words(r.segment.label)}", False
    return _YES


def _position(r: _Reader, pool: Pool, site: Site) -> Answer:
    if r.key in (pool.keys.get(site[1]), pool.promised.get(site[1])):
        return _YES
    facts, position = r.shadow.facts[site], r.segment.first_position
    position += r.index * r.segment.block_size
    if facts.position < 0:
        return "same tokens, elsewhere or behind other text", False
    if facts.before == Before(r.seq)(position):
        return "the same text before it, in other segments or under other labels", False
    if facts.position == position:
        return "same tokens at the same position behind other text (a fragment)", False
    shift = position - facts.position
    return f"same tokens behind other text (needs a shift of {shift:+d}: fragments)", False


def words(label: tuple[str, ...]) -> str:
    """A label in words."""
    return " + ".join(sorted(label)) or "public"
