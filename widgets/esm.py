"""The dashboard's browser code as one module: its files joined, without a bundler.

Each file in `js/` is a module that node can import by itself. Here their imports of each other fall
away, `export` stays only in the last one, and a view gets the files of its own parts only. Strings
travel beside the code.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from rjsmin import jsmin

HERE = Path(__file__).parent
PARTS = {  # part -> (its file, its function)
    "bar": ("bar", "bar"),
    "timeline": ("timeline", "timeline"),
    "map": ("map", "blockMap"),
    "detail": ("detail", "detail"),
    "decision": ("stepper", "stepper"),
    "agents": ("agents", "agents"),
    "table": ("table", "table"),
}
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_PARTS = re.compile(r"^const PARTS = \{.*\};$", re.MULTILINE)


@cache
def strings() -> dict[str, tuple[str, str]]:
    """The string table: key -> (English, Simplified Chinese); {0}, {1} stand for values."""
    table = json.loads((HERE / "strings.json").read_text("utf-8"))
    return {key: (row[0], row[1]) for key, row in table.items()}


@cache
def esm(parts: tuple[str, ...] = tuple(PARTS)) -> str:
    """The module's source, for these parts."""
    files = [PARTS[part][0] for part in PARTS if part in parts]
    sources = [_source(name) for name in ("wire", "fold", "hub", *files)]
    table = ",".join(f"{part}:{PARTS[part][1]}" for part in PARTS if part in parts)
    main = _PARTS.sub(f"const PARTS = {{{table}}};", _IMPORT.sub("", _read("js/main.js")))
    return str(jsmin("".join((*sources, main))))


@cache
def css(parts: tuple[str, ...] = tuple(PARTS)) -> str:
    """The style sheets of these parts, joined."""
    files = [PARTS[part][0] for part in PARTS if part in parts]
    return "".join(_read(f"css/{name}.css") for name in ("base", *files))


def _source(name: str) -> str:
    return _EXPORT.sub("", _EXPORT_LIST.sub("", _IMPORT.sub("", _read(f"js/{name}.js"))))


def _read(path: str) -> str:
    return (HERE / path).read_text("utf-8")
