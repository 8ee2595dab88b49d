"""What the engine asks of a model: logits for packed spans. `Runner` is one, a dry run another."""

from __future__ import annotations

from threading import Event as Flag
from typing import Any, Protocol

import torch

from inms_lab.attention.batch import Span


class Forward(Protocol):
    """What the engine asks of a model."""

    vocab_size: int
    max_context: int
    digest: str

    def forward(
        self, spans: list[Span], store: Any, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        """Logits [spans that want them, vocab]."""


class DryModel:
    """No weights at all: every next token is token 0. For runs that only decide."""

    def __init__(self, vocab_size: int, max_context: int) -> None:
        self.vocab_size, self.max_context, self.digest = vocab_size, max_context, "dry"

    def forward(
        self, spans: list[Span], store: Any, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        """Zero logits of one entry, for the spans that want any."""
        return torch.zeros(sum(span.wants_logits for span in spans), 1)
