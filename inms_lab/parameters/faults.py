"""The classic faults of shared weights: what is wrong on this machine, and the command that helps.

`examine` tells of all that was looked at, `diagnose` of what wants doing. Files of the machine are
read below `root`; other processes are looked at if that is "/". No torch.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from inms_lab.errors import ProcessUnreadable
from inms_lab.parameters import host, kernel
from inms_lab.parameters.host import HERE, KIB, MIB, number, text
from inms_lab.parameters.kernel import Figures
from inms_lab.parameters.region import PAGE, Memory, Piece, View
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.versions import MOST_RUNS

if TYPE_CHECKING:
    from inms_lab.parameters.shared import SharedParameters

LIMITS = (("address space", "VmSize", "v"), ("data size", "VmData", "d"), ("file size", "", "f"))
NEED = 640 * MIB  # the default model's weights, 513 MiB, and some agents
PROCESS = 256 * MIB  # what an agent maps privately beside the weights, about
BURST, SWAPS = 64 * MIB, MIB  # bytes a second of copies, and of swapping, that slow agents down
SLOW = 2e9  # bytes a second: any machine of these years reads more from its memory
WANTED = 8  # agents that advice makes room for
Views = dict[str, Figures]  # the kernel's figures of agents' weights, by agent


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one subject. `ok` is False if it is a fault; `advice` is the fix. One that
    is ok and has advice may be meant so."""

    name: str
    value: str
    ok: bool = True
    advice: str = ""


def diagnose(params: SharedParameters | None = None, root: Path = HERE) -> list[Finding]:
    """What is wrong, or worth a look: faults first. Takes a second; see `examine`."""
    return sorted((one for one in examine(params, root) if one.advice), key=lambda one: one.ok)


def examine(
    params: SharedParameters | None = None,
    root: Path = HERE,
    *,
    need: int | None = None,
    seconds: float = 1.0,
    wait: Callable[[float], object] = sleep,
) -> list[Finding]:
    """A finding for each subject; with `params`, of its agents too. `need`: bytes that are to be
    had (all weights once more, or `NEED`). Rates are those between two looks, `seconds` apart."""
    if sys.platform != "linux" and root == HERE:
        return [Finding("sharing", f"{sys.platform} does not tell: only Linux has /proc")]
    need = need or (params.num_bytes if params else NEED)
    pids = ["self", *(str(agent.pid) for agent in (params.agents if params else []))]
    chunk = min((params.settings if params else Settings()).shm_chunk_size, need)
    return [
        *(_room(root, need), _limits(root, need, chunk), _shm(root)),
        *(_overcommit(root, need, pids), _maps(root, pids), _nodes(root, pids)),
        *_speeds(params, root, seconds, wait),
        *([_huge(root, copied_by_a_write()), *_holders()] if root == HERE else []),
    ]


def _room(root: Path, need: int) -> Finding:
    have = host.room(root)
    if have is None:
        return Finding("shared memory", "the kernel does not tell how much can be had")
    value = (
        f"{_mib(have.num_bytes)} can be had, by {have.bound}; it is memfd: kernel.shmmax rules "
        "System V segments only and need not be set"
    )
    advice = f"close programs until {_mib(need)} can be had: `ps -eo rss,pid,args --sort=-rss`"
    if have.file:
        more = -(-(have.limit + need - have.num_bytes) // MIB) * MIB
        advice = f"`echo {more} > {have.file}` as root; for Docker: `docker run --memory {more}`"
    return _finding("shared memory", value, have.num_bytes >= need, advice)


def _limits(root: Path, need: int, chunk: int) -> Finding:
    """Limits of this process, which those that it starts inherit."""
    status, short, flags = text(root, "proc/self/status"), [], []
    for name, used, flag in LIMITS:
        most = host.limit(root, name)
        wanted = (number(status, used) or 0) * KIB + need if used else chunk
        if most is not None and most < wanted:
            short.append(f"{name} {_mib(most)}, {_mib(wanted)} are needed")
            flags.append(f"`ulimit -{flag} unlimited`")
    lock = "unlimited" if (locked := host.limit(root, "locked memory")) is None else _mib(locked)
    value = f"{'; '.join(short) or 'enough'}; memlock {lock} is of no account: nothing is locked"
    advice = f"{', '.join(flags)} in the shell that starts it; if refused, `prlimit` as root"
    return _finding("limits", value, not short, advice)


def _shm(root: Path) -> Finding:
    size = host.shm_size(root)
    command = f"mount {'-t tmpfs' if size is None else '-o remount'} -o size=1g tmpfs /dev/shm"
    value = f"{'none' if size is None else _mib(size)}, which does not bound weights (memfd)"
    few = size is None or size <= 64 * MIB
    return Finding("/dev/shm", value, True, f"for torch's DataLoader alone: `{command}`" * few)


def _overcommit(root: Path, weights: int, pids: list[str]) -> Finding:
    mode, told = text(root, "proc/sys/vm/overcommit_memory").strip(), text(root, "proc/meminfo")
    if mode != "2":
        known = {"0": "0: a private view counts nothing until it is written", "": "not told"}
        known["1"] = "1: nothing is refused; without memory the kernel kills somebody"
        return Finding("overcommit_memory", known.get(mode, mode))
    total, swap, most, used = (
        (number(told, key) or 0) * KIB
        for key in ("MemTotal", "SwapTotal", "CommitLimit", "Committed_AS")
    )
    data = [number(text(root, f"proc/{pid}/status"), "VmData") or 0 for pid in pids[1:]]
    each, left = max(data) * KIB if data else weights + PROCESS, max(0, most - used)
    value = (
        f"2: a private view counts in full, written or not: {_mib(left)} are left, an agent "
        f"counts {_mib(each)}, so {left // each} are not refused"
    )
    ratio = math.ceil(100 * max(0, used + WANTED * each - swap) / max(total, 1))
    advice = (
        f"`sysctl vm.overcommit_memory=0`, or `sysctl vm.overcommit_ratio={ratio}` for {WANTED}"
    )
    enough = left // each >= 2  # one is the process that agents are forked from
    return _finding("overcommit_memory", value, enough, advice)


def _maps(root: Path, pids: list[str]) -> Finding:
    most = number(text(root, "proc/sys/vm/max_map_count"))
    used = max(len(text(root, f"proc/{pid}/maps").splitlines()) for pid in pids)
    wanted = used + 4 * MOST_RUNS  # a view of as many pieces as a version may have, and another
    value = f"{most} mappings a process; {used} are used, versions may come to {wanted}"
    enough = most is None or most >= wanted
    return _finding("vm.max_map_count", value, enough, f"`sysctl vm.max_map_count={2 * wanted}`")


def _nodes(root: Path, pids: list[str]) -> Finding:
    count, lies = host.num_nodes(root), host.pages_by_node(root, pids)
    advice = "start it as `numactl --interleave=all ...`: then pages lie on all nodes by turns"
    if count == 1:
        return Finding("NUMA", "one node: all memory is equally near")
    if not lies:
        return Finding("NUMA", f"{count} nodes; no weights are mapped here", True, advice)
    node, share = max(lies, key=lies.__getitem__), max(lies.values()) / sum(lies.values())
    advice += f"; or keep agents near: `numactl --cpunodebind={node} ...`"
    value = f"{count} nodes; {share:.0%} of the weights lie on node {node}"
    return _finding("NUMA", value, share < (1 + 1 / count) / 2, advice)


def _huge(root: Path, copied: int) -> Finding:
    shared, own = (host.huge_pages(root, kind) for kind in ("shmem_enabled", "enabled"))
    value = f"shared {shared}, private {own}; a byte written to weights copies {copied:,} bytes"
    advice = "`echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled`, then make them anew"
    return _finding("huge pages", value, copied <= PAGE, advice)


def copied_by_a_write() -> int:
    """Bytes that a process has for itself after it wrote one byte of a private view: tried."""
    memory, view = Memory.create(8 * MIB, "probe"), View(8 * MIB)
    view.lay([Piece(0, view.num_bytes, memory)])
    view.bytes_at(4 * MIB, 1)[0] = b"x"
    copied = kernel.between("self", view.address, view.address + view.num_bytes).anonymous
    view.close()
    memory.close()
    return copied


def _speeds(
    params: SharedParameters | None, root: Path, seconds: float, wait: Callable[[float], object]
) -> list[Finding]:
    began, before, swapped = monotonic(), _views(params), host.swapped(root)
    wait(seconds)
    took, now = max(seconds, monotonic() - began, 0.001), _views(params)
    found = [_swapping((host.swapped(root) - swapped) / took * PAGE, now)]
    found += [_copies(before, now, took)] if now else []
    return [*found, _bandwidth(host.read_speed())] if root == HERE else found


def _views(params: SharedParameters | None) -> Views:
    found: Views = {}
    if params is not None:
        for agent in params.agents:
            with suppress(ProcessUnreadable):  # it has ended
                found[agent.name] = params.pages(agent).weights
    return found


def _copies(before: Views, now: Views, took: float) -> Finding:
    own = {name: figures.anonymous for name, figures in now.items()}
    gained = {name: max(0, own[name] - before.get(name, Figures()).anonymous) for name in own}
    first, most = max(gained, key=gained.__getitem__), max(own, key=own.__getitem__)
    rate = sum(gained.values()) / took
    value = f"{_mib(rate)}/s, most by {first}; most pages of its own has {most}, {_mib(own[most])}"
    advice = f"`params.pages(agent).by_name()` says what {first} writes, `agent.discard()` frees it"
    return _finding("copy on write", value, rate < BURST, advice)


def _swapping(rate: float, now: Views) -> Finding:
    away = sum(figures.swap for figures in now.values())
    value = f"{_mib(rate)}/s in and out; {_mib(away)} of agents' weights are on disk"
    advice = (
        "close programs or agents (`ps -eo rss,pid,args --sort=-rss`), then `swapoff -a && swapon "
        "-a` as root; to swap later: `sysctl vm.swappiness=1`"
    )
    return _finding("swapping", value, rate < SWAPS and away < SWAPS, advice)


def _bandwidth(speed: float) -> Finding:
    value = f"{speed / 1e9:.1f} GB/s read by one thread while it has a core"
    advice = "others read much: `ps -eo pcpu,pid,args --sort=-pcpu`, end some or have fewer agents"
    return _finding("bandwidth", value, speed >= SLOW, advice)


def _holders() -> list[Finding]:
    """Of processes that hold shared weights, those whose creator holds none any more, and those
    that are neither this one nor its agents."""
    me, among = os.getpid(), {*kernel.holders("inms-"), os.getpid()}
    tops = {pid: host.top(pid, among) for pid in sorted(among)}
    forked = {pid for pid in among if "inms_lab.parameters.nursery" in host.command(pid)}
    left = [pid for pid, top in tops.items() if top in forked]
    others = [p for p in tops if p not in (*left, me) and (tops[p] != tops[me] or p not in forked)]
    first = [pid for pid in others if pid not in forked]  # with these, their agents end
    listed = ", ".join(f"{pid} ({host.command(pid)[:60]})" for pid in first) or "nobody else"
    value = f"{len(left)} processes hold {_mib(host.held(left))} without their creator"
    other = f"{_mib(host.held(others))} held by {listed}"
    advice = f"they may use it; if not: `kill {' '.join(map(str, first))}`" if first else ""
    return [
        _finding("after a crash", value, not left, f"`kill -9 {' '.join(map(str, left))}`"),
        Finding("other holders", other, True, advice),
    ]


def _finding(name: str, value: str, ok: bool, advice: str) -> Finding:
    return Finding(name, value, ok, "" if ok else advice)


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"
