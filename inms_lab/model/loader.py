"""From a name to an admitted `Runner`, and the same for a model that is already in memory.

A model that is loaded stays loaded while somebody uses it, and the last one also when nobody does,
so that a notebook cell that is run again gets the same weights at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from inms_lab.errors import (
    BadInput,
    CompilerMissing,
    InmsError,
    ModelCorrupted,
    ModelNotFound,
    ModelRefused,
)
from inms_lab.kernels import build
from inms_lab.model.admission import ADVICE, admit
from inms_lab.model.chat import ChatFormat
from inms_lab.model.digest import model_digest, told
from inms_lab.model.progress import say
from inms_lab.model.runner import Runner
from inms_lab.model.source import DEFAULT_MODEL, resolve

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_NOT_OURS = ("model type", "Unrecognized configuration class", "trust_remote_code")

_loaded: WeakValueDictionary[tuple[str, ...], Runner] = WeakValueDictionary()
_latest: list[Runner] = []  # at most one


def load(
    name: str | Path = DEFAULT_MODEL,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    compile: bool = False,
    progress: bool = True,
) -> Runner:
    """The admitted model called `name`: a name, a folder or a hub id (source.py says which).

    Without `device`: CUDA where there is one, else the CPU. Without `dtype`: fp32 on the CPU, the
    model's own elsewhere. `compile`: with kernels compiled for this machine, kept in the user's
    cache; where they cannot be, it says so and goes on with torch's operators.
    Loading again gives the same `Runner` while its files are unchanged.
    Raises `ModelNotFound`, `ModelCorrupted`, `ModelRefused` or `BadInput`.
    """
    place, kind = _place(device), _kind(dtype)
    if kind is None:
        kind = torch.float32 if place.type == "cpu" else "auto"
    folder = resolve(name, progress=progress)
    digest = model_digest(folder)
    kernels = str(compile and build.compiler())  # one that came meanwhile counts
    key = (str(folder.resolve()), str(place), str(kind), digest, kernels)
    runner = _loaded.get(key)
    if runner is None:
        _latest.clear()  # before another model needs the memory
        say(f"loading {name}", enabled=progress)
        model, tokenizer = _read(folder, str(place), kind)
        say("trying it", enabled=progress)
        runner = _admitted(model, tokenizer, str(name), digest, compile, progress)
        _loaded[key] = runner
    _latest[:] = [runner]
    return runner


def from_model(
    model: PreTrainedModel,
    tokenizer: Any = None,
    name: str | None = None,
    compile: bool = False,
    digest: str | None = None,
) -> Runner:
    """The admitted `Runner` of a model in memory; its attention implementation is changed.

    `digest` names its content (32 hex digits); without one it is computed, over all parameters,
    buffers and the configuration.
    """
    name, digest = name or type(model).__name__, digest or _memory_digest(model)
    return _admitted(model, tokenizer, name, digest, compile, progress=True)


def _admitted(
    model: PreTrainedModel, tokenizer: Any, name: str, digest: str, compile: bool, progress: bool
) -> Runner:
    try:
        runner = Runner(model, name, digest)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelRefused(
            f"{type(model).__name__} ({name}) is refused: its configuration is not that of a "
            f"decoder with attention in every layer ({error}); {ADVICE}"
        ) from error
    with ThreadPoolExecutor(1) as apart:
        apart.submit(_try, runner, compile, progress).result()
    runner.tokenizer = tokenizer
    runner.chat = ChatFormat.of(tokenizer) if tokenizer is not None else None
    runner.stop_tokens = _stop_tokens(model, tokenizer)
    return runner


def _try(runner: Runner, compile: bool, progress: bool) -> None:
    """Compile and admit, in a thread that takes its OpenMP workers with it when it ends: a second
    set of them on the machine would make the lab's own wait in their sleep, every time."""
    if compile:
        try:
            runner.compile()
        except (CompilerMissing, BadInput) as error:
            say(f"{error}; going on with torch's own operators", enabled=progress)
    try:
        admit(runner)
    except ModelRefused as error:
        if runner.native is None:
            raise
        say(f"without compiled kernels, for with them: {error}", enabled=progress)
        runner.decompile()
        admit(runner)


def _stop_tokens(model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text, of the generation configuration and of the tokenizer."""
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = ids if isinstance(ids, (list, tuple)) else [ids]
    return frozenset(
        int(i) for i in (*listed, getattr(tokenizer, "eos_token_id", None)) if i is not None
    )


def _read(folder: Path, device: str, dtype: torch.dtype | str) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer; whatever goes wrong becomes an exception of ours."""
    config = folder / "config.json"
    try:
        kind = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelCorrupted(f"{config} is damaged: copy or download it again") from error
    try:
        with _without_bars():
            model = load_model(folder, device, dtype)
    except (InmsError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # readers of many formats, each with exceptions of its own
        reason = _first_line(error)
        if any(sign in str(error) for sign in _NOT_OURS):
            raise ModelRefused(f"{kind} ({folder}) is refused: {reason}; {ADVICE}") from error
        raise ModelCorrupted(
            f"the model in {folder} cannot be read ({reason}): copy or download it again"
        ) from error
    try:
        return model, load_tokenizer(folder)
    except Exception as error:
        if not any((folder / name).exists() for name in _TOKENIZERS):
            raise ModelNotFound(
                f"{folder} has no tokenizer: copy its files (tokenizer.json and "
                f"tokenizer_config.json) beside the weights"
            ) from error
        raise ModelCorrupted(
            f"the tokenizer in {folder} cannot be read ({_first_line(error)}): copy or download it "
            f"again"
        ) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _place(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise BadInput(f"there is no device {device!r}: use 'cpu', 'cuda' or 'cuda:1'") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"this machine has {torch.cuda.device_count()} CUDA devices, not {device!r}")
    return place


def _kind(dtype: torch.dtype | str | None) -> torch.dtype | str | None:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) and dtype != "auto" else dtype
    if dtype is None or kind == "auto":
        return kind
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise BadInput(f"{dtype!r} is no element type: use 'float32', 'bfloat16' or 'float16'")
    return kind


def _memory_digest(model: PreTrainedModel) -> str:
    """32 hex digits that name the content of all tensors and the configuration."""
    digest = blake2b(digest_size=16, person=b"inms-memory")
    digest.update(told(model.config.to_dict()).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f";{name}:{tensor.dtype}:{tuple(tensor.shape)}=".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def load_model(folder: Path, device: str, dtype: torch.dtype | str) -> PreTrainedModel:
    """The causal language model in `folder`, its weights mapped where that is possible.

    `dtype` "auto" is the model's own. Raises `ModelCorrupted` if a weight is missing, which
    transformers would only draw at random.
    """
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelCorrupted(
            f"{folder} lacks {len(missing)} weights ({missing[0]}): copy or download it again"
        )
    return model.to(device)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
