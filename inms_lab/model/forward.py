"""What the engine asks of a model: logits for packed spans. `Runner` is one, a dry run another."""

from __future__ import annotations

from threading import Event as Flag
from typing import Any, Protocol

import torch

from inms_lab.attention.batch import Span
from inms_lab.attention.store import NoStore


class Forward(Protocol):
    """What the engine asks of a model."""

    vocab_size: int
    max_context: int
    digest: str
    unsafe: str  # why its KV cannot be used at another position; "": it can
    tokenizer: Any
    stop_tokens: frozenset[int]

    def new_store(self) -> Any:
        """An empty store for this model's KV."""

    def weights_bytes(self) -> tuple[int, int]:
        """Bytes by the number of parameters, and of the tensors' memory."""

    def forward(
        self, spans: list[Span], store: Any, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        """Logits [spans that want them, vocab]."""


class DryModel:
    """No weights at all: every next token is token 0. For runs that only decide."""

    def __init__(self, vocab_size: int, max_context: int, bytes_per_token: int = 0) -> None:
        self.vocab_size, self.max_context, self.digest = vocab_size, max_context, "dry"
        self.tokenizer, self.stop_tokens = None, frozenset[int]()
        self.unsafe = ""
        self.bytes_per_token = bytes_per_token

    def new_store(self) -> NoStore:
        """A store that holds nothing."""
        return NoStore(self.bytes_per_token)

    def weights_bytes(self) -> tuple[int, int]:
        """No weights."""
        return 0, 0

    def forward(
        self, spans: list[Span], store: Any, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        """Zero logits of one entry, for the spans that want any."""
        return torch.zeros(sum(span.wants_logits for span in spans), 1)
