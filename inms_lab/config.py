"""Sizes and budgets of a lab, and the defaults."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from inms_lab.errors import BadInput

SMALL_CONTEXT = 2048  # tokens; below it blocks are small
SMALL_TILE = 64  # tokens; below it, merging tiles costs more than reading them
MIB = 1 << 20
MOST_BLOCKS = 1 << 24  # of a pool: each takes memory for the books
_LEAST = (("suspect_after", 0), ("floor_bytes", 0), ("heartbeat_interval", 0.001))
_COUNTS = ("block_size", "token_budget", "prefill_budget", "context", "log_limit", "copy_budget")


def default_block_size(context: int) -> int:
    """Tokens per block for contexts of `context` tokens: 16 below 2k, 256 from there on."""
    return 16 if context < SMALL_CONTEXT else 256


@dataclass(frozen=True, slots=True)
class Config:
    """What a lab is built with. Bytes are KV bytes; each pool reserves its own region."""

    block_size: int = 256  # tokens
    tile: int = 0  # tokens of one attention tile; 0: a block, or as many as make 64 tokens
    token_budget: int = 512  # tokens computed in one step, at most
    context: int = 8192  # tokens of one context, at most
    global_bytes: int = 512 * MIB
    group_bytes: int = 256 * MIB
    private_bytes: int = 2048 * MIB
    debug: bool = False  # audit the books after every event
    log_limit: int = 1_000_000  # events that the log keeps; older ones become its snapshot
    prefill_budget: int = 128  # tokens of a step for prefill while somebody decodes
    copy_budget: int = 16  # blocks copied on write in one step, at most
    floor_bytes: int = 0  # of private KV that nobody can take from an agent
    suspect_after: int = 0  # steps without a change, then a block is suspect; 0: no sweep
    heartbeat_interval: float = 5.0  # seconds between two beats; a lease is three of them
    auto_recovery: bool = True  # what a holder held comes back when its lease has run out

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, least in _LEAST:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise BadInput(f"{name} must be at least {least:g}, not {value}")
        tile, block = self.tile_size(), self.block_size
        if self.tile < 0 or (block % tile and tile % block):
            raise BadInput(
                f"a tile of {self.tile} and a block of {block}: one must divide the other"
            )

    def about(self, mode: str, off: list[str], model: str, bytes_per_token: int) -> dict[str, Any]:
        """What a reader of the log wants to know of the lab that wrote it, as plain data."""
        values = {**asdict(self), "tile": self.tile_size()}
        return {
            "mode": mode,
            "off": off,
            "model": model,
            "bytes_per_token": bytes_per_token,
        } | values

    def tile_size(self) -> int:
        """Tokens of one attention tile."""
        return self.tile or self.block_size * max(1, SMALL_TILE // self.block_size)

    def floor_blocks(self, bytes_per_token: int) -> int:
        """Whole blocks that hold an agent's floor (rounded up: a floor is never none)."""
        return -(-self.floor_bytes // (self.block_size * bytes_per_token))

    def num_blocks(self, tier: str, bytes_per_token: int) -> int:
        """Whole blocks that the tier's budget holds (rounded down; none at all is an error)."""
        budget = {"global": self.global_bytes, "group": self.group_bytes}.get(
            tier, self.private_bytes
        )
        block_bytes = self.block_size * bytes_per_token
        if budget < block_bytes:
            raise BadInput(
                f"the {tier} pool's {budget} bytes do not hold one block of {block_bytes} bytes: "
                f"give it more, or use smaller blocks"
            )
        if (count := budget // block_bytes) > MOST_BLOCKS:
            raise BadInput(
                f"the {tier} pool would have {count} blocks: make them larger, or give less"
            )
        return count
