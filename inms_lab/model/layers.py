"""A whole decoder layer by one kernel: norm and attention, norm and gated MLP, each added.

It takes the place of a layer whose four parts are computed by kernels anyway (fused.py), after a
trial against the layer itself. Whatever is not as it was then (a part, a hook, a weight's memory,
tiles at another position) is left to these parts one by one: both ways give the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook as any_global_hook

from inms_lab.attention.batch import Batch, Span, TileRef, build
from inms_lab.attention.compiled import Compiled
from inms_lab.attention.store import KVStore
from inms_lab.kernels.native import Native, Pointer, is_plain
from inms_lab.model.runs import Run
from inms_lab.model.trials import ROWS, Instead, drawn

if TYPE_CHECKING:
    from inms_lab.model.runner import Geometry

PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
# Keywords that change nothing here; any other must be None.
IGNORED = ("inms_batch", "position_embeddings", "position_ids", "use_cache", "cache_position")
AT_ONCE = 2048  # rows times layers that are computed in one go: nothing stops between them


class _Block(ctypes.Structure):
    """The twin of `Block` in kernels/kernels.cpp."""

    _fields_ = (
        *((name, Pointer) for name in ("x", "y", "room", "cos", "sin")),
        ("norm", Pointer * 2),
        ("weights", Pointer * 7),
        ("biases", Pointer * 7),
        ("eps", ctypes.c_float * 2),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "inner", "turned")),
    )


class Layer(Instead):
    """A decoder layer's forward. `parts`: the kernels of what it is made of, by module."""

    def __init__(self, native: Native, module: Any, geometry: Geometry, parts: Any) -> None:
        self.native, self.module, self.own, self.geometry = native, module, module.forward, geometry
        first, attention, second, mlp = (module._modules[name] for name in PARTS)
        self.attention, self.index = attention, int(attention.layer_idx)
        self.following: Layer | None = None  # that was called with what this one gave
        # What it is made of, to be the same still when it is used.
        names = [(module, name) for name in PARTS]
        names += [(attention, name) for name in ATTENTION] + [(mlp, name) for name in MLP]
        found = [(of._modules, name, of._modules[name]) for of, name in names]
        self.tree = [(*place, parts[place[2]]) for place in found]
        self.rest = mlp._modules, dict(mlp._modules)
        linears = [part for _, _, part in found[len(PARTS) :]]
        self.norms = parts[first], parts[second]
        normed = [part._parameters for part in (first, second)]
        plain = [part._parameters for part in linears]
        weights = [part["weight"] for part in (*normed, *plain)]
        biases = [part["bias"] for part in plain]
        if not is_plain(*weights, *biases):
            raise TypeError("not for this kernel")
        held = [(of, "weight", x) for of, x in zip((*normed, *plain), weights, strict=True)]
        held += [(of, "bias", x) for of, x in zip(plain, biases, strict=True)]
        self.held = [(*h, h[2].data_ptr(), h[2].shape) for h in held if h[2] is not None]
        self.absent = [of for of, _, x in held if x is None]
        self.columns, self.inner = linears[0].in_features, linears[4].out_features
        shapes = [x.shape for x in weights]
        added = [
            x is None or x.shape == shape[:1] for x, shape in zip(biases, shapes[2:], strict=True)
        ]
        if shapes != self._shapes() or not all(added):
            raise ValueError("not of the sizes that its model names")
        self.eps = self._eps()
        self.held_at = {
            "norm": (Pointer * 2)(*(x.data_ptr() for x in weights[:2])),
            "weights": (Pointer * 7)(*(x.data_ptr() for x in weights[2:])),
            "biases": (Pointer * 7)(*(None if x is None else x.data_ptr() for x in biases)),
            "eps": (ctypes.c_float * 2)(*self.eps),
        }

    def _eps(self) -> list[float]:
        return [norm.eps for norm in self.norms]

    def _shapes(self) -> list[tuple[int, ...]]:
        """Of the weights, norms first."""
        g, n, inner = self.geometry, self.columns, self.inner
        heads, kv = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim
        return [(n,), (n,), (heads, n), (kv, n), (kv, n), (n, heads), *[(inner, n)] * 2, (n, inner)]

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """hidden_states [1, T, N] -> [1, T, N]."""
        batch: Any = kwargs.get("inms_batch")
        turned = kwargs.get("position_embeddings")
        if args or turned is None or type(batch) is not Batch:  # not one that watches its layers
            return self.own(hidden_states, *args, **kwargs)
        if batch.run is not None:
            done = batch.run.comes_to(self, hidden_states, kwargs)
            if done is not None:  # an earlier call computed it
                batch.enter(self.index)
                return done
        if not self.serves(batch, hidden_states, turned, kwargs):
            batch.run = None
            return self.own(hidden_states, **kwargs)
        batch.enter(self.index)
        layers = [self]
        while batch.num_rows * len(layers) < AT_ONCE and (then := layers[-1].following):
            if then in layers or not then.serves(batch, hidden_states, turned, kwargs):
                break
            layers.append(then)
        batch.run = Run(layers, computed(layers, batch.compiled, hidden_states, *turned), kwargs)
        return batch.run.outs[0]

    def block(self, x: int, y: int, room: int, cos: torch.Tensor, sin: torch.Tensor) -> _Block:
        """What the kernel reads, for places of the input, the output and its scratch."""
        tensors = x, y, room, cos.data_ptr(), sin.data_ptr()
        sizes = cos.shape[1], self.columns, self.inner, cos.shape[2]
        return _Block(*tensors, *self.held_at.values(), *sizes)

    def room(self, rows: int) -> int:
        """Floats of scratch that the kernel takes."""
        g = self.geometry
        heads = 2 * (g.num_heads + g.num_kv_heads) * g.head_dim
        return rows * (2 * self.columns + heads + 2 * self.inner)

    def serves(
        self,
        batch: Batch,
        x: torch.Tensor,
        turned: tuple[torch.Tensor, torch.Tensor],
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether the kernel computes this."""
        return (
            isinstance(batch.compiled, Compiled)
            and batch.turned is None
            and not torch.is_grad_enabled()
            and all(name in IGNORED or value is None for name, value in kwargs.items())
            and x.shape == (1, batch.num_rows, self.columns)
            and turned[0].shape == turned[1].shape
            and turned[0].shape[:2] == x.shape[:2]
            and turned[0].shape[2] <= self.geometry.head_dim
            and is_plain(x, *turned)
            and self._unchanged()
        )

    def _unchanged(self) -> bool:
        """Whether all parts and weights are those of the trial, with nothing hung upon them."""
        if self.rest[0] != self.rest[1] or self._eps() != self.eps:
            return False
        of = self.attention
        if of.layer_idx != self.index or of.head_dim != self.geometry.head_dim:
            return False
        if any_global_hook():  # which would not be called for its parts
            return False
        for of, name, part, made in self.tree:
            if of.get(name) is not part or part.__dict__.get("forward") is not made:
                return False
            if part._forward_hooks or part._forward_pre_hooks:
                return False
        for of in self.absent:
            if of["bias"] is not None:
                return False
        for of, name, tensor, place, shape in self.held:
            if of.get(name) is not tensor or tensor.data_ptr() != place or tensor.shape != shape:
                return False
            if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
                return False
        return True

    def pairs(self, size: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """By the kernel and by the module, for numbers of this size: output, keys, values."""
        angles = drawn(1, ROWS, self.attention.head_dim // 2).mul(6).repeat(1, 1, 2)
        asked = angles.cos(), angles.sin()
        x = drawn(1, ROWS, self.columns) * size
        with torch.inference_mode():
            stores, batches = zip(*(self._trial(n) for n in (self.native, None)), strict=True)
            mine = computed([self], batches[0].compiled, x, *asked)[0]
            own = self.own(x, position_embeddings=asked, attention_mask=None, inms_batch=batches[1])
            halves = zip(*(store.layer("trial", self.index) for store in stores), strict=True)
        return [(mine, own), *halves]

    def _trial(self, native: Native | None) -> tuple[KVStore, Batch]:
        """A store and a batch of ROWS tokens that begin a text."""
        g = self.geometry
        store = KVStore(
            g.num_layers, g.num_kv_heads, g.head_dim, torch.float32, torch.device("cpu")
        )
        store.open("trial", ROWS)
        each = range(ROWS)
        slots = [("trial", i) for i in each]
        tiles = [TileRef("trial", 0, 0, ROWS)]
        span = Span(0, [0] * ROWS, list(each), slots, tiles, False)
        return store, build([span], store, ROWS, g.num_heads, 1, (), native)


def computed(
    layers: Sequence[Layer], reader: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """x [1, T, N] through these layers, one behind the other: what each of them gives."""
    first = layers[0]
    with torch.inference_mode(False):  # so that it shows when somebody writes into one
        outs = torch.empty(len(layers), *x.shape).unbind(0)
    room = first.native.scratch(max(layer.room(x.shape[1]) for layer in layers), "block").data_ptr()
    places = [x.data_ptr(), *(out.data_ptr() for out in outs)]
    blocks = (
        layer.block(*place, room, cos, sin)
        for layer, place in zip(layers, pairwise(places), strict=True)
    )
    scales = [float(layer.attention.scaling) for layer in layers]
    made = (_Block * len(layers))(*blocks)
    reader.blocks(first.geometry.num_heads, [layer.index for layer in layers], scales, made)
    return outs


def layers(
    native: Native, model: nn.Module, geometry: Geometry, found: dict[nn.Module, Any]
) -> list[tuple[nn.Module, Layer]]:
    """The decoder layers whose parts have kernels, as candidates for a trial."""
    made = []
    for module in model.modules():
        parts = [module._modules.get(name) for name in PARTS]
        if set(module._modules) == set(PARTS) and all(part in found for part in parts):
            try:
                made.append((module, Layer(native, module, geometry, found)))
            except (TypeError, ValueError, AttributeError, LookupError):
                continue  # it is not what it looks like
    return made
