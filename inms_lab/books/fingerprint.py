"""Fingerprints: typed, tagged, chained digests of a block's content and of all that it attended to.

A block's key covers: the namespace (model digest, weight version, adapter, tenant, salt, position
scheme), the label, the position of its first slot, the parent (the digest of every earlier token
and segment cut) and its tokens with their number. Fields are tagged and length-prefixed, so equal
strings in different fields never give one key. blake2b, 128 bits; no process-dependent seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from hashlib import blake2b

DIGEST_BYTES = 16


def digest(*parts: bytes) -> bytes:
    """128-bit digest of `parts`, length-prefixed, so that no two lists of parts run together."""
    h = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.digest()


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must agree before content is even compared (check 3 of a decision)."""

    model: str = ""
    weight_version: int = 0
    adapter: str = ""
    tenant: str = ""
    salt: str = ""
    position_scheme: str = "rope"

    def root(self) -> bytes:
        """The parent of the first block of every sequence in this namespace."""
        names = (f.name for f in fields(self))
        return digest(*(f"{n}={v!r}".encode() for n, v in zip(names, astuple(self), strict=True)))


def label_bytes(label: Iterable[str]) -> bytes:
    """Canonical bytes of a label."""
    return _label_bytes(tuple(sorted(label)))


@lru_cache(4096)
def _label_bytes(label: tuple[str, ...]) -> bytes:
    return digest(b"label", *(p.encode() for p in label))


def block_key(parent: bytes, label: bytes, position: int, tokens: array[int]) -> bytes:
    """Key of a block whose first slot is at `position` and that holds `tokens` (array of int32)."""
    h = blake2b(parent, digest_size=DIGEST_BYTES)  # parent and label are digests of fixed size
    h.update(label)
    h.update(b"%d:%d:" % (position, len(tokens)))
    h.update(tokens)
    return h.digest()


def block_keys(
    parent: bytes, label: bytes, position: int, tokens: array[int], size: int
) -> list[bytes]:
    """Keys of the full blocks of `tokens`, `size` tokens each: `block_key`, each behind the one
    before it."""
    raw, width, count = tokens.tobytes(), size * tokens.itemsize, len(tokens) // size
    head, out = b":%d:" % size, []
    for start in range(0, count * width, width):
        text = raw[start : start + width]
        parts = b"".join((parent, label, b"%d" % position, head, text))
        parent = blake2b(parts, digest_size=DIGEST_BYTES).digest()
        position += size
        out.append(parent)
    return out


def cut(parent: bytes, num_tokens: int) -> bytes:
    """The parent of the next segment: where a segment ends is part of what came before."""
    return digest(b"cut", parent, b"%d" % num_tokens)
