"""A client's connection: a thread that sends, hears and beats, whatever the program does meanwhile.

Only that thread touches the socket, so an interrupt of the program cuts no message in two. After a
`fork` the child has no such thread, and closes its copy of the socket: nobody beats for others.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from inms_lab.errors import InmsError, LabUnreachable, MessageRefused
from inms_lab.leases import BEATS
from inms_lab.remote import wire

PIECE = 1 << 16  # bytes read at once
PATIENCE = 2 * BEATS  # heartbeat intervals without an answer, then the lab is given up

_LINES: list[weakref.ref[Line]] = []


class Line:
    """Made with a connected socket. Requests of any thread are answered each to its asker."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._pid = sock, os.getpid()
        sock.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._lock = threading.Lock()
        self._out, self._in = bytearray(), bytearray()
        self._slots: dict[int, Callable[[tuple[str, Any]], None]] = {}  # who hears the answer
        self._id = 0
        self._error: list[str] | None = None  # why nothing can be asked any more
        self._interval = 0.0  # seconds between two beats; 0: not greeted yet
        self._beat_at = 0.0
        self._unheard = 0.0  # when the oldest beat without an answer was sent; 0: there is none
        self.beating: dict[int, int] = {}  # agent -> epoch
        _remember(self)
        threading.Thread(target=self._run, name="inms-lab-line", daemon=True).start()

    # the program's threads ------------------------------------------------------------------

    def ask(
        self,
        op: str,
        timeout: float | None = None,
        hear: Callable[[str], None] | None = None,
        to: Callable[[], dict[str, int]] = dict,
        **fields: Any,
    ) -> Any:
        """The answer to a request; raises the error that it is answered with, `LabUnreachable` if
        none can come any more, or none came in `timeout` seconds. `hear` gets pieces of text; `to`
        gives the fields that number a request, when it is its turn."""
        number, slot = self._put(op, to, fields)
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = None if until is None else max(0.0, until - time.monotonic())
                kind, value = slot.get(timeout=left)
                if kind == "ok":
                    return value
                if kind == "error":
                    raise wire.error_of(value)
                if hear is not None:
                    hear(value)
        except Empty:
            raise LabUnreachable(f"the lab's process did not answer within {timeout:g} s") from None
        finally:
            with self._lock:
                self._slots.pop(number, None)

    def tell(self, op: str, to: Callable[[], dict[str, int]]) -> None:
        """A request whose answer nobody wants."""
        with suppress(InmsError):
            number, _ = self._put(op, to, {})
            with self._lock:
                self._slots.pop(number, None)

    def greeted(self, interval: float) -> None:
        """From now on a beat goes out every `interval` seconds."""
        self._interval = interval
        self._poke()

    def end(self, error: InmsError) -> None:
        """Nothing is asked any more; whoever waits gets `error`."""
        self._fail(wire.told(error))
        self._poke()

    def close_copy(self) -> None:
        """In a forked child only: this process leaves the connection, which goes on."""
        for sock in (self._sock, self._wake, self._woken):
            sock.close()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and did not inherit it."""
        return os.getpid() == self._pid

    def _put(
        self, op: str, to: Callable[[], dict[str, int]], fields: dict[str, Any]
    ) -> tuple[int, SimpleQueue[tuple[str, Any]]]:
        if not self.is_ours:
            raise LabUnreachable(
                "this client was made before the process was forked, and belongs to the parent: "
                "call connect(...) in this process"
            )
        slot: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        with self._lock:
            if self._error is not None:
                raise wire.error_of(self._error)
            number = self._append(slot.put, op, to() | fields)
        self._poke()
        return number, slot

    def _append(
        self, hear: Callable[[tuple[str, Any]], None], op: str, fields: dict[str, Any]
    ) -> int:
        """Under the lock: one more line to send."""
        line = wire.encode({"id": self._id, "op": op, **fields})
        number, self._id = self._id, self._id + 1
        self._slots[number] = hear
        self._out += line
        return number

    def _poke(self) -> None:
        with suppress(OSError):  # full: it will wake; closed: it has ended
            self._wake.send(b"\0")

    # its own thread -------------------------------------------------------------------------

    def _run(self) -> None:
        why: InmsError = LabUnreachable("the lab's process is gone, or has closed this connection")
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                selector.register(self._sock, selectors.EVENT_READ)
                while self._error is None or self._out:
                    writes = selectors.EVENT_WRITE if self._out else 0
                    selector.modify(self._sock, selectors.EVENT_READ | writes)
                    for key, events in selector.select(self._patience()):
                        if key.fileobj is self._woken:
                            self._woken.recv(PIECE)
                        elif events & selectors.EVENT_READ and not self._read():
                            return
                        elif events & selectors.EVENT_WRITE:
                            self._send()
                    self._beat()
        except InmsError as error:
            why = error
        except OSError:
            pass  # the connection broke
        finally:
            self._fail(wire.told(why))
            for sock in (self._sock, self._wake, self._woken):
                sock.close()

    def _patience(self) -> float | None:
        return max(0.0, self._beat_at - time.monotonic()) if self._interval else None

    def _read(self) -> bool:
        data = self._sock.recv(PIECE)
        self._in += data
        *lines, rest = self._in.split(b"\n") if b"\n" in data else [self._in]
        self._in = rest
        for line in lines:
            self._hear(wire.decode(line))
        if len(self._in) > wire.LIMIT:
            raise MessageRefused("the lab's process sent a line that is longer than agreed")
        return bool(data)

    def _hear(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if number is None and "error" in message:
            self._fail(message["error"])
            return
        with self._lock:
            hear = self._slots.get(number) if type(number) is int else None
        if hear is not None:  # else: its asker waits no longer
            kind = next((k for k in ("ok", "error", "piece") if k in message), "error")
            hear((kind, message.get(kind)))

    def _send(self) -> None:
        with self._lock:
            sent = self._sock.send(memoryview(bytes(self._out[:PIECE])))
            del self._out[:sent]

    def _beat(self) -> None:
        now = time.monotonic()
        if not self._interval or now < self._beat_at:
            return
        silence = now - self._unheard
        if self._unheard and silence >= PATIENCE * self._interval:
            raise LabUnreachable(f"the lab's process has not answered for {silence:.1f} s")
        self._beat_at, self._unheard = now + self._interval, self._unheard or now
        mine = [[agent, epoch] for agent, epoch in list(self.beating.items())]
        with self._lock:  # one beat at least: its answer says that the lab lives
            for at in range(0, max(1, len(mine)), wire.MAX_AGENTS):
                agents = mine[at : at + wire.MAX_AGENTS]
                self._append(self._beaten, "beat", {"agents": agents})

    def _beaten(self, answer: tuple[str, Any]) -> None:
        """Those whose lease is lost are not beaten for any longer; their next request says why."""
        self._unheard = 0.0
        for agent, epoch in answer[1] if answer[0] == "ok" else ():
            if self.beating.get(agent) == epoch:
                del self.beating[agent]

    def _fail(self, error: Any) -> None:
        """Everybody who waits gets this error, and who asks later; the first one counts."""
        with self._lock:
            if self._error is None:
                self._error = error
            slots, self._slots = self._slots, {}
        for hear in slots.values():
            hear(("error", self._error))


def _remember(line: Line) -> None:
    if not _LINES and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_copies)
    _LINES[:] = [*(ref for ref in _LINES if ref() is not None), weakref.ref(line)]


def _close_copies() -> None:
    """In a forked child: the parent's end is seen at once, though the child lives on."""
    for line in filter(None, (ref() for ref in _LINES)):
        line.close_copy()
