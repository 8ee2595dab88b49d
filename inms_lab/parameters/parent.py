"""The creator's line to the nursery."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from inms_lab.errors import AgentDied, NotEnoughMemory
from inms_lab.leases import Row
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.travel import packed
from inms_lab.parameters.versions import Version


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
