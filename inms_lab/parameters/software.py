"""Modules on weights that nobody writes, with copy-on-write in software: for devices where no page
fault copies (CUDA: one allocation, which other processes open through CUDA IPC).

module = wrap(make(), base_tensors)     # reads the base, writes to chunks of its own
private_bytes(module), shared_bytes(module); discard(module)

`cow_threshold` is how many bytes are copied at once; every write is isolated, whatever its size.
On a CPU `SharedParameters` does it with pages; `inms_lab/bench/software.py` compares both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from inms_lab.errors import BadInput, ModelCorrupted
from inms_lab.parameters.host import KIB
from inms_lab.parameters.software_ops import Chunks, place, run

if TYPE_CHECKING:
    import pandas as pd

COW_THRESHOLD = 128 * KIB
ALIGNED = 64  # bytes: a dense copy lies as its base did, and kernels see no difference


class CopyOnWrite(torch.Tensor):
    """A strided tensor on `chunks`; its storage offset counts from their first byte."""

    chunks: Chunks
    _is_param = False  # torch sets it on what is a parameter
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type, chunks: Chunks, dtype: torch.dtype, shape: Any, stride: Any, offset: int
    ) -> CopyOnWrite:
        made: CopyOnWrite = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            shape,
            strides=stride,
            storage_offset=offset,
            dtype=dtype,
            device=chunks.base.device,
        )
        made.chunks = chunks
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(cls, func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        kind = str(self.dtype).removeprefix("torch.")
        private, of = len(self.chunks.private), self.chunks.num_chunks
        return f"<copy-on-write {kind} {list(self.shape)}, {private} of {of} chunks private>"

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyOnWrite:
        """The same shared bytes, and private chunks of its own."""
        if not self.is_leaf:
            raise BadInput("only leaves of a graph can be copied deeply: detach() it first")
        made = CopyOnWrite(copy.deepcopy(self.chunks, memo), *place(self))
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        made._is_param, made.grad = self._is_param, copy.deepcopy(self.grad, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise BadInput("only leaves of a graph can be sent or saved: detach() it first")
        return _rebuilt, (self.chunks, place(self), self.requires_grad, self._is_param)

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """A view without history."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        same = isinstance(value, CopyOnWrite) and value.chunks is self.chunks
        if not same or place(value) != place(self):
            raise BadInput(
                "a copy-on-write tensor keeps its memory and element type: write to it with "
                "copy_(), or convert the weights before they are wrapped"
            )

    def data_ptr(self) -> int:
        """Refused: its bytes do not lie together."""
        raise BadInput("a copy-on-write tensor has no one address: clone() it first")

    def untyped_storage(self) -> torch.UntypedStorage:
        """Refused: its bytes do not lie together."""
        raise BadInput("a copy-on-write tensor has no one storage: clone() it first")


def wrap(
    module: torch.nn.Module,
    base_tensors: Mapping[str, torch.Tensor],
    cow_threshold: int = COW_THRESHOLD,
) -> torch.nn.Module:
    """`module`, built on meta (`weights.without_parameters`), on these tensors, which are never
    written. What is one parameter in it stays one; names that have one tensor share its chunks.

    `cow_threshold` in bytes, from 4096 on; chunks are whole multiples of 64 bytes. Such a module
    cannot be converted (`module.half()` raises `BadInput`): convert the weights before.

    Raises `BadInput` for another threshold, and for tensors that are complex, not contiguous or not
    aligned; `ModelCorrupted` if they are not those of this module.
    """
    if not isinstance(cow_threshold, int) or cow_threshold < 4 * KIB:
        raise BadInput(f"cow_threshold is a whole number of bytes from 4096 on: {cow_threshold!r}")
    chunk = -(-cow_threshold // ALIGNED) * ALIGNED
    groups = _tensors_of(module)
    known = {name for names, _ in groups for name in names}
    if unexpected := [name for name in base_tensors if name not in known]:
        raise _wrong(module, f"it has no {unexpected[0]}")
    chunks: dict[tuple[object, ...], Chunks] = {}
    made: list[tuple[list[str], CopyOnWrite]] = []
    for names, was in groups:
        name = next((name for name in names if name in base_tensors), None)
        if name is None:
            if was.is_meta or isinstance(was, torch.nn.Parameter):
                raise _wrong(module, f"they lack {names[0]}")
            continue  # a buffer that was made with the module
        base = base_tensors[name].detach()
        if base.shape != was.shape:
            raise _wrong(module, f"{name} is {list(base.shape)}, not {list(was.shape)}")
        flat = _bytes(name, base)
        shared = chunks.setdefault((base.data_ptr(), flat.numel()), Chunks(flat, chunk))
        ours = CopyOnWrite(shared, *place(base)[:3], 0)
        if isinstance(was, torch.nn.Parameter):
            ours = torch.nn.Parameter(ours, was.requires_grad)  # type: ignore[assignment]
        made.append((names, ours))
    for names, ours in made:
        for name in names:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, ours)
    return module.eval()


@dataclass(frozen=True)
class ChunkMap:
    """Of each tensor, by name: `private`, bool [chunks]; `sizes`, bytes of each chunk. A parameter
    that is no copy-on-write tensor (any more) is one private chunk."""

    private: dict[str, npt.NDArray[np.bool_]]
    sizes: dict[str, npt.NDArray[np.int64]]

    @property
    def private_bytes(self) -> int:
        """Bytes that the module has for itself."""
        return sum(int(self.sizes[name][own].sum()) for name, own in self.private.items())

    @property
    def shared_bytes(self) -> int:
        """Bytes that it reads where they are shared."""
        return sum(int(self.sizes[name][~own].sum()) for name, own in self.private.items())

    def by_name(self) -> pd.DataFrame:
        """Chunks of each tensor: a row a name, columns `shared` and `private`."""
        import pandas as pd

        rows = {name: (int((~own).sum()), int(own.sum())) for name, own in self.private.items()}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["shared", "private"])


def chunk_map(module: torch.nn.Module) -> ChunkMap:
    """The chunks of a module's weights; what several names share is there once."""
    private, sizes, seen = {}, {}, set()
    for names, tensor in _tensors_of(module):
        ours = isinstance(tensor, CopyOnWrite)
        key = id(tensor.chunks) if isinstance(tensor, CopyOnWrite) else id(tensor)
        if key in seen or not (ours or isinstance(tensor, torch.nn.Parameter)):
            continue
        seen.add(key)
        own = np.ones(1, dtype=bool)
        size = np.array([tensor.nbytes])
        if isinstance(tensor, CopyOnWrite):
            own = np.isin(np.arange(tensor.chunks.num_chunks), list(tensor.chunks.private))
            size = np.diff(np.append(np.arange(len(own)) * tensor.chunks.chunk, tensor.nbytes))
        private[names[0]], sizes[names[0]] = own, size
    return ChunkMap(private, sizes)


def private_bytes(module: torch.nn.Module) -> int:
    """Bytes of weights that this module has for itself."""
    return chunk_map(module).private_bytes


def shared_bytes(module: torch.nn.Module) -> int:
    """Bytes of weights that it reads where they are shared."""
    return chunk_map(module).shared_bytes


def discard(module: torch.nn.Module) -> None:
    """Let go what was written: the module has its base's weights again. A graph that was recorded
    before cannot be differentiated any more: torch says so."""
    for _, tensor in _tensors_of(module):
        if isinstance(tensor, CopyOnWrite):
            tensor.chunks.discard()
            torch.autograd.graph.increment_version(tensor)


def _tensors_of(module: torch.nn.Module) -> list[tuple[list[str], torch.Tensor]]:
    """Its parameters and buffers, each once, with all its names."""
    groups: dict[int, tuple[list[str], torch.Tensor]] = {}
    for find in (module.named_parameters, module.named_buffers):
        for name, tensor in find(remove_duplicate=False):
            groups.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(groups.values())


def _bytes(name: str, base: torch.Tensor) -> torch.Tensor:
    """Its bytes, uint8."""
    if base.is_meta or base.layout != torch.strided or base.is_complex():
        raise BadInput(
            f"{name} is a {base.layout} {base.dtype} on {base.device}: take real numbers"
        )
    if not base.is_contiguous() or base.data_ptr() % ALIGNED:
        raise BadInput(
            f"{name} does not lie in one piece that begins at a multiple of {ALIGNED} bytes: "
            "clone() it, or lay tensors out by layout.lay_out"
        )
    return base.reshape(-1).view(torch.uint8)


def _wrong(module: torch.nn.Module, why: str) -> ModelCorrupted:
    return ModelCorrupted(
        f"these weights are not those of a {type(module).__name__} of this configuration ({why}): "
        "take config.json and weights from one folder"
    )


def _rebuilt(chunks: Chunks, where: Any, requires_grad: bool, is_param: bool) -> CopyOnWrite:
    made = CopyOnWrite(chunks, *where)
    made._is_param = is_param
    made.requires_grad_(requires_grad)
    return made
