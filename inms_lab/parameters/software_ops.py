"""Copy-on-write in software: bytes that nobody writes, with private chunks over them, and how an
operation runs on tensors of such bytes. For devices where no page fault copies; it runs on any.

An operation that reads gets the shared bytes themselves where nothing was written, else a dense
copy with the private chunks put in, which lives as long as the operation. One that writes (its
schema says so) runs on a dense copy; the chunks that differ in bits become private. So strides,
alignment and kernels are those of an ordinary tensor, and so are results, bit for bit. Where all
chunks are private they are one stretch of memory, and nothing is copied any more.

As with ordinary tensors, two threads may read at once, but not write one tensor at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from inms_lab.errors import BadInput

UNSAID = ("running_mean", "running_var")  # schemas of batch norms do not say that these are written
A_ROW = 128 << 10  # bytes that are copied in about the time in which a row is read by itself
Place = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
Flat = tuple["Chunks", int, torch.Tensor]  # bytes from a chunk on, uint8


class Chunks:
    """The bytes of a tensor in chunks of `chunk` bytes, the last one perhaps shorter.

    shared     as in `base`, uint8 [bytes], which is never written
    private    written: a copy of it is in `private`, by number
    """

    def __init__(self, base: torch.Tensor, chunk: int) -> None:
        self.base, self.chunk = base, chunk
        self.private: dict[int, torch.Tensor] = {}
        self._whole: torch.Tensor | None = None  # all of `private` in one, once all is private

    @property
    def num_chunks(self) -> int:
        """All its chunks."""
        return -(-self.base.numel() // self.chunk)

    def read(self, first: int, stop: int) -> torch.Tensor:
        """Chunks from `first` up to `stop` as uint8 [bytes], not to be written: a copy only if some
        are private and others not."""
        if (own := self._own(first, stop)) is not None:
            return own
        clean = not self.private or not any(n in self.private for n in range(first, stop))
        return self._shared(first, stop) if clean else self._copy(first, stop)

    def to_write(self, first: int, stop: int) -> torch.Tensor:
        """The same to be written, and then to be given to `keep`."""
        own = self._own(first, stop)
        return self._copy(first, stop) if own is None else own

    def keep(self, written: torch.Tensor, first: int) -> None:
        """Take what was written to what `to_write` gave: what differs becomes private."""
        parts = dict(enumerate(written.split(self.chunk), first))
        if not written.numel() or self._own(first, first + len(parts)) is not None:
            return
        fresh = []
        for number, differs in zip(parts, self._differing(written, first), strict=True):
            if number in self.private:
                self.private[number].copy_(parts[number])
            elif differs:
                fresh.append(number)
        if not fresh:
            return
        if len(fresh) == self.num_chunks:
            self._become_whole(written)
        else:
            rows = torch.cat([parts[number] for number in fresh]).split(self.chunk)
            self.private.update(zip(fresh, rows, strict=True))
            if len(self.private) == self.num_chunks:
                self._become_whole(torch.cat([self.private[n] for n in range(self.num_chunks)]))

    def discard(self) -> None:
        """Let all private chunks go: it reads as its base again."""
        self.private, self._whole = {}, None

    def __deepcopy__(self, memo: dict[int, Any]) -> Chunks:
        made = memo[id(self)] = Chunks(self.base, self.chunk)
        if self._whole is not None:
            made._become_whole(self._whole.clone())
        else:
            made.private = {number: part.clone() for number, part in self.private.items()}
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Private chunks travel by value: the receiver's are its own, wherever the base lies."""
        values = {n: part.cpu().numpy().tobytes() for n, part in self.private.items()}
        return _restored, (self.base, self.chunk, values)

    def _shared(self, first: int, stop: int) -> torch.Tensor:
        return self.base[first * self.chunk : stop * self.chunk]

    def _own(self, first: int, stop: int) -> torch.Tensor | None:
        """These chunks where they lie, if they are private and lie together."""
        if self._whole is not None:
            return self._whole[first * self.chunk : stop * self.chunk]
        return self.private.get(first) if stop - first == 1 else None

    def _copy(self, first: int, stop: int) -> torch.Tensor:
        parts, at = [], first
        for number in range(first, stop):
            if number in self.private:
                parts += [self._shared(at, number), self.private[number]]
                at = number + 1
        return torch.cat([*parts, self._shared(at, stop)])

    def _differing(self, written: torch.Tensor, first: int) -> list[bool]:
        """Which chunks differ in bits from the base."""
        stop = first * self.chunk + written.numel()
        was = self.base[first * self.chunk : stop]
        even = written.numel() // self.chunk * self.chunk
        words = [one[:even].view(torch.int64) for one in (written, was)]
        rows = (words[0] != words[1]).view(-1, self.chunk // 8).any(1).tolist()
        tail = [not torch.equal(written[even:], was[even:])] if even < written.numel() else []
        return [*rows, *tail]

    def _become_whole(self, whole: torch.Tensor) -> None:
        self._whole = whole
        self.private = dict(enumerate(whole.split(self.chunk)))


def run(kind: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of which some arguments are of `kind`: tensors that have `chunks`, made by
    `kind(chunks, *place)`. Views of one are of it too, all other results are ordinary tensors."""
    if torch.Tag.inplace_view in func.tags:
        raise BadInput(f"{func} would move a copy-on-write tensor: use its form without _")
    mine = [x for x in tree_leaves((args, kwargs)) if isinstance(x, kind)]
    if func.is_view:
        result = _Call(kind, [(x.chunks, 0, x.chunks.base) for x in mine]).run(func, args, kwargs)
        if all(isinstance(x, kind) for x in tree_leaves(result)):
            return result  # else it copied, and perhaps what has been written since
    if func is torch.ops.aten.embedding.default and (found := _looked_up(*args)) is not None:
        return found
    written = {id(x.chunks) for x in _written(func, args, kwargs) if isinstance(x, kind)}
    spans: dict[Chunks, tuple[int, int]] = {}
    for x in mine:
        first, stop = _span(x)
        least, most = spans.get(x.chunks, (first, stop))
        spans[x.chunks] = (min(first, least), max(stop, most))
    with _lasting():
        flats = [
            (c, first, (c.to_write if id(c) in written else c.read)(first, stop))
            for c, (first, stop) in spans.items()
        ]
    result = _Call(kind, flats).run(func, args, kwargs)
    with _lasting():
        for chunks, first, flat in flats:
            if id(chunks) in written:
                chunks.keep(flat, first)
    return result


class _Call:
    """One call: tensors on `flats` stand for those of `kind`, and what comes back is wrapped."""

    def __init__(self, kind: Any, flats: Sequence[Flat]) -> None:
        self.kind, self.flats = kind, flats
        self.stands: dict[int, tuple[torch.Tensor, Any]] = {}  # by id: it, and for whom

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its result."""
        args, kwargs = tree_map_only(self.kind, self.bare, (args, kwargs))
        return tree_map_only(torch.Tensor, self.wrapped, func(*args, **kwargs))

    def bare(self, tensor: Any) -> torch.Tensor:
        """The ordinary tensor that stands for one of `kind`."""
        chunks, first, flat = next(f for f in self.flats if f[0] is tensor.chunks)
        dtype, shape, stride, offset = place(tensor)
        at = offset * dtype.itemsize + flat.storage_offset() - first * chunks.chunk
        made = torch.empty(0, dtype=dtype, device=flat.device)
        made.set_(flat.untyped_storage(), at // dtype.itemsize, shape, stride)  # type: ignore[call-overload]
        self.stands[id(made)] = made, tensor
        return made

    def wrapped(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result, of `kind` if it lies in the bytes of one of them."""
        if id(tensor) in self.stands:
            return self.stands[id(tensor)][1]  # type: ignore[no-any-return]
        if tensor.layout != torch.strided:
            return tensor
        dtype, shape, stride, offset = place(tensor)
        at, storage = offset * dtype.itemsize, tensor.untyped_storage()
        for chunks, first, flat in self.flats:
            start = flat.storage_offset()
            lies = storage._cdata == flat.untyped_storage()._cdata
            if lies and start <= at < start + flat.numel():
                offset = (at - start + first * chunks.chunk) // dtype.itemsize
                with _lasting():
                    return self.kind(chunks, dtype, shape, stride, offset)  # type: ignore[no-any-return]
        return tensor


def _looked_up(table: Any, at: torch.Tensor, *others: Any) -> torch.Tensor | None:
    """A lookup of few rows of a table, row by row, where that is less work than a dense copy."""
    chunks = getattr(table, "chunks", None)
    if chunks is None or not 0 < len(chunks.private) < chunks.num_chunks:
        return None
    rows, where = torch.unique(at, return_inverse=True)
    if not 0 < len(rows) <= table.nbytes // A_ROW or rows[0] < 0 or rows[-1] >= len(table):
        return None  # if a number is wrong, torch says so
    few = torch.stack([table[row].clone() for row in rows.tolist()])
    return torch.ops.aten.embedding.default(few, where, *others)  # type: ignore[no-any-return]


def _lasting() -> AbstractContextManager[Any]:
    """What is made meanwhile may be written outside of inference mode too."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Everything in arguments that the operation may write: its schema says so."""
    found = []
    for number, argument in enumerate(func._schema.arguments):
        says_so = argument.alias_info is not None and argument.alias_info.is_write
        if says_so or argument.name in UNSAID:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            found += tree_leaves(given)
    return found


def _span(tensor: Any) -> tuple[int, int]:
    """The chunks that it lies in, first and stop."""
    dtype, shape, stride, at = place(tensor)
    size, chunk = dtype.itemsize, tensor.chunks.chunk
    first = at * size // chunk
    if not tensor.numel():
        return first, first
    last = at + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    return first, -(-(last + 1) * size // chunk)


def place(tensor: torch.Tensor) -> Place:
    """Element type, shape, strides and storage offset, the last two in elements."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _restored(base: torch.Tensor, chunk: int, values: dict[int, bytes]) -> Chunks:
    made = Chunks(base, chunk)
    for number, value in values.items():
        part = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        made.private[number] = part.to(base.device)
    return made
