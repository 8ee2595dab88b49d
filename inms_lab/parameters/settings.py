"""What shared parameters are kept with: the defaults, and what this machine suggests. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from inms_lab.errors import BadInput
from inms_lab.parameters.host import GIB, HERE, KIB, MIB, Room, limit, num_nodes, room
from inms_lab.parameters.host import cores as num_cores

LONGEST = 86_400  # seconds between two beats
SHORT = 4 * GIB  # with less memory to be had, pages of a frozen agent are missed sooner


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in bytes, times in seconds. `inms-lab bench settings` measures what each brings."""

    shm_chunk_size: int = 256 * MIB  # of one memory; weights lie in as many as they need
    cow_threshold: int = 128 * KIB  # what copy-on-write in software copies at once
    prefetch_degree: int = 4  # layers that are asked for ahead of the one that is computed
    heartbeat_interval: float = 5.0  # between two beats of an agent; a lease is three of them
    auto_recovery: bool = True  # who does not beat is ended, and gives its pages back
    # Modules that are imported once, before agents are forked; what an agent imports by itself is
    # its own memory. The first optimizer of torch imports torch._dynamo: 107 MiB.
    preload: tuple[str, ...] = ("torch._dynamo",)

    def __post_init__(self) -> None:
        names: object = self.preload
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise BadInput(f"preload is a tuple of names of modules, not {names!r}")
        for name in ("shm_chunk_size", "cow_threshold"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 4 * KIB:
                raise BadInput(f"{name} is a whole number of bytes from 4096 on, not {value!r}")
        if not isinstance(self.prefetch_degree, int) or self.prefetch_degree < 0:
            raise BadInput(f"prefetch_degree is 0 or more, not {self.prefetch_degree!r}")
        beat = self.heartbeat_interval
        if not isinstance(beat, int | float) or not 0 < beat <= LONGEST:
            raise BadInput(f"heartbeat_interval is more than 0 s, {LONGEST} at most, not {beat!r}")

    @staticmethod
    def recommended(root: Path = HERE, cores: int | None = None) -> Recommended:
        """Settings for this machine's memory, cores (`cores`: if others than this process may use)
        and NUMA nodes; its `reasons` say why."""
        return _recommended(
            room(root), num_nodes(root), cores or num_cores(), limit(root, "file size")
        )


@dataclass(frozen=True, slots=True)
class Recommended(Settings):
    """Settings with a reason for each, by name; one more by "NUMA" if there are several nodes."""

    reasons: dict[str, str] = field(default_factory=dict, compare=False)


def _recommended(have: Room | None, nodes: int, cores: int, most: int | None) -> Recommended:
    usual, reasons = Settings(), {}
    told = "unknown" if have is None else f"{have.num_bytes / GIB:.1f} GiB, by {have.bound}"
    free = math.inf if have is None else have.num_bytes
    chunk = usual.shm_chunk_size
    reasons["shm_chunk_size"] = f"memory to be had: {told}"
    if free / 8 < chunk:
        chunk = int(free / 8)
        reasons["shm_chunk_size"] += "; an eighth of it at once, so that a lack is seen early"
    if most is not None and most < chunk:
        chunk = most
        reasons["shm_chunk_size"] = f"files have {most:,} bytes at most here (`ulimit -f`)"
    unit = MIB if chunk >= MIB else 4 * KIB
    chunk = max(4 * KIB, chunk // unit * unit)
    reasons["cow_threshold"] = "as usual: it depends on how scattered writes are, not on a machine"
    degree = usual.prefetch_degree if cores > 1 else 1
    reasons["prefetch_degree"] = f"{cores} cores" if cores > 1 else "one core reads and computes"
    short = free < SHORT
    beat = 1.0 if short else usual.heartbeat_interval
    back = f"pages of a frozen agent are back within {3.5 * beat:g} s"
    reasons["heartbeat_interval"] = f"memory is {'short' if short else 'ample'} ({told}): {back}"
    reasons["preload"] = "as usual: it depends on what agents do; none if nobody trains"
    reasons["auto_recovery"] = "who is frozen keeps its pages else, until somebody looks"
    if nodes > 1:
        reasons["NUMA"] = f"{nodes} nodes: start it as `numactl --interleave=all ...`"
    return Recommended(chunk, usual.cow_threshold, degree, beat, reasons=reasons)
