"""A file of results that a run can be taken up from: a header, then one line a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput


class Lines:
    """Results by name; without a path they are kept in memory only.

    `header` is what the results depend on: a file with another one is refused, never mixed.
    """

    def __init__(self, path: str | Path | None, header: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.known: dict[str, Any] = {}
        if self.path is not None:
            self._open(self.path, json.loads(json.dumps(header)))

    def find(self, name: str) -> Any:
        """The result of this trial; None if it is not there."""
        return self.known.get(name)

    def append(self, name: str, result: Any) -> None:
        """One line more."""
        self.known[name] = result
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "result": result}) + "\n")

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = written[: written.rfind("\n") + 1]  # an interrupted run may leave half a line
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()] or [header]
            self.known = {line["name"]: line["result"] for line in lines}
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"{path} holds no results ({error}): give another file") from None
        if first != header:
            raise BadInput(
                f"{path} holds results of another model or with other settings ({first}): give"
                " another file, or delete this one"
            )
        path.write_text(whole or json.dumps(header) + "\n", encoding="utf-8")
