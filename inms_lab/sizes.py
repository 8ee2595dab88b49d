"""Sizes as people write them: `24GiB`, `16k`."""

from __future__ import annotations

import re
from fractions import Fraction

from inms_lab.errors import BadInput

_TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
}


def parse_tokens(text: str) -> int:
    """Tokens as people write them: `16k` is 16 x 1024, `1m` 1024 x 1024, `12000` itself."""
    return _parse(text, _TOKEN_UNITS, "a number of tokens", "16k, 1.5k or 12000")


def parse_bytes(text: str) -> int:
    """Bytes with a unit: `24GiB` is 24 x 1024^3, `24GB` 24 x 1000^3; a bare number is bytes."""
    return _parse(text, _BYTE_UNITS, "a size", "24GiB (1024-based), 24GB (1000-based) or 4096")


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    found = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found and found[2] in units:
        value = Fraction(found[1]) * units[found[2]]
        if value >= 1 and value.denominator == 1:
            return int(value)
    raise BadInput(f"{text!r} is not {what}; write for example {example}")
