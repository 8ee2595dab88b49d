"""Which pages of the weights a workload touches, and weights whose cold pages stay on disk.

Touched means: after a run on a fresh private view the kernel calls the page mapped there. Usually
it also maps the neighbours of a page that is touched (fault-around, 64 KiB), so that this would say
too much. It does not where a view is registered with userfaultfd, which is done here without
write-protecting anything: then a page is mapped when it was itself touched, and only then. Where
the system does not give userfaultfd (old kernels, some containers), `exact` is False, and pages
that lie in 64 KiB with a touched one count as touched.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from inms_lab.errors import BadInput, ProcessUnreadable
from inms_lab.parameters import kernel
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.prefetch import File, Span, forget
from inms_lab.parameters.region import PAGE, Piece, View, laid_over, libc
from inms_lab.parameters.shared import SharedParameters
from inms_lab.parameters.versions import (
    Delta,
    Pages,
    Version,
    filled,
    in_parts,
    joined,
    runs,
    words,
)
from inms_lab.parameters.weights import tensors_on

if TYPE_CHECKING:
    import pandas as pd

Work = Callable[[torch.nn.Module], Any]

_SYSCALL = {"x86_64": 323, "aarch64": 282, "riscv64": 282}  # userfaultfd
_USER_MODE_ONLY = 1
_API, _REGISTER = 0xC018AA3F, 0xC020AA00  # ioctls of linux/userfaultfd.h
_API_VERSION, _MODE_WP = 0xAA, 2
_FEATURES = (1 << 15, 1 << 12)  # WP_ASYNC: of any file; WP_HUGETLBFS_SHMEM: of shared memory


@dataclass(frozen=True)
class Touches:
    """`counts` [pages]: in how many of `runs` runs a page was touched. `exact`: see above."""

    layout: Layout
    counts: npt.NDArray[np.int64]
    runs: int
    exact: bool

    def hot(self, least: int = 1) -> Pages:
        """The pages that at least so many runs touched, rising; all others are cold.

        Raises `BadInput` for fewer than one run."""
        if not isinstance(least, int) or least < 1:
            raise BadInput(f"a hot page was touched in at least 1 run, not {least!r}")
        return np.flatnonzero(self.counts >= least)

    def by_name(self) -> pd.DataFrame:
        """Pages of each tensor, in the order in which they lie: all, those that any run touched,
        and those that every run touched."""
        import pandas as pd

        rows = {}
        for name, spot in self.layout.spots.items():
            mine = self.counts[spot.start // PAGE : spot.stop // PAGE]
            rows[name] = (len(mine), int((mine > 0).sum()), int((mine == self.runs).sum()))
        return pd.DataFrame.from_dict(rows, orient="index", columns=["pages", "touched", "always"])

    def rows(self, name: str) -> npt.NDArray[np.int64]:
        """The rows of a tensor that lie, in whole or in part, on touched pages: of an embedding,
        the tokens that may have been looked up. Raises `BadInput` for a name that is not there."""
        name = self.layout.same.get(name, name)
        spot = self.layout.spots.get(name)
        if spot is None or not spot.shape or not spot.num_bytes:
            raise BadInput(
                f"no tensor {name!r} with rows: names are {', '.join(self.layout.spots)}"
            )
        starts = np.arange(spot.shape[0]) * (spot.num_bytes // spot.shape[0])
        stops = starts + spot.num_bytes // spot.shape[0]
        mine = self.counts[spot.start // PAGE : spot.stop // PAGE] > 0
        before = np.concatenate(([0], np.cumsum(mine)))
        return np.flatnonzero(before[(stops - 1) // PAGE + 1] > before[starts // PAGE])


def touches(params: SharedParameters, works: Sequence[Work]) -> Touches:
    """What each of these functions of the module touches of the newest version, in this process.

    Each runs on weights that nobody has touched, and what it writes is gone afterwards. What other
    threads do to the module meanwhile counts as well. Raises `BadInput` without any work,
    `ProcessUnreadable` where the kernel does not tell single pages.
    """
    if not works:
        raise BadInput("give at least one function of the module: what is to be watched")
    branch = params.branch("watched")
    counts = np.zeros(params.num_bytes // PAGE, dtype=np.int64)
    exact = True
    for work in works:
        branch.discard()
        with _single_pages(branch.view) as alone:
            work(branch.module)
            counts += _mapped(branch.view)
        exact = exact and alone
    return Touches(params.layout, counts, len(works), exact)


def _mapped(view: View) -> npt.NDArray[np.bool_]:
    states = kernel.page_states("self", view.address, view.num_bytes)
    if states is None:
        raise ProcessUnreadable("the kernel does not tell single pages here (/proc/self/pagemap)")
    found: npt.NDArray[np.bool_] = states != kernel.ABSENT
    return found


@contextmanager
def _single_pages(view: View) -> Iterator[bool]:
    """Meanwhile a touch maps its own page only, until the view is laid anew; gives whether the
    system can do that."""
    handle = next(filter(None, (_registered(view, feature) for feature in _FEATURES)), None)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _registered(view: View, feature: int) -> int | None:
    """A userfaultfd that knows of the view's pages and watches none of them."""
    if sys.platform != "linux" or platform.machine() not in _SYSCALL:
        return None
    import fcntl

    handle = int(libc().syscall(_SYSCALL[platform.machine()], os.O_CLOEXEC | _USER_MODE_ONLY))
    if handle < 0:
        return None
    try:
        fcntl.ioctl(handle, _API, bytearray(struct.pack("QQQ", _API_VERSION, feature, 0)))
        where = struct.pack("QQQQ", view.address, view.num_bytes, _MODE_WP, 0)
        fcntl.ioctl(handle, _REGISTER, bytearray(where))
    except OSError:
        os.close(handle)
        return None
    return handle


@dataclass(frozen=True)
class OnDisk:
    """A version of the same content whose hot pages are in memory and whose cold ones are read from
    a file when they are touched. `cold`: bytes of a view, from one up to another."""

    version: Version
    file: Piece
    hot_bytes: int
    cold: tuple[Span, ...]

    @property
    def cold_bytes(self) -> int:
        """Bytes that memory need not hold."""
        return sum(stop - first for first, stop in self.cold)

    def forget(self) -> None:
        """Take the whole file out of the system's cache, as far as nobody maps it."""
        forget(self.file)


def on_disk(version: Version, layout: Layout, path: Path) -> File:
    """A file with the weights of a version. Raises `CacheNotWritable`."""
    file = File(path, layout)
    file.write(tensors_on(version.view(layout.num_bytes), layout).items())
    return file


def cold_on_disk(version: Version, file: File, hot: Pages) -> OnDisk:
    """The same version, of which `file` has the weights, with only its `hot` pages (numbers) in
    memory. Where they lie in too many runs, some cold pages between them stay in memory as well.

    Raises `BadInput` for pages that the layout does not have.
    """
    num_bytes = file.layout.num_bytes
    pages: Pages = np.unique(np.asarray(hot, dtype=np.int64))
    if len(pages) and (pages[0] < 0 or pages[-1] * PAGE >= num_bytes):
        raise BadInput(f"pages are 0 to {num_bytes // PAGE - 1}: take those of hot()")
    pages, rows = joined(pages), words(version.view(num_bytes))
    parts = in_parts(pages)
    memory = filled(pages, (rows[part] for part in parts))
    whole = file.open()
    above = Delta(version.number, version.digest, pages, memory, len(pages)).pieces()
    pieces = tuple(laid_over([whole], above))
    others = np.setdiff1d(np.arange(num_bytes // PAGE), pages, assume_unique=True)
    cold = tuple((first * PAGE, (first + count) * PAGE) for first, count in runs(others))
    same = replace(version, pieces=pieces)
    return OnDisk(same, whole, len(pages) * PAGE, cold)
