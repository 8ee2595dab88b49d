"""Which modules of a model compute by the compiled kernels: each is tried before it is trusted.

A module that looks like one that a kernel computes (a linear layer, an RMS norm, a gated MLP, an
attention with rotary positions) is given random numbers, once as it is and once by the kernel.
Only where both agree does the kernel take its place: a layer with something more stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from inms_lab.kernels.native import Native, is_plain
from inms_lab.model.layers import layers
from inms_lab.model.trials import ROWS, Instead, Recorder, agree, drawn

if TYPE_CHECKING:
    from inms_lab.model.runner import Geometry

Forward: TypeAlias = Callable[..., Any]
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def forwards(
    native: Native, model: nn.Module, attend: Forward, geometry: Geometry
) -> dict[nn.Module, Forward]:
    """By module the forward that the kernels give it. `attend`: the model's attention function."""
    found: dict[nn.Module, Forward] = {}
    for module in model.modules():
        made = _candidate(native, module, attend)
        if made is not None and agree(made):
            found[module] = made
    found |= {
        module: made for module, made in layers(native, model, geometry, found) if agree(made)
    }
    return found


def install(chosen: dict[nn.Module, Forward]) -> None:
    """Let these modules compute by the kernels."""
    for module, forward in chosen.items():
        module.forward = forward  # type: ignore[method-assign]


def uninstall(model: nn.Module) -> dict[nn.Module, Forward]:
    """Give every module its own forward back; what was taken away, for `install`."""
    taken: dict[nn.Module, Any] = {}
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, Instead):
            taken[module] = forward
            del module.forward
    return taken


def _is_plain_linear(part: Any) -> bool:
    """Whether a projection is a linear layer and nothing more: no adapter, no hook."""
    return (
        type(part) is nn.Linear
        and type(part.__dict__.get("forward")) in (type(None), _Linear)
        and not (part._forward_hooks or part._forward_pre_hooks)
        and is_plain(part._parameters.get("weight"), part._parameters["bias"])
        and part._parameters.get("weight") is not None
    )


class _Module(Instead):
    """A module's forward by a kernel; what the kernel does not do, its own forward does."""

    def __init__(self, native: Native, module: Any) -> None:
        self.native, self.module, self.own = native, module, module.forward

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., N] -> [..., M]."""
        if torch.is_grad_enabled() or not x.numel() or not self.takes(x):
            out: torch.Tensor = self.own(x)
            return out
        return self.compute(x)

    def pairs(self, size: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """By the kernel and by the module, for numbers of this size."""
        x = self.inputs() * size
        with torch.inference_mode():
            if not self.takes(x):
                raise TypeError("not for this kernel")
            return [(self.compute(x), self.own(x))]

    def takes(self, x: torch.Tensor) -> bool:
        """Whether the kernel computes this."""
        raise NotImplementedError

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """By the kernel."""
        raise NotImplementedError

    def inputs(self) -> torch.Tensor:
        """Random numbers for a trial."""
        raise NotImplementedError


class _Linear(_Module):
    def takes(self, x: torch.Tensor) -> bool:
        weight = self.module._parameters.get("weight")
        fits = weight is not None and x.shape[-1] == weight.shape[1]
        return (
            fits and x.dtype == torch.float32 and is_plain(weight, self.module._parameters["bias"])
        )

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        held = self.module._parameters
        return self.native.linear(held["weight"], held["bias"], x)

    def inputs(self) -> torch.Tensor:
        return drawn(ROWS, self.module.in_features)


class _Norm(_Module):
    @property
    def eps(self) -> float:
        """What is added to the mean square."""
        return float(getattr(self.module, "variance_epsilon", getattr(self.module, "eps", 0.0)))

    def takes(self, x: torch.Tensor) -> bool:
        weight = self.module._parameters["weight"]
        return x.shape[-1:] == weight.shape and x.dtype == torch.float32 and is_plain(weight)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.native.norm(self.module._parameters["weight"], self.eps, x)

    def inputs(self) -> torch.Tensor:
        return drawn(ROWS, len(self.module.weight)) * 0.01  # small: so that eps shows


class _Gated(_Module):
    PARTS = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, native: Native, module: Any) -> None:
        super().__init__(native, module)
        self.rest = self._rest()

    def _rest(self) -> list[Any]:
        """What else is in it: the activation."""
        return [part for name, part in self.module._modules.items() if name not in self.PARTS]

    def weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = (self.module._modules[name] for name in self.PARTS)
        gate, up, down = (part._parameters["weight"] for part in parts)
        return gate, up, down

    def takes(self, x: torch.Tensor) -> bool:
        parts = [self.module._modules[name] for name in self.PARTS]
        if not all(_is_plain_linear(p) and p.bias is None for p in parts):
            return False
        if any(a is not b for a, b in zip(self._rest(), self.rest, strict=False)):
            return False
        gate, up, down = self.weights()
        fits = gate.shape == up.shape == down.shape[::-1] and x.shape[-1] == gate.shape[1]
        return fits and x.dtype == torch.float32

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.native.gated(*self.weights(), x)

    def inputs(self) -> torch.Tensor:
        return drawn(ROWS, self.module.gate_proj.in_features)


class _Attention(Instead):
    """An attention's forward: projections and rotation by one kernel, then the model's `attend`."""

    def __init__(self, native: Native, module: Any, attend: Forward) -> None:
        self.native, self.module, self.own, self.attend = native, module, module.forward, attend

    def __call__(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        """hidden_states [1, T, N] -> [1, T, N]; without a batch of ours, the module's own."""
        if (
            kwargs.get("inms_batch") is None
            or position_embeddings is None
            or cache is not None
            or torch.is_grad_enabled()
            or hidden_states.dtype != torch.float32
            or not self._fits(hidden_states)
        ):
            return self.own(  # type: ignore[no-any-return]
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                cache=cache,
                **kwargs,
            )
        parts = [self.module._modules[name]._parameters for name in PROJECTIONS]
        weights = [part["weight"] for part in parts]
        biases = [part["bias"] for part in parts]
        cos, sin = position_embeddings
        x, dim = hidden_states[0], self.module.head_dim
        heads = self.native.heads(weights, biases, cos[0], sin[0], x, dim)
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in heads)
        scale = self.module.scaling
        out, _ = self.attend(self.module, q, k, v, attention_mask, scaling=scale, **kwargs)
        return self.module.o_proj(out.reshape(1, len(x), -1)), None

    def _fits(self, x: torch.Tensor) -> bool:
        """Whether the projections are such as the kernel reads, and of one width."""
        parts = [self.module._modules[name] for name in PROJECTIONS]
        if not all(map(_is_plain_linear, parts)):
            return False
        q, k, v = (part.weight.shape for part in parts)
        dim = self.module.head_dim
        return q[1] == k[1] == x.shape[-1] and k == v and q[0] % dim == 0 and k[0] % dim == 0

    def pairs(self, size: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What both ask of the batch, and what they make of its answer."""
        angles = drawn(1, ROWS, self.module.head_dim // 2).mul(6).repeat(1, 1, 2)
        asked = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": None}
        x = drawn(1, ROWS, self.module.q_proj.in_features) * size
        batches = Recorder(), Recorder()
        with torch.inference_mode():
            own, mine = (
                forward(x, **asked, inms_batch=batch)[0]
                for forward, batch in zip((self.own, self), batches, strict=True)
            )
        return [(mine, own), *zip(batches[1].asked, batches[0].asked, strict=True)]


def _candidate(native: Native, module: Any, attend: Forward) -> Any:
    """The kernel that a module may be computed by, by its looks; None: there is none."""
    linears = {name for name, part in module.named_children() if type(part) is nn.Linear}
    if type(module) is nn.Linear:
        return _Linear(native, module)
    if type(module).__name__.endswith("RMSNorm") and list(module._parameters) == ["weight"]:
        return _Norm(native, module)
    if linears == set(_Gated.PARTS) and all(getattr(module, x).bias is None for x in linears):
        return _Gated(native, module)
    if {*PROJECTIONS, "o_proj"} <= linears and hasattr(module, "head_dim"):
        return _Attention(native, module, attend)
    return None
