"""What this machine has: memory and its limits, nodes, pages, who holds what. No torch.

What reads the kernel's files takes the folder below which they lie, so that tests can have others.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HERE = Path("/")


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of memory that can be had still; `bound`: by whom; `file`: where a control group's
    limit of `limit` bytes stands, else empty."""

    num_bytes: int
    bound: str = "this machine"
    file: str = ""
    limit: int = 0


def room(root: Path = HERE) -> Room | None:
    """The least of what the machine and the control groups above this process (both kinds) leave;
    None where the kernel does not tell."""
    free = number(text(root, "proc/meminfo"), "MemAvailable")
    found = [] if free is None else [Room(free * KIB)]
    for folder, kind in _groups(root):
        for name in ("memory.max", "memory.high") if kind == 2 else ("memory.limit_in_bytes",):
            limit = number(text(root, f"{folder}/{name}"))
            usage = "memory.current" if kind == 2 else "memory.usage_in_bytes"
            used = number(text(root, f"{folder}/{usage}"))
            if limit is None or used is None:
                continue  # "max", or not there
            stale = "inactive_file" if kind == 2 else "total_inactive_file"  # given back if asked
            used -= number(text(root, f"{folder}/memory.stat"), stale) or 0
            file = f"/{folder}/{name}"
            found.append(Room(max(0, limit - used), f"the limit in {file}", file, limit))
    return min(found, key=lambda one: one.num_bytes, default=None)


def _groups(root: Path) -> list[tuple[str, int]]:
    """Folders of the memory control groups that hold this process, inner ones first, each with its
    kind, 1 or 2."""
    mine = {}
    for line in text(root, "proc/self/cgroup").splitlines():
        hierarchy, names, path = line.split(":", 2)
        if hierarchy == "0" or "memory" in names.split(","):
            mine[2 if hierarchy == "0" else 1] = path
    found = []
    for line in text(root, "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        top, where = left.split()[3:5]
        system, *_, options = right.split(" ")
        kind = {"cgroup2": 2, "cgroup": 1}.get(system, 0)
        if kind not in mine or (kind == 1 and "memory" not in options.split(",")):
            continue
        path = mine[kind]
        inner = path.removeprefix(top.rstrip("/")) if path.startswith(top) else ""
        parts = [part for part in inner.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            found.append(("/".join([where.strip("/"), *parts[:depth]]), kind))
    return found


def num_nodes(root: Path = HERE) -> int:
    """NUMA nodes that have memory or cores; 1 where the kernel does not tell."""
    return max(1, len(list(root.glob("sys/devices/system/node/node[0-9]*"))))


def pages_by_node(root: Path, pids: Iterable[str]) -> dict[int, int]:
    """Pages of shared weights that these processes have mapped, by the NUMA node they lie on."""
    lies: dict[int, int] = {}
    lines = [line for pid in pids for line in text(root, f"proc/{pid}/numa_maps").splitlines()]
    for line in lines:
        for node, pages in re.findall(r" N(\d+)=(\d+)", line) if "memfd:inms" in line else ():
            lies[int(node)] = lies.get(int(node), 0) + int(pages)
    return lies


def limit(root: Path, name: str) -> int | None:
    """A limit of this process by the kernel's name ("address space"), in bytes; None: no limit."""
    return number(text(root, "proc/self/limits"), f"Max {name}")


def shm_size(root: Path = HERE) -> int | None:
    """Bytes that /dev/shm may have; None: it is not there."""
    lines = re.findall(r"^\S+ /dev/shm \S+ (\S+)", text(root, "proc/mounts"), re.MULTILINE)
    if not lines:
        return None
    size = re.search(r"\bsize=(\d+)k", lines[-1])
    usual = (number(text(root, "proc/meminfo"), "MemTotal") or 0) // 2
    return (int(size[1]) if size else usual) * KIB


def huge_pages(root: Path, kind: str) -> str:
    """When transparent huge pages are used: `kind` is "enabled" (a process' own memory) or
    "shmem_enabled" (shared memory)."""
    found = re.search(r"\[(\w+)\]", text(root, f"sys/kernel/mm/transparent_hugepage/{kind}"))
    return found[1] if found else "unknown"


def swapped(root: Path = HERE) -> int:
    """Pages that this machine has read from swap, or written there, since it began."""
    told = text(root, "proc/vmstat")
    return (number(told, "pswpin") or 0) + (number(told, "pswpout") or 0)


def read_speed() -> float:
    """Bytes a second of processor time, summing 64 MiB, the best of three: waiting for memory
    counts, waiting for a core does not; a larger cache than that flatters."""
    data, best = np.ones(64 * MIB // 8), math.inf
    for _ in range(3):
        began = time.thread_time()
        data.sum()
        best = min(best, time.thread_time() - began)
    return data.nbytes / best


def top(pid: int, among: set[int]) -> int:
    """The process above it of which all in between are among these."""
    told = text(HERE, f"proc/{pid}/stat").rpartition(")")[2].split()
    return top(int(told[1]), among) if told and int(told[1]) in among else pid


def command(pid: int) -> str:
    """How a process was called; empty if it has ended."""
    return text(HERE, f"proc/{pid}/cmdline").replace("\0", " ").strip()


def held(pids: list[int]) -> int:
    """Bytes of the memories that these have open, each once."""
    sizes = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(link).startswith("/memfd:inms-"):
                    sizes[link.stat().st_ino] = link.stat().st_blocks * 512
    return sum(sizes.values())


def text(root: Path, name: str) -> str:
    """A file of the kernel; empty where there is none, or none for us."""
    try:
        return (root / name).read_text("utf-8", "replace")
    except OSError:
        return ""


def number(told: str, name: str = "") -> int | None:
    """The number behind a name at the start of a line ("MemFree:  12 kB", "inactive_file 12"), or
    the whole text; None where there is none."""
    found = re.search(rf"^{re.escape(name)}:?\s*(\d+)\b", told, re.MULTILINE)
    return int(found[1]) if found else None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
