"""Processes that prepare the default model at the same time, or die while they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from inms_lab.model.source import default_folder, verify

ROOT = Path(__file__).parents[1]

# A stand-in for download and conversion, in a process of its own: it counts itself, and is slow.
CHILD = """
import os, sys, time
from pathlib import Path
from inms_lab.model import convert, package, source

cache, count, ending = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def slow(gguf, folder, *, progress):
    with open(count, "a") as file:
        file.write("x")
    (folder / "config.json").write_text("{}")
    time.sleep(1.0)
    if ending == "dies":
        os._exit(9)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")

package.fetch = lambda scratch, progress: Path("none")
convert.convert = slow
print(source.resolve(cache_dir=cache, progress=False))
"""


def start_child(cache: Path, count: Path, ending: str = "lives") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(cache), str(count), ending]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.01)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.glob("*") if path.suffix != ".lock")


def test_a_killed_conversion_is_not_believed_and_is_cleaned_up(tmp_path: Path) -> None:
    child = start_child(tmp_path, tmp_path / "count", "dies")
    child.communicate(timeout=30)
    assert child.returncode == 9
    folder = default_folder(tmp_path)
    assert not folder.exists()
    assert [name.partition("-")[0] for name in leftovers(folder)] == ["smollm2"]
    start_child(tmp_path, tmp_path / "count").communicate(timeout=30)
    assert verify(folder)
    assert leftovers(folder) == ["smollm2-135m"]


def test_two_processes_at_once_convert_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    first = start_child(tmp_path, count)
    wait_for(count)
    second = start_child(tmp_path, count)
    results = [child.communicate(timeout=30) for child in (first, second)]
    folder = default_folder(tmp_path)
    assert [out.strip() for out, _ in results] == [str(folder)] * 2, results
    assert count.read_text() == "x"
    assert verify(folder)
