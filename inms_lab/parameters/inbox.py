"""The receiving end of a line of messages: it maps what comes, privately, and copies nothing."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from inms_lab.errors import AgentDied, MessageRefused, NotEnoughMemory
from inms_lab.parameters import kernel
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.messages import LIMIT, on_buffer, require_safe, understood
from inms_lab.parameters.postbox import BLOCK, HEAD, MOST_CELLS, NO_CELL, NUMBER, taken_over
from inms_lab.parameters.region import Memory, Piece, View

PATIENCE = 10  # seconds for the rest of a message that has begun
_NO_HEIRS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # programs that are started do not get the files
_ONE_FILE = socket.CMSG_LEN(struct.calcsize("i"))


class _Held:
    """A memory that came, mapped privately, who uses it, and what was told of it last."""

    def __init__(self, memory: Memory) -> None:
        self.num_bytes = memory.num_bytes
        self.view = View(self.num_bytes)
        self._pieces = [Piece(0, self.num_bytes, memory)]
        self.view.lay(self._pieces)
        self._user: weakref.ref[Any] | None = None
        self.number = 0  # of the message on it; 0 once its sender was told that it is let go
        self._told, self._layout = b"", Layout({}, {})
        self._made: tuple[Any, dict[str, torch.Tensor]] | None = None

    @property
    def in_use(self) -> bool:
        """Whether a tensor of the last message is still there."""
        return self._user is not None and self._user() is not None

    def tensors(self, told: bytes, let_go: Callable[[Any], None] | None) -> dict[str, torch.Tensor]:
        """Tensors on it as they are described; `let_go` is called when the last of them is gone."""
        if told != self._told:
            self._layout, self._told = understood(told, self.num_bytes), told
            self._made = None
        if self._made is None:
            self.prepare()
        assert self._made is not None
        (buffer, tensors), self._made = self._made, None
        self._user = weakref.ref(buffer, let_go)
        return tensors

    def prepare(self) -> None:
        """Make the tensors of a message like the last one, before it comes."""
        buffer = self.view.bytes_at(0, self.num_bytes)
        self._made = buffer, on_buffer(buffer, self._layout)

    def clean(self) -> None:
        """Give pages back that were written here, for the next message to be seen."""
        states = kernel.page_states("self", self.view.address, self._layout.num_bytes)
        if states is None or (states >= kernel.PRIVATE).any():
            self.view.lay(self._pieces)


class Inbox:
    """The receiving end; it takes the line over. For one thread at a time, of one process.

    Tensors may be let go in any thread. A child that this process forks must copy what it wants to
    keep of them: the memory is used again when this process has let them go.

    An interrupt while nothing comes takes nothing off the line; one in mid-message closes it. One
    that comes just when tensors are let go is lost: Python ignores what is raised there.
    """

    def __init__(self, line: Connection | socket.socket) -> None:
        self._socket = taken_over(line)
        patience = struct.pack("@ll", PATIENCE, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._cells: dict[int, _Held] = {}
        self._let_go_of: list[_Held] = []  # cells whose next message is not prepared

    def receive(self, timeout: float | None = None) -> dict[str, torch.Tensor] | None:
        """The next message's tensors by name, in its sender's memory; None if none comes in so many
        seconds. Who writes to them gets pages of its own, and nobody else sees it.

        Raises `AgentDied` if the sender has ended, `MessageRefused` for what is no message,
        `NotEnoughMemory` if no more files can be open.
        """
        if self._socket.fileno() < 0:
            raise AgentDied("this inbox is closed, or its sender has ended: make a new line")
        for known in self._cells.values():
            if known.number and not known.in_use:  # an interrupt came before its sender was told
                self._let_go(os.getpid(), known, known.number, None)
        while self._let_go_of:
            self._let_go_of.pop().prepare()
        if not self._comes(timeout):
            return None
        number, cell, gone, told, memory = self._taken()
        for one in gone:
            self._cells.pop(one, None)
        held = self._cells.get(cell) if memory is None else self._mapped(cell, memory)
        if held is None:
            raise MessageRefused("a message came without its memory: the sender must send it anew")
        if held.in_use:
            raise MessageRefused("a message lies where one lies that is still read: it is refused")
        if cell == NO_CELL:
            return held.tensors(told, None)
        held.number = number
        return held.tensors(told, partial(self._let_go, os.getpid(), held, number))

    def close(self) -> None:
        """Take no more; tensors that came stay as they are, and what nobody uses is unmapped."""
        self._socket.close()
        self._cells.clear()
        self._let_go_of.clear()

    def fileno(self) -> int:
        """For `select`: readable when a message has come, or the sender has gone."""
        return self._socket.fileno()

    def _comes(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1000 * timeout))

    def _taken(self) -> tuple[int, int, bytes, bytes, Memory | None]:
        """A message off the line: number, cell, cells that are gone, description, memory."""
        try:
            raw, extra, flags, _ = self._socket.recvmsg(BLOCK, _ONE_FILE, _NO_HEIRS)
            files = [data for _, kind, data in extra if kind == socket.SCM_RIGHTS]
            memory = Memory(struct.unpack("i", files[0])[0]) if files else None
            raw += self._exactly(BLOCK - len(raw))
            number, cell, num_gone, length = HEAD.unpack_from(raw)
            if not NO_CELL <= cell < MOST_CELLS or num_gone > MOST_CELLS or length > LIMIT:
                raise MessageRefused("this line speaks something else: an Inbox needs an Outbox")
            start, stop = HEAD.size + num_gone, HEAD.size + num_gone + length
            raw += self._exactly(stop - len(raw))
        except (EOFError, OSError) as error:
            self.close()
            why = "hangs" if isinstance(error, BlockingIOError) else "has ended"
            raise AgentDied(f"the sender {why}: nothing more will come on this line") from error
        except BaseException:  # where the next message begins nobody knows
            self.close()
            raise
        if flags & socket.MSG_CTRUNC and memory is None:
            raise NotEnoughMemory(
                "no more files can be open here: let messages go, or raise the limit (`ulimit -n`)"
            )
        return number, cell, raw[HEAD.size : start], raw[start:stop], memory

    def _exactly(self, length: int) -> bytes:
        parts = b""
        until = time.monotonic() + PATIENCE
        while len(parts) < length:
            part = self._socket.recv(length - len(parts))
            if not part:
                raise EOFError
            if time.monotonic() > until:
                raise BlockingIOError
            parts += part
        return parts

    def _mapped(self, cell: int, memory: Memory) -> _Held:
        require_safe(memory)
        held = _Held(memory)
        if cell == NO_CELL:
            memory.close()  # mapped, it stays
        else:
            self._cells[cell] = held
        return held

    def _let_go(self, pid: int, held: _Held, number: int, _: object) -> None:
        """All tensors of a message are gone; those that a forked child inherited do not count."""
        if pid != os.getpid() or self._socket.fileno() < 0:
            return
        held.clean()
        self._let_go_of.append(held)
        with contextlib.suppress(OSError):  # the sender has gone
            self._socket.send(NUMBER.pack(number), socket.MSG_DONTWAIT)
        if held.number == number:  # a next one may lie there by now
            held.number = 0
