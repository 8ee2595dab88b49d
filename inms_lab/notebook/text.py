"""Between text and token ids: the model's tokenizer and chat format, and streaming by pieces."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.model.chat import ChatFormat

ROLES = ("system", "user", "assistant", "tool")
MARK = "\x00"  # stands for the text of a turn
BROKEN = "\ufffd"  # what a decoder gives for a character that is not complete yet
_ENCODING = Lock()  # a tokenizer keeps in itself whether this call takes control tokens for text


class Text:
    """Encodes turns, decodes tokens. Without a tokenizer only token ids can be read."""

    def __init__(self, tokenizer: Any | None, stop_tokens: frozenset[int] = frozenset()) -> None:
        self.tokenizer, self.stop_tokens = tokenizer, stop_tokens
        self.chat = ChatFormat.of(tokenizer) if tokenizer is not None else None

    def encode(self, text: str | Sequence[int], role: str | None = None) -> list[int]:
        """Token ids of `text` as a turn of `role`, or as it is (None). Token ids pass unchanged.

        A text that carries its own token ids (published output) keeps them inside the turn.
        """
        if not isinstance(text, str):
            if not isinstance(text, (list, tuple, array)):
                raise BadInput(f"text or a list of token ids is wanted, not {type(text).__name__}")
            return list(text)
        if role is not None and role not in ROLES:
            raise BadInput(f"no role is called {role!r}; there are: {', '.join(ROLES)}, or None")
        own = getattr(text, "tokens", None)
        if own is None and not text.strip():
            return []
        if role is None or self.chat is None:
            return list(own) if own is not None else self._ids(text)
        before, after = self.chat.wrap(role, MARK).split(MARK)
        if own is None:  # control tokens come from the format only, never from somebody's text
            return [*self._ids(before), *self._ids(text, plain=True), *self._ids(after)]
        kept = own[:-1] if own[-1] in self.stop_tokens else own
        return [*self._ids(before), *kept, *self._ids(after)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids, special tokens included."""
        ids = list(tokens)
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def open_turn(self, role: str | None) -> list[int]:
        """What stands before generated text."""
        return self._ids(self.chat.open_turn(role)) if self.chat and role else []

    def close_turn(self, ended: bool) -> list[int]:
        """What must stand after generated text; `ended`: its last token was the end token."""
        return self._ids(self.chat.close_turn(ended)) if self.chat else []

    def pieces(self, sink: Callable[[str], None]) -> Callable[[int], None]:
        """Turns tokens into pieces of text; a character of several tokens comes when complete."""
        held: list[int] = []

        def on_token(token: int) -> None:
            if token in self.stop_tokens:
                return
            held.append(token)
            piece = self.decode(held)
            if not piece.endswith(BROKEN) or len(held) > 8:
                held.clear()
                sink(piece)

        return on_token

    def _ids(self, text: str, plain: bool = False) -> list[int]:
        if self.tokenizer is None:
            raise BadInput("this model came without a tokenizer: pass token ids instead of text")
        if not text:
            return []
        options = {"split_special_tokens": True} if plain else {}
        with _ENCODING:
            return list(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])
