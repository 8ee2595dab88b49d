"""The identity of a model folder: a digest of its weights and configuration.

KV computed by one model must never be taken for another's, so every fingerprint contains this
digest. Hashing half a gigabyte takes part of a second; a sidecar file remembers each file's hash,
and is trusted only while size and modification time stay what they were. Not here: whether the
content is *right* (`manifest`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inms_lab.errors import ModelNotFound

SIDECAR = ".inms-digest.json"
_FORMAT = 1
_NO_CONTENT = ("transformers_version", "_name_or_path", "architectures", "dtype")  # of a config
_Stamp = tuple[int, int]  # (size in bytes, mtime in nanoseconds)


def told(config: Mapping[str, Any]) -> str:
    """What a configuration says of the computation, as JSON: without names, paths and versions."""
    kept = {key: value for key, value in config.items() if key not in _NO_CONTENT}
    return json.dumps(kept, sort_keys=True, default=str)


def hash_file(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_digest(folder: Path) -> str:
    """Return 32 hex digits (128 bits) that name the model's weights and `config.json`.

    The same in every process and on every machine; the tokenizer and file times play no part.
    Raises `ModelNotFound` if the folder holds no configuration or no safetensors.
    """
    folder = Path(folder)
    hashes = _file_hashes(folder, _content_files(folder))
    digest = hashlib.blake2b(digest_size=16, person=b"inms-model")
    for name, sha256 in sorted(hashes.items()):
        # The length in front keeps (name, hash) pairs from running into each other.
        digest.update(f"{len(name)}:{name}={sha256};".encode())
    return digest.hexdigest()


def _content_files(folder: Path) -> list[Path]:
    weights = sorted(folder.glob("*.safetensors"))
    config = folder / "config.json"
    if not config.is_file() or not weights:
        raise ModelNotFound(f"{folder} is no model folder: it needs config.json and *.safetensors")
    return [config, *weights, *sorted(folder.glob("*.safetensors.index.json"))]


def _file_hashes(folder: Path, paths: list[Path]) -> dict[str, str]:
    known = _read_sidecar(folder)
    fresh: dict[str, tuple[_Stamp, str]] = {}
    for path in paths:
        stamp = _stamp(path)
        remembered = known.get(path.name)
        if remembered is not None and remembered[0] == stamp:
            fresh[path.name] = remembered
        else:
            fresh[path.name] = (stamp, hash_file(path))
    # A file that changed while it was read must not be remembered under either of its stamps.
    is_settled = all(fresh[path.name][0] == _stamp(path) for path in paths)
    if fresh != known and is_settled:
        _write_sidecar(folder, fresh)
    return {name: sha256 for name, (_, sha256) in fresh.items()}


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read_sidecar(folder: Path) -> dict[str, tuple[_Stamp, str]]:
    try:
        record = json.loads((folder / SIDECAR).read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            return {}
        return {
            str(name): ((int(size), int(mtime_ns)), str(sha256))
            for name, (size, mtime_ns, sha256) in record["files"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # missing or damaged: only a cache, so hash again


def _write_sidecar(folder: Path, hashes: dict[str, tuple[_Stamp, str]]) -> None:
    files = {name: [*stamp, sha256] for name, (stamp, sha256) in hashes.items()}
    scratch = None
    try:
        # Written beside and renamed: a reader in another process never sees half a file.
        handle, scratch = tempfile.mkstemp(prefix=SIDECAR, dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "files": files}, file, indent=1, sort_keys=True)
        shutil.copymode(folder / "config.json", scratch)
        os.replace(scratch, folder / SIDECAR)
    except OSError:
        # A read-only model is fine: the digest is then computed each time.
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)
