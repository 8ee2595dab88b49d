"""Do the books balance? Conservation in every pool, refcounts against tables. Are they those that
the log gives? Could a log have happened at all? Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inms_lab.books.ledger import Ledger
from inms_lab.books.lifecycle import RECLAIMED
from inms_lab.books.pool import Pool
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.errors import InmsError

if TYPE_CHECKING:
    from inms_lab.logs.log import Log

BY_KEY = ("index", "pending")  # mappings of a pool whose keys are fingerprints, not blocks
TEXTUAL = ("index", "pending", "promised", "keys", "tokens")  # what tells of somebody's text
IMPOSSIBLE = (InmsError, LookupError, TypeError, ValueError, AttributeError)
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not add up. `block`: the (pool, number) in question, if it is of one."""

    text: str
    block: tuple[str, int] | None = None

    def __str__(self) -> str:
        return self.text


def faults(books: Ledger) -> list[Fault]:
    """Everything that does not add up within the books; empty when all is well."""
    try:
        return _faults(books)
    except (*IMPOSSIBLE, RuntimeError) as error:
        return [Fault(f"the books cannot even be read ({type(error).__name__}: {error})")]


def _faults(books: Ledger) -> list[Fault]:
    out: list[Fault] = []
    tables: Counter[tuple[str, int]] = Counter()
    for seq in books.sequences.values():
        for segment in seq.segments:
            if segment.blocks or segment.length:
                tables.update((segment.pool_id, block) for block in segment.blocks)
                out += _segment_faults(books, seq, segment)
        if (seq.state == RECLAIMED) == (seq.seq_id in books.live):
            out.append(Fault(f"{seq.name} is {seq.state}, and the list of the living disagrees"))
    refs = {(p, b): n for p, pool in books.pools.items() for b, n in pool.refs.items()}
    wrong = [key for key in refs.keys() | tables.keys() if refs.get(key, 0) != tables[key]]
    return [fault for pool in books.pools.values() for fault in _pool_faults(pool)] + [
        Fault(f"{p} block {b}: refcount {refs.get((p, b), 0)}, in {tables[p, b]} tables", (p, b))
        for p, b in sorted(wrong)
    ] + out  # fmt: skip


def _segment_faults(books: Ledger, seq: Sequence, segment: Segment) -> Iterator[Fault]:
    size, count = segment.block_size, len(segment.blocks)
    if count != -(-segment.length // size) or not 0 <= segment.computed <= segment.length:
        said = f"{count} blocks for {segment.length} slots, {segment.computed} of them written"
        yield Fault(f"{seq.name}: {said}")
    labels = books.pools[segment.pool_id].labels if segment.pool_id in books.pools else {}
    if "label" in seq.off:
        return  # a lesson: it may hold what has another label
    for block in segment.blocks:
        if labels.get(block, segment.label) != segment.label:
            where = (segment.pool_id, block)
            said = f"has the label {labels[block]}, in a table of {segment.label}"
            yield Fault(f"{segment.pool_id} block {block} {said}", where)


def _pool_faults(pool: Pool) -> Iterator[Fault]:
    """Each with the lowest of the blocks in question."""
    name, num_blocks = pool.spec.pool_id, pool.spec.num_blocks
    free = pool.free.keys()  # no set of it: it is by far the largest, and this is asked often
    cached, held, keyed = (set(m) for m in (pool.cached, pool.refs, pool.keys))
    found = {(key, block) for key, blocks in pool.index.items() for block in blocks}
    listed = sum(map(len, pool.index.values()))
    known = {(key, block) for block, key in pool.keys.items()}
    promised = {(key, block) for block, key in pool.promised.items()}
    unpaired = promised ^ set(pool.pending.items())
    lost = found ^ known
    asked: list[tuple[Iterable[int], bool, str]] = [
        ((cached & free) | (held & free) | cached & held, False, "a block is in two states"),
        (
            _strangers(free, cached | held, num_blocks),
            len(free) + len(cached) + len(held) != num_blocks,
            f"free + cached + held is not {num_blocks}",
        ),
        ([b for b, n in pool.refs.items() if n < 1], False, "a refcount below one"),
        (
            set(pool.labels) ^ (cached | held),
            False,
            "a block with KV lacks its label, or one without KV has a label",
        ),
        (
            keyed ^ set(pool.tokens) | (cached - keyed) | (free & keyed),
            False,
            "a free block is findable, or a cached one is not",
        ),
        (
            {block for _, block in lost},
            listed != len(known),
            "the index and the blocks' keys differ",
        ),
        ({block for _, block in unpaired}, False, "pending keys and promised blocks differ"),
        (
            set(pool.promised) - (held - keyed),
            False,
            "a promised block is free, cached or published",
        ),
    ]
    for blocks, also, text in asked:
        first = min(blocks, default=None)
        if first is not None or also:
            yield Fault(f"{name}: {text}", None if first is None else (name, first))


def _strangers(free: Set[int], others: Set[int], num_blocks: int) -> Set[int]:
    """Blocks that a pool of this size lacks, or has and should not."""
    ends = (end(blocks) for blocks in (free, others) if blocks for end in (min, max))
    if len(free) + len(others) == num_blocks and all(0 <= block < num_blocks for block in ends):
        return frozenset()
    return {*free, *others} ^ set(range(num_blocks))


def against(log: Log, books: Ledger, told: Ledger | None = None) -> list[Fault]:
    """Where the books are not what the log's events make of its snapshot (`told`: those books, if
    they are at hand); empty when they are."""
    if told is None:
        try:
            told = log.replay()
        except IMPOSSIBLE:
            return [Fault(impossible(log) or "the log cannot be replayed")]
    try:
        return _differences(books, told)
    except (*IMPOSSIBLE, RuntimeError) as error:
        return [Fault(f"the books cannot even be read ({type(error).__name__}: {error})")]


def _differences(books: Ledger, told: Ledger) -> list[Fault]:
    out = [f for p in {**told.pools, **books.pools} for f in _pools_differ(p, books, told)]
    for seq_id in {**told.sequences, **books.sequences}:
        out += _sequences_differ(books.sequences.get(seq_id), told.sequences.get(seq_id))
    for name, theirs in vars(told).items():
        mine = getattr(books, name)
        if name not in ("pools", "sequences") and mine != theirs:
            out.append(Fault(f"{name}: {_few(mine)}, by the log {_few(theirs)}"))
    return out


def _pools_differ(pool_id: str, books: Ledger, told: Ledger) -> Iterator[Fault]:
    mine, theirs = books.pools.get(pool_id), told.pools.get(pool_id)
    if mine is None or theirs is None:
        yield Fault(f"{pool_id}: by the log this pool is {'not ' * (theirs is None)}open")
        return
    for name, value in vars(theirs).items():
        own = getattr(mine, name)
        if own == value:
            continue
        if not isinstance(value, Mapping):
            yield Fault(f"{pool_id}: {name} is {_few(own)}, by the log {_few(value)}")
            continue
        keys = [k for k in {**value, **own} if own.get(k, _NOTHING) != value.get(k, _NOTHING)]
        if not keys:
            yield Fault(f"{pool_id}: {name} is in another order than by the log")
        for key in keys[:3]:
            block = next(iter(_blocks(own, key) or _blocks(value, key))) if name in BY_KEY else key
            said = "differs from what the log says"  # no more than that of texts and their digests
            if name not in TEXTUAL:
                said = f"says {_shown(own, key)}, by the log {_shown(value, key)}"
            yield Fault(f"{pool_id} block {block}: {name} {said}", (pool_id, block))


def _few(value: object) -> str:
    return f"{value!r:.60}"


def _shown(values: Mapping[Any, Any], key: Any) -> str:
    value = values.get(key, _NOTHING)
    return "nothing" if value is _NOTHING else "it is there" if value is None else f"{value!r:.40}"


def _blocks(values: Mapping[Any, Any], key: Any) -> tuple[int, ...]:
    value = values.get(key, ())
    return value if isinstance(value, tuple) else (value,)


def _sequences_differ(mine: Sequence | None, theirs: Sequence | None) -> Iterator[Fault]:
    if mine is None or theirs is None:
        name = mine.name if mine is not None else theirs.name if theirs is not None else ""
        yield Fault(f"{name}: by the log this holder is {'not ' * (theirs is None)}there")
        return
    for name, value in vars(theirs).items():
        own = getattr(mine, name)
        if name != "segments" and own != value:
            yield Fault(f"{mine.name}: {name} is {_few(own)}, by the log {_few(value)}")
    if len(mine.segments) != len(theirs.segments):
        count = len(theirs.segments)
        yield Fault(f"{mine.name}: {len(mine.segments)} segments, by the log {count}")
    for number, (own, value) in enumerate(zip(mine.segments, theirs.segments, strict=False)):
        names = [n for n in Segment.__slots__ if n != "keys"]
        wrong = [n for n in names if getattr(own, n) != getattr(value, n)]
        fresh = value.copy()
        fresh.keys = []  # a memo, which may be longer here or there
        fresh._know(len(own.keys))
        if own.keys and fresh.keys[: len(own.keys)] != own.keys:
            wrong.append("keys")
        if wrong:
            block = _entry(own.blocks, value.blocks)
            where = f"{mine.name}: segment {number}"
            place = None if block is None else (value.pool_id, block)
            yield Fault(f"{where} has other {', '.join(wrong)} than by the log", place)


def _entry(mine: list[int], theirs: list[int]) -> int | None:
    """The first block of two tables that differs; of equal ones the first."""
    pairs = zip(mine, theirs, strict=False)
    longer = max(mine, theirs, key=len)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    return longer[at if at < len(longer) else 0] if longer else None


def impossible(log: Log) -> str | None:
    """The first event of a log that cannot have happened, in words; None: all of them can."""
    found = first_impossible(log)
    return None if found is None else f"event {found[0]} cannot have happened ({found[1]})"


def first_impossible(log: Log) -> tuple[int, str] | None:
    """The index of the first event that cannot have happened, and why."""
    count = 0  # events that could
    try:
        books = log.replay(log.first)
        for event in log.events:
            books.apply(event)
            count += 1
    except IMPOSSIBLE as error:
        return log.first + count, str(error)
    return None
