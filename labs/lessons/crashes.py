"""Agents in processes of their own, to be killed, frozen and thawed by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from inms_lab.errors import BadInput
from inms_lab.notebook.lab import Lab

PATIENCE = 15.0  # seconds after which nothing is waited for any longer

# A frozen process cannot end by itself: on Linux the system ends it when we are killed.
WITH_US = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
"""


class AgentProcess:
    """A process that runs `program`, Python source. The program finds the address of the lab's
    service in `sys.argv[1]` and the agent's name in `sys.argv[2]`."""

    def __init__(self, program: str, address: str, name: str) -> None:
        self.name = name
        command = [sys.executable, "-c", WITH_US + program, address, name]
        pipe, both = subprocess.PIPE, subprocess.STDOUT  # its errors are heard as well
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=both, text=True)
        self._end = weakref.finalize(self, _end, self.process)  # at the latest when we end

    def hear(self) -> str:
        """The next line that the program prints; "" if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        """A line for the program to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it at once, as `kill -9`: it can do nothing more, not even say goodbye."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it where it stands, as a laptop that is closed. It keeps its connections."""
        self._signal("SIGSTOP")

    def thaw(self) -> None:
        """Let it go on, as if nothing had been."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        if not hasattr(signal, name):
            raise BadInput("this system cannot stop a process: run this part on Linux or macOS")
        self.process.send_signal(getattr(signal, name))

    def close(self) -> None:
        """Kill it if it still lives, and close its pipes."""
        self._end()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # it died with something unread
            pipe.close()


def num_held(lab: Lab, pool_id: str = "private") -> int:
    """The blocks of a pool that somebody holds now."""
    return lab.look(lambda: lab.engine.ledger.pools[pool_id].num_held)


def refcounts(lab: Lab, pool_id: str) -> list[int]:
    """The refcounts of a pool's held blocks, by block number."""
    refs = lab.look(lambda: dict(lab.engine.ledger.pools[pool_id].refs))
    return [refs[block] for block in sorted(refs)]


def wait_until(what: Callable[[], object]) -> float:
    """Wait until `what()` is true; gives the seconds that it took. Raises `TimeoutError`."""
    started = time.monotonic()
    while not what():
        if time.monotonic() - started > PATIENCE:
            raise TimeoutError(f"still not so after {PATIENCE:g} s")
        time.sleep(0.005)
    return time.monotonic() - started
