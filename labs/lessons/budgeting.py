"""Exercise `budget`: how many blocks may be copied in a step, so that a storm keeps two bounds.

Each answer is played: so many forks write at once in a lab without weights, with that budget, and
the peak of a step and the longest wait are read from the lab. So any budget that keeps both bounds
is right; where none does, None is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inms_lab.decisions.copies import Copies
from inms_lab.logs.log import Log

from .charts import Bars
from .small_labs import LETTER_BYTES
from .storms import copied, first_step, play
from .wrong import Wrong, in_a_line, shown, whole

KIB = 1024
LOOK = ("bar", "timeline", "map", "detail")


@dataclass(frozen=True, slots=True)
class Case:
    """A storm and its two bounds: bytes copied in one step, steps that a writer waits."""

    writers: int
    block_bytes: int
    most_bytes: int
    most_wait: int

    @property
    def where(self) -> str:
        """As it is called."""
        return f"budget({self.writers}, {self.block_bytes}, {self.most_bytes}, {self.most_wait})"

    @property
    def allowed(self) -> range:
        """The budgets that keep both bounds: those below `writers` by what they copy, and any from
        there on if all may be copied at once."""
        least = -(-self.writers // (self.most_wait + 1))
        most = self.most_bytes // self.block_bytes
        return range(least, (1 << 30) if most >= self.writers else most + 1)


CASES = (
    Case(64, 4 * KIB, 64 * KIB, 7),  # 8 to 16
    Case(64, 4 * KIB, 32 * KIB, 7),  # 8 alone
    Case(50, 8 * KIB, 100 * KIB, 4),  # 10 to 12: neither division comes out even
    Case(64, 4 * KIB, 1024 * KIB, 0),  # all at once
    Case(40, 16 * KIB, 100 * KIB, 6),  # 6 alone
    Case(64, 8 * KIB, 64 * KIB, 3),  # none: 16 are needed, 8 allowed
    Case(1, 4 * KIB, 4 * KIB, 0),  # 1 alone
    Case(10, 32 * KIB, 16 * KIB, 100),  # none: a block does not fit
)


def copy_budget(function: object) -> Wrong | None:
    """`function(writers, block_bytes, most_bytes, most_wait)` gives blocks a step, or None."""
    if not callable(function):
        return Wrong(
            "a function budget(writers, block_bytes, most_bytes, most_wait)", shown(function)
        )
    for case in CASES:
        if wrong := _tried(function, case):
            return wrong
    return None


def _tried(function: Callable[..., object], case: Case) -> Wrong | None:
    try:
        answer = function(case.writers, case.block_bytes, case.most_bytes, case.most_wait)
    except ZeroDivisionError as error:
        hint = "a longest wait of 0 is a bound too: nobody waits, so all are served in one step"
        return Wrong("a budget, or None", in_a_line(error), case.where, hint)
    except Exception as error:
        return Wrong("a budget, or None", in_a_line(error), case.where, "call it by hand and look")
    if answer is None:
        return _why_not_none(case)
    count = whole(answer)
    if count is None:
        hint = "blocks are whole: which way must you round?" if isinstance(answer, float) else ""
        return Wrong("a whole number of blocks, or None", shown(answer), case.where, hint)
    if count < 1:
        hint = "a budget is at least one block a step; where none will do, return None"
        return Wrong("a budget of at least 1, or None", shown(answer), case.where, hint)
    told, log = play(case.writers, case.block_bytes, min(count, 1 << 30))
    if told.peak * case.block_bytes <= case.most_bytes and told.longest_wait <= case.most_wait:
        return None
    return _over(case, count, told, log)


def _why_not_none(case: Case) -> Wrong | None:
    if not case.allowed:
        return None
    count = case.allowed[0]
    told, log = play(case.writers, case.block_bytes, count)
    peak = told.peak * case.block_bytes
    came = (
        f"None; but with {count} the peak is {peak} bytes and the longest wait {told.longest_wait}"
    )
    hint = "both bounds are kept there: a bound that is just met is kept"
    return Wrong("a budget that keeps both bounds", came, case.where, hint, log, parts=LOOK)


def _over(case: Case, count: int, told: Copies, log: Log) -> Wrong:
    """Played, and a bound is broken: which, by how much, and perhaps why."""
    peak, size = told.peak * case.block_bytes, case.block_bytes
    said = f"{count}: peak {peak} bytes, longest wait {told.longest_wait} steps"
    expected = f"at most {case.most_bytes} bytes in a step and {case.most_wait} steps of waiting"
    letters = size // LETTER_BYTES
    if not case.allowed:
        hint = "no budget keeps both bounds here: then None is the answer"
    elif count >= size:
        hint = f"that many blocks? A block has {size} bytes: the budget counts blocks, not bytes"
    elif count < case.writers and count % letters == 0 and count // letters in case.allowed:
        hint = f"a block has {letters} letters: the budget counts blocks, not letters"
    elif peak > case.most_bytes:
        hint = f"too large: a step may copy {case.most_bytes} / {size} blocks, rounded down"
        if told.longest_wait < case.most_wait:
            hint += (
                f"; the last writer waits {told.longest_wait} steps, {case.most_wait} are allowed"
            )
    else:
        last = case.most_wait + 1
        hint = f"too small: who waits {case.most_wait} steps copies in step {last}, so the "
        hint += f"steps up to that one must serve all {case.writers} writers; round up"
    counts = copied(log)
    rows = {f"step {n}": float(c * size) for n, c in enumerate(counts[:12], 1)}
    drawn = Bars(
        rows, f"bytes copied, of {len(counts)} steps", "bytes; dotted: the bound", case.most_bytes
    )
    at = first_step(log)
    return Wrong(expected, said, case.where, hint, log, at, parts=LOOK, picture=drawn)
