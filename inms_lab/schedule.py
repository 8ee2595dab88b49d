"""Who goes next. A pure function of the books: holders of shared text first (others wait for them),
then sequences that decode (one token each), then those that prefill, by order of registration."""

from __future__ import annotations

from inms_lab.ledger import Ledger
from inms_lab.lifecycle import DECODING


def schedule(books: Ledger) -> list[int]:
    """Sequences with something to do, in the order in which they may take from the token budget."""
    work = [seq for seq in books.holders() if seq.has_work]
    work.sort(key=lambda s: (s.kind == "agent", s.state != DECODING, s.seq_id))
    return [seq.seq_id for seq in work]
