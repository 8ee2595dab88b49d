"""The sending end of a line that messages of tensors go over by reference, one way.

ours, theirs = socket.socketpair()              # or multiprocessing.Pipe()
out = Outbox(ours)                              # in one process
draft = out.draft({"kv": like}); draft.tensors["kv"].copy_(...); out.send(draft)
kv = Inbox(theirs).receive()["kv"]              # in the other; no byte was copied

A new memory for each message costs a hundred microseconds and a page fault for each 64 KiB, more
than copying a small one. So an outbox has *cells*: memories that both sides keep mapped, and that
are used again. A cell goes free -> drafted -> sent, and is free again when the receiver has let all
tensors of the message go and has said so (its acknowledgement: the message's number, 8 bytes).
"""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Connection

from inms_lab.errors import AgentDied, BadInput, MessageRefused
from inms_lab.parameters.host import MIB
from inms_lab.parameters.messages import LIMIT, Draft, Message, Sheet, Tensors, described

MOST_CELLS = 64  # and so as many acknowledgements under way: they always fit into the socket
SMALLEST = 64 << 10  # bytes of a cell
HEAD = struct.Struct("!QhBI")  # number, cell or NO_CELL, how many cells are gone, length; behind it
NO_CELL = -1  # the numbers of those cells, a byte each, and the description
BLOCK = 256  # bytes that what is sent has at least: a short description comes in one piece
NUMBER = struct.Struct("!Q")  # of a message, back from who has let it go


class Outbox:
    """The sending end; it takes the line over. For one thread at a time, of one process.

    `budget`: bytes that its cells may have together; messages that do not fit get a memory of their
    own each time, as do those that come while all cells are in use: sending never waits for a cell.

    Raises `BadInput`. An interrupt leaves each cell free or taken for good, and the line usable or
    closed; no message is ever written over.
    """

    def __init__(self, line: Connection | socket.socket, budget: int = 256 * MIB) -> None:
        if not isinstance(budget, int) or budget < 0:
            raise BadInput(f"a budget is 0 or more bytes, not {budget!r}")
        self._socket = taken_over(line)
        self.budget = budget
        self._cells: dict[int, Sheet] = {}
        self._known: set[int] = set()  # cells that the receiver has mapped
        self._gone: list[int] = []  # those that it may unmap, and does not know of yet
        self._sent: dict[int, int] = {}  # message -> its cell, until it is acknowledged
        self._heard = b""
        self.num_sent = self.num_memories = 0

    def draft(self, like: Tensors) -> Draft:
        """Tensors to be filled and sent: see `Draft`."""
        return Draft(like, self._sheet)

    def send(self, what: Tensors | Draft | Message) -> None:
        """Send a draft or a message without a copy, or tensors that lie elsewhere with one.

        Raises `AgentDied` if the receiver has ended, `BadInput`.
        """
        if isinstance(what, Message):
            self._tell(described(what.layout), what.memory.fd, NO_CELL)
            return
        if not isinstance(what, Draft):
            values, what = what, self.draft(what)
            what.fill(values)
        what.end()
        sheet = what.sheet
        cell = sheet.number if self._cells.get(sheet.number) is sheet else NO_CELL
        if cell == NO_CELL or sheet.in_use:  # who kept a tensor of it must not write to others
            sheet.give_up()
            self._drop_spent()
            cell = NO_CELL
        self._tell(what.told, sheet.memory.fd, cell)

    def close(self) -> None:
        """No more messages; who has some keeps them."""
        self._socket.close()
        self._cells.clear()

    def _tell(self, told: bytes, file: int, cell: int) -> None:
        if len(told) > LIMIT:
            raise BadInput(f"a description of {len(told):,} bytes is too long: send fewer tensors")
        if self._socket.fileno() < 0:
            raise AgentDied(
                "this outbox is closed (by an interrupt in mid-message?): make a new line"
            )
        number, gone = self.num_sent + 1, self._gone
        raw = HEAD.pack(number, cell, len(gone), len(told)) + bytes(gone) + told
        raw = raw.ljust(BLOCK, b"\0")
        self.num_sent = number
        if cell != NO_CELL:
            self._sent[number] = cell  # before it goes: an interrupt must not leave the cell free
        try:
            if cell in self._known:
                self._socket.sendall(raw)
            else:
                done = socket.send_fds(self._socket, [raw], [file])
                self._socket.sendall(raw[done:])
        except OSError as error:
            raise AgentDied(f"nobody receives at the other end ({error.strerror})") from error
        except BaseException:  # half of it may be under way
            self.close()
            raise
        self._gone = []
        if cell != NO_CELL:
            self._known.add(cell)

    def _sheet(self, num_bytes: int) -> Sheet:
        """A free cell for so many bytes, or a memory of its own."""
        self._hear()
        self._drop_spent()
        size = max(SMALLEST, 1 << (num_bytes - 1).bit_length())  # a message that grows fits as well
        sent = set(self._sent.values())
        free = [n for n, sheet in self._cells.items() if n not in sent and not sheet.in_use]
        if fits := [n for n in free if self._cells[n].num_bytes == size]:
            return self._cells[fits[0]]
        taken = sum(sheet.num_bytes for sheet in self._cells.values())
        while free and not self._has_room(taken + size):
            taken -= self._cells[free[0]].num_bytes
            self._drop(free.pop(0))
        self.num_memories += 1
        if not self._has_room(taken + size):
            return Sheet(num_bytes)
        number = next(n for n in range(MOST_CELLS) if n not in self._cells)
        self._cells[number] = Sheet(size, number)
        return self._cells[number]

    def _has_room(self, taken: int) -> bool:
        return taken <= self.budget and len(self._cells) < MOST_CELLS

    def _drop_spent(self) -> None:
        for number in [n for n, sheet in self._cells.items() if not sheet.writable]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        if number in self._known:  # first: after an interrupt no new cell may count as known
            self._known.remove(number)
            self._gone.append(number)
        del self._cells[number]

    def _hear(self) -> None:
        """Take acknowledgements. Once the line has ended no more can come, and the receiver may
        still read what it has: no cell is used again."""
        try:
            while heard := self._socket.recv(4096, socket.MSG_DONTWAIT):
                self._heard += heard
        except BlockingIOError:
            whole = len(self._heard) // NUMBER.size * NUMBER.size
            for (number,) in NUMBER.iter_unpack(self._heard[:whole]):
                if not 0 < number <= self.num_sent:
                    raise MessageRefused("the other end is no Inbox: give it one") from None
                self._sent.pop(number, None)  # after an interrupt it may come a second time
            self._heard = self._heard[whole:]
            return
        except OSError:
            pass
        self._cells.clear()


def taken_over(line: Connection | socket.socket) -> socket.socket:
    """A socket that passes files, for a line. Raises `BadInput`."""
    try:
        taken = socket.socket(fileno=os.dup(line.fileno()))
    except (OSError, AttributeError) as error:
        raise BadInput(
            "a line is an end of socket.socketpair() or multiprocessing.Pipe()"
        ) from error
    if taken.family != socket.AF_UNIX or taken.type != socket.SOCK_STREAM:
        taken.close()
        raise BadInput("open files travel over Unix stream sockets only: socket.socketpair()")
    taken.setblocking(True)
    line.close()
    return taken
