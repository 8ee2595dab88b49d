"""Compile the C++ kernels for this processor, once, and load them.

They have a plain C interface and know nothing of torch: a compiler needs seconds for them, one
library serves every version of torch, and where no compiler is the lab goes on without.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock

from inms_lab.errors import CompilerMissing
from inms_lab.places import cache_root

SOURCES = ("kernels.cpp",)
HEADERS = ("lanes.h", "team.h", "product.h", "rows.h", "tiles.h")
# Every multiply-add is fused, everywhere alike: the same sum has the same bits in all kernels.
FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-Wno-psabi"),
    *("-fopenmp", "-shared", "-fPIC"),
)
SECONDS = 120  # a compiler that takes longer is given up


def compiler() -> str | None:
    """The C++ compiler: the environment variable CXX, else the first of the usual names."""
    names = (os.environ.get("CXX"), "g++", "c++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def cache_folder() -> Path:
    """Where compiled kernels are kept: beside the models in the user's cache."""
    return cache_root() / "kernels"


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled if this processor, compiler and source have not been met before.

    Raises `CompilerMissing` where there is no compiler, or it cannot build them.
    """
    found = compiler()
    if found is None:
        raise CompilerMissing(
            "compiled kernels need a C++ compiler (g++ or clang++), and there is none: install "
            "one, for example with `apt-get install g++`"
        )
    target = cache_folder() / f"{_name(found)}.so"
    try:
        if (ready := _loaded(target)) is not None:
            return ready
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if (ready := _loaded(target)) is None:  # none yet, or a damaged one: made anew
                _compile(found, target)
                ready = _loaded(target)
    except OSError as error:
        raise CompilerMissing(
            f"the kernels cannot be kept in {target.parent} ({error}): set INMS_LAB_CACHE to a "
            "folder that you can write"
        ) from error
    if ready is None:
        raise CompilerMissing(f"what {found} built cannot be loaded: set CXX to another compiler")
    return ready


def _loaded(target: Path) -> ctypes.CDLL | None:
    """The library, if it is whole: a file that was cut would take the process with it."""
    try:
        whole = _sum(target) == target.with_suffix(".sum").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return ctypes.CDLL(str(target)) if whole else None
    except OSError:
        return None


def _sum(file: Path) -> str:
    return blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _run(command: list[str]) -> tuple[int, str, str]:
    """Exit status, output and errors of a compiler."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerMissing(
            f"{command[0]} does not run ({error}): set CXX to another compiler"
        ) from error
    out, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return done.returncode, out, errors


def _name(found: str) -> str:
    """A digest of everything that the result depends on."""
    digest = blake2b(digest_size=12)
    for part in (_run([found, "--version"])[1], _processor(), " ".join(FLAGS)):
        digest.update(part.encode() + b"\0")
    for name in (*SOURCES, *HEADERS):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """What `-march=native` looks at: the processor's features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("flags", "Features"))))


def _compile(found: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made.so"
        sources = [str(Path(__file__).with_name(name)) for name in SOURCES]
        status, _, errors = _run([found, *FLAGS, "-o", str(made), *sources])
        if status or not made.exists():
            lines = errors.splitlines() or ["it gave no reason"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise CompilerMissing(
                f"{found} cannot build the kernels ({first.strip()}): set CXX to another compiler"
            )
        check = made.with_suffix(".sum")
        check.write_text(_sum(made), encoding="ascii")
        made.replace(target)
        check.replace(target.with_suffix(".sum"))
