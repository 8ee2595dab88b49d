"""Tensors on shared bytes, and modules on those tensors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from inms_lab.errors import BadInput, ModelCorrupted
from inms_lab.parameters.layout import Layout, lay_out
from inms_lab.parameters.region import PAGE, Memory, Piece, View

NAME = "inms-weights"  # of the memories, as the kernel shows them


def layout_of(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Layout:
    """The layout of these tensors, those with fractions as `dtype` if that is given. Names with one
    storage and place are one tensor; tensors that share only a part of their memory come apart."""
    first: dict[tuple[Any, ...], str] = {}
    spots, same = {}, {}
    for name, tensor in tensors.items():
        where = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known = first.setdefault(where, name) if tensor.numel() and not tensor.is_meta else name
        if known != name:
            same[name] = known
            continue
        kind = tensor.dtype if dtype is None or not tensor.is_floating_point() else dtype
        spots[name] = (str(kind).removeprefix("torch."), tuple(tensor.shape), kind.itemsize)
    return lay_out(spots, same)


def tensors_on(view: View, layout: Layout) -> dict[str, torch.Tensor]:
    """One tensor a name, lying in the view. Writing to them writes to the view."""
    found = {}
    for name, spot in layout.spots.items():
        dtype = getattr(torch, spot.dtype)
        if spot.num_bytes:
            flat = torch.frombuffer(view.bytes_at(spot.start, spot.num_bytes), dtype=dtype)
            found[name] = flat.view(spot.shape)
        else:
            found[name] = torch.empty(spot.shape, dtype=dtype)
    return found | {name: found[known] for name, known in layout.same.items()}


def filled(layout: Layout, tensors: Iterable[tuple[str, torch.Tensor]], chunk: int) -> list[Piece]:
    """Tensors by name in sealed memories of `chunk` bytes each, as the pieces of a view."""
    chunk = max(PAGE, chunk // PAGE * PAGE)
    starts = range(0, layout.num_bytes, chunk)
    name = f"{NAME}-{os.getpid()}"  # whose they are
    memories = [Memory.create(min(chunk, layout.num_bytes - at), name) for at in starts]
    pieces = [Piece(at, m.num_bytes, m) for at, m in zip(starts, memories, strict=True)]
    view = View(layout.num_bytes)
    view.lay(pieces, shared=True)
    into = tensors_on(view, layout)
    for name, tensor in tensors:
        if name in layout.spots:
            into[name].copy_(tensor)
    del into
    view.close()  # a memory that anybody can write cannot be sealed
    for memory in memories:
        memory.seal()
    return pieces


def module_on(make: Callable[[], torch.nn.Module], view: View, layout: Layout) -> torch.nn.Module:
    """A module whose parameters lie in the view: built on `meta`, then assigned. What is one
    parameter or buffer in it, under several names, stays one.

    Raises `ModelCorrupted` if the weights are not those of this module, `BadInput` if `make` gives
    none.
    """
    module = bare(make)
    tied = [names for names in _names_of(module) if len(names) > 1]
    tie_weights = getattr(module, "tie_weights", None)
    tensors = tensors_on(view, layout)
    try:
        _, unexpected = module.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:  # other shapes
        raise _not_of(module, str(error).splitlines()[-1].strip()) from error
    for names in tied:
        _tie(module, names, next((name for name in names if name in tensors), names[0]))
    if callable(tie_weights):
        tie_weights()
    lacks = [name for name, p in module.named_parameters() if p.device.type == "meta"]
    lacks += [name for name, b in module.named_buffers() if b.device.type == "meta"]
    if lacks or unexpected:
        raise _not_of(module, f"they lack {lacks[0]}" if lacks else f"it has no {unexpected[0]}")
    return module.eval()


def bare(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """What `make` gives, its parameters on `meta`. Raises `BadInput` if that is no module."""
    with without_parameters():
        module = make()
    if not isinstance(module, torch.nn.Module):
        raise BadInput(
            f"make= is a function that gives a module; it gave a {type(module).__name__}"
        )
    return module


def _names_of(module: torch.nn.Module) -> list[list[str]]:
    """All names of each parameter and buffer."""
    groups: dict[int, list[str]] = {}
    for find in (module.named_parameters, module.named_buffers):
        for name, tensor in find(remove_duplicate=False):
            groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _tie(module: torch.nn.Module, names: list[str], to: str) -> None:
    """All names mean what the name `to` means."""
    owner, _, leaf = to.rpartition(".")
    one = getattr(module.get_submodule(owner), leaf)
    for name in names:
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, one)


def _not_of(module: torch.nn.Module, why: str) -> ModelCorrupted:
    return ModelCorrupted(
        f"these weights are not those of a {type(module).__name__} of this configuration ({why}): "
        "take config.json and weights from one folder"
    )


_building = threading.local()


@contextlib.contextmanager
def without_parameters() -> Iterator[None]:
    """Modules that this thread makes meanwhile have their parameters on `meta`; buffers are real.
    Other threads are not concerned."""
    before = getattr(_building, "made", None)
    _building.made = WeakTensorKeyDictionary()
    try:
        yield
    finally:
        _building.made = before


def _on_meta(
    _module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter
) -> torch.nn.Parameter | None:
    """What is registered instead: the same for the same parameter under another name."""
    made = getattr(_building, "made", None)
    if made is None or parameter.is_meta or is_lazy(parameter):
        return None
    if parameter not in made:
        away = parameter.detach().to("meta")
        made[parameter] = torch.nn.Parameter(away, requires_grad=parameter.requires_grad)
    found: torch.nn.Parameter = made[parameter]
    return found


# Once, and for ever: it must not come or go while another thread makes a module. A context of
# torch.device("meta") would do without, but buffers that are computed would be empty then.
register_module_parameter_registration_hook(_on_meta)  # type: ignore[arg-type]
