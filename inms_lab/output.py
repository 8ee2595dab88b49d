"""What a model wrote: text that knows its token ids."""

from __future__ import annotations


class Output(str):
    """Generated text; `tokens` are its token ids, which a publication keeps."""

    tokens: list[int]

    @classmethod
    def of(cls, text: str, tokens: list[int]) -> Output:
        """Text with its tokens."""
        out = cls(text)
        out.tokens = tokens
        return out
