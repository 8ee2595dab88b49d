"""Code that a model wrote, run against preset tests in a limited process of its own.

The process has its own group, an empty environment, a temporary folder, and limits of time, memory,
file size and open files; all of its group is ended with it. That keeps accidents small. It is no
wall against an attacker: the network, for one, is not blocked, only nothing is configured for it.
POSIX systems only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from inms_lab.errors import BadInput

REPORT = "report.json"

# Limits are set before the code is seen, and cannot be raised again.
_CHILD = f"""
import json, resource, sys
order = json.load(sys.stdin)
limits = order["limits"]
cpu, memory, size = limits["cpu"], limits["memory"], limits["file_size"]
for what, value in (("CPU", cpu), ("AS", memory), ("FSIZE", size), ("NOFILE", 16), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (value, value))
passed, error, names = {{}}, "", {{"__name__": "generated"}}
try:
    exec(compile(order["code"], "generated", "exec"), names)
except BaseException as problem:
    error = type(problem).__name__ + ": " + str(problem)[:200]
for name, test in order["tests"].items():
    try:
        exec(compile(test, name, "exec"), dict(names))
        passed[name] = not error
    except BaseException:
        passed[name] = False
with open({REPORT!r}, "w") as file:
    json.dump({{"passed": passed, "error": error}}, file)
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of time and of CPU, bytes of memory and of a file."""

    seconds: float = 5.0
    cpu: int = 2
    memory: int = 512 << 20
    file_size: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """Which tests passed, and what went wrong with the code itself ("": nothing)."""

    passed: dict[str, bool] = field(default_factory=dict)
    error: str = ""


def run_tests(code: str, tests: Mapping[str, str], limits: Limits | None = None) -> Report:
    """Run `code`, then each test (statements that raise if it fails) on what it defined."""
    if os.name != "posix":
        raise BadInput("generated code runs on POSIX systems only: use scorer='likelihood'")
    limits = limits or Limits()
    order = json.dumps({"code": code, "tests": dict(tests), "limits": asdict(limits)})
    nothing = dict.fromkeys(tests, False)
    with tempfile.TemporaryDirectory(prefix="inms-lab-", ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            child.communicate(order.encode(), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return Report(nothing, f"stopped after {limits.seconds:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return _read(Path(folder) / REPORT, nothing, child.returncode)


def _read(path: Path, nothing: dict[str, bool], code: int) -> Report:
    try:
        told = json.loads(path.read_bytes()[: 1 << 20])
        passed = {name: told["passed"].get(name) is True for name in nothing}
        return Report(passed, str(told["error"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Report(nothing, f"it ended by itself, without a report (exit status {code})")
