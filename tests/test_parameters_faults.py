"""Each classic fault of shared weights is provoked and found, with the command that helps; a
healthy machine raises no alarm. What a test cannot cause the kernel's files say, below a folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from shared_models import is_gone, linux, mlp, same, shared, soon, spoil, values

from inms_lab.parameters import SharedParameters, faults, host, kernel
from inms_lab.parameters.faults import Finding, diagnose, examine
from inms_lab.parameters.host import GIB, HERE, KIB, MIB, room
from inms_lab.parameters.kernel import Figures
from inms_lab.parameters.region import PAGE, Memory, Piece, View
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.versions import MOST_RUNS
from inms_lab.terminal import doctor, doctor_memory

ROOT = Path(__file__).resolve().parents[1]
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max data size             unlimited            unlimited            bytes
Max locked memory         67108864             67108864             bytes
Max address space         unlimited            unlimited            bytes
"""
MEMORY = {
    "MemTotal": 16 * GIB,
    "MemAvailable": 8 * GIB,
    "SwapTotal": 0,
    "CommitLimit": 8 * GIB,
    "Committed_AS": 2 * GIB,
}
MOUNTS = {
    2: "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    1: "35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}
VMSTAT, ONE_TOUCH = "proc/vmstat", "pswpin {}\npswpout {}\n"
NUMA_MAPS = "7f00 default file=/memfd:inms-weights\\040(deleted) mapped=100 N0={} N1={} kernel=4\n"


def about(**memory: int) -> str:
    return "".join(f"{key}:  {size // KIB} kB\n" for key, size in (MEMORY | memory).items())


class Machine:
    """The files of a healthy one below a folder, of which some may be changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.has("proc/meminfo", about())
        self.has("proc/self/limits", LIMITS)
        self.has("proc/self/status", f"VmSize:  {100 * KIB} kB\nVmData:  {50 * KIB} kB\n")
        self.has("proc/self/maps", "a mapping\n" * 200)
        self.has("proc/mounts", f"tmpfs /dev/shm tmpfs rw,size={4 * GIB // KIB}k 0 0\n")
        self.has("proc/sys/vm/overcommit_memory", "0\n")
        self.has("proc/sys/vm/max_map_count", "65530\n")
        self.has(VMSTAT, ONE_TOUCH.format(700, 800))
        self.has("proc/self/cgroup", "4:cpu,memory:/docker/ab/in\n0::/user/in\n")
        self.has("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n")
        self.has("sys/devices/system/node/node0/cpulist", "0-7\n")
        self.has("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")

    def has(self, name: str, content: str) -> Machine:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return self

    def group(self, kind: int, folder: str, limit: int | str, used: int, stale: int = 0) -> None:
        self.has("proc/self/mountinfo", MOUNTS[kind])
        names = {2: ("max", "current", "inactive_file"),
                 1: ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")}[kind]  # fmt: skip
        for name, value in zip(names, (limit, used), strict=False):
            self.has(f"{folder}/memory.{name}", f"{value}\n")
        self.has(f"{folder}/memory.stat", f"anon 5\n{names[2]} {stale}\n")

    def finds(self, **how: Any) -> Finding:
        """The only finding with advice."""
        (found,) = [one for one in examine(None, self.root, **how, seconds=0.01) if one.advice]
        return found

    def is_healthy(self) -> bool:
        return not [one for one in examine(root=self.root, seconds=0) if one.advice]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def params() -> Iterator[SharedParameters]:
    """16 MiB of weights; tests have agents of their own."""
    with shared(torch.nn.Linear(2047, 2048)) as params:
        yield params


def one(name: str, found: list[Finding]) -> Finding:
    (finding,) = [finding for finding in found if finding.name == name]
    return finding


# --- a healthy state ---------------------------------------------------------------------------


def test_a_healthy_machine_has_nothing_to_be_told_of(machine: Machine) -> None:
    assert diagnose(root=machine.root) == []
    found = examine(root=machine.root, seconds=0)
    assert [finding.name for finding in found] == [
        *("shared memory", "limits", "/dev/shm", "overcommit_memory", "vm.max_map_count"),
        *("NUMA", "swapping"),
    ]
    assert all(finding.ok for finding in found)
    assert "kernel.shmmax rules System V segments only and need not be set" in found[0].value
    assert "does not bound weights" in one("/dev/shm", found).value
    assert "64.0 MiB is of no account" in one("limits", found).value


@linux
def test_agents_that_only_read_raise_no_alarm_here(params: SharedParameters) -> None:
    with params.agent("ada") as ada, params.agent("bob") as bob:
        ada.run(values)
        found = examine(params, seconds=0.1, wait=lambda _: bob.run(values))
        told = one("copy on write", found)
        assert (told.ok, told.advice) == (True, "")
        assert "0.0 MiB/s" in told.value
        assert one("limits", found).ok
        assert one("huge pages", found).ok
        named = {p for f in found if not f.ok for p in map(int, re.findall(r"\d+", f.advice))}
        assert not named & {os.getpid(), ada.pid, bob.pid}, "they hold it rightly"
        others = one("other holders", found).advice
        assert not {str(ada.pid), str(os.getpid())} & set(re.findall(r"\d+", others))


def test_a_kernel_that_tells_nothing_raises_no_alarm(tmp_path: Path) -> None:
    assert {one.name for one in diagnose(root=tmp_path)} == {"/dev/shm"}


def test_elsewhere_than_on_linux_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert examine() == [Finding("sharing", "darwin does not tell: only Linux has /proc")]


# --- room --------------------------------------------------------------------------------------


def test_a_machine_with_little_memory_is_told_to_close_programs(machine: Machine) -> None:
    machine.has("proc/meminfo", about(MemAvailable=500 * MIB))
    found = machine.finds()
    assert (found.name, found.ok) == ("shared memory", False)
    assert "500.0 MiB can be had, by this machine" in found.value
    assert "640.0 MiB" in found.advice
    assert "`ps -eo rss,pid,args --sort=-rss`" in found.advice
    assert machine.finds(need=501 * MIB).name == "shared memory"
    assert all(one.ok for one in examine(root=machine.root, need=500 * MIB, seconds=0))


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        (2, "sys/fs/cgroup/user/in"),
        (2, "sys/fs/cgroup/user"),  # a group above
        (2, "sys/fs/cgroup"),
        (1, "sys/fs/cgroup/memory/in"),
        (1, "sys/fs/cgroup/memory"),  # the container's own group is the top that it sees
    ],
)
def test_a_control_group_that_leaves_little_is_named_with_the_limit_to_set(
    machine: Machine, kind: int, folder: str
) -> None:
    machine.group(kind, folder, GIB, 700 * MIB, stale=50 * MIB)
    left, file = GIB - 650 * MIB, "max" if kind == 2 else "limit_in_bytes"
    assert room(machine.root) == host.Room(
        left, f"the limit in /{folder}/memory.{file}", f"/{folder}/memory.{file}", GIB
    )
    found = machine.finds()
    assert found.name == "shared memory"
    wanted = GIB + 640 * MIB - left
    assert f"`echo {wanted} > /{folder}/memory.{file}`" in found.advice
    machine.group(kind, folder, wanted, 700 * MIB, stale=50 * MIB)
    assert machine.is_healthy(), "what was advised helps"
    machine.group(kind, folder, "max" if kind == 2 else 9223372036854771712, 700 * MIB)
    assert machine.is_healthy()


def test_a_group_that_is_slowed_down_from_some_size_on_is_seen(machine: Machine) -> None:
    machine.group(2, "sys/fs/cgroup/user", "max", GIB)
    machine.has("sys/fs/cgroup/user/memory.high", str(GIB + MIB))
    assert "memory.high" in machine.finds().advice


@pytest.mark.parametrize(
    ("name", "flag", "enough"),
    [
        ("address space", "v", 100 * MIB + 640 * MIB),
        ("data size", "d", 50 * MIB + 640 * MIB),
        ("file size", "f", 256 * MIB),  # of one chunk
    ],
)
def test_a_limit_of_the_process_is_found_by_what_it_bounds(
    machine: Machine, name: str, flag: str, enough: int
) -> None:
    line = f"Max {name:<22}"
    machine.has("proc/self/limits", re.sub(rf"{line}\S+", f"{line}{enough}", LIMITS))
    assert machine.is_healthy()
    machine.has("proc/self/limits", re.sub(rf"{line}\S+", f"{line}{enough - 1}", LIMITS))
    found = machine.finds()
    assert (found.name, found.ok) == ("limits", False)
    assert name in found.value
    assert f"`ulimit -{flag} unlimited`" in found.advice


LIMITED = """
import resource
from inms_lab.errors import NotEnoughMemory
from inms_lab.parameters.faults import examine
from inms_lab.parameters.region import Memory, View

def limits():
    found = [f for f in examine(need=1 << 30, seconds=0) if f.name == "limits"]
    print(found[0].ok, found[0].advice)

def tried():
    try:
        {tried}
        print("had")
    except NotEnoughMemory as error:
        print(error)

hard = resource.getrlimit(resource.{limit})[1]
resource.setrlimit(resource.{limit}, ({size}, hard))
tried(); limits()
resource.setrlimit(resource.{limit}, (hard, hard))
tried(); limits()
"""


@linux
@pytest.mark.parametrize(
    ("limit", "size", "tried", "flag"),
    [
        ("RLIMIT_AS", "1 << 30", "View(1 << 30)", "v"),
        ("RLIMIT_FSIZE", "100 << 20", "Memory.create(101 << 20)", "f"),
    ],
)
def test_a_process_with_a_real_limit_is_refused_and_the_fix_helps(
    limit: str, size: str, tried: str, flag: str
) -> None:
    code = LIMITED.format(limit=limit, size=size, tried=tried)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, fault, had, healthy = done.stdout.splitlines()
    assert "cannot be" in refused
    assert fault.startswith("False ")
    assert f"`ulimit -{flag} unlimited`" in fault
    assert (had, healthy.strip()) == ("had", "True")


def test_a_small_or_missing_dev_shm_is_no_fault_but_told(machine: Machine) -> None:
    machine.has("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n")  # Docker's
    found = machine.finds()
    assert (found.name, found.ok) == ("/dev/shm", True)
    assert "64.0 MiB" in found.value
    assert "`mount -o remount -o size=1g tmpfs /dev/shm`" in found.advice
    machine.has("proc/mounts", "proc /proc proc rw 0 0\n")
    assert "`mount -t tmpfs -o size=1g tmpfs /dev/shm`" in machine.finds().advice
    machine.has("proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid 0 0\n")
    assert machine.is_healthy(), "half of the memory is the usual size"
    mounts = "shm /dev/shm tmpfs rw,size=65536k 0 0\nshm /dev/shm tmpfs rw,size=1048576k 0 0\n"
    machine.has("proc/mounts", mounts)
    assert machine.is_healthy(), "the last one hides those before"


def test_faults_come_before_what_may_be_meant_so(machine: Machine) -> None:
    machine.has("proc/mounts", "").has("proc/sys/vm/max_map_count", "100\n")
    assert [one.name for one in diagnose(root=machine.root)] == ["vm.max_map_count", "/dev/shm"]


@linux
def test_weights_are_not_bounded_by_the_size_of_dev_shm() -> None:
    """What is said of memfd: a file of it lies on another file system than /dev/shm's."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    assert os.fstat(Memory.create(PAGE, "probe").fd).st_dev != os.stat("/dev/shm").st_dev


# --- what is promised --------------------------------------------------------------------------


def test_strict_accounting_without_room_for_an_agent_is_a_fault(machine: Machine) -> None:
    machine.has("proc/sys/vm/overcommit_memory", "2\n")
    assert machine.is_healthy()
    each = (640 + 256) * MIB
    machine.has("proc/meminfo", about(Committed_AS=8 * GIB - 2 * each + MIB))
    found = machine.finds()
    assert (found.name, found.ok) == ("overcommit_memory", False)
    assert "an agent counts 896.0 MiB, so 1 are not refused" in found.value
    assert "`sysctl vm.overcommit_memory=0`" in found.advice
    ratio = int(re.findall(r"overcommit_ratio=(\d+)", found.advice)[0])
    most = 16 * GIB * ratio // 100
    machine.has("proc/meminfo", about(Committed_AS=8 * GIB - 2 * each, CommitLimit=most))
    assert machine.is_healthy(), "what was advised helps"
    told = one("overcommit_memory", examine(root=machine.root, seconds=0)).value
    assert int(re.findall(r"so (\d+) are", told)[0]) >= 8


@pytest.mark.parametrize(("mode", "said"), [("0", "until it is written"), ("1", "kills")])
def test_other_kinds_of_accounting_refuse_no_agent(machine: Machine, mode: str, said: str) -> None:
    machine.has("proc/sys/vm/overcommit_memory", f"{mode}\n")
    machine.has("proc/meminfo", about(Committed_AS=9 * GIB))
    assert machine.is_healthy()
    assert said in one("overcommit_memory", examine(root=machine.root, seconds=0)).value


def counted(pid: int | str) -> int:
    """Bytes that strict accounting counts for a process, nearly."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return (host.number(status, "VmData") or 0) * KIB


@linux
def test_a_view_counts_in_full_before_anybody_writes_to_it(params: SharedParameters) -> None:
    memory, before = Memory.create(256 * MIB, "probe"), counted("self")
    view = View(memory.num_bytes)
    view.lay([Piece(0, view.num_bytes, memory)])
    assert abs(counted("self") - before - 256 * MIB) < 32 * MIB
    with params.agent() as agent:
        agent.run(values)
        assert params.pages(agent).weights.anonymous == 0
        others = counted(agent.pid) - params.num_bytes
        assert faults.PROCESS / 4 < others < faults.PROCESS * 2, "or the estimate is far off"


def test_few_mappings_are_a_fault_and_the_advised_number_is_enough(machine: Machine) -> None:
    machine.has("proc/sys/vm/max_map_count", f"{4 * MOST_RUNS + 199}\n")
    found = machine.finds()
    assert (found.name, found.ok) == ("vm.max_map_count", False)
    (number,) = re.findall(r"^`sysctl vm.max_map_count=(\d+)`$", found.advice)
    machine.has("proc/sys/vm/max_map_count", f"{number}\n")
    assert machine.is_healthy()


# --- NUMA, huge pages --------------------------------------------------------------------------


def test_weights_that_lie_on_one_of_several_nodes_are_a_fault(machine: Machine) -> None:
    machine.has("sys/devices/system/node/node1/cpulist", "8-15\n")
    unknown = machine.finds()
    assert (unknown.name, unknown.ok) == ("NUMA", True)
    assert "`numactl --interleave=all ...`" in unknown.advice
    machine.has("proc/self/numa_maps", "7e00 default heap N1=900\n" + NUMA_MAPS.format(20, 80))
    found = machine.finds()
    assert (found.name, found.ok) == ("NUMA", False)
    assert "2 nodes; 80% of the weights lie on node 1" in found.value
    assert "`numactl --interleave=all ...`" in found.advice
    assert "--cpunodebind=1" in found.advice
    machine.has("proc/self/numa_maps", NUMA_MAPS.format(45, 55))
    assert machine.is_healthy()


@linux
@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="a kernel without NUMA")
def test_where_pages_lie_is_what_this_kernel_says() -> None:
    before = sum(host.pages_by_node(HERE, ["self"]).values())
    memory, view = Memory.create(40 * PAGE, "inms-weights"), View(40 * PAGE)
    view.lay([Piece(0, view.num_bytes, memory)])
    assert bytes(view.bytes_at(0, view.num_bytes)) == bytes(view.num_bytes)  # all are mapped
    assert sum(host.pages_by_node(HERE, ["self"]).values()) - before == 40


@linux
def test_a_write_copies_one_page_here_and_more_would_be_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert faults.copied_by_a_write() == PAGE
    monkeypatch.setattr(faults, "copied_by_a_write", lambda: 2 * MIB)
    found = one("huge pages", diagnose())
    assert not found.ok
    assert "copies 2,097,152 bytes" in found.value
    assert "`echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled`" in found.advice


# --- slowness ----------------------------------------------------------------------------------


@linux
def test_a_burst_of_copies_is_found_with_who_copies_and_who_has_most(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "monotonic", lambda: 0.0)  # or a busy machine writes too slowly
    with params.agent("idle") as idle, params.agent("old") as old, params.agent("busy") as busy:
        idle.run(values)
        old.run(spoil)
        busy.run(lambda model: model.bias.data.zero_())
        found = one("copy on write", examine(params, seconds=0.1, wait=lambda _: busy.run(spoil)))
        assert not found.ok
        weight = params.num_bytes - 2 * PAGE  # two pages of the bias it had before
        assert found.value.startswith(f"{weight / MIB / 0.1:,.1f} MiB/s, most by busy; most pages")
        assert "`params.pages(agent).by_name()` says what busy writes" in found.advice
        busy.discard()  # as advised
        after = one("copy on write", examine(params, seconds=0.1))
        assert after.ok
        assert after.value.endswith(f"has old, {params.num_bytes / MIB:.1f} MiB")


@linux
def test_an_agent_that_dies_between_two_looks_does_no_harm(params: SharedParameters) -> None:
    with params.agent("ada") as ada, params.agent("bob"):

        def kill(_: float) -> None:
            os.kill(ada.pid, signal.SIGKILL)
            soon(lambda: is_gone(ada.pid))

        assert "most by bob" in one("copy on write", examine(params, seconds=0.1, wait=kill)).value


def test_swapping_is_a_rate_not_what_once_was(machine: Machine) -> None:
    def swap(pages: int) -> Callable[[float], object]:
        return lambda _: machine.has(VMSTAT, ONE_TOUCH.format(700 + pages, 800 + pages))

    quiet = examine(root=machine.root, seconds=0.5, wait=swap(20))
    assert one("swapping", quiet).ok
    machine.has(VMSTAT, ONE_TOUCH.format(700, 800))
    found = one("swapping", examine(root=machine.root, seconds=0.5, wait=swap(10_000)))
    assert not found.ok
    assert f"{2 * 20_000 * PAGE / MIB:,.1f} MiB/s" in found.value
    for command in ("`swapoff -a && swapon -a`", "`sysctl vm.swappiness=1`", "`ps -eo rss"):
        assert command in found.advice


@linux
def test_weights_of_agents_on_disk_are_found(
    params: SharedParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    with params.agent():
        monkeypatch.setattr(kernel, "between", lambda *_: Figures(swap=3 * MIB))
        found = one("swapping", examine(params, seconds=0))
    assert not found.ok
    assert "3.0 MiB of agents' weights are on disk" in found.value


@linux
def test_slow_memory_is_found_and_this_one_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e8 < host.read_speed() < 1e12
    monkeypatch.setattr(host, "read_speed", lambda: 1.9e9)
    found = one("bandwidth", diagnose())
    assert not found.ok
    assert found.value.startswith("1.9 GB/s")
    assert "`ps -eo pcpu,pid,args --sort=-pcpu`" in found.advice
    monkeypatch.setattr(host, "read_speed", lambda: 2.1e9)
    assert one("bandwidth", examine(seconds=0)).ok


# --- who has it --------------------------------------------------------------------------------

CREATOR = """
import os, signal, time
from shared_models import mlp
from inms_lab.parameters import SharedParameters
params = SharedParameters(mlp(), auto_recovery=False)
agent = params.agent()
agent.run(lambda model: None)
print(agent.pid, flush=True)
time.sleep(100)
"""
HOLDER = """
import os, time
memory = os.memfd_create("inms-weights")
os.ftruncate(memory, 3 << 20)
os.posix_fallocate(memory, 0, 3 << 20)
print(memory, flush=True)
time.sleep(100)
"""


@contextmanager
def running(code: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program, and the number that it printed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE,
                          text=True, env=environment) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def pids_in(command: str, finding: Finding) -> list[int]:
    """The process ids of the command that is advised."""
    found = re.findall(rf"`{command} ([\d ]+)`", finding.advice)
    return [int(pid) for pid in found[0].split()] if found else []


@linux
def test_memory_that_a_crash_left_behind_is_found_and_the_command_frees_it() -> None:
    with running(CREATOR) as (creator, agent):
        nursery = host.top(agent, {*kernel.holders("inms-weights")} - {creator.pid})
        assert nursery != agent
        os.kill(agent, signal.SIGSTOP)  # frozen: it does not see that its creator has gone
        healthy = one("after a crash", examine(seconds=0))
        assert not {agent, nursery} & set(pids_in("kill -9", healthy)), "its creator lives"
        creator.kill()
        creator.wait()
        found = one("after a crash", diagnose())
        assert not found.ok
        assert {agent, nursery} <= set(pids_in("kill -9", found))
        assert re.search(r"[2-9] processes hold 0\.\d MiB without their creator", found.value)
        for pid in (agent, nursery):  # the command, for those of this test
            os.kill(pid, signal.SIGKILL)
        soon(lambda: is_gone(agent) and is_gone(nursery))
        after = one("after a crash", examine(seconds=0))
        assert not {agent, nursery} & set(pids_in("kill -9", after))


@linux
def test_another_process_that_holds_the_region_is_named_with_what_it_holds() -> None:
    with running(HOLDER) as (holder, _):
        found = one("other holders", diagnose())
        assert found.ok, "it may be meant so"
        assert f"{holder.pid} (" in found.value
        assert holder.pid in pids_in("kill", found)
        assert host.held([holder.pid]) == 3 * MIB
        holder.kill()
        holder.wait()
        assert f"{holder.pid} (" not in one("other holders", examine(seconds=0)).value


# --- settings for this machine -----------------------------------------------------------------


def test_a_machine_with_ample_memory_is_recommended_the_defaults(machine: Machine) -> None:
    found = Settings.recommended(machine.root, cores=8)
    assert {name: getattr(found, name) for name in Settings.__slots__} == {
        name: getattr(Settings(), name) for name in Settings.__slots__
    }
    assert found.reasons.keys() == set(Settings.__slots__)
    assert "8.0 GiB, by this machine" in found.reasons["shm_chunk_size"]


def test_recommended_settings_follow_memory_cores_nodes_and_limits(machine: Machine) -> None:
    machine.has("proc/meminfo", about(MemAvailable=GIB))
    machine.has("sys/devices/system/node/node1/cpulist", "8-15\n")
    found = Settings.recommended(machine.root, cores=1)
    assert found.shm_chunk_size == 128 * MIB
    assert "an eighth" in found.reasons["shm_chunk_size"]
    machine.has("proc/meminfo", about(MemAvailable=3 * GIB))
    assert Settings.recommended(machine.root).shm_chunk_size == 256 * MIB
    machine.has("proc/meminfo", about(MemAvailable=GIB))
    assert (found.prefetch_degree, found.heartbeat_interval) == (1, 1.0)
    assert "within 3.5 s" in found.reasons["heartbeat_interval"]
    assert "2 nodes" in found.reasons["NUMA"]
    line = f"Max {'file size':<22}"
    machine.has("proc/self/limits", re.sub(rf"{line}\S+", f"{line}{50 * MIB + 7}", LIMITS))
    found = Settings.recommended(machine.root)
    assert found.shm_chunk_size == 50 * MIB
    assert "`ulimit -f`" in found.reasons["shm_chunk_size"]
    machine.has("proc/self/limits", re.sub(rf"{line}\S+", f"{line}10000", LIMITS))
    assert Settings.recommended(machine.root).shm_chunk_size == 8 * KIB


@linux
def test_recommended_settings_work_here() -> None:
    with SharedParameters(mlp(), settings=Settings.recommended()) as params:
        assert same(values(params.module()), values(mlp()))


# --- the doctor --------------------------------------------------------------------------------


def printed() -> str:
    console = Console(file=StringIO(), width=400)
    doctor_memory.print_section(console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@linux
def test_the_doctor_tells_faults_in_words_with_their_commands(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has("proc/meminfo", about(MemAvailable=MIB)).has("proc/mounts", "")
    monkeypatch.setattr(faults, "examine", lambda seconds: examine(None, machine.root, seconds=0))
    rows = {row.split("│")[2].strip(): row for row in printed().splitlines() if "│" in row}
    assert "fault" in rows["shared memory"]
    assert "`ps -eo rss" in rows["shared memory"]
    assert "look" in rows["/dev/shm"]
    assert "ok" in rows["limits"]


def test_the_doctor_says_what_works_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, said in {"darwin": "private mappings", "win32": "WSL", "aix": "aix"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert said in printed()


@linux
def test_faults_of_shared_weights_are_part_of_the_report_and_no_missing_thing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(doctor, "report", lambda model: [Finding("Python", "3", True)])
    monkeypatch.setattr(faults, "examine", lambda seconds: [Finding("swapping", "5", False, "do")])
    assert doctor.print_report() == 0
    assert "swapping" in capsys.readouterr().out
