"""Fuzzing of every reader of outside bytes, the socket aside: valid files, damaged in many ways.

    python benchmarks/fuzz_readers.py [--seconds 60] [--seed 0] [--only NAME ...]

A reader may take a file, or refuse it with one of its named errors. Anything else (another error, a
process that takes more than `LIMIT` of further memory, a read of more than `SECONDS`) is a finding:
it is printed with its seed, and the file is kept in the folder that is named. Damage is done to the
file, to what it is compressed from, and to the values in it, under checksums that are made right
again, for a checksum stops chance and nobody else. tests/test_fuzz.py takes the same files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inms_lab import Lab, Log
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.gate import Calibration, Gate
from inms_lab.config import Config
from inms_lab.errors import BadInput, InmsError, LogUnreadable, ParcelRefused
from inms_lab.logs.journal import Journal
from inms_lab.logs.open_log import open_log
from inms_lab.logs.vllm_log import read_vllm
from inms_lab.model.forward import DryModel
from inms_lab.notebook.calibrations import calibration_of, keep
from inms_lab.publishing import parcel, shelf
from inms_lab.publishing.parcel import Parcel
from inms_lab.publishing.shelf import Shelf
from inms_lab.studies.messages import read_requests
from inms_lab.studies.trace import read_trace
from inms_lab.terminal import recordings

SECONDS, LIMIT = 20, 1 << 30
Random = random.Random

# seeds: valid files -------------------------------------------------------------------------------


def a_log(path: Path, cut: bool = False) -> Log:
    """A small run without weights; its journal lies at `path`."""
    room = 4 * 60
    config = Config(4, 0, 64, 200, room, room, room, debug=False)
    with Lab(DryModel(50, 200, 1), config=config) as lab:
        if not cut:
            lab.keep_journal(path)
        lab.preload(list(range(10)), progress=False)
        team = lab.group("team")
        ada, ben = team.agents("ada", "ben")
        ada.read([1, 2, 3, 4, 5]).result()
        ada.write(4).result()
        team.publish([7, 8, 9, 10, 11], by=ada)
        ben.attach(team).result()
        ben.fork().result().write(3).result()
        ben.rollback(12).result()
        ada.close().result()
        lab.engine.log.errors[1] = "ValueError: no"
    log = lab.log
    log.piece = lambda token: b"%d" % token
    if cut:
        log.forget(len(log) // 2)
        Journal(log, path).close()
    return log


def a_parcel(behind: Parcel | None = None, label: tuple[str, ...] = ()) -> Parcel:
    """A text with made-up KV."""
    space, size, tokens = Namespace("fuzz", tenant="default"), 4, tuple(range(5, 16))
    root, at = (space.root(), 0) if behind is None else (behind.due()[-1], len(behind.tokens))
    kv = [torch.arange(88.0).view(2, 1, 11, 4) + n for n in (0, 1)]
    out = Parcel(space, label, tokens, root, at, size, (), *kv)
    return replace(out, fingerprints=out.due())


VLLM = [
    {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "block_size": 2}
    | {"token_ids": [5, 6, 7, 8], "lora_id": None, "medium": "GPU", "extra_keys": [["a"], None]},
    ["BlockStored", ["c", "d"], 2, [1, 2, 3, 4], 2, None, "GPU", None, None, 0],
    {"ts": 1.5, "events": [{"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"}]},
    [2.5, [["BlockRemoved", ["d"], "GPU", 0], ["AllBlocksCleared"]], 0],
]
MOONCAKE = [{"timestamp": 1, "hash_ids": [1, 2, 3], "input_length": 9}, {"hash_ids": [1, "x"]}]
SESSIONS = [
    {
        "id": "s",
        "block_size": 64,
        "tool_tokens": 130,
        "hash_id_scope": "local",
        "requests": [
            {"t": 0, "hash_ids": [1, 2, 3], "api_time": 1.5},
            {"type": "subagent", "agent_id": "a", "t": 9.5, "duration_ms": None, "requests": [
                {"t": 1, "hash_ids": [4, 5], "api_time": 2}]},
        ],
    }
]  # fmt: skip
TALK = [{"role": "system", "content": "be good"}, {"role": "user", "content": [
    {"type": "text", "text": "hello"}]}, {"role": "assistant", "content": None, "tool_calls": [
    {"function": {"name": "f", "arguments": "{}"}}]},
    {"role": "assistant", "content": "done"}]  # fmt: skip
MESSAGES = [
    {"session": "s", "agent": "a", "messages": TALK, "answer": "yes"},
    {"input": "system: be good\n\nuser: hello\n\nassistant: hi", "session_id": 4, "output": "x"},
    {"traj": TALK, "task_id": 3, "trial": 0},
    {"system_prompt": {"a": "you are a"}, "history": [
        {"name": "b", "content": "task"}, {"name": "a", "content": "answer"}]},
]  # fmt: skip
AIRLINE = [{"policy": "be kind", "tools": [{"name": "book"}]}, [{"name": "search"}], [
    {"task_id": n, "reward": 1.0, "traj": TALK[1:]} for n in (0, 3, 6, 12, 21, 18)]]  # fmt: skip


def lines(values: list[Any]) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


# damage -------------------------------------------------------------------------------------------

NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**63, 10**30, 10**400, -(2**40), 0.5, 1e308, -1e308)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x" * 3000,
        "\ud800",
        "\0",
        [],
        {},
        [[]],
        [None],
        {"": {}},
        {"dict": 1},
    ),
    *NUMBERS,
)
DEEP = "endless nesting"  # stands for it
PIECES = (
    b"",
    b"\0",
    b"\n",
    b'"',
    b"[",
    b"]",
    b"{",
    b",",
    b"9",
    b"null",
    b"\xff\xfe",
    b"NaN",
    b"1e999",
)


def any_value(rng: Random) -> Any:
    """Some JSON value that is probably the wrong one."""
    return DEEP if rng.random() < 0.06 else rng.choice(VALUES)


def dumped(rng: Random, value: Any) -> bytes:
    """JSON, halves of surrogate pairs and endless nesting too."""
    count = rng.choice((50, 300, 3000))
    before, behind = rng.choice((("[", "]"), ('{"tuple":[', "]}"), ('{"a":', "}")))
    text = json.dumps(value).replace(json.dumps(DEEP), f"{before * count}1{behind * count}")
    return text.encode("utf-8", "surrogatepass")


def damaged_value(rng: Random, value: Any) -> Any:
    """The value with one part replaced, left out, doubled, moved or renamed."""
    if not isinstance(value, (list, dict)) or not value or rng.random() < 0.1:
        if isinstance(value, int) and rng.random() < 0.5:
            return value + rng.choice((1, -1, 7))
        return any_value(rng)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    kind = rng.random()
    if kind < 0.7:
        new: Any = value.copy()
        new[key] = damaged_value(rng, value[key])
        return new
    if isinstance(value, dict):
        new = {k: v for k, v in value.items() if k != key}
        if kind > 0.85:
            new[rng.choice(("", "x", "9" * 30, *map(str, keys)))] = value[key]
        return new
    other = rng.choice(keys)
    new = value.copy()
    if kind < 0.8:
        del new[key]
    elif kind < 0.9:
        new[key], new[other] = new[other], new[key]
    else:
        new[key:key] = [value[other]] * rng.choice((1, 1, 3, 200))
    return new


def damaged_bytes(rng: Random, data: bytes, other: bytes) -> bytes:
    """Bits turned, ends cut off, parts doubled, taken from another file or written over."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 2, 8, 64, 1000))
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out[at:at] = out[at : at + size]
        elif kind == 3:
            start = rng.randrange(len(other) + 1)
            out[at : at + rng.choice((0, size))] = other[start : start + size]
        elif kind == 4:
            out[at : at + rng.choice((0, 1, 4))] = rng.choice(PIECES)
        elif kind == 5:
            del out[at : at + size]
        else:
            out[at : at + 4] = rng.randbytes(4)
    return bytes(out)


def damaged_lines(rng: Random, data: bytes) -> bytes:
    """One of its JSON lines with other values."""
    parts = data.split(b"\n")
    at = rng.randrange(len(parts))
    try:
        value = damaged_value(rng, json.loads(parts[at]))
        parts[at] = dumped(rng, value)
    except (ValueError, RecursionError):
        parts[at : at + 1] = [parts[at]] * 2
    return b"\n".join(parts)


def damaged_journal(rng: Random, data: bytes) -> bytes:
    """Records with other values, out of order or framed anew: the checksums are right."""
    parts = data.split(b"\n")
    texts = [part[27:] for part in parts[1:-1]]
    at = rng.randrange(len(texts))
    if rng.random() < 0.85:
        value = damaged_value(rng, json.loads(texts[at]))
        texts[at] = dumped(rng, value)
    elif rng.random() < 0.5:
        del texts[at]
    else:
        texts[at] = damaged_bytes(rng, texts[at], texts[0]).replace(b"\n", b" ")
    out = [parts[0]]
    for number, text in enumerate(texts):
        head = b"%08x %08x " % (number, len(text))
        out.append(b"%b%08x %b" % (head, zlib.crc32(text, zlib.crc32(head)), text))
    return b"\n".join([*out, b""])


def damaged_tensors(rng: Random, data: bytes) -> bytes:
    """A safetensors file with another header: sizes, types, places, and what a parcel says."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    said = header.get("__metadata__", {})
    inner = next(iter(said), None)
    if inner is not None and rng.random() < 0.7:
        value = json.loads(said[inner])
        for _ in range(rng.choice((1, 2))):
            value = damaged_value(rng, value)
        if isinstance(value, dict) and "digest" in value and inner == shelf.METADATA:
            value["digest"] = shelf._digest({k: v for k, v in value.items() if k != "digest"})
        said[inner] = dumped(rng, value).decode("utf-8", "replace")
    else:
        header = damaged_value(rng, header)
    text = dumped(rng, header)
    length = len(text) if rng.random() < 0.9 else rng.choice((0, 2**63, 10**6))
    return length.to_bytes(8, "little") + text + body


# readers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, its valid files, how their values are damaged, and what it may refuse them with."""

    name: str
    files: tuple[bytes, ...]
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    values: Callable[[Random, bytes], bytes] = damaged_lines
    suffix: str = ""
    packed: bool = False  # the files are written as gzip

    def damaged(self, rng: Random) -> bytes:
        """A file for it, damaged at one level or another."""
        data, other = rng.choice(self.files), rng.choice(self.files)
        kind = rng.random()
        if kind < 0.6:
            data = self.values(rng, data)
            if rng.random() < 0.3:
                data = self.values(rng, data) if self.values is damaged_lines else data
        elif kind < 0.85 or not self.packed:
            data = damaged_bytes(rng, data, other)
        if not self.packed:
            return data
        data = gzip.compress(data, 1)
        return damaged_bytes(rng, data, gzip.compress(other, 1)) if kind >= 0.85 else data

    def attempt(self, data: bytes, folder: Path) -> str:
        """Read it; gives "taken" or the name of the error. Other errors come through."""
        path = folder / f"fuzzed{self.suffix}"
        path.write_bytes(data)
        try:
            with in_time():
                self.read(path)
        except self.errors as error:
            if len(str(error)) > 2000:
                raise AssertionError(f"a message of {len(str(error))} characters") from error
            return type(error).__name__
        return "taken"


@contextmanager
def in_time() -> Iterator[None]:
    """Raises `TimeoutError` after `SECONDS`."""

    def over(*_: object) -> None:
        raise TimeoutError(f"not read after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def look_at(path: Path) -> None:
    """Open a log and look at it as a view does."""
    log = open_log(path)
    for index in (log.first, (log.first + len(log)) // 2, len(log)):
        log.replay(index).snapshot()
    log.save(path.with_suffix(".again"))


def calibrated(path: Path) -> None:
    """A calibration in the user's cache, and a gate that judges by it."""
    from inms_lab.notebook.calibrations import _read

    found = _read(path)
    if found is not None:
        Gate(calibration=found).excess()
        Gate(calibration=found).worth(10, 10)
        Calibration.of(json.loads(json.dumps(found, default=lambda c: _plain(c))))


def _plain(value: Any) -> Any:
    return {name: getattr(value, name) for name in value.__slots__}


def recorded(path: Path) -> None:
    """A data folder in which one of the files is this one."""
    folder = path.parent / "data"
    for name, value in zip(recordings.FILES, AIRLINE, strict=True):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        plain = lines(value) if "jsonl" in name else json.dumps(value).encode()
        target.write_bytes(gzip.compress(plain) if name.endswith(".gz") else plain)
    (folder / recordings.FILES[-1]).write_bytes(path.read_bytes())
    recordings.read(folder)


def letters(text: str) -> list[int]:
    """A stand-in for a tokenizer."""
    return [ord(c) % 256 for c in text]


def readers(folder: Path) -> list[Reader]:
    """All of them, with valid files made in `folder`."""
    logs, journals = [], []
    for name, cut in (("a", False), ("b", True)):
        log = a_log(folder / name, cut)
        log.save(folder / "saved")
        logs.append(gzip.decompress((folder / "saved").read_bytes()))
        journals.append((folder / name).read_bytes())
    first, second = a_parcel(), a_parcel(label=("group:t",))
    one = parcel.save(second, folder / "one").read_bytes()
    more = [a_parcel(label=("group:t",)) for _ in range(2)]
    all_of_it = Shelf(64, (first,), {"t": ((second,), (more[0], more[1]))})
    several = shelf.save(all_of_it, folder / "all").read_bytes()
    kept = Calibration("fuzz", 0.01, (0.0, 0.02), 0.95, (0.9, 1.0), 9, 1.5, 0.2, "here")
    calibration = keep(kept, folder).read_bytes()
    assert calibration_of("nobody") is None
    talks, asked = lines(MESSAGES), [lines(MOONCAKE), lines(SESSIONS)]
    return [
        Reader("log", tuple(logs), look_at, (LogUnreadable,), packed=True),
        Reader("journal", tuple(journals), look_at, (LogUnreadable,), damaged_journal),
        Reader("vllm", (lines(VLLM), lines(VLLM[1:])), read_vllm, (LogUnreadable,)),
        Reader("parcel", (one,), parcel.load, (ParcelRefused,), damaged_tensors),
        Reader("shelf", (several,), shelf.load, (ParcelRefused,), damaged_tensors),
        Reader("trace", tuple(asked), traced, (BadInput,), suffix=".jsonl"),
        Reader("trace.gz", (*asked, talks), traced, (BadInput,), suffix=".jsonl.gz", packed=True),
        Reader("messages", (talks,), listed, (BadInput,), suffix=".jsonl"),
        Reader(
            "messages.json", (json.dumps(MESSAGES).encode(),), listed, (BadInput,), suffix=".json"
        ),
        Reader("calibration", (calibration,), calibrated, (), whole_json),
        Reader("recordings", (lines(AIRLINE[2]),), recorded, (BadInput,), packed=True),
    ]


def whole_json(rng: Random, data: bytes) -> bytes:
    """A file that is one JSON value, with other values."""
    value = damaged_value(rng, json.loads(data))
    return dumped(rng, value)


def traced(path: Path) -> None:
    """A trace, with and without tools that are taken as shared."""
    for share in (False, True):
        read_trace(path, share, letters, 4)


def listed(path: Path) -> None:
    """The requests of a message log."""
    list(read_requests(path))


# the long run -------------------------------------------------------------------------------------


def main() -> int:
    """Run; gives the number of findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    chosen = [r for r in readers(folder) if r.name in options.only or not options.only]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, resource.RLIM_INFINITY))
    counts: dict[str, Counter[str]] = {reader.name: Counter() for reader in chosen}
    end, seed = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < end:
        for reader in chosen:
            data = reader.damaged(Random(f"{reader.name} {seed}"))
            try:
                counts[reader.name][reader.attempt(data, folder)] += 1
            except Exception as error:  # what this is here to find
                counts[reader.name]["FOUND"] += 1
                name = f"{reader.name}-{seed}"
                (folder / name).write_bytes(data)
                found.append({"reader": reader.name, "seed": seed, "error": f"{error!r:.300}"})
                print(f"{folder / name}: {error!r:.300}", file=sys.stderr)
        seed += 1
    told = {name: dict(sorted(count.items())) for name, count in counts.items()}
    total = sum(count.total() for count in counts.values())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"files": total, "findings": found, "peak_mib": most, "by reader": told}))
    return min(len(found), 99)


if __name__ == "__main__":
    assert issubclass(LogUnreadable, InmsError)
    raise SystemExit(main())
