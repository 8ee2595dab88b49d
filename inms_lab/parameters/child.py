"""An agent's process, from its fork to its end: it does what its creator asks, one thing after the
other, and beats meanwhile. When nobody can ask any more it ends."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch

from inms_lab.errors import BadInput, BranchRefused, InmsError
from inms_lab.parameters.region import Memory, View
from inms_lab.parameters.travel import unpacked
from inms_lab.parameters.versions import Version, delta


@dataclass
class Me:
    """What an agent is: its model lies in its view of a version."""

    name: str
    model: torch.nn.Module
    view: View
    base: Version
    line: Connection
    busy: bool = False  # it does something, which may be interrupted; reading its line may not


class WithHandle(tuple[Any, ...]):
    """An answer whose last part is a memory: it travels as an open file."""


class OnModel:
    """A function of the model as a function of the agent."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, me: Me, *args: Any, **kwargs: Any) -> Any:
        return self.act(me.model, *args, **kwargs)


def take_delta(me: Me) -> WithHandle:
    """What it has changed."""
    found = delta(me.view, me.base)
    return WithHandle((found.base, found.of, found.pages, found.written, found.memory))


def discard(me: Me) -> None:
    """Take its changes back."""
    _lay(me, me.base)


def move(me: Me, about: dict[str, Any], throw_away: bool) -> None:
    """Go to another version."""
    version = unpacked(about, me.line)
    if version.origin != me.base.origin:
        raise BadInput(f"version {version.number} is one of other weights than {me.name} has")
    if not throw_away and len(delta(me.view, me.base).pages):
        raise BranchRefused(
            f"{me.name} has changed its weights: merge or discard that first, or move with "
            "discard=True"
        )
    _lay(me, version)
    me.base = version


def _lay(me: Me, version: Version) -> None:
    """All of it, or what it had: an agent with half a version must not go on."""
    try:
        me.view.lay(version.pieces)
    except InmsError:
        try:
            me.view.lay(me.base.pieces)
        except InmsError:
            os._exit(1)
        raise


def live(me: Me, beats: int, interval: float, seed: int) -> int:
    """Serve its line until that ends; gives the exit code."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    gc.enable()

    def interrupted(*_: Any) -> None:
        if me.busy:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    threading.Thread(target=_beat, args=(beats, interval), name="inms-beat", daemon=True).start()
    pipe = [beats]

    def forked() -> None:
        """A child of the agent's own holds neither its line nor its pipe: their ends tell of it."""
        me.line.close()
        while pipe:
            os.close(pipe.pop())

    os.register_at_fork(after_in_child=forked)
    while True:
        try:
            asked = me.line.recv_bytes()
        except (EOFError, OSError):
            return 0
        try:
            _send(me, _done(me, asked))
        except OSError:
            return 0


def _done(me: Me, asked: bytes) -> tuple[bytes, Memory | None]:
    try:
        act, args, kwargs = cloudpickle.loads(asked)
        me.busy = isinstance(act, OnModel)  # all else is done whole, whatever comes
        answer = act(me, *args, **kwargs)
        me.busy = False
        if isinstance(answer, WithHandle):
            return cloudpickle.dumps(("handle", tuple(answer[:-1]))), answer[-1]
        return cloudpickle.dumps(("ok", answer)), None
    except BaseException as error:
        me.busy = False
        return _error(error), None


def _send(me: Me, reply: tuple[bytes, Memory | None]) -> None:
    me.line.send_bytes(reply[0])
    if reply[1] is not None:
        reduction.send_handle(me.line, reply[1].fd, os.getppid())


def _error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    if isinstance(error, SystemExit):
        error = RuntimeError(f"it called exit ({error.code}), which agents do not")
    try:
        told = cloudpickle.dumps(("error", (error, text)))
        cloudpickle.loads(told)
    except Exception:  # an exception that cannot travel
        told = cloudpickle.dumps(("error", (RuntimeError(repr(error)), text)))
    return bytes(told)


def _beat(beats: int, interval: float) -> None:
    waits = threading.Event()
    try:
        while os.write(beats, b"."):
            waits.wait(interval)
    except OSError:
        pass  # the nursery has gone; who asks for work is the creator
