"""The bytes that each token id stands for: text can be put together where there is no model.

A token may be a part of a character, so these are bytes: a reader joins the bytes of neighbouring
tokens before it decodes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece vocabularies spell a single byte


def piece_of(tokenizer: Any) -> Callable[[int], bytes]:
    """A function from a token id to its bytes; ids without a tokenizer are shown as numbers."""
    if tokenizer is None:
        return lambda token: b"%d " % token
    added = {int(i): str(t) for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    byte_of = _byte_of() if _is_byte_level(tokenizer) else None
    memo: dict[int, bytes] = {}

    def piece(token: int) -> bytes:
        if token not in memo:
            memo[token] = _piece(tokenizer, token, added, byte_of)
        return memo[token]

    return piece


def text_of(pieces: list[bytes]) -> str:
    """The text of neighbouring tokens; bytes that make no character are shown as such."""
    return b"".join(pieces).decode("utf-8", "replace")


def _piece(
    tokenizer: Any, token: int, added: dict[int, str], byte_of: dict[str, int] | None
) -> bytes:
    if token in added:
        return added[token].encode()
    written = tokenizer.convert_ids_to_tokens(token)
    if written is None:
        return b"?"
    if byte_of is not None and all(char in byte_of for char in written):
        return bytes(byte_of[char] for char in written)
    if match := _BYTE.fullmatch(written):
        return bytes((int(match.group(1), 16),))
    return str(written).replace("\u2581", " ").encode()


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    parts = (decoder or {}).get("decoders", [decoder or {}])
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies spell bytes as printable characters: those that print stand for
    themselves, the others for the code points from 256 on, in order (GPT-2's convention)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(own))
    return {chr(byte): byte for byte in own} | {chr(256 + i): b for i, b in enumerate(others)}
