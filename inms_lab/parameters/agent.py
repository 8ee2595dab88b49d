"""An agent in a process of its own, as its creator has it: a line to ask it on."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import reduction
from queue import SimpleQueue
from typing import Any

import cloudpickle

from inms_lab.errors import AgentClosed, AgentDied, BadInput, InmsError
from inms_lab.parameters import child, kernel, lines
from inms_lab.parameters.host import MIB
from inms_lab.parameters.parent import NurseryLine
from inms_lab.parameters.region import Memory
from inms_lab.parameters.travel import file_from, packed
from inms_lab.parameters.versions import Delta, Version

_LINES = itertools.count(1)
_Asked = tuple[Future[Any], bytes, list[int]]  # who waits, the message, the files behind it


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
        self._door, self._creator = threading.Lock(), os.getpid()  # who asks comes before the end
        # A daemon: whoever leaves without waiting for an answer is not held up by it.
        threading.Thread(target=self._serve, name=f"inms-{name}", daemon=True).start()
        self.closed = False

    def __repr__(self) -> str:
        return f"<agent process {self.name}, pid {self.pid}, version {self.base.number}>"

    def __reduce__(self) -> Any:
        raise BadInput(
            f"{self.name} is a process and cannot be sent to one: pass what is needed of it, or an "
            "end of a line (line_to)"
        )

    @property
    def lives(self) -> bool:
        """Whether its process is there and it was not closed."""
        return not self.closed and kernel.lives(self.pid)

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
        base, of, pages, written, handle = self._wait(self._start(child.take_delta))
        return Delta(base, of, pages, Memory(handle), written)

    def discard(self) -> None:
        """Take its changes back: its pages are free, and it has its version's weights again."""
        self._wait(self._start(child.discard))

    def move(self, version: Version, *, discard: bool = False) -> None:
        """Go to another version. Raises `BranchRefused` if it has changes, unless they are to be
        thrown away, `BadInput` for a version of other weights; it has what it had then."""
        if not isinstance(version, Version):
            raise BadInput(
                f"an agent moves to a version, as params.version is one, not {version!r}"
            )
        about, memories = packed(version)
        self._wait(self._start(child.move, about, discard, handles=memories))
        self.base = version

    def line_to(self, other: AgentProcess, budget: int = 256 * MIB) -> tuple[lines.End, lines.End]:
        """A line from this agent to another: what it gets as its `Outbox`, and the other as its
        `Inbox`, when they are passed to `run`. `budget`: see `Outbox`. Both must be at rest.

        Raises `BadInput`, `AgentDied`, `AgentClosed`.
        """
        if not isinstance(other, AgentProcess) or other is self:
            raise BadInput(f"a line goes from {self.name} to another agent, not to {other!r}")
        number = next(_LINES)
        ends = lines.End(number, self, lines.OUTBOX), lines.End(number, other, lines.INBOX)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asked = [other._start(lines.keep_inbox, number, handles=[theirs.fileno()])]
            try:
                args = (lines.keep_outbox, number, budget)
                asked.append(self._start(*args, handles=[ours.fileno()]))
                for one in asked:
                    one.result()
            except BaseException:  # who waits still for its end gets none, who has it drops it
                for one in asked:
                    one.cancel()
                for end in ends:
                    end.close()
                raise
        return ends

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
        with self._door:
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
        if os.getpid() != self._creator:
            raise BadInput(f"{self.name} answers the process that has made it, and no child of it")
        answer: Future[Any] = Future()
        message = cloudpickle.dumps((act, args, kwargs))
        with self._door:
            if self.closed:
                raise AgentClosed(f"{self.name} is closed: make a new agent")
            # Files of its own: whoever asks may close theirs before they are sent.
            self._asked.put((answer, message, [os.dup(handle) for handle in handles or []]))
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
            for handle in handles:
                os.close(handle)
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
                return *value, file_from(self._line)
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
