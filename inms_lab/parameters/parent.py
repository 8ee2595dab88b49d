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
        self._broken = self._halfway = False
        self._unheard = 0  # answers that somebody did not wait for
        about, memories = packed(version)
        about |= {"layout": layout, "make": make, "settings": settings}
        try:
            self._line.send(sys.path)  # first of all: functions come by the names of their modules
            self.address = self._exchange(cloudpickle.dumps(about), memories)
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
        with ours, theirs:
            asked = cloudpickle.dumps(("fork", {"name": name, "threads": threads, "seed": seed}))
            pid, epoch = self._exchange(asked, [theirs.fileno()])
            return Connection(ours.detach()), pid, epoch

    def lay(self, version: Version) -> None:
        """Agents that are made from now on have this version."""
        about, memories = packed(version)
        self._exchange(cloudpickle.dumps(("lay", {"about": about})), memories)

    def ask(self, verb: str, **fields: Any) -> Any:
        """Any other request."""
        return self._exchange(cloudpickle.dumps((verb, fields)), [])

    def rows(self) -> list[Row]:
        """All leases by epoch, the newest of those that have ended too."""
        return [] if self.lost else list(self.ask("rows"))

    def close(self) -> None:
        """Leave it; it goes when its agents have gone."""
        self._line.close()
        threading.Thread(target=self.process.wait, name="inms-reap", daemon=True).start()

    def _exchange(self, message: bytes, handles: list[int]) -> Any:
        """A request and its answer, one at a time. Whoever is interrupted while the answer is on
        its way leaves it to the next one, who drops it."""
        with self._lock:
            if self._broken or self._halfway:
                raise self._gone()
            try:
                while self._unheard:
                    self._heard()
                self._halfway = True  # who is interrupted now has cut a message: nothing is sure
                self._line.send_bytes(message)
                for handle in handles:
                    reduction.send_handle(self._line, handle, self.process.pid)
                self._unheard += 1
                self._halfway = False
                kind, value = self._heard()
            except (EOFError, OSError) as error:
                raise self._gone() from error
        if kind == "ok":
            return value
        if kind == "system":
            raise NotEnoughMemory(f"no further process can be had: {value}")
        raise value

    def _heard(self) -> Any:
        self._line.poll(None)
        self._halfway = True
        answer = self._line.recv()
        self._unheard -= 1
        self._halfway = False
        return answer

    def _gone(self) -> AgentDied:
        self._broken = True
        self._line.close()
        return AgentDied(
            "the process that agents are forked from is gone: agents that run go on, and the next "
            "new agent starts another one"
        )
