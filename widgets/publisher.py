"""The pump between a lab and a view of it: a thread of its own that reads the log and sends.

The engine never waits for a viewer: the pump only reads the log, some times a second, and sends
what the viewer lacks as numbered messages, at most two of them unacknowledged. A viewer that is
silent (a busy kernel does not hear its acknowledgements; perhaps nobody looks at all) is sent to
more rarely. What goes wrong here is counted and shown in the view; it never reaches the engine.
"""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from inms_lab.errors import InmsError
from inms_lab.logs.log import Log
from inms_lab.notebook.lab import Lab
from inms_lab.terminal.launch import first_picture

from .answers import Answers
from .feed import MOST_EVENTS, Feed, Message, Position

PERIOD = 0.08  # seconds between two looks at the log
PATIENCE = 0.25  # seconds until an unacknowledged message no longer holds back the next
MOST_UNACKED = 2
MOST_AT_ONCE = 65_536  # events of a finished log in one message
PINGS = 5  # times that a viewer which fell silent is told how far the log is

Send = Callable[[dict[str, Any], list[bytes]], None]


class Publisher:
    """Sends one viewer the log of `lab` (or a finished `log`) through `send`."""

    def __init__(self, log: Log, send: Send, lab: Lab | None = None, problem: str = "") -> None:
        self.feed, self.log, self.send = Feed(log), log, send
        self.answers = Answers(log)
        self.position = Position()
        self.num_sent = self.num_failures = self.num_pings = 0
        self.seconds = 0.0  # of this thread's work, all in all
        self.error: BaseException | None = None  # the first that was contained
        self.closed, self.problem = False, problem
        self._lab: Callable[[], Lab | None] = weakref.ref(lab) if lab is not None else lambda: None
        # larger messages where no engine shares this process's time
        self._most = MOST_EVENTS if lab is not None else MOST_AT_ONCE
        self._unacked: dict[int, float] = {}  # number of a message -> when it was sent
        self._have = 0  # events that the viewer has said it has
        self._status: dict[str, Any] = {}
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._main, name="inms-view", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Stop sending; returns at once."""
        self.closed = True
        self._wake.set()

    def receive(self, message: dict[str, Any]) -> None:
        """What the viewer says. Only queued here: this may be any thread, in any state. What is no
        message of ours is left alone."""
        if isinstance(message, dict) and isinstance(message.get("kind"), str):
            self._inbox.put(message)
            self._wake.set()

    def status(self) -> dict[str, Any]:
        """What the view shows of the lab itself."""
        lab = self._lab()
        state = "closed" if lab is None else lab.controls.state
        status: dict[str, Any] = {"state": state, "failed_updates": self.num_failures}
        if lab is not None:
            status["speed"] = lab.controls.steps_per_second
            if lab.controls.error is not None:
                status["problem"] = str(lab.controls.error)
            if lab.violation is not None:  # in the page's own language, and for as long as it is so
                status["problem"] = ["read_only", lab.violation.at, lab.violation.fault]
        if self.problem:
            status["problem"] = self.problem
        if self.error is not None:
            status["problem"] = f"{type(self.error).__name__}: {self.error}"
        return status

    def next(self) -> Message:
        """The next message; an empty one, where there is nothing new, says how far the log is."""
        return self.feed.next(self.position, self._most)

    # on the pump's thread -------------------------------------------------------------------

    def _main(self) -> None:
        while not self.closed:
            self._wake.wait(None if self._is_at_rest() else PERIOD)
            self._wake.clear()
            started = time.perf_counter()
            try:
                self._turn()
            except Exception as error:  # a viewer's fault is not the engine's
                self._contain(error)
            self.seconds += time.perf_counter() - started
            time.sleep(PERIOD / 4)  # many messages of a viewer make one turn

    def _is_at_rest(self) -> bool:
        """Whether nothing can come but a message of the viewer: the lab is closed, all is sent."""
        lab = self._lab()
        over = lab is None or lab.closed
        return over and not self.feed.is_behind(self.position) and self.num_pings >= PINGS

    def _turn(self) -> None:
        while not self.closed:
            try:
                self._hear(self._inbox.get_nowait())
            except Empty:
                break
        now = time.monotonic()
        silent = self.num_sent > 10 and not self._have
        patience = 1.0 if silent else PATIENCE
        self._unacked = {n: t for n, t in self._unacked.items() if now - t < patience}
        while len(self._unacked) < MOST_UNACKED and not self.closed:
            status = self.status()
            behind = self.feed.is_behind(self.position)
            lost = not self._unacked and self._have < self.position.events
            pings = lost and self.num_pings < PINGS
            if not (behind or pings or status != self._status):
                break
            if not behind:
                self.num_pings += lost
            self._status = status
            self._publish(self.next(), status)

    def _publish(self, message: Message, status: dict[str, Any]) -> None:
        self.num_sent += 1
        self._unacked[self.num_sent] = time.monotonic()
        content = message.content | {"number": self.num_sent, "lab": status}
        self.send(content, message.buffers)
        if self.position.events and self.log.durations:
            first_picture()

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "ack":
            number, have = message.get("number"), message.get("have")
            if isinstance(number, int) and isinstance(have, int):
                self._unacked.pop(number, None)
                self._have = max(self._have, have)
            self.num_pings = 0 if self._have >= self.position.events else self.num_pings
        elif kind == "ready":
            self.position = _position(message, len(self.log))
            self._have, self._unacked, self.num_pings = self.position.events, {}, 0
            self._status = {}
        elif kind == "command":
            self._command(message)
        elif kind == "ask":
            self._answer(message)

    def _command(self, message: dict[str, Any]) -> None:
        lab = self._lab()
        buttons = {"run": (), "pause": (), "resume": (), "step": (), "speed": ("value",)}
        name = message.get("name")
        if lab is None or name not in buttons:
            return
        try:
            getattr(lab.controls, name)(*(message.get(field) for field in buttons[name]))
        except InmsError as error:
            self.send({"kind": "problem", "text": str(error)}, [])

    def _answer(self, message: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"kind": "answer", "id": message.get("id")}
        try:
            reply["value"] = self.answers.answer(message)
        except Exception as error:  # the viewer shows it
            reply["error"] = str(error) or type(error).__name__
            if not isinstance(error, InmsError):
                reply["error"] = "".join(traceback.format_exception_only(error)).strip()
        self.send(reply, [])

    def _contain(self, error: Exception) -> None:
        self.num_failures += 1
        if self.error is None:
            self.error = error
            lab = self._lab()
            if lab is not None:
                lab.engine.desk.hook_errors.append(error)


def _position(message: dict[str, Any], length: int) -> Position:
    """Where a viewer says it stands; whatever makes no sense is "at the beginning"."""
    names = {"have": "events", "strings": "strings", "tokens": "tokens", "pieces": "pieces"}
    values = {to: message.get(name, 0) for name, to in names.items()}
    values["decisions"] = message.get("decisions", 0)
    if not all(isinstance(v, int) and v >= 0 for v in values.values()) or values["events"] > length:
        return Position()
    return Position(**values, started=values["events"] > 0)
