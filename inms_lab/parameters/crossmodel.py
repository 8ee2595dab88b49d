"""Equal pages of several models stored once: a model and its variants, or an encoder and a decoder
with one embedding.

base, tuned = SharedParameters("folder"), SharedParameters("other-folder")
store_once(tuned, base)  # of its own, `tuned` keeps only what `base` does not have

Pages are taken for equal if all their bytes are. A digest says where to look, never that two pages
agree. Both models stay what they are: who writes to one gets pages of his own, as always.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from inms_lab.errors import BadInput, MergeRefused, ParametersClosed
from inms_lab.model.progress import bar
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE, Memory, Piece
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.versions import (
    AT_ONCE,
    MOST_RUNS,
    Pages,
    Version,
    Words,
    filled,
    in_parts,
    runs,
    words,
)

Laid = tuple[Version, Layout]
AHEAD = 16  # pages that are compared together once the first of them was found


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the pages of a model lie, in bytes.

    `shared`: in memory that other models hold too. `own`: memory of this model alone. `repeated`:
    pages that lie in its own memory once and in its weights several times. `pieces`: mappings that
    each process with the model has.
    """

    num_bytes: int
    shared: int
    own: int
    repeated: int
    pieces: int

    @property
    def saved(self) -> int:
        """Bytes that it would take on its own, and does not."""
        return self.num_bytes - self.own


def store_once(
    params: SharedParameters,
    *others: SharedParameters,
    most_pieces: int = MOST_RUNS,
    progress: bool = False,
) -> Stored:
    """Lay the newest version of `params` from memory of `others`, and from memory of its own with
    what none of them has. Without others: what occurs in it several times is stored once.

    Its weights, version and digest stay the same. Whoever is made from now on has the new mapping;
    agents that run have the old one, and keep its memory, until they `move(params.version)`. The
    memory of the others stays while `params` uses any of it, even if they are closed. Where it
    would save nothing, all stays as it is.

    `most_pieces`: mappings that a process may have of it; the shortest runs of equal pages are
    stored again where there would be more.

    Raises `BadInput`, `ParametersClosed`, `NotEnoughMemory` or, while a merge goes on,
    `MergeRefused`; all stays as it is then.
    """
    if any(one is params for one in others):
        raise BadInput("a model is stored beside others, not beside itself: leave it out")
    if any(one.closed for one in (params, *others)):
        raise ParametersClosed("shared parameters of these are closed: make new ones")
    if not isinstance(most_pieces, int) or most_pieces < 3:
        raise BadInput(f"most_pieces is 3 or more, not {most_pieces!r}")
    if not params._merging.acquire(blocking=False):
        raise MergeRefused("a merge is going on: wait for its end, then store the result")
    try:
        laid = [(one.version, one.layout) for one in others]
        found = Search((params.version, params.layout), laid, progress)
        found.limit(most_pieces)
        elsewhere = memories(version for version, _ in laid)
        before = sum(m.num_bytes for m in memories([params.version]) - elsewhere)
        if len(found.own_pages) * PAGE < before:
            params._publish(found.version())
        return _stored(params, elsewhere)
    finally:
        params._merging.release()


def memories(versions: Iterable[Version]) -> set[Memory]:
    """All memories that these versions need, each once."""
    return {piece.memory for version in versions for piece in version.pieces}


def _stored(params: SharedParameters, elsewhere: set[Memory]) -> Stored:
    pieces = params.version.pieces
    shared = sum(piece.num_bytes for piece in pieces if piece.memory in elsewhere)
    own = sum(memory.num_bytes for memory in memories([params.version]) - elsewhere)
    repeated = params.num_bytes - shared - own
    return Stored(params.num_bytes, shared, own, repeated, len(pieces))


class Search:
    """Where each page of a version can be had. All of its pages are looked for when it is made.

    `homes` [pages]: the number of a page with the same bytes. Below `num_theirs`: of the others,
    which lie side by side. Above: `num_theirs` + p is page p of the version itself; those that are
    their own home have to be stored.
    """

    def __init__(self, laid: Laid, others: Sequence[Laid], progress: bool = False) -> None:
        self._version, layout = laid
        self._mine = words(self._version.view(layout.num_bytes))
        self._beside = _side_by_side(others)
        self._theirs = words(self._beside.view(sum(other.num_bytes for _, other in others)))
        self.num_theirs = len(self._theirs)
        self._itself: Pages = self.num_theirs + np.arange(len(self._mine))
        self.homes: Pages = np.full(len(self._mine), -1)
        self._by_name(layout, [other for _, other in others])
        self._by_digest(progress)

    def _by_name(self, layout: Layout, others: Sequence[Layout]) -> None:
        """Tensors of one name, page by page."""
        before = 0  # pages of the others that lie further in front
        for other in others:
            for name in layout.spots.keys() & other.spots.keys():
                spot, there = layout.spots[name], other.spots[name]
                first, theirs = spot.start // PAGE, before + there.start // PAGE
                count = min(spot.stop - spot.start, there.stop - there.start) // PAGE
                for at in range(0, count, AT_ONCE):
                    part = np.arange(at, min(count, at + AT_ONCE))
                    equal = (self._mine[first + part] == self._theirs[theirs + part]).all(axis=1)
                    self.homes[first + part[equal]] = theirs + part[equal]
            before += other.num_bytes // PAGE

    def _by_digest(self, progress: bool) -> None:
        """All other pages, wherever they are: the first by its digest, those behind it follow."""
        rest = np.flatnonzero(self.homes < 0)
        if not len(rest):
            return
        known: dict[bytes, int] = {}
        total = (self.num_theirs + len(rest)) * PAGE
        with bar(total, "equal pages", unit="B", enabled=progress) as shown:
            for number, row in enumerate(self._theirs):
                known.setdefault(digest(row), number)
                shown.update(PAGE)
            for first, count in runs(rest):
                at = first
                while at < first + count:
                    itself = self.num_theirs + at
                    home = known.setdefault(digest(self._mine[at]), itself)
                    equal = self._equal(at, first + count, home)
                    self.homes[at : at + equal] = np.arange(home, home + equal)
                    if not equal:  # other bytes with the same digest
                        self.homes[at] = itself
                    at += max(1, equal)
                    shown.update(max(1, equal) * PAGE)

    def _equal(self, at: int, stop: int, home: int) -> int:
        """How many pages from `at` on have the bytes of as many from `home` on."""
        theirs = self._theirs[home : home + AHEAD]
        if home >= self.num_theirs:
            theirs = self._mine[home - self.num_theirs :][:1]
        count = min(len(theirs), stop - at)
        equal = (self._mine[at : at + count] == theirs[:count]).all(axis=1)
        return count if equal.all() else int(equal.argmin())

    @property
    def own_pages(self) -> Pages:
        """The pages that have to be stored."""
        return np.flatnonzero(self.homes == self._itself)

    def _runs(self) -> tuple[Pages, Pages]:
        """Pages that one piece can hold, as (first, count)."""
        seams = [piece.start // PAGE for piece in self._beside.pieces]
        breaks = np.flatnonzero((np.diff(self.homes) != 1) | np.isin(self.homes[1:], seams)) + 1
        edges = np.concatenate(([0], breaks, [len(self.homes)]))
        return edges[:-1][np.diff(edges) > 0], np.diff(edges)[np.diff(edges) > 0]

    def limit(self, most: int) -> None:
        """Have at most so many pieces: the longest runs of pages that are elsewhere stay there."""
        firsts, counts = self._runs()
        if len(firsts) <= most:
            return
        elsewhere = np.flatnonzero(self.homes[firsts] != self._itself[firsts])
        longest = elsewhere[np.argsort(-counts[elsewhere], kind="stable")]
        for run in longest[(most - 1) // 2 :]:  # what lies between two of them is one piece
            part = slice(firsts[run], firsts[run] + counts[run])
            self.homes[part] = self._itself[part]

    def version(self) -> Version:
        """The same version, laid from the others' memory and a new one with what they lack."""
        own, beside = self.own_pages, self._beside.pieces
        parts = (self._mine[part] for part in in_parts(own))
        memory = filled(own, parts)
        seams = [piece.start for piece in beside]
        pieces = []
        for first, count in zip(*(edge.tolist() for edge in self._runs()), strict=True):
            home = int(self.homes[first])
            if home < self.num_theirs:
                there = beside[bisect_right(seams, home * PAGE) - 1]
                where, offset = there.memory, there.offset + home * PAGE - there.start
            else:
                where = memory
                offset = int(np.searchsorted(own, home - self.num_theirs)) * PAGE
            pieces.append(Piece(first * PAGE, count * PAGE, where, offset))
        return replace(self._version, pieces=tuple(pieces))


def _side_by_side(others: Sequence[Laid]) -> Version:
    """Several versions as one, in this order."""
    pieces, at = [], 0
    for version, layout in others:
        pieces += [Piece(at + p.start, p.num_bytes, p.memory, p.offset) for p in version.pieces]
        at += layout.num_bytes
    return Version(0, tuple(pieces), "")


def digest(page: Words) -> bytes:
    """16 bytes of a page [PAGE / 8], to look it up by."""
    return blake2b(page.data, digest_size=16, person=b"inms-page").digest()
