"""Labs without weights for lessons: they decide as a real one would, and compute nothing.

`letter_lab`: a token is a letter. `word_lab`: a token is a word. So what is in a block can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inms_lab.config import Config
from inms_lab.decisions.policy import Policy
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.pieces import text_of
from inms_lab.notebook.text import Text

BLOCK = 4  # tokens
WORDS = 4096  # that a lab can tell apart
LETTER_BYTES = 1024  # what a made-up model would keep of a letter
WORD_BYTES = 45 * 1024  # of KV a token, as SmolLM2-135M has in float32


class Letters(Text):
    """Every byte of a text is a token."""

    def __init__(self) -> None:
        super().__init__(None)

    def encode(self, text: object, role: str | None = None) -> list[int]:
        """The bytes of a text, whatever its role; token ids are taken as they are."""
        if isinstance(text, str):
            return list(text.encode())
        return list(text)  # type: ignore[call-overload, no-any-return]

    def piece(self, token: int) -> bytes:
        """What a token stands for, for pictures."""
        return bytes([token])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these bytes."""
        return bytes(list(tokens)).decode("utf-8", "replace")


class Words(Text):
    """Each word is a token; its number is the order in which it was first seen."""

    def __init__(self) -> None:
        super().__init__(None)
        self.ids: dict[str, int] = {}

    def encode(self, text: object, role: str | None = None) -> list[int]:
        """Token ids of a text of words; token ids pass unchanged."""
        words = text.split() if isinstance(text, str) else None
        if words is None:
            return super().encode(text, role)  # type: ignore[arg-type]
        return [self.ids.setdefault(word, len(self.ids)) for word in words]

    def decode(self, tokens: Iterable[int]) -> str:
        """The words again."""
        return text_of([self.piece(token) for token in tokens]).strip()

    def piece(self, token: int) -> bytes:
        """What a token stands for, for pictures."""
        words = list(self.ids)
        return f"{words[token] if token < len(words) else token} ".encode()


def letter_lab(block_size: int = BLOCK, num_blocks: int = 64, **options: Any) -> Lab:
    """A lab in which a token is a letter and every generated token is the letter with number 0.

    Each pool has `num_blocks` blocks; `options` are those of `Lab`.
    """
    size = num_blocks * block_size * LETTER_BYTES
    config = Config(block_size, 0, 512, 4096, size, size, size)
    return _readable(Letters(), DryModel(256, 4096, LETTER_BYTES), config=config, **options)


def word_lab(
    mode: str | Policy = "inms", num_blocks: int = 64, token_budget: int = 64, **options: Any
) -> Lab:
    """A lab with blocks of four words; `num_blocks` of them in the private pool, half of that in a
    group's. `options` are those of `Lab`."""
    size = num_blocks * BLOCK * WORD_BYTES
    config = Config(BLOCK, 0, token_budget, 256, size // 2, size // 2, size)
    return _readable(Words(), DryModel(WORDS, 256, WORD_BYTES), mode=mode, config=config, **options)


def _readable(text: Letters | Words, model: DryModel, **options: Any) -> Lab:
    lab = Lab(model, **({"gate": None} | options))  # whole prefixes only, unless it is said
    lab.text, lab.log.piece = text, text.piece
    return lab
