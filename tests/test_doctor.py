"""The doctor names what is missing and how to get it, and leaves the machine as it was."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from inms_lab.model import manifest, package
from inms_lab.model.source import default_folder
from inms_lab.terminal import doctor
from inms_lab.terminal.doctor import Finding, print_report, report


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes packages look uninstalled."""
    versions = metadata.version

    def hide(*names: str) -> None:
        def version(name: str) -> str:
            if name in names:
                raise metadata.PackageNotFoundError(name)
            return versions(name)

        monkeypatch.setattr(metadata, "version", version)

    return hide


def found(name: str, model: str = "smollm2-135m") -> Finding:
    (finding,) = [finding for finding in report(model) if finding.name == name]
    return finding


def write_converted(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    manifest.write(folder, source="a test", source_sha256="0")


def test_every_promised_thing_is_reported_once() -> None:
    names = [finding.name for finding in report()]
    assert names == [
        *("Python", "torch", "transformers"),
        *("jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly"),
        *("memory", "disk", "cache", "model smollm2-135m", "C++ compiler", "Chromium"),
    ]


def test_every_missing_thing_has_advice(
    without: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without("torch", "transformers", "jupyterlab", "anywidget", "gguf")
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    missing = {finding.name: finding for finding in report() if not finding.ok}
    expected = {"Python", "torch", "transformers", "jupyterlab", "anywidget", "model smollm2-135m"}
    assert set(missing) == expected
    assert all(finding.advice for finding in missing.values())
    assert missing["anywidget"].advice == "pip install anywidget"
    assert "gguf" in missing["model smollm2-135m"].advice


def test_versions_are_the_installed_ones() -> None:
    assert found("plotly").value == metadata.version("plotly")
    assert found("torch").value.startswith(metadata.version("torch"))
    assert "threads" in found("torch").value


def test_a_broken_torch_is_a_finding_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    finding = found("torch")
    assert (finding.ok, finding.advice) == (False, "reinstall torch")


def test_little_memory_and_disk_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=10**9, total=4 * 10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 10**8))
    assert found("memory").value == "1.0 GB free of 4.0 GB"
    assert not found("memory").ok
    assert not found("disk").ok
    # The conversion needs the room, not the lab: a converted model is enough.
    write_converted(default_folder())
    assert found("disk").ok


def test_a_cache_that_cannot_be_written_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found("cache").ok
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path / "file" / "below"))
    finding = found("cache")
    assert not finding.ok
    assert "INMS_LAB_CACHE" in finding.advice


def test_examining_leaves_nothing_behind(cache: Path) -> None:
    report()
    assert not cache.exists()


def test_the_default_model_is_absent_then_converted_then_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "model smollm2-135m"
    monkeypatch.setattr(package, "find_installed", lambda: None)
    absent = found(name)
    assert absent.ok
    assert package.INSTALL in absent.advice
    monkeypatch.setattr(package, "find_installed", lambda: Path("somewhere"))
    assert "is installed" in found(name).value
    write_converted(default_folder())
    assert found(name) == Finding(name, f"converted, in {default_folder()}", True)
    (default_folder() / "config.json").write_text("{")
    damaged = found(name)
    assert not damaged.ok
    assert "inms-lab model --refresh" in damaged.advice


def test_other_models_are_looked_for_without_a_network(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    unusable = found(f"model {folder}", str(folder))
    assert not unusable.ok
    assert "config.json" in unusable.advice
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert found(f"model {folder}", str(folder)).ok
    unknown = found("model nobody/nothing", "nobody/nothing")
    assert unknown.ok
    assert "downloads" in unknown.advice


def test_chromium_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("ProgramFiles", "ProgramFiles(x86)", "LocalAppData"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    finding = doctor._chromium()
    assert finding.ok
    assert "browser tests" in finding.advice
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "chrome" else None)
    assert doctor._chromium() == Finding("Chromium", str(Path("/bin/chrome")), True)


def test_the_printed_report_tells_in_words_and_by_its_exit_code(
    without: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert print_report() == 0
    assert "all that is needed is here" in capsys.readouterr().out
    without("plotly")
    assert print_report() == 1
    printed = capsys.readouterr().out
    assert "missing: plotly" in printed
    assert "pip install plotly" in printed


def test_square_brackets_in_a_finding_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    odd = [Finding("cache", "/data/[bold]/[/x]", True)]
    monkeypatch.setattr(doctor, "report", lambda model: odd)
    assert print_report() == 0
    assert "/data/[bold]/[/x]" in capsys.readouterr().out


def test_findings_are_values() -> None:
    finding = Finding("a", "b", True)
    with pytest.raises(AttributeError):
        finding.ok = False  # type: ignore[misc]
    assert not hasattr(finding, "__dict__")
    assert json.dumps([finding.name, finding.value, finding.ok, finding.advice])


def test_a_compiler_is_named_and_its_absence_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from inms_lab.kernels import build

    monkeypatch.setattr(build, "compiler", lambda: "/bin/g++")
    assert doctor._compiler() == Finding("C++ compiler", "/bin/g++", True)
    monkeypatch.setattr(build, "compiler", lambda: None)
    finding = doctor._compiler()
    assert finding.ok
    assert finding.advice.startswith("only for compile=True")
