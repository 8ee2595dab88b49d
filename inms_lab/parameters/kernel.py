"""What the kernel says of a process' pages: Linux' own figures, no estimate. No torch.

shared     in memory, and the page of the shared bytes: it costs nobody anything more
private    in memory, and this process' own: it was written here
swapped    written here, and on disk now
absent     not mapped here (yet): nobody has touched it in this process
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inms_lab.errors import ProcessUnreadable
from inms_lab.parameters.region import PAGE

ABSENT, SHARED, PRIVATE, SWAPPED = range(4)
WORDS = ("absent", "shared", "private", "swapped")
_PRESENT, _SWAPPED, _OF_A_FILE = (np.uint64(1) << np.uint64(bit) for bit in (63, 62, 61))
_AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)$")
States = npt.NDArray[np.uint8]


def page_states(pid: int | str, address: int, num_bytes: int) -> States | None:
    """The state of each page of a private mapping; None where the kernel does not tell."""
    if sys.platform != "linux":
        return None
    try:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
            raw = os.pread(file.fileno(), num_bytes // PAGE * 8, address // PAGE * 8)
    except OSError:
        return None
    words = np.frombuffer(raw, dtype=np.uint64)
    if len(words) < num_bytes // PAGE:
        return None
    own = (words & _OF_A_FILE) == 0
    states = np.where((words & _PRESENT) != 0, np.where(own, PRIVATE, SHARED), ABSENT)
    return np.where((words & _SWAPPED) != 0, SWAPPED, states).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes of some mappings, by the kernel's words. `pss`: each page divided by how many map it;
    `private`: nobody else maps it."""

    rss: int = 0
    pss: int = 0
    shared_clean: int = 0
    shared_dirty: int = 0
    private_clean: int = 0
    private_dirty: int = 0
    anonymous: int = 0  # written by this process, of a private mapping
    swap: int = 0

    @property
    def private(self) -> int:
        """Bytes that would be free if this process ended."""
        return self.private_clean + self.private_dirty


_FIELDS = {
    "Rss": "rss",
    "Pss": "pss",
    "Shared_Clean": "shared_clean",
    "Shared_Dirty": "shared_dirty",
    "Private_Clean": "private_clean",
    "Private_Dirty": "private_dirty",
    "Anonymous": "anonymous",
    "Swap": "swap",
}


def whole(pid: int | str) -> Figures:
    """A whole process. Raises `ProcessUnreadable`."""
    return _sum(_read(pid, "smaps_rollup").splitlines()[1:])


def between(pid: int | str, start: int, stop: int) -> Figures:
    """Its mappings from address `start` up to `stop`. Raises `ProcessUnreadable`."""
    lines: list[str] = []
    inside = False
    for line in _read(pid, "smaps").splitlines():
        if area := _AREA.match(line):
            inside = start <= int(area[1], 16) < stop
        elif inside:
            lines.append(line)
    return _sum(lines)


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended (one that nobody has waited for has)."""
    try:
        os.kill(pid, 0)
        told = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except ProcessLookupError:
        return False
    except OSError:  # it has ended meanwhile, is another user's, or there is no /proc
        return not Path("/proc/self/stat").exists()
    return told.rpartition(")")[2].split()[0] not in "ZX"


def holders(name: str) -> list[int]:
    """The processes of this user that map, or have open, a shared memory of this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            maps = (folder / "maps").read_text("utf-8", "replace")
            opened = (os.readlink(link) for link in (folder / "fd").iterdir())
            if f"/memfd:{name}" in maps or any(f"/memfd:{name}" in link for link in opened):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return sorted(found)


def _read(pid: int | str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError as error:
        raise ProcessUnreadable(
            f"the kernel does not tell of process {pid} ({error.strerror}): it has ended, is "
            "another user's, or this system has no /proc"
        ) from error


def _sum(lines: list[str]) -> Figures:
    sums: dict[str, int] = {}
    for line in lines:
        key, _, rest = line.partition(":")
        if (field := _FIELDS.get(key)) is not None:
            sums[field] = sums.get(field, 0) + int(rest.split()[0]) * 1024
    return Figures(**sums)
