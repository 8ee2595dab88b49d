"""The seven checks of a decision, each a small function: the very ones that serving asks.

plan.py asks them in this order for every block that lacks KV; rules.py asks 2 and 4 again before an
event enters the books. Check 3, and 5 for prefixes, are no `if`: they are fields of the key that is
looked up, so a reader cannot even name a block that fails them. Whether a text may be a fragment (5
and 6) is asked once, when it enters (reuse.py). `CHECKS` is the table, `source_of` its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from inms_lab.books.fingerprint import Namespace
from inms_lab.books.label import may_hold
from inms_lab.books.segment import Segment
from inms_lab.errors import BadInput

if TYPE_CHECKING:
    from inms_lab.books.gate import Gate
    from inms_lab.books.pool import Pool
    from inms_lab.books.sequence import Sequence

WRITER = {"global": "prompt", "group": "record"}  # tier -> the kind of holder that may write it


# 1: content -----------------------------------------------------------------------------------


def candidates(pool: Pool, key: bytes) -> tuple[int, ...]:
    """Check 1: the published blocks with this fingerprint, oldest first (none for no key)."""
    return pool.index.get(key, ()) if key else ()


def same_tokens(
    pool: Pool, blocks: Collection[int], segment: Segment, index: int, seq: Sequence
) -> bool:
    """Check 1: these blocks hold the tokens of the segment's blocks from `index` on, each its own;
    a digest alone is not believed."""
    held = [pool.tokens[block] for block in blocks]
    return "tokens" in seq.off or held == segment.texts(index, len(blocks))


# 2: written -----------------------------------------------------------------------------------


def is_written(pool: Pool, block: int) -> bool:
    """Check 2: the block was published, so it is full (or sealed) and written to its end."""
    return block in pool.keys


def is_being_written(pool: Pool, segment: Segment, index: int) -> bool:
    """Check 2: somebody is writing this very block: wait rather than compute it twice."""
    return bool(pool.pending) and segment.key(index) in pool.pending


# 4: label -------------------------------------------------------------------------------------


def clears(seq: Sequence, label: Iterable[str]) -> bool:
    """Check 4: the label is within the reader's clearance."""
    return "label" in seq.off or may_hold(label, seq.clearance)


def may_write(seq: Sequence, tier: str) -> bool:
    """Check 4: this holder may put KV of its own into a pool of `tier`."""
    return WRITER.get(tier, seq.kind) == seq.kind


# 5: position ---------------------------------------------------------------------------------


def can_shift(unsafe: str) -> str:
    """Check 5: why this model's KV cannot be used at another position; "": it can."""
    return f"position: {unsafe}" if unsafe else ""


# 6: interference and worth --------------------------------------------------------------------


def within_gate(gate: Gate, seq: Sequence) -> str:
    """Check 6: why the gate lets no fragment through; "": the interference is within its bounds."""
    return "" if "gate" in seq.off else gate.excess()


def pays(gate: Gate, num_tokens: int, bytes_per_token: int) -> str:
    """Check 6: why a fragment of this size is not worth it; "": it is, or nobody measured."""
    worth = gate.worth(num_tokens, bytes_per_token)
    if worth is None or worth.pays:
        return ""
    return f"not worth it: saves {worth.saved_ms:,.2f} ms, costs {worth.cost_ms:,.2f} ms"


# 7: room --------------------------------------------------------------------------------------


def blocks_to_take(
    pool: Pool, taken: Counter[str], spared: set[tuple[str, int]], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check 7: the next `count` blocks (fewer if there are fewer), free ones first, behind those
    that the plan has `taken` already and without those that it mounts; the victims among them."""
    pool_id, num_free = pool.spec.pool_id, len(pool.free)
    already = taken[pool_id]
    cached = (block for block in pool.cached if (pool_id, block) not in spared)
    blocks = tuple(islice(chain(pool.free, cached), already, already + count))
    taken[pool_id] += count
    return blocks, blocks[max(0, num_free - already) :]


# the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the table: `key` names it in string tables, `functions` are what serving calls."""

    number: int
    key: str
    question: str
    functions: tuple[Callable[..., Any], ...]

    @property
    def function(self) -> str:
        """The qualified names of its functions; "" where nothing needs to be asked."""
        return ", ".join(f"{f.__module__}.{f.__qualname__}" for f in self.functions)


CHECKS = (
    Check(1, "content", "Does a block with these tokens exist?", (candidates, same_tokens)),
    Check(
        2,
        "written",
        "Is it complete, written and findable?",
        (Segment.key, is_written, is_being_written),
    ),
    Check(3, "namespace", "Is it of the same tenant, model and adapter?", (Namespace.root,)),
    Check(
        4,
        "label",
        "May the reader hold its label, and does its tier allow it?",
        (clears, may_write),
    ),
    Check(
        5,
        "position",
        "Is it at the same place, behind the same text, or can it be shifted?",
        (Segment._digest, can_shift),
    ),
    Check(
        6, "gate", "Is the interference within the gate, and is it worth it?", (within_gate, pays)
    ),
    Check(7, "room", "Is there room for what is not shared?", (blocks_to_take,)),
)


def check_of(number: int) -> Check:
    """The check with this number, 1 to 7."""
    if not 1 <= number <= len(CHECKS):
        raise BadInput(f"there is no check {number}; they are numbered 1 to {len(CHECKS)}")
    return CHECKS[number - 1]


def source_of(number: int) -> str:
    """The source text of the functions that make this check."""
    from inspect import getsource
    from textwrap import dedent

    return "\n\n".join(dedent(getsource(function)) for function in check_of(number).functions)


# what they answer -----------------------------------------------------------------------------

YES, NO, NOT_ASKED, NOT_NEEDED = "yes", "no", "not asked", "not needed"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A block with the tokens wanted that is not shared: the first check that it fails, and why.

    `refused`: the reader may not have it (checks 3 and 4); serving never even looked at it.
    """

    pool_id: str
    block: int
    check: int
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one decision; `verdict` is yes, no, not asked or not needed.

    `value` counts the blocks that are left after it (check 7: those that are taken). `shadow`: it
    refused blocks that serving, which looks up typed keys only, never found.
    """

    number: int
    key: str  # content, written, namespace, label, position, gate, room
    question: str
    verdict: str
    value: int
    why: str
    function: str  # qualified names; `source_of(number)` is their text
    shadow: bool = False
    dropped: tuple[Dropped, ...] = ()


def result(
    number: int, verdict: str, value: int = 0, why: str = "", dropped: tuple[Dropped, ...] = ()
) -> CheckResult:
    """What check `number` answered."""
    check, refused = check_of(number), any(d.refused for d in dropped)
    what = (number, check.key, check.question, verdict, value, why, check.function)
    return CheckResult(*what, refused, dropped)
