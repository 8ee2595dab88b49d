"""Messages by reference between processes: no copy, no write that others see, nothing left."""

from __future__ import annotations

import fcntl
import gc
import json
import mmap
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from inms_lab.bench import messages as bench
from inms_lab.bench.message_ways import MOMENTS, WAYS
from inms_lab.errors import AgentDied, BadInput, InmsError, MessageRefused, NotEnoughMemory
from inms_lab.parameters import inbox as inbox_module
from inms_lab.parameters import kernel, postbox
from inms_lab.parameters.inbox import Inbox
from inms_lab.parameters.messages import NAME, Draft, Message, described, sealed
from inms_lab.parameters.postbox import BLOCK, HEAD, MOST_CELLS, NO_CELL, SMALLEST, Outbox
from inms_lab.parameters.region import PAGE, Memory
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asks Linux' kernel who maps what: run it on Linux"
)
FORK = multiprocessing.get_context("fork")
Ends = tuple[Outbox, Inbox]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tests fork
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ends() -> Ends:
    return line()


def line(**options: int) -> Ends:
    ours, theirs = socket.socketpair()
    return Outbox(ours, **options), Inbox(theirs)


def received(inbox: Inbox) -> dict[str, torch.Tensor]:
    message = inbox.receive(5)
    assert message is not None
    return message


def states(tensor: torch.Tensor) -> list[int]:
    found = kernel.page_states("self", tensor.data_ptr() // PAGE * PAGE, tensor.nbytes)
    assert found is not None
    return found.tolist()


def mapped(pid: int | str) -> list[str]:
    """The areas of a process that are messages."""
    rows = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [row for row in rows if f"/memfd:{NAME}" in row]


def holders(*pids: int) -> list[int]:
    """Those of these processes that have a message open or mapped."""
    gc.collect()
    return [pid for pid in kernel.holders(NAME) if pid in pids]


def child(act: Callable[[Connection], None], *others: Any) -> tuple[Any, Connection]:
    """A process that runs `act` with a pipe to here; `others` are closed in it at its start."""
    ours, theirs = FORK.Pipe()

    def run() -> None:
        ours.close()
        for other in others:
            other.close()
        act(theirs)

    process = FORK.Process(target=run, daemon=True)
    process.start()
    theirs.close()
    return process, ours


# --- what arrives ----------------------------------------------------------------------------


def test_tensors_of_every_kind_and_shape_arrive_bit_for_bit(ends: Ends) -> None:
    out, inbox = ends
    wide = torch.randn(6, 1000)
    sent = {
        "layer.10": wide.t(),  # not contiguous
        "layer.2": wide.to(torch.bfloat16),
        "flag": torch.tensor([True, False]),
        "one": torch.tensor(7),
        "none": torch.empty(0, 3),
        "turn": torch.randn(5, dtype=torch.complex64),
        "leaf": torch.nn.Parameter(wide[0].clone()),
        "ids": torch.arange(-3, 3000),
    }
    for way in (sent, sealed(sent)):
        out.send(way)
        got = received(inbox)
        assert got.keys() == sent.keys()
        for name, tensor in sent.items():
            assert got[name].dtype == tensor.dtype, name
            assert torch.equal(got[name], tensor), name


def test_a_tensor_alone_and_tied_tensors_arrive(ends: Ends) -> None:
    out, inbox = ends
    out.send(torch.arange(5))
    assert received(inbox)["tensor"].tolist() == [0, 1, 2, 3, 4]
    once = torch.ones(3)
    out.send({"a": once, "b": once})
    got = received(inbox)
    got["a"][0] = 5
    assert got["b"].tolist() == [5, 1, 1]


@pytest.mark.parametrize("in_cell", [True, False])
def test_no_byte_is_copied_until_somebody_writes_and_then_a_page(ends: Ends, in_cell: bool) -> None:
    out, inbox = ends
    draft = out.draft(torch.empty(8 * PAGE, dtype=torch.uint8)) if in_cell else Draft(
        torch.empty(8 * PAGE, dtype=torch.uint8)
    )  # fmt: skip
    draft.tensors["tensor"].fill_(3)
    out.send(draft if in_cell else draft.seal())
    got = received(inbox)["tensor"]
    assert int(got.sum()) == 3 * 8 * PAGE
    assert states(got) == [kernel.SHARED] * 8
    got[2 * PAGE] = 9
    assert states(got) == [kernel.SHARED] * 2 + [kernel.PRIVATE] + [kernel.SHARED] * 5


def test_a_receiver_that_writes_is_seen_by_nobody_else() -> None:
    message = sealed({"x": torch.zeros(3 * PAGE, dtype=torch.uint8)})
    out, inbox = line()
    writer, told = child(partial(_writes, inbox), out)
    out.send(message)
    assert told.recv() == PAGE * 3
    other, reader = line()
    other.send(message)
    for tensors in (message.tensors(), received(reader)):
        assert int(tensors["x"].sum()) == 0
    told.send(None)
    writer.join(5)


def _writes(inbox: Inbox, back: Connection) -> None:
    got = received(inbox)["x"]
    got.fill_(1)
    back.send(int(got.sum()))
    back.recv()


@pytest.mark.parametrize("in_cell", [True, False])
def test_what_its_sender_writes_later_no_receiver_sees(ends: Ends, in_cell: bool) -> None:
    out, inbox = ends
    like = torch.empty(2000, device="meta")
    draft = out.draft(like) if in_cell else Draft(like)
    kept = draft.tensors["tensor"]
    kept.fill_(1)
    out.send(draft if in_cell else draft.seal())
    kept.fill_(2)
    got = received(inbox)["tensor"]
    out.send(torch.full((2000,), 3.0))  # must not lie where the kept tensor lies
    next_one = received(inbox)["tensor"]
    assert [t.unique().tolist() for t in (got, kept, next_one)] == [[1], [2], [3]]


def test_one_memory_serves_many_receivers() -> None:
    message = sealed(torch.full((PAGE,), 5, dtype=torch.uint8))
    boxes = [line() for _ in range(3)]
    children = []
    for _, inbox in boxes:
        children.append(child(partial(_says, inbox)))
    for out, _ in boxes:
        out.send(message)
    inode = os.fstat(message.memory.fd).st_ino
    for process, told in children:
        assert told.recv() == 5 * PAGE
        assert any(f" {inode} " in row for row in mapped(process.pid))
        told.send(None)
        process.join(5)


def _says(inbox: Inbox, back: Connection) -> None:
    got = received(inbox)
    back.send(int(got["tensor"].sum()))
    back.recv()


def test_the_kernel_refuses_everybody_else_a_write(ends: Ends) -> None:
    out, _ = ends
    draft = out.draft(torch.empty(10))
    for memory in (draft.sheet.memory, sealed(torch.ones(10)).memory):
        with pytest.raises(PermissionError):
            mmap.mmap(memory.fd, memory.num_bytes)
        with pytest.raises(PermissionError):
            os.pwrite(memory.fd, b"x", 0)
        for size in (0, 10 * memory.num_bytes):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)


# --- memories that are used again ------------------------------------------------------------


def test_messages_that_were_let_go_are_followed_in_the_same_memory(ends: Ends) -> None:
    out, inbox = ends
    for number in range(20):
        out.send({"x": torch.full((1000 + number,), float(number))})
        got = received(inbox)["x"]
        assert got.tolist() == [number] * (1000 + number)
        got.zero_()  # the next message is seen all the same
        del got
    assert (out.num_sent, out.num_memories) == (20, 1)


def test_a_message_that_is_still_read_is_never_written_over(ends: Ends) -> None:
    out, inbox = ends
    kept = []
    for number in range(MOST_CELLS + 4):
        out.send(torch.full((100,), number))
        kept.append(received(inbox)["tensor"][50:])  # a part of it is enough
    assert [int(part[0]) for part in kept] == list(range(MOST_CELLS + 4))
    assert out.num_memories == MOST_CELLS + 4
    kept.clear()
    for _ in range(2 * MOST_CELLS):
        out.send(torch.zeros(100))
        received(inbox)
    assert out.num_memories == MOST_CELLS + 4


def test_a_draft_that_was_given_up_leaves_its_memory_to_the_next(ends: Ends) -> None:
    out, _ = ends
    for _ in range(3):
        out.draft(torch.empty(9)).tensors["tensor"].fill_(1)
    assert out.num_memories == 1
    both = [out.draft(torch.empty(9)) for _ in range(2)]
    assert out.num_memories == 2
    assert both[0].tensors["tensor"].data_ptr() != both[1].tensors["tensor"].data_ptr()


def test_a_budget_is_kept_and_free_memories_of_other_sizes_make_room() -> None:
    out, inbox = line(budget=4 * SMALLEST)
    for sizes in ((4,), (2, 2), (4,)):
        kept = []
        for size in sizes:
            out.send(torch.full((size * SMALLEST,), size, dtype=torch.uint8))
            kept.append(received(inbox)["tensor"])
        assert [int(tensor[-1]) for tensor in kept] == list(sizes)
        del kept
    areas = (row.split()[0].split("-") for row in mapped("self"))
    total = sum(int(stop, 16) - int(start, 16) for start, stop in areas)
    assert total <= 2 * 4 * SMALLEST  # both ends are in this process
    large = torch.ones(5 * SMALLEST, dtype=torch.uint8)
    before = out.num_memories
    for _ in range(2):
        out.send(large)
        assert torch.equal(received(inbox)["tensor"], large)
    assert out.num_memories == before + 2


def test_a_forked_child_does_not_let_its_parents_messages_go(ends: Ends) -> None:
    out, inbox = ends
    out.send(torch.ones(10))
    got = received(inbox)
    if not (pid := os.fork()):
        got.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    out.send(torch.zeros(10))
    assert got["tensor"].tolist() == [1] * 10


# --- ends ------------------------------------------------------------------------------------


def test_a_killed_receiver_leaves_nothing_and_its_sender_is_told() -> None:
    out, inbox = line()
    process, told = child(partial(_says, inbox), out)
    inbox.close()
    out.send(torch.ones(PAGE))
    assert told.recv() == PAGE
    assert holders(process.pid) == [process.pid]
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)
    with pytest.raises(AgentDied, match="nobody receives"):
        out.send(torch.ones(PAGE))
    del out
    assert holders(process.pid, os.getpid()) == []


@pytest.mark.parametrize("in_cell", [True, False])
def test_a_killed_senders_messages_stay_whole_until_they_are_let_go(in_cell: bool) -> None:
    out, inbox = line()
    process, told = child(partial(_sends, out, in_cell), inbox)
    out.close()
    told.recv()
    first = received(inbox)["tensor"]
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)
    second = received(inbox)["tensor"]  # it was under way
    assert [t.unique().tolist() for t in (first, second)] == [[1], [2]]
    assert holders(process.pid, os.getpid()) == [os.getpid()]
    with pytest.raises(AgentDied, match="has ended"):
        inbox.receive(5)
    with pytest.raises(AgentDied, match="closed"):
        inbox.receive(5)
    del first, second, inbox
    assert holders(process.pid, os.getpid()) == []


def _sends(out: Outbox, in_cell: bool, back: Connection) -> None:
    for value in (1.0, 2.0):
        tensor = torch.full((3 * PAGE,), value)
        out.send(tensor if in_cell else sealed(tensor))
    back.send(None)
    back.recv()


def test_what_was_sent_before_the_end_is_received(ends: Ends) -> None:
    out, inbox = ends
    for number in range(3):
        out.send(torch.tensor([number]))
    assert received(inbox)["tensor"].tolist() == [0]  # let go: its acknowledgement is never read
    out.close()
    assert [received(inbox)["tensor"].item() for _ in range(2)] == [1, 2]
    with pytest.raises(AgentDied):
        inbox.receive()


def test_messages_stay_whole_when_their_inbox_closes(ends: Ends) -> None:
    out, inbox = ends
    out.send(torch.ones(10))
    got = received(inbox)["tensor"]
    inbox.close()
    out.draft(torch.empty(10)).tensors["tensor"].fill_(7)
    assert got.tolist() == [1] * 10


def test_a_closed_inbox_unmaps_what_nobody_uses(ends: Ends) -> None:
    out, inbox = ends
    for value in (1, 2):
        out.send(torch.full((10,), value))
    first, second = (received(inbox) for _ in range(2))
    first.clear()
    gc.collect()
    before = len(mapped("self"))
    inbox.close()
    assert len(mapped("self")) == before - 1
    assert second["tensor"].tolist() == [2] * 10
    second.clear()
    gc.collect()
    assert len(mapped("self")) == before - 2


def test_nothing_comes_within_the_time(ends: Ends) -> None:
    assert ends[1].receive(0.01) is None


def test_a_sender_that_ends_in_mid_message_is_told() -> None:
    long = HEAD.pack(1, NO_CELL, 0, 10_000)
    for raw in (b"\0", long, long.ljust(BLOCK), long.ljust(10_000)):
        ours, theirs = socket.socketpair()
        inbox = Inbox(theirs)
        ours.sendall(raw)
        ours.close()
        with pytest.raises(AgentDied, match="has ended"):
            inbox.receive()


@pytest.mark.parametrize("drips", [False, True])
def test_a_sender_that_hangs_in_mid_message_does_not_hang_its_receiver(
    monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr("inms_lab.parameters.inbox.PATIENCE", 1)
    ours, theirs = socket.socketpair()
    inbox = Inbox(theirs)
    begun = HEAD.pack(1, NO_CELL, 0, 100_000).ljust(BLOCK)
    ours.sendall(begun)

    def drip() -> None:
        with suppress(OSError):  # until the inbox has closed
            while drips:
                ours.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    started = time.monotonic()
    with pytest.raises(AgentDied, match="hangs"):
        inbox.receive()
    assert time.monotonic() - started < 4


# --- interrupts ------------------------------------------------------------------------------


def number(tensors: dict[str, torch.Tensor]) -> int:
    (value,) = tensors["tensor"].unique().tolist()
    return int(value)


class Interrupting(set[int]):
    """A set at which the first addition is interrupted."""

    def __init__(self, had: set[int]) -> None:
        super().__init__(had)
        self.left = 1

    def add(self, item: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().add(item)


def test_an_interrupt_just_behind_a_send_writes_nothing_over(ends: Ends) -> None:
    """Found by trying: a cell was sent, and did not count as sent yet."""
    out, inbox = ends
    out._known = Interrupting(out._known)
    with pytest.raises(KeyboardInterrupt):
        out.send(torch.full((10,), 1))
    kept = received(inbox)
    for value in (2, 3):
        out.send(torch.full((10,), value))
        assert number(received(inbox)) == value
        assert number(kept) == 1


def test_an_interrupt_while_nothing_comes_leaves_the_line_good(ends: Ends) -> None:
    out, inbox = ends

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for value in range(3):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                inbox.receive()
            out.send(torch.tensor([value]))
            assert received(inbox)["tensor"].item() == value
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_let_go_and_not_told_is_told_later(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an interrupt that comes when tensors are let go, which Python ignores."""
    out, inbox = ends
    out.send(torch.ones(10))
    got = received(inbox)
    with monkeypatch.context() as patch:
        patch.setattr(inbox_module._Held, "clean", lambda held: 1 / 0)
        patch.setattr("sys.unraisablehook", lambda _: None)
        got.clear()
        gc.collect()
    assert inbox.receive(0) is None
    for value in (2, 3):
        out.send(torch.full((10,), value))
        assert number(received(inbox)) == value
    assert out.num_memories == 1


def test_an_acknowledgement_may_be_heard_twice(ends: Ends) -> None:
    """As after an interrupt between taking it and keeping that it was taken."""
    out, inbox = ends
    out.send(torch.ones(10))
    received(inbox).clear()
    gc.collect()
    out._hear()
    out._heard = postbox.NUMBER.pack(1)
    for value in (2, 3):
        out.send(torch.full((10,), value))
        assert number(received(inbox)) == value


# --- what is no message ----------------------------------------------------------------------


def told(
    cell: int = NO_CELL, gone: bytes = b"", text: bytes = b'{"x": ["uint8", [3], 0]}'
) -> bytes:
    return (HEAD.pack(1, cell, len(gone), len(text)) + gone + text).ljust(BLOCK, b"\0")


def memory(num_bytes: int = PAGE, *, seals: int = -1, whole: bool = True) -> Memory:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    if whole:
        os.pwrite(fd, bytes(num_bytes), 0)
    every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, every if seals < 0 else seals)
    return Memory(fd)


def sent_raw(raw: bytes, file: Memory | None) -> Inbox:
    ours, theirs = socket.socketpair()
    with ours:
        socket.send_fds(ours, [raw], [] if file is None else [file.fd])
    return Inbox(theirs)


def refused(raw: bytes, file: Memory | None, match: str) -> None:
    inbox = sent_raw(raw, file)
    with pytest.raises(MessageRefused, match=match):
        inbox.receive()


ROWS = [
    "[]", "7", "{}", '{"x": 7}', '{"x": ["uint8", [3]]}', '{"x": ["object", [3], 0]}',
    '{"x": [["uint8"], [3], 0]}', '{"x": ["set_num_threads", [3], 0]}', '{"x": ["uint8", 3, 0]}',
    '{"x": ["uint8", [-1], 0]}', '{"x": ["uint8", [true], 0]}', '{"x": ["uint8", [1.5], 0]}',
    '{"x": ["uint8", [4097], 0]}', '{"x": ["float64", [513], 0]}', '{"x": ["uint8", [1], 4096]}',
    '{"x": ["uint8", [1], -4096]}', '{"x": ["uint8", [1], 1]}', '{"x": ["uint8", [3], "0"]}',
    '{"x": ["uint8", [9007199254740991, 9007199254740991, 9007199254740991], 0]}',
    '{"x": ["uint8", [' + "0," * 64 + '0], 0]}', "[" * 100_000, "\\",
    '{"x": ["uint8", [1e400], 0]}',
]  # fmt: skip


@pytest.mark.parametrize("text", ROWS, ids=range(len(ROWS)))
def test_a_damaged_description_is_refused(text: str) -> None:
    refused(told(text=text.encode()), memory(), "^tensor |^a description")


def test_a_description_that_is_whole_is_not_refused() -> None:
    """So that the refusals above are of what is damaged."""
    assert received(sent_raw(told(), memory()))["x"].tolist() == [0, 0, 0]


def test_a_file_that_could_fail_its_reader_is_refused() -> None:
    """Shrunk under the reader, or written, or with holes that reading would fill."""
    write, shrink = fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK
    for file in (
        memory(seals=0), memory(seals=write), memory(seals=shrink), memory(1 << 40, whole=False),
        memory(PAGE + 1), memory(0),
    ):  # fmt: skip
        refused(told(), file, "sealed memory|whole pages")
    for path in ("/dev/zero", "/dev/null", __file__, "/"):
        refused(told(), Memory(os.open(path, os.O_RDONLY)), "sealed memory|whole pages")


def test_a_message_without_its_memory_or_out_of_bounds_is_refused() -> None:
    refused(told(), None, "without its memory")
    refused(told(cell=3), None, "without its memory")
    refused(told(cell=MOST_CELLS), memory(), "something else")
    refused(HEAD.pack(1, NO_CELL, 0, 1 << 31).ljust(BLOCK), memory(), "something else")
    refused(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n".ljust(BLOCK), None, "something else")


def test_a_message_in_a_cell_that_is_still_read_is_refused() -> None:
    ours, theirs = socket.socketpair()
    inbox = Inbox(theirs)
    file = memory()
    socket.send_fds(ours, [told(cell=0)], [file.fd])
    got = received(inbox)
    ours.sendall(told(cell=0))
    with pytest.raises(MessageRefused, match="still read"):
        inbox.receive()
    assert got["x"].tolist() == [0, 0, 0]


def test_damaged_bytes_give_a_message_or_a_named_error_and_keep_no_file_open() -> None:
    draw, file = random.Random(7), memory(4 * PAGE)
    text = json.loads(described(sealed({"a": torch.ones(3, 5), "b": torch.ones(9)}).layout))
    whole = told(cell=1, gone=b"\2", text=json.dumps(text).encode())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    outcomes: set[Any] = set()
    for _ in range(600):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        ours, theirs = socket.socketpair()
        inbox = Inbox(theirs)
        socket.send_fds(ours, [raw], [file.fd] * draw.randint(0, 3))
        ours.close()
        try:
            outcomes.add(sum(t.numel() for t in received(inbox).values()) >= 0)
        except InmsError as error:
            outcomes.add(type(error))
    del inbox, ours, theirs
    gc.collect()
    assert outcomes == {True, MessageRefused, AgentDied}
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_more_open_files_is_said_by_name() -> None:
    out, inbox = line()
    process, back = child(partial(_with_few_files, inbox))
    out.send(sealed(torch.ones(3)))
    assert back.recv() == NotEnoughMemory.__name__
    process.join(5)


def _with_few_files(inbox: Inbox, back: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 1024))
    with suppress(OSError):
        while True:
            os.dup(0)
    try:
        inbox.receive()
    except InmsError as error:
        back.send(type(error).__name__)


def test_what_cannot_be_sent_is_refused_before_anything_is(ends: Ends) -> None:
    out, inbox = ends
    sparse = torch.zeros(3, 3).to_sparse()
    for wrong in ({}, {"x": "text"}, {3: torch.ones(1)}, {"x": sparse}, None, [torch.ones(1)]):
        with pytest.raises(BadInput):
            out.send(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="fewer"):
        out.send({"x" * 1000 + str(n): torch.empty(0) for n in range(1100)})
    draft = out.draft(torch.ones(1))
    draft.fill(torch.ones(1))
    out.send(draft)
    with pytest.raises(BadInput, match="already"):
        out.send(draft)
    assert received(inbox)["tensor"].tolist() == [1]
    assert inbox.receive(0) is None


@pytest.mark.parametrize("budget", ["x", None, -1, 1.5, float("nan")])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(BadInput, match="0 or more bytes"):
            Outbox(ours, budget)
        assert ours.fileno() >= 0, "the line may be used with another one"


def test_a_line_that_passes_no_files_is_refused() -> None:
    with socket.socket() as internet, pytest.raises(BadInput):
        Outbox(internet)
    for end in (*multiprocessing.Pipe(duplex=False), 7):
        with pytest.raises(BadInput):
            Inbox(end)  # type: ignore[arg-type]


def test_two_outboxes_on_one_line_are_told() -> None:
    one, other = (Outbox(end) for end in socket.socketpair())
    other.send(torch.ones(1))
    with pytest.raises(MessageRefused, match="no Inbox"):
        one.send(torch.ones(1))


def test_a_draft_that_a_forked_child_can_still_write_is_not_sealed() -> None:
    draft = Draft(torch.empty(3))
    process, told = child(lambda back: back.recv())
    with pytest.raises(BadInput, match="before you fork"):
        draft.seal()
    told.send(None)
    process.join(5)


def test_messages_go_over_a_pipe_of_multiprocessing() -> None:
    ours, theirs = multiprocessing.Pipe()
    out, inbox = Outbox(ours), Inbox(theirs)
    out.send(torch.arange(3))
    assert received(inbox)["tensor"].tolist() == [0, 1, 2]


def test_a_message_may_be_sent_again_and_read_by_its_sender() -> None:
    message: Message = sealed(torch.arange(3))
    mine = message.tensors()["tensor"]
    mine.zero_()
    out, inbox = line()
    for _ in range(2):
        out.send(message)
        assert received(inbox)["tensor"].tolist() == [0, 1, 2]


# --- the measurement -------------------------------------------------------------------------


def test_the_measurement_has_every_size_way_and_moment() -> None:
    result = bench.measure((1 << 14, 1 << 20), repeat=3)
    assert [(r["bytes"], r["until"]) for r in result["latency"]] == [
        (size, moment) for size in (1 << 14, 1 << 20) for moment in ("ready", "read")
    ]
    assert all(row[way] > 0 for row in result["latency"] for way in WAYS)
    assert len(result["less"]) == 2 * 2 * (len(WAYS) - 1)
    assert all(row["low"] <= row["less"] <= row["high"] < 1 for row in result["less"])
    assert result["claims"][bench.CLAIM]["verdict"] in (HOLDS, DOES_NOT_HOLD)


@pytest.mark.parametrize(
    ("less", "verdict"),
    [
        ({1 << 20: 0.84, 1 << 22: 0.99}, HOLDS),
        ({1 << 18: 0.1, 1 << 20: 0.83}, HOLDS),
        ({1 << 20: 0.82, 1 << 22: 0.99}, DOES_NOT_HOLD),
        ({1 << 18: 0.99}, NOT_TESTABLE),
    ],
)
def test_the_claim_is_judged_at_each_size_from_a_mebibyte_on(
    less: dict[int, float], verdict: str
) -> None:
    rows = [
        {"bytes": size, "until": moment, "than": way, "less": value, "low": 0.0, "high": 1.0}
        for size, share in less.items()
        for moment in MOMENTS
        for way in WAYS[1:]
        for value in [share if (way, moment) == ("copied", "ready") else 0.5]
    ]
    assert bench.claimed(rows)["verdict"] == verdict


def test_the_pipe_wins_up_to_the_greatest_size_at_which_it_was_faster() -> None:
    rows = [
        {"bytes": size, "until": moment, **dict.fromkeys(WAYS, 10.0), "pipe": pipe}
        for size, pipe in ((4096, 5.0), (16384, 9.0), (65536, 10.0))
        for moment in MOMENTS
    ]
    assert bench.pipe_wins(rows)["reference, ready"] == 16384
    assert bench.pipe_wins(rows[-2:])["file, read"] == 0


def test_a_measurement_of_no_pages_or_of_one_repetition_is_refused() -> None:
    for sizes, repeat in (((), 5), ((100,), 5), ((PAGE + 1,), 5), ((PAGE,), 1)):
        with pytest.raises(BadInput):
            bench.measure(sizes, repeat)
