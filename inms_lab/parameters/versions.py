"""Versions of shared weights, and what makes one of another: deltas of touched pages. No torch.

A version is a list of pieces over one range of addresses. A new one takes all pieces of the one
before, but for the pages that were touched: these lie in a memory of their own. Nothing that is in
use is ever changed, so who has an old version keeps it as long as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from inms_lab.errors import BadInput
from inms_lab.parameters import kernel
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE, Memory, Piece, View, laid_over

Pages = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
MOST_RUNS = 8192  # of a delta, and pieces of a version: a process may have 65,530 mappings
MOST_DELTAS = 64  # memories of changes in a version: then they are gathered into one
AT_ONCE = 1024  # pages that are looked at together: copies of them stay small


@dataclass(frozen=True, slots=True)
class Version:
    """`number` counts from 0; `digest` names the content (128 bits, hex): that of the files, and of
    every delta since. `origin` is the digest of number 0: versions with one origin are one model's.
    `deltas`: memories of what has changed, where versions are made."""

    number: int
    pieces: tuple[Piece, ...]
    digest: str
    origin: str = ""
    deltas: tuple[Memory, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", self.origin or self.digest)

    def __repr__(self) -> str:
        return f"<version {self.number}, {len(self.pieces)} pieces, {self.digest[:8]}>"

    def view(self, num_bytes: int) -> View:
        """A private view of it."""
        view = View(num_bytes)
        view.lay(self.pieces)
        return view


@dataclass(frozen=True, slots=True)
class Delta:
    """Pages that differ from the version with number `base` and digest `of`, rising, and their
    bytes, sealed in this order.

    `written` is how many pages had been written where it was taken: some of them may have got the
    bytes that they had before. Where there would be too many runs of pages, those between two runs
    belong to the delta as well.
    """

    base: int
    of: str
    pages: Pages
    memory: Memory
    written: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its pages."""
        return len(self.pages) * PAGE

    def pieces(self) -> list[Piece]:
        """Where its pages lie in a view: a piece a run of neighbours."""
        found, at = [], 0
        for first, count in runs(self.pages):
            found.append(Piece(first * PAGE, count * PAGE, self.memory, at))
            at += count * PAGE
        return found

    def by_name(self, layout: Layout) -> dict[str, int]:
        """How many of its pages each tensor has; tensors without any are left out."""
        counts = {}
        for name, spot in layout.spots.items():
            first, stop = np.searchsorted(self.pages, (spot.start // PAGE, spot.stop // PAGE))
            if stop > first:
                counts[name] = int(stop - first)
        return counts

    def words(self) -> Words:
        """Its bytes as rows [pages, PAGE / 8], mapped privately: it stays as it is."""
        view = View(self.num_bytes)
        view.lay([Piece(0, self.num_bytes, self.memory)] if self.num_bytes else [])
        return words(view)

    def digest(self) -> bytes:
        """What it changes, as 16 bytes."""
        hashed = blake2b(self.pages.tobytes(), digest_size=16, person=b"inms-delta")
        for part in in_parts(np.arange(len(self.pages))):
            hashed.update(self.memory.read(int(part[0]) * PAGE, (int(part[-1]) + 1) * PAGE))
        return hashed.digest()


def words(view: View) -> Words:
    """A view's pages as rows [pages, PAGE / 8]; reading one maps it."""
    flat = np.frombuffer(view.bytes_at(0, view.num_bytes), dtype=np.uint64)
    return flat.reshape(-1, PAGE // 8)


def delta(view: View, base: Version) -> Delta:
    """What was changed in this process' view of `base`. Only pages that the kernel calls private
    are looked at; where it does not say, all are."""
    states = kernel.page_states("self", view.address, view.num_bytes)
    if states is None:
        candidates: Pages = np.arange(view.num_bytes // PAGE)
    else:
        candidates = np.flatnonzero(np.isin(states, (kernel.PRIVATE, kernel.SWAPPED)))
    now, was = words(view), words(base.view(view.num_bytes))
    parts = in_parts(candidates)
    changed = [part[(rows_of(now, part) != rows_of(was, part)).any(axis=1)] for part in parts]
    pages = joined(np.concatenate([np.empty(0, dtype=np.int64), *changed]))
    memory = filled(pages, (rows_of(now, part) for part in in_parts(pages)))
    return Delta(base.number, base.digest, pages, memory, len(candidates))


def rows_of(rows: Words, at: Pages) -> Words:
    """Some rows, rising: neighbours in place, without a copy."""
    if len(at) and at[-1] - at[0] == len(at) - 1:
        return rows[at[0] : at[-1] + 1]
    return rows[at]


def filled(pages: Pages, rows: Iterator[npt.NDArray[np.generic]]) -> Memory:
    """A sealed memory with so many pages, their bytes given in order, some at a time."""
    memory = Memory.create(len(pages) * PAGE, "inms-delta")
    at = 0
    for part in rows:  # by calls: mapped, each page would cost a fault
        raw = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
        at += os.pwrite(memory.fd, raw.data, at)
    memory.seal()
    return memory


def after(base: Version, change: Delta, num_bytes: int) -> Version:
    """The version that a delta makes of its base. Raises `BadInput` if it is not of this one."""
    if change.base != base.number or change.of != base.digest:
        raise BadInput(f"a delta of version {change.base} does not go onto version {base.number}")
    pieces = tuple(laid_over(base.pieces, change.pieces()))
    hashed = blake2b(digest_size=16, person=b"inms-version")
    hashed.update(base.digest.encode())
    hashed.update(change.digest())
    deltas = (*base.deltas, change.memory)
    version = Version(base.number + 1, pieces, hashed.hexdigest(), base.origin, deltas)
    if len(pieces) > 2 * MOST_RUNS:
        return _in_one(version, num_bytes)
    return _gathered(version) if len(deltas) > MOST_DELTAS else version


def _gathered(version: Version) -> Version:
    """The same with all changes in one memory: each memory is an open file in every process."""
    loose = [piece for piece in version.pieces if piece.memory in version.deltas]
    memory = Memory.create(sum(piece.num_bytes for piece in loose), "inms-delta")
    moved, at = {}, 0
    for piece in loose:
        moved[piece] = Piece(piece.start, piece.num_bytes, memory, at)
        for done in range(0, piece.num_bytes, AT_ONCE * PAGE):
            first, stop = piece.offset + done, min(done + AT_ONCE * PAGE, piece.num_bytes)
            os.pwrite(memory.fd, piece.memory.read(first, piece.offset + stop), at + done)
        at += piece.num_bytes
    memory.seal()
    pieces = tuple(moved.get(piece, piece) for piece in version.pieces)
    return replace(version, pieces=pieces, deltas=(memory,))


def _in_one(version: Version, num_bytes: int) -> Version:
    """The same in a memory of its own, for one of too many pieces."""
    rows = words(version.view(num_bytes))
    pages: Pages = np.arange(len(rows))
    memory = filled(pages, (rows[part] for part in in_parts(pages)))
    return replace(version, pieces=(Piece(0, num_bytes, memory),), deltas=())


def runs(pages: Pages) -> list[tuple[int, int]]:
    """Rising page numbers as (first, count) of neighbours."""
    if not len(pages):
        return []
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    firsts = pages[np.concatenate(([0], breaks))]
    counts = np.diff(np.concatenate(([0], breaks, [len(pages)])))
    return list(zip(firsts.tolist(), counts.tolist(), strict=True))


def joined(pages: Pages, most: int = MOST_RUNS) -> Pages:
    """Rising pages in at most so many runs: the narrowest gaps between them are filled."""
    found = runs(pages)
    if len(found) <= most:
        return pages
    gaps = np.diff(pages)
    breaks = np.flatnonzero(gaps > 1)
    keep = np.sort(breaks[np.argsort(gaps[breaks], kind="stable")[len(breaks) - (most - 1) :]])
    edges = np.concatenate(([0], keep + 1)), np.concatenate((keep, [len(pages) - 1]))
    spans = zip(pages[edges[0]].tolist(), pages[edges[1]].tolist(), strict=True)
    return np.concatenate([np.arange(first, last + 1) for first, last in spans])


def in_parts(pages: Pages) -> Sequence[Pages]:
    """So many at a time, none of them empty."""
    return [pages[at : at + AT_ONCE] for at in range(0, len(pages), AT_ONCE)]
