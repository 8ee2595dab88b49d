"""Who keeps blocks and does nothing: holders that nobody closes, forks, superseded records.

One idle holder is no leak: it may come back, and what it holds does not grow. A leak has
generations: each of its holders began when the one before had already gone idle, and none of them
gave anything back. A team that rests together is one generation, however large it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inms_lab.books.events import Commanded, Event, Registered, Released, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.books.sequence import Sequence
from inms_lab.hindsight.findings import GROWTH, Finding

GENERATIONS = 3  # of idle holders, then they are a leak
IDLE = 64  # steps without any work, then a holder is idle; a lab's `suspect_after` takes its place


@dataclass(frozen=True, slots=True)
class Moment:
    """A log index, and the steps that were done by then."""

    index: int
    step: int


class Activity:
    """When each holder began and was last at work, and when records were superseded."""

    def __init__(self, books: Ledger, first: int) -> None:
        start = Moment(first, books.num_steps)
        self.born = dict.fromkeys(books.sequences, start)
        self.active = dict(self.born)
        self.replaced: dict[int, Moment] = {}

    def saw(self, books: Ledger, index: int, event: Event) -> None:
        """An event that the books have taken in."""
        now = Moment(index, books.num_steps)
        if isinstance(event, Registered):
            self.born[event.seq_id] = self.active[event.seq_id] = now
            if event.parent_id >= 0:
                self.active[event.parent_id] = now
        elif isinstance(event, Commanded):
            self.active[event.seq_id] = now
        elif isinstance(event, Stepped):
            self.active.update((item[0], now) for item in event.items)
        elif isinstance(event, Released) and event.replaces >= 0:
            self.replaced[event.replaces] = now


def growth(books: Ledger, activity: Activity, after: int) -> list[Finding]:
    """What grows and does not come back; `after`: steps without work, then a holder is idle."""
    idle = [seq for seq in books.holders() if _is_idle(books, activity, seq, after)]
    records = _superseded(books, activity, idle, after)
    readers = {i for record in records for i in _readers(books, record)}
    rest = [seq for seq in idle if seq.seq_id not in readers]
    forks = _chain(activity, [seq for seq in rest if seq.parent_id >= 0])
    others = _chain(activity, [seq for seq in rest if seq.parent_id < 0])
    found = []
    if len(records) >= GENERATIONS:
        found.append(_of_records(books, activity, records))
    if len(forks) >= GENERATIONS:
        found.append(_of_holders(books, activity, forks, rest, "forks that nobody closes"))
    if len(others) >= GENERATIONS:
        found.append(_of_holders(books, activity, others, rest, "agents that nobody closes"))
    return found


def _is_idle(books: Ledger, activity: Activity, seq: Sequence, after: int) -> bool:
    held = any(segment.blocks for segment in seq.segments)
    rests = seq.kind == "agent" and seq.is_live and not seq.has_work
    return held and rests and books.num_steps - activity.active[seq.seq_id].step >= after


def _chain(activity: Activity, idle: list[Sequence]) -> list[Sequence]:
    """As many as there are of which each began after the one before had gone idle."""
    chain: list[Sequence] = []
    for seq in sorted(idle, key=lambda s: activity.active[s.seq_id].index):
        if not chain or activity.born[seq.seq_id].index > activity.active[chain[-1].seq_id].index:
            chain.append(seq)
    return chain


def _superseded(
    books: Ledger, activity: Activity, idle: list[Sequence], after: int
) -> list[Sequence]:
    """Records that hold no longer and still hold blocks, because of idle readers alone."""
    resting = {seq.seq_id for seq in idle}
    out = []
    for seq_id, when in activity.replaced.items():
        seq = books.sequences[seq_id]
        held = seq.is_live and any(segment.blocks for segment in seq.segments)
        readers = _readers(books, seq)
        if held and readers and books.num_steps - when.step >= after and readers <= resting:
            out.append(seq)
    return out


def _readers(books: Ledger, record: Sequence) -> set[int]:
    others = (seq for seq in books.holders() if seq.seq_id != record.seq_id and seq.is_live)
    return {s.seq_id for s in others if any(t.source == record.seq_id for t in s.segments)}


def _alone(books: Ledger, holders: Iterable[Sequence]) -> list[tuple[str, int]]:
    """The blocks that nobody else holds."""
    mine = {seq.seq_id for seq in holders}
    blocks: dict[tuple[str, int], bool] = {}
    for seq in books.holders():
        for segment in seq.segments:
            for block in segment.blocks:
                where = (segment.pool_id, block)
                blocks[where] = blocks.get(where, True) and seq.seq_id in mine
    return [where for where, alone in blocks.items() if alone]


def _of_holders(
    books: Ledger, activity: Activity, chain: list[Sequence], idle: list[Sequence], cause: str
) -> Finding:
    forks = chain[0].parent_id >= 0
    group = [seq for seq in idle if (seq.parent_id >= 0) == forks]
    blocks, since = _alone(books, group), activity.born[chain[0].seq_id]
    names = list(dict.fromkeys(seq.name for seq in group))
    parent = f" of {books.sequences[chain[0].parent_id].name}" if forks else ""
    last = max(activity.active[seq.seq_id].step for seq in group)
    because = (
        f"{len(group)} holders ({_some(names)}) have nothing to do and hold {len(blocks)} blocks "
        f"that nobody else holds; the first began in step {since.step}, the last was at work in "
        f"step {last}, now it is step {books.num_steps}; each began when the one before was idle"
    )
    what = f"{'a fork' if forks else chain[0].name}{parent} was registered"
    advice = "close each when it is done (`agent.close()`, or a `with` block of `lab.lease(agent)`)"
    place = blocks[0] if blocks else None
    return Finding(GROWTH, cause, since.index, what, because, advice, tuple(names), place)


def _of_records(books: Ledger, activity: Activity, records: list[Sequence]) -> Finding:
    records.sort(key=lambda seq: activity.replaced[seq.seq_id].index)
    since = activity.replaced[records[0].seq_id]
    idle = {i for record in records for i in _readers(books, record)}
    readers = [books.sequences[seq_id] for seq_id in sorted(idle)]
    blocks = _alone(books, [*records, *readers])
    names = list(dict.fromkeys(seq.name for seq in readers))
    because = (
        f"{len(records)} records that hold no longer keep their blocks, for they are read by "
        f"{_some(names)}, with nothing to do; with these readers they hold {len(blocks)} blocks "
        f"that nobody else holds"
    )
    what = f"{records[0].name} was superseded"
    advice = "close those readers, or have them attach what replaced it (`agent.outdated` names it)"
    place = next((b for b in blocks if b[0].startswith("group")), None)
    names_all = tuple(names)
    cause = "superseded records that idle readers hold"
    return Finding(GROWTH, cause, since.index, what, because, advice, names_all, place)


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
