"""A lab without weights in which each word is a token: it decides, and computes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from inms_lab.config import Config
from inms_lab.lab import Lab
from inms_lab.model.forward import DryModel
from inms_lab.pieces import text_of
from inms_lab.policy import Policy
from inms_lab.text import Text

BLOCK = 4  # tokens, here words
WORDS = 4096  # that a lab can tell apart
BYTES = 45 * 1024  # of KV a token, as SmolLM2-135M has in float32


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


def word_lab(mode: str | Policy = "inms", num_blocks: int = 64, token_budget: int = 64) -> Lab:
    """A lab without weights: it decides what a real one would, and computes nothing. Blocks of four
    words; `num_blocks` of them in the private pool, half of that in a group's."""
    size = num_blocks * BLOCK * BYTES
    config = Config(BLOCK, 0, token_budget, 256, size // 2, size // 2, size)
    lab = Lab(DryModel(WORDS, 256, BYTES), mode=mode, config=config)
    words = lab.text = Words()
    lab.log.piece = words.piece
    return lab
