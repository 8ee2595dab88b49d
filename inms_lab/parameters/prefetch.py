"""Weights that stay on disk until a layer needs them, and layers that are asked for ahead.

    File        the tensors of a layout in one file, each from a page on; mapped like shared memory
    Prefetch    on a module that lies on such a file: when a layer begins, the pages of the next
                `degree` layers are read, and mapped, by a thread of its own while this one is
                computed; with a `budget`, layers behind are let go, so that weights larger than
                memory pass

With a degree of 0 nothing is asked for: every page comes when it is first touched, with the
system's own readahead. Pages that were written are private and are never let go.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from inms_lab.errors import BadInput, CacheNotWritable
from inms_lab.parameters import kernel
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE, Memory, Piece, View, libc
from inms_lab.parameters.versions import runs
from inms_lab.parameters.weights import tensors_on

Span = tuple[int, int]  # first byte of a view, and the one behind the last; whole pages
POPULATE_READ = 22  # of Linux' madvise, from 5.14 on: read, and map into this process


class File:
    """Written once beside the model; `open` gives it as pieces of a view."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Lay the tensors out in the file, which nobody sees half-written.

        Raises `CacheNotWritable`."""
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            with beside.open("w+b") as file:
                file.truncate(self.layout.num_bytes)
                memory = Memory(os.dup(file.fileno()))
                view = View(self.layout.num_bytes)
                view.lay([Piece(0, self.layout.num_bytes, memory)], shared=True)
                into = tensors_on(view, self.layout)
                for name, tensor in tensors:
                    if name in self.layout.spots:
                        into[name].copy_(tensor)
                del into
                view.close()
                os.fsync(file.fileno())  # pages that are not on disk yet cannot be let go
            beside.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise CacheNotWritable(
                f"{self.path} cannot be written ({error.strerror}): name a folder on a disk with "
                f"{self.layout.num_bytes / 2**20:.0f} MiB free"
            ) from error

    def open(self) -> Piece:
        """The whole of it as one piece. Raises `BadInput` if it is not as long as its layout."""
        memory = Memory(os.open(self.path, os.O_RDONLY))
        if memory.num_bytes != self.layout.num_bytes:
            raise BadInput(
                f"{self.path} has {memory.num_bytes} bytes, not {self.layout.num_bytes}: "
                "write it anew"
            )
        return Piece(0, memory.num_bytes, memory)


def forget(piece: Piece, spans: Sequence[Span] = ()) -> None:
    """Take a file's pages (all, or those of `spans`) out of the system's cache, where nobody maps
    them: the next touch reads the disk."""
    if hasattr(os, "posix_fadvise"):
        for first, stop in spans or [(0, piece.num_bytes)]:
            where = (piece.offset + first, stop - first)
            os.posix_fadvise(piece.memory.fd, *where, os.POSIX_FADV_DONTNEED)


def cached(piece: Piece) -> int:
    """Bytes of a file's pages in the system's cache, whoever brought them there."""
    system, num_bytes = libc(), ctypes.c_size_t(piece.num_bytes)
    view = View(piece.num_bytes)
    view.lay([Piece(0, piece.num_bytes, piece.memory)])
    pages = np.empty(piece.num_bytes // PAGE, np.uint8)
    told = system.mincore(
        ctypes.c_void_p(view.address), num_bytes, ctypes.c_void_p(pages.ctypes.data)
    )
    view.close()
    assert told == 0
    return int((pages & 1).sum()) * PAGE


class Prefetch:
    """Hooks on a module's layers; `close` takes them off. `asked` and `let_go` count bytes.

    `budget`: bytes of layers that may stay in memory; None: all. `piece`: the file, so that what is
    let go leaves the system's cache too. Raises `BadInput` for a module without a list of layers,
    or a budget that does not hold the layers that are wanted at once.

    While a budget is kept, only the thread that computes may write to the weights: what another
    one writes just when a layer is let go may be lost. A child that is forked asks for nothing
    ahead, for threads do not go with it; a budget is kept there too.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        view: View,
        layout: Layout,
        degree: int,
        budget: int | None = None,
        piece: Piece | None = None,
    ) -> None:
        if not isinstance(degree, int) or degree < 0:
            raise BadInput(f"a degree is 0 or more layers, not {degree!r}")
        if budget is not None and not isinstance(budget, int):
            raise BadInput(f"a budget is a number of bytes, or None for no limit, not {budget!r}")
        name, layers = _layers(module)
        self.view, self.piece, self.degree = view, piece, min(degree, len(layers) - 1)
        inside = [f"{name}.{number}." for number in range(len(layers))]
        self.spans = [_spans(layout, [prefix]) for prefix in inside]
        self.others = _spans(layout, inside, outside=True)  # embeddings and the output's weights
        largest = max(1, *map(_length, self.spans))
        self.kept = len(layers) if budget is None else budget // largest
        if self.kept < 1 + self.degree:
            raise BadInput(
                f"a budget of {budget} bytes holds {self.kept} layers, and {1 + self.degree} are "
                "wanted at once: give more, or a smaller degree"
            )
        self.asked = self.let_go = 0
        self._pid = os.getpid()
        # A thread of its own: even asking takes the system a while, for it finds the room.
        self._reader = ThreadPoolExecutor(1, "inms-prefetch")
        self._reading: dict[Span, Future[None]] = {}
        self._hooks = [
            layer.register_forward_pre_hook(lambda *_, n=number: self._begin(n))
            for number, layer in enumerate(layers)
        ]

    def close(self) -> None:
        """The module is as it was; nothing is read any more that was only asked for."""
        for hook in self._hooks:
            hook.remove()
        if self._pid == os.getpid():
            self._reader.shutdown(cancel_futures=True)

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, number: int) -> None:
        """Layer `number` begins: the next ones are asked for, one far behind is let go."""
        count, last = len(self.spans), number + self.degree
        for ahead in range(number + 1 if number == 0 else last, last + 1) if self.degree else ():
            self._ask([*self.others * (ahead == count), *self.spans[ahead % count]])
        if self.kept < count:
            self._let_go(self.spans[(number - (self.kept - self.degree)) % count])

    def _ask(self, spans: Sequence[Span]) -> None:
        for span in spans if self._pid == os.getpid() else ():
            reading = self._reading.get(span)
            if reading is None or reading.done():
                with suppress(RuntimeError):  # another thread has closed it meanwhile
                    self._reading[span] = self._reader.submit(self._read, span)
                    self.asked += span[1] - span[0]

    def _read(self, span: Span) -> None:
        where = (self.view.address + span[0], span[1] - span[0])
        if not _advise(*where, POPULATE_READ):
            _advise(*where, mmap.MADV_WILLNEED)

    def _let_go(self, spans: Sequence[Span]) -> None:
        for first, stop in spans:
            reading = self._reading.pop((first, stop), None)
            if reading is not None and self._pid == os.getpid() and not reading.cancel():
                reading.result()  # else it would come back after it was let go
            states = kernel.page_states("self", self.view.address + first, stop - first)
            if states is None:
                continue  # nobody knows what was written here
            for page, count in runs(np.flatnonzero(states == kernel.SHARED)):
                self.let_go += count * PAGE
                where = self.view.address + first + page * PAGE
                _advise(where, count * PAGE, mmap.MADV_DONTNEED)
        if self.piece is not None:
            forget(self.piece, spans)


def _advise(address: int, num_bytes: int, advice: int) -> bool:
    """Whether the system took it."""
    where = (ctypes.c_void_p(address), ctypes.c_size_t(num_bytes))
    return bool(libc().madvise(*where, advice) == 0)


def _length(spans: Sequence[Span]) -> int:
    return sum(stop - first for first, stop in spans)


def _layers(module: torch.nn.Module) -> tuple[str, torch.nn.ModuleList]:
    found = [
        (len(part), name, part)
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.ModuleList) and len(part)
    ]
    if not found:
        raise BadInput(f"a {type(module).__name__} has no list of layers that follow one another")
    _, name, layers = max(found, key=lambda one: one[0])
    return name, layers


def _spans(layout: Layout, prefixes: Sequence[str], outside: bool = False) -> list[Span]:
    """Where the tensors with (or without) one of these prefixes lie, neighbours joined."""
    spans: list[Span] = []
    for name, spot in layout.spots.items():
        if name.startswith(tuple(prefixes)) is outside or not spot.num_bytes:
            continue
        if spans and spans[-1][1] == spot.start:
            spans[-1] = (spans[-1][0], spot.stop)
        else:
            spans.append((spot.start, spot.stop))
    return spans
