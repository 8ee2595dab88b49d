"""Cases of the decisions in a log: the plain facts that its checks look at, and what came of them.

The facts are read from the books as they were and from the shadow index that explains them; what
came is what the engine decided in that run. Nothing here is a table written by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

from inms_lab.books.checks import NO, may_write
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.outcome import NoRoom
from inms_lab.decisions.plan import plan_extend
from inms_lab.hindsight.explain import Explainer, Explanation, Part
from inms_lab.hindsight.shadow import Before, Site, sift
from inms_lab.logs.log import Log
from inms_widgets.snapshot import names_of

from . import told

WRITING = "it is being written"  # as the shadow index says it
NO_BLOCK: dict[str, Any] = {  # what is known of a block where there is none
    **dict.fromkeys(("found", "sealed", "being_written", "same_model", "same_before"), False),
    "filled": 0,
    "label": frozenset[str](),
    "block_tier": "",
    "block_at": None,
}


@dataclass(frozen=True, slots=True)
class Case:
    """What the checks of one decision look at. `decision`: its number, from the log's birth on.

    `found`: a block with the wanted tokens lies in some pool. If so, of that block (of the one that
    comes nearest, where there are several): `filled` of its `size` slots hold KV; `sealed`: it is
    the end of a text that cannot grow; `being_written`: in this very step; `same_model`;
    `label` and `block_tier`; `block_at`: the position of its first slot; `same_before`: the same
    text stands before it. Of the reader: its `clearance`, the `tier` of its text, `may_write` a
    block of that tier, its position `at`; it would need `needed` blocks, and `free` can be had.
    """

    name: str
    reader: str
    wants: str
    found: bool
    filled: int
    size: int
    sealed: bool
    being_written: bool
    same_model: bool
    label: frozenset[str]
    clearance: frozenset[str]
    block_tier: str
    tier: str
    may_write: bool
    block_at: int | None
    at: int
    same_before: bool
    needed: int
    free: int
    decision: int

    @property
    def kind(self) -> tuple[object, ...]:
        """What makes it another case than one of the same kind: the answers, not the names."""
        whole = self.filled == self.size or self.sealed
        place = (self.same_before, self.block_at == self.at)
        written = (self.found, whole, self.being_written, self.same_model)
        label = (self.label <= self.clearance, self.block_tier == self.tier, self.may_write)
        return (*written, *label, *place, self.needed <= self.free)


@dataclass(frozen=True, slots=True)
class Known:
    """A case with the engine's own `answer` to it: outcome, and the check that stopped it; `site`:
    the block that it is about."""

    case: Case
    answer: tuple[str, int]
    site: Site | None


def known_cases(log: Log) -> list[Known]:
    """A case of every part of every decision, in order. Left out are copies, which ask nobody, and
    what a case's facts do not tell: the reader's own block may still grow, or equal text under
    another label that it may hold."""
    explainer, out = Explainer(log), list[Known]()
    for number, made in log.decisions_since(0):
        said = explainer.next(made)
        taken: Counter[str] = Counter()
        for part in said.parts:
            if part.outcome != "copied":
                one = _known(explainer, said, part, number, taken[part.pool_id])
                out += [one] if one is not None else []
            taken[part.pool_id] += part.num_blocks if part.outcome == "computed" else 0
    return out


def one_of_each(known: Iterable[Known]) -> Iterator[Known]:
    """The first case of every kind, named A, B, C ..."""
    kinds: dict[tuple[object, ...], Known] = {}
    for one in known:
        kinds.setdefault((one.case.kind, one.answer), one)
    for name, one in zip(ascii_uppercase, kinds.values(), strict=False):
        yield replace(one, case=replace(one.case, name=name))


def cases_of(log: Log) -> list[Case]:
    """The facts of one case of every kind that a log has."""
    return [one.case for one in one_of_each(known_cases(log))]


def short(label: frozenset[str]) -> str:
    """The names in a label, without `agent:` and `group:`: twelve columns are wide enough."""
    return ", ".join(sorted(name.partition(":")[2] for name in label))


def table_of(cases: Iterable[Case]) -> Any:
    """The cases as a table, one a column."""
    from pandas import DataFrame

    def said(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, frozenset):
            return short(value) or "–"
        return "–" if value in (None, "") else str(value)

    of_block = NO_BLOCK.keys() - {"found"}
    names = [n for n in Case.__slots__ if n not in ("name", "decision")]
    columns = {
        c.name: [said(getattr(c, n)) if c.found or n not in of_block else "–" for n in names]
        for c in cases
    }
    return DataFrame(columns, index=names)


def _known(at: Explainer, said: Explanation, part: Part, number: int, taken: int) -> Known | None:
    """The case of a part: of a run that is shared its last block, of any other its first, with
    which sharing stopped."""
    seq = at.books.sequences[said.decided.seq_id]
    index = part.first_block + (part.num_blocks - 1) * (part.outcome == "shared")
    segment = seq.segments[part.segment]
    sifted = sift(at.books, at.shadow, seq, part.segment, index)
    dropped = sorted(sifted.dropped, key=lambda d: (d.why != WRITING, -d.check))
    left, drop = sifted.left[-1], dropped[0] if dropped else None
    site = left[0] if left else (drop.pool_id, drop.block) if drop else None
    facts = dict(NO_BLOCK)
    if site is not None:
        check = drop.check if drop and not left else 0  # the one that drops even the nearest block
        facts = _block_facts(at, seq, segment, index, site) | {"found": True}
        facts["same_before"] &= check != 5
        same = facts["label"] <= seq.clearance and facts["block_tier"] == segment.tier
        grows = check == 2 and (facts["sealed"] or facts["filled"] == segment.block_size)
        if part.outcome != "shared" and (not check or grows or (check == 4 and same)):
            return None
    needed, free = _room(at.books, said, part, taken)
    tokens = segment.tokens[index * segment.block_size : (index + 1) * segment.block_size]
    case = Case(
        **facts,
        name="",
        reader=names_of([seq])[0],
        wants=told.said(at.log, tokens),
        size=segment.block_size,
        clearance=seq.clearance,
        tier=segment.tier,
        may_write=may_write(seq, segment.tier),
        at=segment.first_position + index * segment.block_size,
        needed=needed,
        free=free,
        decision=number,
    )
    return Known(case, _answer(said, part), site)


def _block_facts(
    at: Explainer, seq: Sequence, segment: Segment, index: int, site: Site
) -> dict[str, Any]:
    pool, its = at.books.pools[site[0]], at.shadow.facts.get(site)
    filled = len(at.shadow.tokens.get(site, b"")) // segment.tokens.itemsize
    pending = pool.promised.get(site[1]) == segment.key(index) != b""
    position = segment.first_position + index * segment.block_size
    return {
        "filled": filled,
        "sealed": site[1] in pool.keys and filled < pool.block_size,
        "being_written": pending,
        "same_model": its is None or its.namespace == seq.namespace,
        "label": frozenset(pool.labels[site[1]]),
        "block_tier": pool.spec.tier,
        "block_at": position if its is None else its.position,
        "same_before": pending or (its is not None and its.before == Before(seq)(position)),
    }


def _room(books: Ledger, said: Explanation, part: Part, taken: int) -> tuple[int, int]:
    """Blocks that a part needs, and those that it can get; `taken`: by the parts before it."""
    made, pool = said.decided, books.pools[part.pool_id]
    if part.outcome == "no room":
        answer = plan_extend(books, made.at, made.seq_id, made.budget)
        assert isinstance(answer, NoRoom)
        return answer.needed, answer.available
    shared = [p for p in said.parts if p.outcome == "shared" and p.pool_id == part.pool_id]
    mounted = {block for other in shared for block in other.blocks}
    free = len(pool.free) + len(set(pool.cached) - mounted) - taken
    return 0 if part.outcome == "shared" else part.num_blocks, free


def _answer(said: Explanation, part: Part) -> tuple[str, int]:
    if part.outcome == "computed":
        return "computed", next(c.number for c in part.checks if c.verdict == NO)
    return part.outcome, 0 if part.outcome == "shared" else said.decided.check
