"""Shared memory without a name, and private views of it. No torch.

    Memory      one file without a name (memfd; elsewhere a deleted temporary file): gone when the
                last process that has it open or mapped is gone, however that ends
    Piece       a stretch of a memory that lies at a stretch of a view
    View        one stretch of addresses where pieces are mapped privately: who writes gets a page
                of its own from the operating system, and nobody else sees it

Once filled, a memory is sealed: nobody can write it, shrink it or grow it any more, by whatever
mapping (Linux; elsewhere that is left to the code here).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inms_lab.errors import BadInput, NotEnoughMemory, SharingUnsupported

PAGE = mmap.PAGESIZE
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_SEAL_SEAL")
_NONE, _READ_WRITE = 0, 1 | 2  # PROT_NONE, PROT_READ | PROT_WRITE: mmap lacks them on Windows
_FIXED = 0x10  # MAP_FIXED, on Linux and macOS
_NORESERVE = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)
_FAILED = ctypes.c_void_p(-1).value


def pages_of(num_bytes: int) -> int:
    """`num_bytes` rounded up to whole pages."""
    return -(-num_bytes // PAGE) * PAGE


def require_support() -> None:
    """Raises `SharingUnsupported` where memory cannot be mapped privately at a chosen address."""
    if os.name != "posix":
        raise SharingUnsupported(
            "sharing parameters needs Linux or macOS (private mappings and fork): "
            "on Windows run the lab in WSL; labs on KV memory work without it"
        )


class Memory:
    """A file without a name, of whole pages. Closed with its last user."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.num_bytes = os.fstat(fd).st_size
        self._close = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, num_bytes: int, name: str = "inms") -> Memory:
        """A new one, all zero. Raises `NotEnoughMemory`, with nothing left behind."""
        require_support()
        fd = _open(name)
        try:
            if num_bytes:
                os.ftruncate(fd, num_bytes)
                if hasattr(os, "posix_fallocate"):  # now or never: not a SIGBUS in mid-copy
                    os.posix_fallocate(fd, 0, num_bytes)
        except BaseException as error:  # an interrupt too
            os.close(fd)
            if not isinstance(error, OSError):
                raise
            raise NotEnoughMemory(
                f"{num_bytes:,} bytes of shared memory cannot be had ({error.strerror}): close "
                "programs, raise the container's memory limit, or take a smaller model"
            ) from error
        return cls(fd)

    @contextlib.contextmanager
    def writing(self) -> Iterator[memoryview]:
        """Its bytes, to be filled; nobody may keep a view of them."""
        if not self.num_bytes:
            yield memoryview(b"")
            return
        with mmap.mmap(self.fd, self.num_bytes) as memory, memoryview(memory) as view:
            yield view

    def read(self, start: int, stop: int) -> bytes:
        """Some of its bytes."""
        return os.pread(self.fd, stop - start, start)

    def seal(self) -> None:
        """From now on nobody can change it."""
        import fcntl

        if all(hasattr(fcntl, name) for name in ("F_ADD_SEALS", *_SEALS)):
            with contextlib.suppress(PermissionError):  # a temporary file cannot be sealed
                seals = sum(getattr(fcntl, name) for name in _SEALS)
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Let it go; views that are mapped stay as they are."""
        self._close()


def _open(name: str) -> int:
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with tempfile.TemporaryFile(prefix=name) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise NotEnoughMemory(f"no shared memory can be opened: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """`num_bytes` of a memory from `offset` on lie at `start` of a view; all are whole pages."""

    start: int
    num_bytes: int
    memory: Memory
    offset: int = 0

    @property
    def stop(self) -> int:
        """Where it ends in the view."""
        return self.start + self.num_bytes


def laid_over(below: Sequence[Piece], above: Sequence[Piece]) -> list[Piece]:
    """The pieces of a view in which `above` hides what lies below it; rising, without overlap."""
    edges: list[Piece] = list(above)
    cover = sorted(above, key=lambda piece: piece.start)
    for piece in below:
        at = piece.start
        first = bisect.bisect_right(cover, at, key=lambda over: over.stop)
        for over in (cover[number] for number in range(first, len(cover))):
            if over.start >= piece.stop:
                break
            if over.start > at:
                edges.append(_part(piece, at, over.start))
            at = over.stop
        if at < piece.stop:
            edges.append(_part(piece, at, piece.stop))
    return sorted(edges, key=lambda piece: piece.start)


def _part(piece: Piece, start: int, stop: int) -> Piece:
    return Piece(start, stop - start, piece.memory, piece.offset + start - piece.start)


class View:
    """Addresses of `num_bytes`, private to this process (and, as it stands, to children that it
    forks). Unmapped when nobody uses it any more."""

    def __init__(self, num_bytes: int) -> None:
        require_support()
        self.num_bytes = num_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self.address = _mmap(None, max(num_bytes, PAGE), _NONE, flags, -1, 0)
        self._unmap = weakref.finalize(self, libc().munmap, self.address, max(num_bytes, PAGE))
        self._unmap.atexit = False  # the process ends, and its mappings with it

    def lay(self, pieces: Sequence[Piece], shared: bool = False) -> None:
        """Map these pieces, privately; what was written here before is gone where they lie.
        `shared`: what is written goes to the memories, which must not be sealed yet."""
        for piece in pieces:
            if piece.start < 0 or piece.stop > self.num_bytes:
                raise BadInput(f"bytes {piece.start} to {piece.stop} are outside of this view")
        for piece in pieces:  # nothing is laid if one of them cannot be
            flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | _FIXED | _NORESERVE
            where = (piece.memory.fd, piece.offset)
            _mmap(self.address + piece.start, piece.num_bytes, _READ_WRITE, flags, *where)

    def close(self) -> None:
        """Unmap it now. Nobody may use its bytes any more: they are gone."""
        self._unmap()

    def bytes_at(self, start: int, num_bytes: int) -> Any:
        """A writable buffer of some of its bytes, which keeps the view alive."""
        buffer = (ctypes.c_char * num_bytes).from_address(self.address + start)
        buffer.view = self  # type: ignore[attr-defined]
        return buffer


def _mmap(address: int | None, length: int, access: int, flags: int, fd: int, at: int) -> int:
    got = libc().mmap(address, length, access, flags, fd, at)
    if got == _FAILED:
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise BadInput("a sealed memory cannot be laid as shared: lay it privately")
        raise NotEnoughMemory(
            f"{length:,} bytes cannot be mapped ({os.strerror(code)}): raise the limit on address "
            "space (`ulimit -v unlimited`), or vm.max_map_count if there are many pieces"
        )
    return int(got)


@functools.cache
def libc() -> Any:
    """The system's C library, opened once."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_longlong,
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library
