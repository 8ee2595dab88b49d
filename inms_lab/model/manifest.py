"""The record that makes a converted model believable: sizes and hashes of its files, written last.

    no folder            nothing was converted; `resolve` converts
    folder, no manifest  damaged: conversion renames a finished folder into place, never a part
    manifest             sizes are compared on every `resolve`, hashes when `verify` is called

A model that a user brings has no manifest; its safetensors files still say how long they must be.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from inms_lab.errors import ModelCorrupted
from inms_lab.model.digest import SIDECAR, hash_file

MANIFEST = "inms-manifest.json"
FORMAT = 1  # raise it when converted files change: older folders are then converted again


def write(folder: Path, *, source: str, source_sha256: str) -> None:
    """Record every file of a finished folder, and push all of them to the disk."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (MANIFEST, SIDECAR):
            files[path.name] = {"size": path.stat().st_size, "sha256": hash_file(path)}
            _flush(path)
    record = {
        "format": FORMAT,
        "source": source,
        "source_sha256": source_sha256,
        "files": files,
    }
    path = folder / MANIFEST
    path.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    _flush(path)


def is_outdated(folder: Path) -> bool:
    """Tell whether another version of the lab converted this folder. Raises `ModelCorrupted`."""
    return bool(_read(folder)["format"] != FORMAT)


def check(folder: Path) -> None:
    """Check presence and sizes, in milliseconds. Raises `ModelCorrupted`."""
    for name, facts in _read(folder)["files"].items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if path.stat().st_size != facts["size"]:
            raise damaged(folder, f"{name} has {path.stat().st_size} of {facts['size']} bytes")


def verify(folder: Path) -> bool:
    """Read every byte of a model folder and compare it with its manifest.

    Returns True if all hashes are right, and False for a folder without a manifest (a user's own):
    there is nothing to compare with, so only the lengths of its weight files are checked.
    Raises `ModelCorrupted`.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        check_weights(folder)
        return False
    check(folder)
    for name, facts in _read(folder)["files"].items():
        if hash_file(folder / name) != facts["sha256"]:
            raise damaged(folder, f"the content of {name} has changed")
    return True


def check_weights(folder: Path) -> None:
    """Check a user's own model: its shards are there, each as long as its header says.

    Raises `ModelCorrupted`.
    """
    present = sorted(path.name for path in folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelCorrupted(f"{index} is damaged: copy or download it again") from error
        if missing := sorted(shards.difference(present)):
            raise ModelCorrupted(f"{folder} lacks {missing[0]}: copy or download the model again")
    for name in present:
        expected = _expected_length(folder / name)
        actual = (folder / name).stat().st_size
        if actual != expected:
            raise ModelCorrupted(
                f"{folder / name} is cut short or damaged ({actual} bytes, its header says "
                f"{expected}): copy or download the model again"
            )


def damaged(folder: Path, what: str) -> ModelCorrupted:
    """Build the exception for a converted folder that is not what its manifest says."""
    return ModelCorrupted(
        f"the converted model is damaged ({what}): "
        f"delete {folder} or run `inms-lab model --refresh`"
    )


def _read(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_whole = isinstance(record["format"], int) and all(
            isinstance(facts["size"], int) and isinstance(facts["sha256"], str)
            for facts in record["files"].values()
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(folder, f"{MANIFEST} is missing or unreadable") from error
    if not is_whole or not record["files"]:
        raise damaged(folder, f"{MANIFEST} is incomplete")
    return dict(record)


def _expected_length(path: Path) -> int:
    """Length in bytes of a safetensors file: 8 bytes, a JSON header, then the tensors."""
    with path.open("rb") as file:
        header_length = int.from_bytes(file.read(8), "little")
        # A damaged length must not make us read gigabytes: the header lies inside the file.
        if header_length > path.stat().st_size:
            return 8 + header_length
        try:
            header = json.loads(file.read(header_length))
            ends = [spec["data_offsets"][1] for key, spec in header.items() if key[:2] != "__"]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return -1
    return 8 + header_length + max(ends, default=0)


def _flush(path: Path) -> None:
    # After a power cut a renamed folder may hold right-sized files of zeros; the cheap check would
    # believe them.
    with path.open("rb+") as file:
        os.fsync(file.fileno())
