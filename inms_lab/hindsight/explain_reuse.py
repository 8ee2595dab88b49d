"""Checks 1 to 6 of a text that somebody else has KV of: what was settled when it entered.

Such a text is not looked up like others: whether it stands in its own place, may be a fragment or
is computed was decided at once (reuse.py), and the log says why. Here that is told as the checks.
"""

from __future__ import annotations

from inms_lab.books.checks import NO, NOT_ASKED, NOT_NEEDED, YES, CheckResult, result
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.decisions.reuse import AFRESH, GONE, Terms

FAILS = {GONE: 1, AFRESH: 6}  # else by how the reason begins
BEGINS = {"position": 5, "gate": 6, "not worth it": 6}


def fails_at(why: str) -> int:
    """The number of the check that a reason for computing a known text speaks of; 0: of none, then
    its blocks were looked up like any others."""
    return FAILS.get(why) or next((n for begin, n in BEGINS.items() if why.startswith(begin)), 0)


def settled(books: Ledger, segment: Segment, terms: Terms) -> tuple[CheckResult, ...]:
    """Checks 1 to 6 of a known text that is computed all the same."""
    source, fails = books.sequences[segment.source], fails_at(segment.why)
    said = {
        1: f"it is the text of {source.name}",
        2: "sealed and written",
        3: "the same",
        4: "within the clearance",
        5: "it can be shifted",
    }
    out = [result(n, YES, 1, said[n]) for n in range(1, min(fails, 6))]
    why = _cost(segment, terms) if segment.why == AFRESH else segment.why
    out.append(result(fails, NO, 0, why))
    return (*out, *(result(n, NOT_ASKED) for n in range(fails + 1, 7)))


def passed(segment: Segment, terms: Terms, exact: bool) -> CheckResult:
    """Check 6 of what is mounted."""
    if exact:
        return result(6, NOT_NEEDED, 0, "a prefix is exact")
    return result(6, YES, 0, _cost(segment, terms))


def _cost(segment: Segment, terms: Terms) -> str:
    """What the gate knows, in words: interference, saving and cost."""
    known = terms.gate.calibration if terms.gate is not None else None
    if terms.gate is None or known is None:
        return "not measured for this model"
    worth = terms.gate.worth(len(segment.tokens), terms.bytes_per_token)
    assert worth is not None, "it is calibrated"
    return (
        f"KL {known.kl:.3f}, agreement {known.agreement:.3f}; saves {worth.num_bytes:,} bytes and "
        f"{worth.saved_ms:.1f} ms, costs {worth.cost_ms:.1f} ms"
    )
