"""The bill before anything runs: what the KV caches of many agents cost, alone and shared.

Pure arithmetic on lengths; no model, no torch. n agents, L tokens each, a common share p of every
context, s bytes a token (`geometry`). Lengths are tokens, sizes are bytes. Not here: what a running
lab really holds, which its own `bill()` measures and puts beside these formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from inms_lab.errors import BadInput
from inms_lab.studies.geometry import Geometry, from_config, kv_bytes_per_token

__all__ = [
    "BlockBill",
    "Fit",
    "Geometry",
    "agents_that_fit",
    "block_bill",
    "from_config",
    "independent_bytes",
    "kv_bytes_per_token",
    "saving",
    "shared_bytes",
]

Number = float | Fraction


def independent_bytes(n: int, tokens: Number, per_token: Number) -> float:
    """KV of `n` agents of L `tokens` each that share nothing: n L s."""
    return float(n * _exact(tokens) * _exact(per_token))


def shared_bytes(n: int, tokens: Number, p: Number, per_token: Number) -> float:
    """KV when a common share `p` of each context is held once: ((1 - p) n + p) L s."""
    share = _share(p)
    return float(((1 - share) * n + share) * _exact(tokens) * _exact(per_token))


def saving(n: int, p: Number) -> float:
    """The part of the independent KV that sharing saves: p (n - 1) / n, never more than p."""
    if n < 1:
        raise BadInput(f"there must be at least one agent, got {n}")
    return float(_share(p) * (n - 1) / n)


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest numbers of agents that memory holds, without and with sharing."""

    independent: int
    shared: int


def agents_that_fit(
    memory_bytes: int, weights_bytes: int, tokens: Number, p: Number, per_token: Number
) -> Fit:
    """How many agents of L `tokens` fit beside the weights; 0 when the weights alone do not.

    Raises `BadInput` at p = 1, where an agent costs nothing and the number has no limit.
    """
    share = _share(p)
    if share == 1:
        raise BadInput("an agent that shares everything costs nothing; give a share below 1")
    if tokens <= 0 or per_token <= 0:
        raise BadInput(f"a context needs tokens and bytes, got {tokens} tokens of {per_token}")
    contexts = (memory_bytes - weights_bytes) / (_exact(tokens) * _exact(per_token))
    return Fit(max(0, int(contexts // 1)), max(0, int((contexts - share) / (1 - share) // 1)))


def _exact(value: Number) -> Fraction:
    # By way of the decimal text: 0.6 is meant as six tenths, not as the nearest binary fraction.
    return Fraction(str(value))


def _share(p: Number) -> Fraction:
    if not 0 <= p <= 1:
        raise BadInput(f"the common share is a part of the context between 0 and 1, got {p}")
    return _exact(p)


@dataclass(frozen=True, slots=True)
class BlockBill:
    """The same bill to the block: every segment starts on a fresh block, its last may be part full.

    `*_blocks` are blocks held, `*_empty` the slots in them that hold no token.
    """

    block_size: int
    bytes_per_token: int
    shared_blocks: int
    shared_empty: int
    independent_blocks: int
    independent_empty: int

    @property
    def shared_bytes(self) -> int:
        return self.shared_blocks * self.block_size * self.bytes_per_token

    @property
    def independent_bytes(self) -> int:
        return self.independent_blocks * self.block_size * self.bytes_per_token

    @property
    def saving(self) -> float:
        return 1 - self.shared_blocks / self.independent_blocks if self.independent_blocks else 0.0

    def explanation(self) -> str:
        """Why this is more than the smooth formula gives."""
        return (
            f"{self.shared_empty} of {self.shared_blocks * self.block_size} slots stay empty at the"
            f" end of segments ({self.shared_empty * self.bytes_per_token} bytes more than the"
            f" smooth formula; {self.independent_empty} slots without sharing)"
        )


def block_bill(
    shared: Sequence[int], own: Sequence[Sequence[int]], block_size: int, bytes_per_token: int
) -> BlockBill:
    """Count blocks: `shared` are the lengths of the common segments, `own` those of each agent.

    With sharing a common segment is held once, without it once per agent; ceil(len / block) each.
    """
    if block_size < 1:
        raise BadInput(f"a block holds at least one token, got block size {block_size}")
    private = [length for lengths in own for length in lengths]
    once, each = [*shared, *private], [*list(shared) * len(own), *private]
    held, held_alone = (sum(-(-n // block_size) for n in lengths) for lengths in (once, each))
    return BlockBill(
        block_size=block_size,
        bytes_per_token=bytes_per_token,
        shared_blocks=held,
        shared_empty=held * block_size - sum(once),
        independent_blocks=held_alone,
        independent_empty=held_alone * block_size - sum(each),
    )
