"""Tensors on shared bytes, and modules on those tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from inms_lab.errors import ModelCorrupted
from inms_lab.parameters.layout import Layout, lay_out
from inms_lab.parameters.region import PAGE, Memory, Piece, View

NAME = "inms-weights"  # of the memories, as the kernel shows them


def layout_of(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Layout:
    """The layout of these tensors, those with fractions as `dtype` if that is given. Names with one
    storage and place are one tensor."""
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
    """A module whose parameters lie in the view: built on `meta`, then assigned; what is tied stays
    tied. Raises `ModelCorrupted` if the weights are not those of this module."""
    with without_parameters():
        module = make()
    tied = getattr(module, "tie_weights", None)
    tensors = tensors_on(view, layout)
    try:
        _, unexpected = module.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:  # other shapes
        raise _not_of(module, str(error).splitlines()[-1].strip()) from error
    if callable(tied):
        tied()
    bare = [name for name, p in module.named_parameters() if p.device.type == "meta"]
    bare += [name for name, b in module.named_buffers() if b.device.type == "meta"]
    if bare or unexpected:
        raise _not_of(module, f"they lack {bare[0]}" if bare else f"it has no {unexpected[0]}")
    return module.eval()


def _not_of(module: torch.nn.Module, why: str) -> ModelCorrupted:
    return ModelCorrupted(
        f"these weights are not those of a {type(module).__name__} of this configuration ({why}): "
        "take config.json and weights from one folder"
    )


@contextlib.contextmanager
def without_parameters() -> Iterator[None]:
    """Modules that are made meanwhile have their parameters on `meta`; buffers are real."""
    register = torch.nn.Module.register_parameter

    def on_meta(self: Any, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = torch.nn.Parameter(
                parameter.to("meta"), requires_grad=parameter.requires_grad
            )
        register(self, name, parameter)

    torch.nn.Module.register_parameter = on_meta  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
