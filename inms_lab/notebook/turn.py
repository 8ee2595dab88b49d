"""Whether a turn of the conversation is still open, and what closes it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from inms_lab.notebook.text import Text
from inms_lab.serving.request import Request


class Turn:
    """`ended`: None, no turn is open; True, it ended by itself (its end token is there)."""

    def __init__(self, text: Text, ended: bool | None = None) -> None:
        self.text, self.ended = text, ended

    def close_before(self, request: Request) -> None:
        """Let `request` close the open turn first. It is asked when the request enters, for only
        then is it known how the last turn ended; if the request is refused, the turn stays open."""
        entered: list[bool | None] = []

        def close() -> list[int]:
            entered.append(self.ended)
            ended, self.ended = self.ended, None
            return [] if ended is None else self.text.close_turn(ended)

        def undo(future: Future[Any]) -> None:
            if entered and not request.target and not _succeeded(future):
                self.ended = entered[0]

        request.before = close
        request.future.add_done_callback(undo)

    def open_with(self, request: Request, role: str | None) -> None:
        """`request` generates a turn of `role` (None: text outside any turn)."""

        def done(future: Future[Any]) -> None:
            if _succeeded(future):
                self.ended = future.result()[-1] in self.text.stop_tokens if role else None
            elif request.target:  # stopped half-way: the turn stands open in the context
                self.ended = False if role else None

        request.future.add_done_callback(done)


def _succeeded(future: Future[Any]) -> bool:
    return not future.cancelled() and future.exception() is None
