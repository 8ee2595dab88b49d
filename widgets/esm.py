"""The dashboard's browser code as one module: its files joined, without a bundler.

Each file in `js/` is a module that node can import by itself. Here a part's files and what they
import are put one behind the other, imports and `export` fall away (but in the last file), and
comments and blanks are left out. Strings travel beside the code.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rjsmin import jsmin

from inms_lab.books.fingerprint import digest

HERE = Path(__file__).parent
PARTS = {  # part -> (its file, its function), in the order in which a dashboard shows them
    "bar": ("bar", "bar"),
    "timeline": ("timeline", "timeline"),
    "map": ("map", "blockMap"),
    "detail": ("detail", "detail"),
    "decision": ("stepper", "stepper"),
    "agents": ("agents", "agents"),
    "table": ("table", "table"),
}
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_FROM = re.compile(r'^import [^;]* from "\./(\w+)\.js";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_LOADER = """const load = model => (globalThis.inmsCode ??= {})["%s"] ??= (async () => {
  const url = URL.createObjectURL(new Blob([model.get("code")], { type: "text/javascript" }));
  try { return (await import(url)).default; } finally { URL.revokeObjectURL(url); }
})();
export default {
  initialize: async context => (await load(context.model)).initialize(context),
  render: async context => (await load(context.model)).render(context),
};
"""
# What ends with a brace ends there: every other statement in js/ has its semicolon.
_ENDS = re.compile(r"(?<=\S);\}|\}\n(?=\w)")
_PARTS = re.compile(r"^const PARTS = \{.*\};$", re.MULTILINE)


@cache
def esm(parts: tuple[str, ...] = tuple(PARTS), offline: bool = False) -> str:
    """The module's source, for these parts; `offline`: for a page without a kernel."""
    chosen = [PARTS[part] for part in PARTS if part in parts]
    names: list[str] = []
    for file in ("fold", "hub", *(file for file, _ in chosen)):
        _collect(file, names)
    sources = map(_inner, names)
    table = ",".join(f"{part}:{PARTS[part][1]}" for part in PARTS if part in parts)
    main = _PARTS.sub(f"const PARTS = {{{table}}};", _IMPORT.sub("", _read("js/main.js")))
    last = [_IMPORT.sub("", _read("js/offline.js"))] if offline else []
    return _ENDS.sub("}", str(jsmin("".join((*sources, main, *last)))))


@cache
def alone(name: str) -> str:
    """The source of a widget that is one file and what it imports."""
    names: list[str] = []
    _collect(name, names)
    main = _IMPORT.sub("", _read(f"js/{name}.js"))
    return _ENDS.sub("}", str(jsmin("".join((*map(_inner, names[:-1]), main)))))


@cache
def loader(parts: tuple[str, ...] = tuple(PARTS)) -> str:
    """A small module that loads the real one (the widget's trait `code`) once for a page.

    A module that a browser has loaded stays for ever; a cell that is run again makes a new widget.
    """
    return _LOADER % digest(b"code", esm(parts).encode()).hex()


@cache
def css() -> str:
    """The style sheets of all parts, joined: a page keeps one for all views."""
    return styles("base", *(file for file, _ in PARTS.values()))


def styles(*names: str) -> str:
    """Some style sheets, joined."""
    return "".join(_read(f"css/{name}.css") for name in names)


def _inner(name: str) -> str:
    """A file without its imports and without the word `export`."""
    return _EXPORT.sub("", _IMPORT.sub("", _read(f"js/{name}.js")))


def _collect(name: str, names: list[str]) -> None:
    """Put a file into `names` behind everything that it imports."""
    if name not in names:
        for wanted in _FROM.findall(_read(f"js/{name}.js")):
            _collect(wanted, names)
        names.append(name)


def _read(path: str) -> str:
    return (HERE / path).read_text("utf-8")
