"""What a view asks about one decision: its explanation, the code of its checks, a what-if. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from inms_lab.books.checks import CHECKS
from inms_lab.decisions.outcome import Decided
from inms_lab.decisions.policy import MODES
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain import Explainer, as_json, source_of
from inms_lab.hindsight.whatif import what_if
from inms_lab.logs.log import Log


class Answers:
    """Answers about one log. The explainer moves along with it, so questions in order are cheap."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._explainer: Explainer | None = None

    def answer(self, message: dict[str, Any]) -> Any:
        """The answer to a view's question, as plain data; `BadInput` for what is no question."""
        what = message.get("what")
        if what == "explain":
            decided = self.log.decision(message.get("number"))  # type: ignore[arg-type]
            return self.explain(decided, int(message["number"]))
        if what == "source":
            return source_of(int(message.get("check", 0)))
        if what == "whatif":
            size = message.get("block_size")
            comparison = what_if(
                self.log,
                self.log.decision(message.get("number")),  # type: ignore[arg-type]
                mode=message.get("mode") or None,
                block_size=int(size) if size else None,
                tier=message.get("tier") or None,
            )
            return as_json(comparison)
        raise BadInput(f"nothing is known about {what!r}")

    def explain(self, decided: Decided, number: int) -> dict[str, Any]:
        """A decision's explanation, with its number."""
        if self._explainer is None:
            self._explainer = Explainer(self.log)
        return {"number": number, **as_json(self._explainer.next(decided))}

    def what_ifs(self, decided: Decided) -> list[Any]:
        """The decision planned in the other modes, where the log lets them be derived."""
        out = []
        for mode in MODES:
            if mode != self.log.about.get("mode"):
                with suppress(BadInput):
                    out.append(as_json(what_if(self.log, decided, mode=mode)))
        return out

    def sources(self) -> dict[int, Any]:
        """The code of all checks."""
        return {number: source_of(number) for number in range(1, len(CHECKS) + 1)}
