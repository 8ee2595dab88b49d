"""Exercise `culprits`: in each of five logs, the one event that is to blame.

Numbers are compared as digests. For a wrong one the check says what that event is, and measures on
the log itself whether the fault is there before it and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from inms_lab.books.events import Allocated, Commanded, Published, Released, Shared
from inms_lab.books.label import may_hold
from inms_lab.logs.log import Log

from .planted import planted
from .told import said, told
from .wrong import Wrong, shown, whole

WORD = "KESTREL-7319"
RULE = "Rule of the team"
HANDBOOK = "Handbook. Chapter 1."


@dataclass(frozen=True, slots=True)
class Case:
    """`kind` of event asked for, in words; `there(log, n)`: is the fault there when n events have
    happened; `yes`, `no`: that in words; `way`: how to look."""

    kind: type
    asked: str
    there: Callable[[Log, int], bool]
    yes: str
    no: str
    way: str
    digest: str


def digest(name: str, number: int) -> str:
    """What is kept of an answer."""
    text = f"{name} {number}".encode()
    return blake2b(text, digest_size=16, salt=b"INMS lab 04").hexdigest()


def culprits(answers: Any) -> Wrong | None:
    """The first wrong number, in the order of the cases; where none is wrong, the first missing."""
    if not isinstance(answers, dict):
        came = type(answers).__name__
        log = planted(next(iter(CASES)))
        return Wrong(f"a dict with the keys {', '.join(CASES)}", f"a {came}", log=log)
    right = {name for name in CASES if _right(name, answers.get(name))}
    rest = [name for name in CASES if name not in right]
    if not rest:
        return None
    given = [name for name in rest if not _is_blank(answers.get(name))]
    name = (given or rest)[0]
    return _wrong(name, answers.get(name), f"{name} ({len(right)} of {len(CASES)} are right)")


def _right(name: str, answer: Any) -> bool:
    number = _number(answer, planted(name))
    return number is not None and digest(name, number) == CASES[name].digest


def _number(answer: Any, log: Log) -> int | None:
    """The number of an event; None: it is none."""
    number = whole(answer)
    return number if number is not None and 0 <= number < len(log) else None


def _is_blank(answer: Any) -> bool:
    return answer is None or answer is ...


def _wrong(name: str, answer: Any, where: str) -> Wrong:
    case, log = CASES[name], planted(name)
    number = _number(answer, log)
    if number is None:
        came = "none yet" if _is_blank(answer) else f"{shown(answer)}, which is no event"
        expected = f"the number of {case.asked}: 0 to {len(log) - 1}"
        return Wrong(expected, came, where, case.way, log, len(log))
    before, after = case.there(log, number), case.there(log, number + 1)
    blocks = getattr(log.events[number], "blocks", ())
    block = (log.events[number].pool_id, blocks[0]) if blocks else None  # type: ignore[union-attr]
    hint = _measured(case, log, number, before, after)
    return Wrong(case.asked, told(log, number), where, hint, log, number + 1, block)


def _measured(case: Case, log: Log, number: int, before: bool, after: bool) -> str:
    """Where to go from here."""
    if before and after:
        return f"already before this event {case.yes}: it is a consequence at most. Look earlier"
    if not before and not after:
        return f"after this event {case.no}: what you look for shows later"
    if before:
        return f"before this event {case.yes}; after it no longer. Look earlier"
    led = f"So it is a consequence: which {case.kind.__name__} event led to it?"
    return f"before this event {case.no}; after it {case.yes}. {led}"


# what is measured -------------------------------------------------------------------------------


def _silent(log: Log, n: int) -> bool:
    """Whether who holds withdrawn notes at the end gives no command any more."""
    books = log.replay()
    pool_id = next(p for p, pool in books.pools.items() if pool.spec.tier == "group")
    notes = {b for s in books.holders() if s.kind == "record" for b in _blocks(s, pool_id)}
    agents = (s for s in books.holders() if s.kind == "agent")
    stuck = {s.seq_id for s in agents if set(_blocks(s, pool_id)) - notes}
    later = (e for e in log.events[n:] if isinstance(e, Commanded))
    return not any(e.seq_id in stuck for e in later)


def _blocks(seq: Any, pool_id: str) -> list[int]:
    return [b for s in seq.segments if s.pool_id == pool_id for b in s.blocks]


def _forgot(log: Log, n: int) -> bool:
    """Whether rita had the rule and has it no longer."""
    books = log.replay(n)
    rule, had = _text(log, RULE), False
    rita = next((s for s in books.sequences.values() if s.name == "rita"), None)
    if rita is None:
        return False
    for e in log.events[:n]:
        had |= isinstance(e, Commanded) and e.seq_id == rita.seq_id and e.offset == rule[0]
    tokens = log.tokens[rule[0] : sum(rule)].tobytes()
    return had and tokens not in rita.tokens().tobytes()


def _text(log: Log, begins: str) -> tuple[int, int]:
    """Offset and length of the published text that begins so."""
    out = (e for e in log.events if isinstance(e, Released))
    return next((e.offset, e.length) for e in out if _said(log, e).startswith(begins))


def _said(log: Log, e: Commanded | Released) -> str:
    return said(log, log.tokens[e.offset : e.offset + e.length])


def _out(log: Log, n: int) -> bool:
    """Whether the word was published."""
    return any(isinstance(e, Released) and WORD in _said(log, e) for e in log.events[:n])


def _gone(log: Log, n: int) -> bool:
    """Whether the block with the handbook's beginning was there once and stands for it no more."""
    pool_id, block, first = _chapter(log)
    published: Any = log.events[first]
    key = published.keys[published.blocks.index(block)]
    return n > first and log.replay(n).pools[pool_id].keys.get(block) != key


def _chapter(log: Log) -> tuple[str, int, int]:
    """The handbook's first block: its pool and number, and the event that made it findable."""
    reads = (e for e in log.events if isinstance(e, Commanded) and e.length)
    read = next(e for e in reads if _said(log, e).startswith(HANDBOOK))
    mine: list[tuple[int, Any]] = [
        (n, e) for n, e in enumerate(log.events) if getattr(e, "seq_id", -1) == read.seq_id
    ]
    block = next(e.blocks[0] for _, e in mine if isinstance(e, Allocated) and e.segment == 1)
    first = next(n for n, e in mine if isinstance(e, Published) and block in e.blocks)
    return read.pool_id, block, first


def _foreign(log: Log, n: int) -> bool:
    """Whether somebody holds a block whose label is not within its clearance."""
    books = log.replay(n)
    held = (
        (seq.clearance, books.pools[s.pool_id].labels[block])
        for seq in books.holders()
        for s in seq.segments
        for block in s.blocks
    )
    return any(not may_hold(label, clearance) for clearance, label in held)


CASES = {
    "leak": Case(
        Commanded,
        "the last command of the agent that holds the old notes",
        _silent,
        "the agent that holds the old notes is silent",
        "the agent that holds the old notes still gives commands",
        "the block map at the end: which blocks of group:shop does no record hold?",
        "75e6ae488c4e00ed4c51643c0ab86224",
    ),
    "gap": Case(
        Commanded,
        "the command with which rita lost the rule",
        _forgot,
        "rita has lost the rule",
        "rita has the rule, or has not read it yet",
        "when did she have the rule for certain? Bisect from there to the end",
        "cf8c358fdab79a049238132bb5ffb66d",
    ),
    "secret": Case(
        Released,
        "the Released event that made the word readable for others",
        _out,
        "the word is out",
        "the word is not out",
        "ask of a moment: does the text of any record hold the word?",
        "fdf60a6420c743ade7a69c415f8313c2",
    ),
    "hog": Case(
        Commanded,
        "the command whose text took the room of the handbook's first block",
        _gone,
        "the handbook's first block is gone",
        "the handbook's first block is there, or not read yet",
        "the block's history says when it was evicted; who was taking blocks just then?",
        "aa12c205d16c90fc49597146fd4b120e",
    ),
    "mount": Case(
        Shared,
        "the Shared event that first gave somebody a block outside its clearance",
        _foreign,
        "somebody holds a block outside its clearance",
        "nobody holds a block outside its clearance",
        "ask of a moment: is every held block's label within its holder's clearance?",
        "bb9a0815545cdeaadcbbc6dcd782f82c",
    ),
}
