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

SOURCES = ("linear.cpp", "attend.cpp")
HEADERS = ("lanes.h",)
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
    from platformdirs import user_cache_dir

    root = os.environ.get("INMS_LAB_CACHE") or user_cache_dir("inms-lab", appauthor=False)
    return Path(root).expanduser() / "kernels"


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
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if not target.exists():
                _compile(found, target)
            return ctypes.CDLL(str(target))
    except OSError as error:
        raise CompilerMissing(f"the kernels cannot be kept or loaded: {error}") from error


def _name(found: str) -> str:
    """A digest of everything that the result depends on."""
    digest = blake2b(digest_size=12)
    version = subprocess.run([found, "--version"], capture_output=True, check=False).stdout
    for part in (version, _processor().encode(), " ".join(FLAGS).encode()):
        digest.update(part + b"\0")
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
        command = [found, *FLAGS, "-o", str(made), *sources]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerMissing(f"{found} does not finish: {error}") from error
        if done.returncode:
            first = next((x for x in done.stderr.splitlines() if "error" in x), done.stderr[:200])
            raise CompilerMissing(
                f"{found} cannot build the kernels ({first.strip()}): set CXX to another compiler"
            )
        made.replace(target)
