"""Messages of tensors between processes, by reference: what there is to send, and how it is told.

    Sheet      a memory that only the process which made it can write, and its mapping here
    Draft      tensors on a sheet, to be filled where they lie: no copy is needed to send them
    Message    tensors that nobody can change any more: one memory for any number of receivers

A record's KV, hidden states, embeddings: any tensor, or several by name. What travels is
`described`: names, element types, shapes and first bytes, and beside it the open file (`postbox.py`
sends both). What comes in is not trusted: `understood` and `require_safe` refuse what is damaged.
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from inms_lab.errors import BadInput, MessageRefused
from inms_lab.parameters.layout import Layout, Spot
from inms_lab.parameters.region import PAGE, Memory, Piece, View
from inms_lab.parameters.weights import layout_of

NAME = "inms-message"  # of the memories, as the kernel shows them
ALONE = "tensor"  # the name of a tensor that is sent without one
LIMIT = 1 << 20  # bytes of a description
MOST_DIMENSIONS = 64  # torch has no tensor with more
_WHOLE = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool")
_FRACTIONS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
KINDS = frozenset((*_WHOLE, *_FRACTIONS, "float8_e4m3fn", "float8_e5m2"))
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of Linux, which Python 3.11 does not name

Tensors = torch.Tensor | Mapping[str, torch.Tensor]


class Sheet:
    """A memory of its own, of whole pages, that this process can write and no other (on Linux the
    kernel refuses it to them; so it does a change of size). `number`: its maker's name for it."""

    def __init__(self, num_bytes: int, number: int = -1) -> None:
        self.number = number
        self.memory = Memory.create(num_bytes, NAME)
        self.view = View(num_bytes)
        self._pieces = [Piece(0, num_bytes, self.memory)]
        self.view.lay(self._pieces, shared=True)
        _add_seals(self.memory)
        self._user: weakref.ref[Any] | None = None
        self.writable = True

    @property
    def num_bytes(self) -> int:
        """Its bytes."""
        return self.memory.num_bytes

    @property
    def in_use(self) -> bool:
        """Whether a tensor on it is still there in this process."""
        return self._user is not None and self._user() is not None

    def tensors(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Tensors that lie on it, by name; one set at a time."""
        buffer = self.view.bytes_at(0, self.num_bytes)
        self._user = weakref.ref(buffer)
        return on_buffer(buffer, layout)

    def give_up(self) -> None:
        """What this process writes to it from now on, it alone sees: its tensors stay usable."""
        self.writable = False
        self.view.lay(self._pieces)


class Draft:
    """Tensors in shared memory that are still to be filled: `tensors`, by name.

    `like`: tensors of these shapes and element types, for example on `meta`; their values do not
    matter. Once it is sealed or sent, `tensors` is empty; a tensor of it that somebody has kept
    stays usable, and what is written to it then is seen by nobody else. `find` gives a sheet of at
    least so many bytes.
    """

    def __init__(self, like: Tensors, find: Callable[[int], Sheet] = Sheet) -> None:
        self.layout = layout_for(like)
        self.told = described(self.layout)
        self.sheet = find(max(PAGE, self.layout.num_bytes))
        self.tensors = self.sheet.tensors(self.layout)

    def fill(self, tensors: Tensors) -> None:
        """Copy values into it, for those that lie elsewhere."""
        for name, tensor in by_name(tensors).items():
            self.tensors[name].copy_(tensor.detach())

    def seal(self) -> Message:
        """Its message. Raises `BadInput` if another process could still write it."""
        self.end()
        self.sheet.give_up()
        try:
            self.sheet.memory.seal()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise BadInput(
                "a process that was forked since this draft was made can still write it: seal "
                "drafts before you fork"
            ) from error
        return Message(self.sheet.memory, self.layout)

    def end(self) -> None:
        """It is written. Raises `BadInput` if it was already."""
        if not self.tensors:
            raise BadInput("this draft was sent or sealed already: make a new one")
        self.tensors = {}


@dataclass(frozen=True, slots=True)
class Message:
    """Tensors in a sealed memory; made by `Draft.seal` or `sealed`. May be sent again and again."""

    memory: Memory
    layout: Layout

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors, mapped privately: what is written to them, the caller alone sees."""
        view = View(self.memory.num_bytes)
        view.lay([Piece(0, self.memory.num_bytes, self.memory)])
        return on_buffer(view.bytes_at(0, view.num_bytes), self.layout)


def sealed(tensors: Tensors) -> Message:
    """A message of tensors that lie elsewhere: they are copied, once."""
    draft = Draft(tensors)
    draft.fill(tensors)
    return draft.seal()


def by_name(tensors: Tensors) -> Mapping[str, torch.Tensor]:
    """Tensors by their names; one alone is named `ALONE`."""
    return {ALONE: tensors} if isinstance(tensors, torch.Tensor) else tensors


def layout_for(tensors: Tensors) -> Layout:
    """Where they lie in a message. Raises `BadInput` if they cannot be sent."""
    named = by_name(tensors)
    if not isinstance(named, Mapping) or not named:
        raise BadInput("a message is a tensor, or a dict with at least one: {'kv': tensor}")
    for name, tensor in named.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise BadInput(
                f"a message has tensors by name, not {type(tensor).__name__} by "
                f"{type(name).__name__}: make tensors of values and send text in another way"
            )
        kind = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or kind not in KINDS:
            raise BadInput(
                f"{name} is {kind}, {tensor.layout}: send dense tensors of an element type in KINDS"
            )
    return layout_of(named)


def on_buffer(buffer: Any, layout: Layout) -> dict[str, torch.Tensor]:
    """One tensor a name on one buffer, which lives as long as any of them."""
    found = {}
    for name, spot in layout.spots.items():
        dtype = getattr(torch, spot.dtype)
        if count := spot.num_bytes // dtype.itemsize:
            flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=spot.start)
            found[name] = flat.view(spot.shape)
        else:
            found[name] = torch.empty(spot.shape, dtype=dtype)
    return found | {name: found[known] for name, known in layout.same.items()}


# --- told to the other side ------------------------------------------------------------------


def described(layout: Layout) -> bytes:
    """A layout as JSON: name -> element type, shape, first byte."""
    spots = layout.spots | {name: layout.spots[known] for name, known in layout.same.items()}
    told = {name: (spot.dtype, spot.shape, spot.start) for name, spot in spots.items()}
    return json.dumps(told).encode()


def understood(told: bytes, num_bytes: int) -> Layout:
    """What `described` told of a memory of so many bytes. Raises `MessageRefused`."""
    try:
        rows = json.loads(told)
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, dict) or not rows:
        raise MessageRefused("a description is JSON, tensors by name, at least one: use an Outbox")
    return Layout({name: _spot(name, row, num_bytes) for name, row in rows.items()}, {})


def _spot(name: str, row: Any, num_bytes: int) -> Spot:
    if not isinstance(row, list) or len(row) != 3:
        raise _refused(name, "is not told as element type, shape and first byte")
    kind, shape, start = row
    if not isinstance(kind, str) or kind not in KINDS:
        raise _refused(name, "has no known element type")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(_count, shape)):
        raise _refused(name, "has no shape")
    size = prod(shape) * getattr(torch, kind).itemsize
    if not _count(start) or start % PAGE or start + size > num_bytes:
        raise _refused(name, f"does not lie in the {num_bytes:,} bytes that came with it")
    return Spot(kind, tuple(shape), start, size)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _refused(name: str, why: str) -> MessageRefused:
    return MessageRefused(f"tensor {name[:40]!r} {why}: the sender must describe it anew")


def require_safe(memory: Memory) -> None:
    """Raises `MessageRefused` unless nobody can shrink this memory under its readers or map it anew
    to write, and all of it is there: reading it must not be what takes the memory."""
    import fcntl

    if not memory.num_bytes or memory.num_bytes % PAGE:
        raise MessageRefused(f"a message is whole pages, not {memory.num_bytes:,} bytes")
    if not hasattr(fcntl, "F_GET_SEALS"):
        return
    try:
        seals = fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    taken = os.fstat(memory.fd).st_blocks * 512
    keeps = seals & fcntl.F_SEAL_SHRINK and seals & (fcntl.F_SEAL_WRITE | _FUTURE_WRITE)
    if not keeps or taken < memory.num_bytes:
        raise MessageRefused("this file is no sealed memory: send tensors with an Outbox")


def _add_seals(memory: Memory) -> None:
    import fcntl

    if hasattr(fcntl, "F_ADD_SEALS"):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _FUTURE_WRITE
        fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, seals)
