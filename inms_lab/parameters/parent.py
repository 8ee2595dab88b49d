"""The creator's side: the line to the nursery, and each agent's line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import cloudpickle

from inms_lab.errors import AgentClosed, AgentDied, InmsError, NotEnoughMemory
from inms_lab.leases import Row
from inms_lab.parameters import child
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import Memory
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.travel import packed
from inms_lab.parameters.versions import Delta, Version

_Asked = tuple[Future[Any], bytes, list[int]]  # who waits, the message, the files behind it


class NurseryLine:
    """A nursery's process, started, and the connection to it; for any thread."""

    def __init__(
        self,
        layout: Layout,
        make: Callable[[], Any],
        settings: Settings,
        version: Version,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "inms_lab.parameters.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt of the notebook is not meant for it
            )
        self._line, self._lock = Connection(ours.detach()), threading.Lock()
        self._broken = False
        about, memories = packed(version)
        about |= {"layout": layout, "make": make, "settings": settings}
        try:
            self._line.send(sys.path)  # first of all: functions come by the names of their modules
            self._tell(cloudpickle.dumps(about), memories)
            self.address = self._answer()
        except BaseException:
            self.close()
            self.process.wait()
            raise

    @property
    def lost(self) -> bool:
        """Whether its process has gone: nothing can be asked of it any more."""
        return self._broken or self.process.poll() is not None

    def fork(self, name: str, threads: int, seed: int) -> tuple[Connection, int, int]:
        """A new agent with the newest version: its line, pid and epoch."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            asked = cloudpickle.dumps(("fork", {"name": name, "threads": threads, "seed": seed}))
            self._tell(asked, [theirs.fileno()])
            pid, epoch = self._answer()
        return Connection(ours.detach()), pid, epoch

    def lay(self, version: Version) -> None:
        """Agents that are made from now on have this version."""
        about, memories = packed(version)
        with self._lock:
            self._tell(cloudpickle.dumps(("lay", {"about": about})), memories)
            self._answer()

    def ask(self, verb: str, **fields: Any) -> Any:
        """Any other request."""
        with self._lock:
            self._tell(cloudpickle.dumps((verb, fields)), [])
            return self._answer()

    def rows(self) -> list[Row]:
        """All leases by epoch, the newest of those that have ended too."""
        return [] if self.lost else list(self.ask("rows"))

    def close(self) -> None:
        """Leave it; it goes when its agents have gone."""
        self._line.close()

    def _tell(self, message: bytes, handles: list[int]) -> None:
        try:
            self._line.send_bytes(message)
            for handle in handles:
                reduction.send_handle(self._line, handle, self.process.pid)
        except OSError as error:
            raise self._gone() from error

    def _answer(self) -> Any:
        try:
            kind, value = self._line.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if kind == "ok":
            return value
        if kind == "system":
            raise NotEnoughMemory(f"no further process can be had: {value}")
        raise value

    def _gone(self) -> AgentDied:
        self._broken = True
        return AgentDied(
            "the process that agents are forked from is gone: agents that run go on, and the next "
            "new agent starts another one"
        )


class AgentProcess:
    """An agent in a process of its own, with the weights mapped privately; made by
    `SharedParameters.agent`. It does one thing after the other; any thread may ask."""

    def __init__(
        self, name: str, nursery: NurseryLine, threads: int, seed: int, version: Version
    ) -> None:
        self.name, self._nursery = name, nursery
        self.base, self.address = version, nursery.address
        self._line, self.pid, self.epoch = nursery.fork(name, threads, seed)
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        # A daemon: whoever leaves without waiting for an answer is not held up by it.
        threading.Thread(target=self._serve, name=f"inms-{name}", daemon=True).start()
        self.closed = False

    def __repr__(self) -> str:
        return f"<agent process {self.name}, pid {self.pid}, version {self.base.number}>"

    def run(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`act(model, *args, **kwargs)` there; what it returns or raises comes back, copied. An
        interrupt meanwhile interrupts it there.

        Raises `AgentDied` if its process ends before it has answered, `AgentClosed` after `close`.
        """
        return self._wait(self.start(act, *args, **kwargs))

    def start(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """The same without waiting."""
        return self._start(child.OnModel(act), *args, **kwargs)

    def delta(self) -> Delta:
        """The pages that it has changed, sealed as they are now."""
        base, pages, written, handle = self._wait(self._start(child.take_delta))
        return Delta(base, pages, Memory(handle), written)

    def discard(self) -> None:
        """Take its changes back: its pages are free, and it has its version's weights again."""
        self._wait(self._start(child.discard))

    def move(self, version: Version, *, discard: bool = False) -> None:
        """Go to another version. Raises `BranchRefused` if it has changes, unless they are to be
        thrown away."""
        about, memories = packed(version)
        self._wait(self._start(child.move, about, discard, handles=memories))
        self.base = version

    def interrupt(self) -> None:
        """What it does now ends, with KeyboardInterrupt."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """It ends now; whoever waits for it gets `AgentDied`."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """It ends when it has done what it was asked; what it changed is gone with it."""
        if not self.closed:
            self.closed = True
            self._asked.put(None)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, act: Callable[..., Any], *args: Any, handles: list[int] | None = None, **kwargs: Any
    ) -> Future[Any]:
        if self.closed:
            raise AgentClosed(f"{self.name} is closed: make a new agent")
        answer: Future[Any] = Future()
        self._asked.put((answer, cloudpickle.dumps((act, args, kwargs)), handles or []))
        return answer

    def _serve(self) -> None:
        """What is asked goes to the process one by one, on a thread of its own."""
        while (asked := self._asked.get()) is not None:
            answer, message, handles = asked
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._ask(message, handles))
                except BaseException as error:
                    answer.set_exception(error)
        self._line.close()

    def _wait(self, answer: Future[Any]) -> Any:
        try:
            return answer.result()
        except KeyboardInterrupt:
            if not answer.done():
                self.interrupt()
            raise

    def _ask(self, asked: bytes, handles: list[int]) -> Any:
        try:
            self._line.send_bytes(asked)
            for handle in handles:
                reduction.send_handle(self._line, handle, self.pid)
            kind, value = cloudpickle.loads(self._line.recv_bytes())
            if kind == "handle":
                return *value, reduction.recv_handle(self._line)
        except (EOFError, OSError) as error:
            raise AgentDied(f"{self.name} (pid {self.pid}) has died: {self._why()}") from error
        if kind == "ok":
            return value
        raised, text = value
        raised.add_note(f"in agent {self.name}:\n{text}")
        raise raised

    def _why(self) -> str:
        with suppress(InmsError):
            for row in self._nursery.rows():
                if row.epoch == self.epoch and row.cause:
                    return row.cause
        return "nobody saw of what"
