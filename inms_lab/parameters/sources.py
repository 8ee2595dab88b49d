"""What weights are made shared: a model's folder or name, a module, or tensors by name.

A source gives a layout, fills bytes laid out so, and says how to make the module without weights.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from inms_lab.errors import BadInput, InmsError, ModelCorrupted
from inms_lab.model import manifest
from inms_lab.model.digest import told
from inms_lab.model.source import model_digest, resolve
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.weights import bare, layout_of

Make = Callable[[], torch.nn.Module]


@dataclass(frozen=True)
class Source:
    """`tensors()` gives (name, tensor) one by one, in any order; `digest` names the content."""

    name: str
    layout: Layout
    digest: str
    tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    make: Make | None
    folder: Path | None = None  # where its configuration and tokenizer are

    def emptied(self) -> Source:
        """What is known of it, without the tensors: they are in shared memory, once."""
        return replace(self, tensors=_copied)


def _copied() -> Iterator[tuple[str, torch.Tensor]]:
    raise BadInput("these tensors were copied into shared memory: ask SharedParameters.tensors()")


def source_of(
    what: str | Path | torch.nn.Module | Mapping[str, torch.Tensor],
    make: Make | None = None,
    dtype: torch.dtype | None = None,
) -> Source:
    """The source that `what` means: see `SharedParameters`.

    The digest is of the weights and of what computes with them (`_about`), of a folder's module
    unless `make` is given its `config.json`. Raises `BadInput` for what cannot be shared.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise BadInput(f"dtype is one with fractions, such as torch.float16; not {dtype!r}")
    if make is not None and not callable(make):
        raise BadInput(f"make= is a function that gives a module, not {make!r}")
    if isinstance(what, torch.nn.Module):
        tensors = _fit(what.state_dict(keep_vars=True))
        _require_apart(tensors)
        about = _about(bare(make) if make else what)
        return _in_memory(type(what).__name__, tensors, make or _Skeleton(what), dtype, about)
    about = _about(bare(make)) if make else ""
    if isinstance(what, Mapping):
        if not what:
            raise BadInput("tensors by name are wanted, and there are none")
        return _in_memory("tensors", _fit(what), make, dtype, about)
    if not isinstance(what, str | os.PathLike):
        raise BadInput(f"a name, a folder, a module or tensors by name are wanted, not {what!r}")
    path = Path(what)
    if path.suffix == ".safetensors" and path.is_file():
        return _files(path.name, [path], make, dtype, _with(_file_digest(path), about))
    folder = resolve(what)
    manifest.check_weights(folder)
    files = sorted(folder.glob("*.safetensors"))
    whole = make or _FromConfig(str(folder))
    found = _files(str(what), files, whole, dtype, _with(model_digest(folder), about))
    return replace(found, folder=folder)


@dataclass(frozen=True)
class _FromConfig:
    """The causal language model that a folder's configuration describes."""

    folder: str

    def __call__(self) -> torch.nn.Module:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
        return model


class _Skeleton:
    """A copy of a module in which every parameter and every buffer of its state is on `meta`."""

    def __init__(self, module: torch.nn.Module) -> None:
        kept = module.state_dict(keep_vars=True).values()
        bare = {id(x): _bare(x) for x in kept}
        bare |= {id(p): _bare(p) for p in module.parameters()}
        self.module = copy.deepcopy(module, bare)

    def __call__(self) -> torch.nn.Module:
        return copy.deepcopy(self.module)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    away = tensor.detach().to("meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(away, requires_grad=tensor.requires_grad)
    return away


def _fit(tensors: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """The tensors alone. Raises `BadInput` if one cannot be shared."""
    found = {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise BadInput(f"tensors by name are wanted: {name!r} is no name")
        if why := _unfit(value):
            raise BadInput(f"tensors by name are wanted: {name!r} cannot be shared, {why}")
        found[name] = value.detach().resolve_conj().resolve_neg()
    return found


def _unfit(value: Any) -> str:
    """Why it cannot be shared, or nothing."""
    if not isinstance(value, torch.Tensor):
        return f"it is {type(value).__name__}; a module's get_extra_state cannot be shared either"
    if is_lazy(value):
        return "it has no shape yet; run the module once before"
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return "it is sparse, nested or quantized; make it dense and plain before"
    return "it is on meta and has no values; give it some before" if value.is_meta else ""


def _require_apart(tensors: Mapping[str, torch.Tensor]) -> None:
    """No two share a part of their memory: each would get its own. Raises `BadInput`."""
    before, stop = "", 0
    spans = {(t.data_ptr(), t.shape, t.stride(), t.dtype): name for name, t in tensors.items()}
    for (start, shape, strides, kind), name in sorted(spans.items(), key=lambda span: span[0][0]):
        if 0 in shape:
            continue
        if start < stop:
            raise BadInput(
                f"{before} and {name} share memory and are not one tensor, which cannot be kept: "
                "clone() one of them, or make them one Parameter"
            )
        steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        before, stop = name, start + (steps + 1) * kind.itemsize


def _about(module: torch.nn.Module) -> str:
    """What makes other results of the same weights: a language model's configuration, of other
    modules what they print (settings that are not printed are not seen)."""
    to_dict = getattr(getattr(module, "config", None), "to_dict", None)
    about = told(to_dict()) if callable(to_dict) else repr(module)
    return type(module).__name__ + re.sub(r" at 0x[0-9a-f]+", "", about)


def _with(digest: str, about: str) -> str:
    """A digest of both, if there is anything to tell."""
    if not about:
        return digest
    hashed = blake2b(f"{digest};{about}".encode(), digest_size=16, person=b"inms-weights")
    return hashed.hexdigest()


def _in_memory(
    name: str,
    tensors: dict[str, torch.Tensor],
    make: Make | None,
    dtype: torch.dtype | None,
    about: str,
) -> Source:
    cast = {key: _cast(value, dtype) for key, value in tensors.items()}
    hashed = blake2b(digest_size=16, person=b"inms-tensors")
    for key in sorted(cast):
        value = cast[key].contiguous().cpu()
        hashed.update(f";{key}:{value.dtype}:{tuple(value.shape)}=".encode())
        hashed.update(value.reshape(-1).view(torch.uint8).numpy().data)
    digest = _with(hashed.hexdigest(), about)
    return Source(name, layout_of(tensors, dtype), digest, lambda: iter(cast.items()), make)


def _files(
    name: str, files: list[Path], make: Make | None, dtype: torch.dtype | None, digest: str
) -> Source:
    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        for path in files:
            with safe_open(path, "pt") as file:
                for key in sorted(file.keys()):
                    yield key, _cast(file.get_tensor(key), dtype)

    found: dict[str, torch.Tensor] = {}
    try:
        for key, value in tensors():
            if key in found:
                raise ModelCorrupted(f"{name} has two tensors {key}: copy or download it again")
            found[key] = value.to("meta")
    except InmsError:
        raise
    except Exception as error:  # the reader's own kinds
        raise ModelCorrupted(
            f"{name} cannot be read as safetensors ({error}): copy or download it again"
        ) from error
    if dtype is not None:
        digest = f"{digest}-{str(dtype).removeprefix('torch.')}"
    return Source(name, layout_of(found, None), digest, tensors, make)


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def _file_digest(path: Path) -> str:
    from inms_lab.model.digest import hash_file

    return hash_file(path)[:32]
