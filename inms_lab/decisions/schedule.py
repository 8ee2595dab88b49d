"""Who goes next. A pure function of the books: holders of shared text first (others wait for them),
then sequences that decode (one token each), then those that prefill, by order of registration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from inms_lab.books.ledger import Ledger
from inms_lab.books.lifecycle import DECODING
from inms_lab.books.sequence import Sequence
from inms_lab.config import Config
from inms_lab.decisions.outcome import Chunk
from inms_lab.decisions.policy import DEFAULT

NOBODY: Mapping[int, object] = MappingProxyType({})


def schedule(
    books: Ledger, tenant: str = DEFAULT, line: Mapping[int, object] = NOBODY
) -> list[int]:
    """A tenant's sequences with something to do, in the order in which they may take from its
    budgets; who waits in the `line` for the copy budget comes first of the agents, in its order."""
    work = [seq for seq in books.holders() if seq.has_work and seq.tenant == tenant]
    first = {seq_id: place for place, seq_id in enumerate(line)}
    last = len(first)
    work.sort(
        key=lambda s: (s.kind == "agent", first.get(s.seq_id, last), s.state != DECODING, s.seq_id)
    )
    return [seq.seq_id for seq in work]


class Budget:
    """The tokens of one step: while somebody decodes, no more than `prefill_budget` of them go to
    those that prefill, so that a long text does not stall the others."""

    def __init__(self, books: Ledger, order: list[int], config: Config) -> None:
        decode = any(books.sequences[seq_id].state == DECODING for seq_id in order)
        self.left = config.token_budget
        self.prefill = min(config.prefill_budget, self.left) if decode else self.left

    def of(self, seq: Sequence) -> int:
        """Tokens that this sequence may compute now; 0: none, or none before the next step."""
        self._decodes = seq.state == DECODING
        return (self.left if self._decodes else min(self.left, self.prefill)) * seq.has_work

    def taken(self, chunk: Chunk | None) -> list[Chunk]:
        """This much was planned for the sequence that was last asked about."""
        if chunk is None:
            return []
        size = chunk.stop - chunk.start
        self.left -= size
        self.prefill -= 0 if self._decodes else size
        return [chunk]
