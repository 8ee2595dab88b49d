"""A lab without weights whose tokens are letters: real books, and blocks that can be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inms_lab.config import Config
from inms_lab.lab import Lab
from inms_lab.model.forward import DryModel
from inms_lab.text import Text

BYTES_PER_TOKEN = 1024  # what a made-up model would keep of a letter


class Letters(Text):
    """Every byte of a text is a token."""

    def __init__(self) -> None:
        super().__init__(None)

    def encode(self, text: object, role: str | None = None) -> list[int]:
        """The bytes of a text, whatever its role; token ids are taken as they are."""
        if isinstance(text, str):
            return list(text.encode())
        return list(text)  # type: ignore[call-overload, no-any-return]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these bytes."""
        return bytes(list(tokens)).decode("utf-8", "replace")


def letter_lab(block_size: int = 4, num_blocks: int = 64, **options: Any) -> Lab:
    """A lab in which a token is a letter and every generated token is the letter with number 0.

    Each pool has `num_blocks` blocks; `options` are those of `Lab`.
    """
    size = num_blocks * block_size * BYTES_PER_TOKEN
    config = Config(
        block_size=block_size,
        context=4096,
        global_bytes=size,
        group_bytes=size,
        private_bytes=size,
    )
    lab = Lab(DryModel(256, 4096, BYTES_PER_TOKEN), config=config, **options)
    lab.text = Letters()
    lab.log.piece = lambda token: bytes([token])
    return lab
