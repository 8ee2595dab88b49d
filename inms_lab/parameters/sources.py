"""What weights are made shared: a model's folder or name, a module, or tensors by name.

A source gives a layout, fills bytes laid out so, and says how to make the module without weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch

from inms_lab.errors import BadInput, InmsError, ModelCorrupted
from inms_lab.model import manifest
from inms_lab.model.source import model_digest, resolve
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.weights import layout_of

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
    """The source that `what` means: see `SharedParameters`."""
    if isinstance(what, torch.nn.Module):
        tensors = dict(what.state_dict(keep_vars=True))
        return _in_memory(type(what).__name__, tensors, make or _Skeleton(what), dtype)
    if isinstance(what, Mapping):
        wrong = [name for name, value in what.items() if not isinstance(value, torch.Tensor)]
        if wrong or not what:
            raise BadInput(f"tensors by name are wanted{f', {wrong[0]!r} is none' * bool(wrong)}")
        return _in_memory("tensors", dict(what), make, dtype)
    path = Path(what)
    if path.suffix == ".safetensors" and path.is_file():
        return _files(path.name, [path], make, dtype, _file_digest(path))
    folder = resolve(what)
    manifest.check_weights(folder)
    files = sorted(folder.glob("*.safetensors"))
    whole = make or _FromConfig(str(folder))
    found = _files(str(what), files, whole, dtype, model_digest(folder))
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


def _in_memory(
    name: str, tensors: dict[str, torch.Tensor], make: Make | None, dtype: torch.dtype | None
) -> Source:
    cast = {key: _cast(value.detach(), dtype) for key, value in tensors.items()}
    hashed = blake2b(digest_size=16, person=b"inms-tensors")
    for key in sorted(cast):
        value = cast[key].contiguous().cpu()
        hashed.update(f";{key}:{value.dtype}:{tuple(value.shape)}=".encode())
        hashed.update(value.reshape(-1).view(torch.uint8).numpy().data)
    where = layout_of(tensors, dtype)
    return Source(name, where, hashed.hexdigest(), lambda: iter(cast.items()), make)


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
