"""What options of measurements have in common."""

from __future__ import annotations

from inms_lab.errors import BadInput
from inms_lab.sizes import parse_tokens


def numbers(name: str, text: str) -> list[int]:
    """`1,2,4k` as whole numbers; `name` is the option's. Raises `BadInput`."""
    try:
        return [parse_tokens(part) for part in text.split(",")]
    except BadInput:
        raise BadInput(f"--{name} {text!r} is no list of numbers: write for example 1,2k") from None
