"""Processes that hold agents of a lab in the test's process, for tests of how they come and go."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from toy import ToyModel

from inms_lab.attention.batch import Span
from inms_lab.config import Config
from inms_lab.errors import StepInterrupted
from inms_lab.notebook.lab import Lab

PATIENCE = 20.0  # seconds after which a test gives up waiting
BEAT = 0.25  # heartbeat interval of these labs, seconds
PROMPT = [1, 2, 3, 4, 5]


class SlowModel(ToyModel):
    """A step takes `delay` seconds, looks at `cancel` as a real one does, and fails if told to."""

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(50)
        self.delay, self.fails = delay, 0

    def forward(self, spans: list[Span], store: Any, tile: int, cancel: Any = None) -> Any:
        until = time.monotonic() + self.delay
        while time.monotonic() < until:
            time.sleep(0.001)
            if cancel is not None and cancel.is_set():
                raise StepInterrupted("stopped")
        if self.fails:
            self.fails -= 1
            raise ArithmeticError("the model failed")
        return super().forward(spans, store, tile, cancel)


def serving(delay: float = 0.0, preload: bool = True, **settings: Any) -> Lab:
    """A lab of a slow toy model, with a prompt and a team, that serves."""
    config = Config(4, 0, 64, 1000, 64, 4000, 4000, debug=True)
    lab = Lab(SlowModel(delay), config=config, gate=None, **{"heartbeat_interval": BEAT} | settings)
    if preload:
        lab.preload(PROMPT, progress=False)
    lab.group("team")
    lab.serve()
    return lab


def address(lab: Lab) -> str:
    """Where it serves."""
    assert lab.keeper.service is not None
    return lab.keeper.service.address


def held(lab: Lab) -> dict[str, int]:
    """Blocks that somebody holds, by pool."""
    return lab.look(lambda: {name: pool.num_held for name, pool in lab.engine.ledger.pools.items()})


def eventually(what: Callable[[], Any], seconds: float = PATIENCE) -> float:
    """Waits until `what()` is true; gives the seconds that it took."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, f"still not so after {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - started


HEAD = "import json, os, sys, time\nfrom inms_lab import connect\nlab = connect(sys.argv[1])\n"
TELL = (
    "def tell(value):\n    print(json.dumps(value), flush=True)\ndef told():\n"
    "    return json.loads(sys.stdin.readline())\n"
)


class Process:
    """A process that runs `code`: `lab` is a client there, `tell` and `told` talk to the test."""

    def __init__(self, where: str, code: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEAD + TELL + code, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._read = b""

    def hear(self) -> Any:
        """The next thing that it tells."""
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self._read:
                assert selector.select(PATIENCE), "the process says nothing"
                data = os.read(out.fileno(), 1 << 16)
                if not data:
                    assert self._process.stderr is not None
                    raise AssertionError(self._process.stderr.read().decode())
                self._read += data
        line, self._read = self._read.split(b"\n", 1)
        return json.loads(line)

    def say(self, value: Any) -> None:
        """What its next `told()` gives."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """A signal, e.g. SIGKILL."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Whatever it does, it ends."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
