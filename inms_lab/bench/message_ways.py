"""The ways in which a tensor goes from one process to another, both sides of each.

reference   its producer has written it where it lies, in a cell of an outbox: nothing is copied
file        the same in a sealed memory of its own, which the receiver has yet to map
placed      the producer has it elsewhere: one copy, into a cell
copied      two copies through a third buffer, over the same line: into the cell, and out of it
            into a tensor that is there already
cloned      the same, but out into a new tensor, as a receiver needs that keeps what it gets
bare        two copies through one buffer of a fixed place and shape, with a byte as a signal:
            no description, and nobody sees to it that nothing is written over
pipe        its bytes through a pipe (`Connection.send_bytes`), into a tensor that is there
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from inms_lab.errors import AgentDied
from inms_lab.parameters.inbox import Inbox
from inms_lab.parameters.messages import ALONE, Draft
from inms_lab.parameters.postbox import SMALLEST, Outbox
from inms_lab.parameters.region import PAGE

WAYS = ("reference", "file", "placed", "copied", "cloned", "bare", "pipe")
MOMENTS = ("ready", "read")
_VALUES = 251  # what is written, in turn: a stale byte is seen
_HEADER = 4  # bytes in front of a message of a `Connection`
WARM = 2  # rounds that do not count: memories are made and mapped, code is warm
ASLEEP = 0.001  # seconds from the last value to the start of the clock
_TOLD = struct.Struct("!qqq")  # nanoseconds when ready and when read, sum of what was read
Prepare = Callable[[int], Callable[[], None]]


class _Ends:
    """All that the two processes have in common, for tensors of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.third = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        self.control = multiprocessing.Pipe()
        self.line = socket.socketpair()
        self.pipe = multiprocessing.Pipe(duplex=False)  # (reads, writes)


def times(size: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds by moment and way, in the order of the repetitions."""
    ends = _Ends(size)
    context = multiprocessing.get_context("fork")
    receiver = context.Process(target=_receive, args=(ends,), daemon=True)
    receiver.start()
    try:
        ends.control[1].close()
        ends.line[1].close()
        ends.pipe[0].close()
        sends = _sends(ends)
        found: dict[str, dict[str, list[float]]] = {m: {w: [] for w in WAYS} for m in MOMENTS}
        for number in range(-WARM, repeat):
            first = number % len(WAYS)
            for at, way in enumerate(WAYS[first:] + WAYS[:first]):
                value = (number * len(WAYS) + at) % _VALUES + 1
                taken = _timed(ends, sends[way], way, value)
                for moment, microseconds in zip(MOMENTS, taken, strict=True):
                    if number >= 0:
                        found[moment][way].append(microseconds)
        return found
    except (EOFError, OSError) as error:
        raise AgentDied("the receiver's process has died: is there memory enough?") from error
    finally:
        ends.control[0].close()
        ends.pipe[1].close()
        receiver.join(5)
        receiver.kill()


def _timed(ends: _Ends, prepare: Prepare, way: str, value: int) -> tuple[float, float]:
    control = ends.control[0]
    control.send_bytes(way.encode())
    send = prepare(value)
    time.sleep(ASLEEP)  # the receiver waits by now
    started = time.perf_counter_ns()
    send()
    ready, read, total = _TOLD.unpack(control.recv_bytes())
    assert total == value * (ends.size // PAGE), f"{way} brought other values than were sent"
    return (ready - started) / 1e3, (read - started) / 1e3


def _sends(ends: _Ends) -> dict[str, Prepare]:
    """For each way what its producer does before the clock starts, which gives what is timed."""
    out = Outbox(ends.line[0], budget=2 * max(ends.size, SMALLEST))
    own = torch.empty(ends.size, dtype=torch.uint8)
    like = own.to("meta")

    def reference(value: int) -> Callable[[], None]:
        draft = out.draft(like)
        draft.tensors[ALONE].fill_(value)
        return lambda: out.send(draft)

    def file(value: int) -> Callable[[], None]:
        draft = Draft(like)
        draft.tensors[ALONE].fill_(value)
        message = draft.seal()
        return lambda: out.send(message)

    def copied(value: int) -> Callable[[], None]:
        own.fill_(value)
        draft = out.draft(like)

        def send() -> None:
            draft.fill(own)
            out.send(draft)

        return send

    def bare() -> None:
        ends.third.copy_(own)
        ends.control[0].send_bytes(b".")

    def elsewhere(send: Callable[[], None]) -> Prepare:
        def prepare(value: int) -> Callable[[], None]:
            own.fill_(value)
            return send

        return prepare

    return {
        "reference": reference,
        "file": file,
        "placed": elsewhere(lambda: out.send(own)),
        "copied": copied,
        "cloned": copied,
        "bare": elsewhere(bare),
        "pipe": elsewhere(lambda: ends.pipe[1].send_bytes(own.numpy().data)),
    }


def _receive(ends: _Ends) -> None:
    """The other process, until nobody asks any more."""
    ends.control[0].close()
    ends.line[0].close()
    ends.pipe[1].close()
    takes = _takes(ends)
    with suppress(EOFError):
        while True:
            take = takes[ends.control[1].recv_bytes().decode()]
            tensor = take()
            ready = time.perf_counter_ns()
            total = int(tensor[::PAGE].sum())
            read = time.perf_counter_ns()
            del tensor  # let go before the next is made
            ends.control[1].send_bytes(_TOLD.pack(ready, read, total))


def _takes(ends: _Ends) -> dict[str, Callable[[], torch.Tensor]]:
    inbox = Inbox(ends.line[1])
    own = torch.zeros(ends.size, dtype=torch.uint8)
    raw = own.numpy().data

    def mapped() -> torch.Tensor:
        message = inbox.receive()
        assert message is not None
        return message[ALONE]

    def bare() -> torch.Tensor:
        ends.control[1].recv_bytes()
        return own.copy_(ends.third)

    def piped() -> torch.Tensor:
        """As `Connection.recv_bytes` reads, but to where it shall be."""
        file = ends.pipe[0].fileno()
        os.read(file, _HEADER)
        at = 0
        while at < ends.size:
            at += os.readv(file, [raw[at:]])
        return own

    return {
        "reference": mapped,
        "file": mapped,
        "placed": mapped,
        "copied": lambda: own.copy_(mapped()),
        "cloned": lambda: mapped().clone(),
        "bare": bare,
        "pipe": piped,
    }
