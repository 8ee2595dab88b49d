"""Every reader of outside bytes, the socket aside: damaged files are taken or refused by name.

Files and damage are those of benchmarks/fuzz_readers.py, which runs for as long as one likes; here
hypothesis chooses what is damaged, and makes a finding small.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inms_lab.errors import BadInput, InmsError, LogDamaged, LogTooLarge, LogUnreadable
from inms_lab.logs.logfile import load
from inms_lab.logs.logparts import FLOOR, MAX_BLOCKS
from inms_lab.logs.vllm_log import read_vllm
from inms_lab.studies.messages import MAX_TURNS, read_requests

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import fuzz_readers  # noqa: E402

NAMES = (
    *("log", "journal", "vllm", "parcel", "shelf", "trace", "trace.gz"),
    *("messages", "messages.json", "calibration", "recordings"),
)
Readers = dict[str, fuzz_readers.Reader]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    found = fuzz_readers.readers(tmp_path_factory.mktemp("seeds"))
    assert sorted(NAMES) == sorted(reader.name for reader in found)
    return {reader.name: reader for reader in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", NAMES)
def test_valid_files_are_taken(name: str, readers: Readers, folder: Path) -> None:
    reader = readers[name]
    for data in reader.files:
        assert reader.attempt(gzip.compress(data) if reader.packed else data, folder) == "taken"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_damaged_files_are_taken_or_refused_by_name(
    name: str, readers: Readers, folder: Path, rng: Random
) -> None:
    reader = readers[name]
    reader.attempt(reader.damaged(rng), folder)


@pytest.mark.parametrize("name", NAMES)
def test_no_damaged_file_takes_memory_out_of_proportion(
    name: str, readers: Readers, folder: Path
) -> None:
    """Files of some kilobytes; the damage is that of fixed seeds."""
    reader, told = readers[name], set[str]()
    for seed in range(25):
        data = reader.damaged(Random(f"memory {name} {seed}"))
        tracemalloc.start()
        try:
            told.add(reader.attempt(data, folder))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < (16 << 20) + 400 * len(data), seed
    assert len(told) > 1 or name == "calibration", "the damage is too small, or too large"


# small files that stand for much ------------------------------------------------------------------

HEADER = {"format": "inms-log", "version": 2, "first": 0, "about": {}}
EMPTY = [HEADER | {"num_events": 0, "num_tokens": 0}, {"snapshot": None}]


def zipped(path: Path, *parts: Any, times: int = 1) -> Path:
    """A gzip file of JSON lines or bytes, the last part `times` over."""
    lines = [p if isinstance(p, bytes) else json.dumps(p).encode() + b"\n" for p in parts]
    path.write_bytes(gzip.compress(b"".join([*lines[:-1], lines[-1] * times]), 6))
    return path


def bombs(folder: Path) -> dict[str, tuple[str, Path]]:
    """(how it is read, file) of small files that would be large if one let them."""
    pool = ["PoolOpened", "p", "private", "", 16, 1 << 24, []]
    many = [["PoolOpened", f"p{n}", "private", "", 16, MAX_BLOCKS // 2, []] for n in range(60)]
    chain = [
        {"type": "BlockStored", "block_hashes": list(range(3000)), "parent_block_hash": None}
        | {"token_ids": [1] * 48_000, "block_size": 16}
    ]
    chain += [
        {"type": "BlockStored", "block_hashes": [f"b{n}"], "parent_block_hash": 2998}
        | {"token_ids": [n] * 16, "block_size": 16}
        for n in range(3000)
    ]
    vllm = folder / "chains"
    vllm.write_text("".join(json.dumps(line) + "\n" for line in chain))
    turns = [{"role": "assistant", "content": "a"}] * 60_000
    talk = folder / "talk.jsonl"
    talk.write_text(json.dumps({"traj": turns}))
    log = "inms_lab.logs.open_log.open_log(p)"
    trace = "inms_lab.studies.trace.read_trace(p, False, lambda s: [1], 4)"
    asked = "list(inms_lab.studies.messages.read_requests(p))"
    read = folder / "bomb.jsonl.gz"
    return {
        "blanks": (log, zipped(folder / "1", *EMPTY, b" " * (1 << 20), times=40)),
        "lists": (
            log,
            zipped(folder / "2", *EMPTY, b'{"tokens":[', b"[],", times=10_000_000),
        ),
        "tokens": (log, zipped(folder / "3", *EMPTY, {"tokens": [0] * 4096}, times=4000)),
        "a pool": (log, zipped(folder / "4", *EMPTY, pool)),
        "pools": (log, zipped(folder / "5", *EMPTY, *many)),
        "chains": (log, vllm),
        "turns": (asked, talk),
        "a trace": (trace, zipped(read, b'{"hash_ids":[1]}\n', times=2_000_000)),
        "messages": (asked, zipped(folder / "b.jsonl.gz", b"[]", b"\n" * (1 << 20), times=40)),
        "no lines": (asked, zipped(folder / "c.json.gz", b"[" * (1 << 20), times=40)),
    }


CODE = """
import json, resource, sys, time
import inms_lab.studies.messages, inms_lab.logs.open_log, inms_lab.studies.trace
from pathlib import Path
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), resource.RLIM_INFINITY))
for name, (how, path) in json.loads(sys.stdin.read()).items():
    started = time.perf_counter()
    try:
        eval(how, {"inms_lab": inms_lab, "p": Path(path)})
        told = "taken"
    except Exception as error:
        told = type(error).__name__
    print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    print(name, told)
"""


def test_files_that_unpack_to_much_are_refused_within_400_mib(tmp_path: Path) -> None:
    files = {name: (how, str(path)) for name, (how, path) in bombs(tmp_path).items()}
    largest = max(Path(path).stat().st_size for _, path in files.values())
    assert largest < 3 << 20
    command = [sys.executable, "-c", textwrap.dedent(CODE), str(400 << 20)]
    done = subprocess.run(
        command, input=json.dumps(files), capture_output=True, text=True, cwd=ROOT
    )
    told = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert told.keys() == files.keys(), done.stderr
    named = {"LogTooLarge", "LogDamaged", "BadInput", "NotALog"}
    assert set(told.values()) <= named, f"{told}{done.stderr}"


def test_what_limits_a_file_lets_real_ones_through(tmp_path: Path) -> None:
    """A transcript that says the same over and over packs well, and is read."""
    rng, line = Random(0), {"session": "s", "agent": "a"}
    said = [{"role": "user", "content": "the same thing again and again, until somebody hears it"}]
    values = [line | {"messages": said * 6, "answer": str(rng.random())} for _ in range(3000)]
    path = zipped(tmp_path / "a.jsonl.gz", *values)
    size = len(gzip.decompress(path.read_bytes()))
    assert 30 * path.stat().st_size < size
    assert size > FLOOR
    assert sum(1 for _ in read_requests(path)) == 3000


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    many = [["PoolOpened", f"p{n}", "private", "", 16, MAX_BLOCKS // 2, []] for n in range(3)]
    with pytest.raises(LogDamaged, match=f"at most {MAX_BLOCKS}"):
        load(zipped(tmp_path / "a", *EMPTY, *many))
    with pytest.raises(LogTooLarge, match="max_bytes"):
        load(zipped(tmp_path / "b", *EMPTY, b" " * (1 << 20), times=50))
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"traj": [{"role": "user", "content": "a"}] * (MAX_TURNS + 1)}))
    with pytest.raises(BadInput, match=f"at most {MAX_TURNS}"):
        list(read_requests(path))


def test_chains_that_branch_everywhere_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(fuzz_readers.lines(fuzz_readers.VLLM))
    count = len(read_vllm(path).tokens)
    for most in (count, count - 1):
        monkeypatch.setattr("inms_lab.logs.vllm_log.MAX_TOKENS", most - 4 * path.stat().st_size)
        if most < count:
            with pytest.raises(LogTooLarge, match=f"over {most} tokens"):
                read_vllm(path)
        else:
            assert len(read_vllm(path).tokens) == count
    assert issubclass(LogUnreadable, InmsError)


def test_the_long_run_says_what_it_did() -> None:
    command = [sys.executable, "benchmarks/fuzz_readers.py", "--seconds", "0.5", "--only", "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    told = json.loads(done.stdout)
    assert (done.returncode, told["findings"]) == (0, [])
    assert told["files"] > 10
    assert sum(told["by reader"]["vllm"].values()) == told["files"]
