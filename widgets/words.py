"""The string table: everything that a view says, in English and in Simplified Chinese."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from inms_lab.errors import BadInput

LANGUAGES = ("en", "zh")
Tell = Callable[..., str]


@cache
def strings() -> dict[str, tuple[str, str]]:
    """Key -> (English, Simplified Chinese); {0}, {1} stand for values."""
    table = json.loads((Path(__file__).parent / "strings.json").read_text("utf-8"))
    return {key: (row[0], row[1]) for key, row in table.items()}


def check_language(lang: str) -> None:
    """Raises for a language that the views do not speak."""
    if lang not in LANGUAGES:
        raise BadInput(f"the views speak {' and '.join(LANGUAGES)}, not {lang!r}")


def teller(lang: str = "en") -> Tell:
    """A function from a key, and what its {0}, {1} stand for, to words in this language."""
    check_language(lang)
    column, table = LANGUAGES.index(lang), strings()

    def tell(key: str, *values: object) -> str:
        text = table[key][column]
        for number, value in enumerate(values):
            text = text.replace(f"{{{number}}}", str(value))
        return text

    return tell
