"""What agents are asked to do with a model on shared weights: the calls of lab 13, by name.

Each call is done in an agent's process. What it keeps (KV, copies, an optimizer) stays there, with
the model. The kernel's figures afterwards say what it cost.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.kernel import PRIVATE, SWAPPED
from inms_lab.parameters.shared import SharedParameters

MIB = 1 << 20
Layers = tuple[int, ...]


def kept(model: Any) -> dict[str, Any]:
    """What earlier calls have kept with this model."""
    return dict.setdefault(model.__dict__, "kept_by_calls", {})


def kv_bytes(model: Any) -> int:
    """Bytes of the KV that the model's context has by now."""
    cache = kept(model).get("context")
    return (
        sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values)) if cache else 0
    )


def read(model: Any) -> None:
    """Read all weights once."""
    for weight in model.parameters():
        weight.sum()


def write(model: Any, tokens: int) -> list[int]:
    """Write so many tokens behind a short prompt, which is forgotten afterwards."""
    ids = torch.arange(3, 19)[None]
    length = {"min_new_tokens": tokens, "max_new_tokens": tokens}
    with torch.no_grad():
        wrote = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length)
    return list(wrote[0, ids.shape[1] :].tolist())


def remember(model: Any, tokens: int) -> None:
    """Read a context of so many tokens, and keep its KV."""
    from transformers import DynamicCache

    cache = kept(model)["context"] = DynamicCache(config=model.config)
    ids = (torch.arange(tokens) % model.config.vocab_size)[None]
    with torch.no_grad():
        for part in ids.split(256, dim=1):  # the cache's name differs by version, not its place
            model(part, None, None, cache, use_cache=True, logits_to_keep=1)


def train(model: Any, layers: Layers, everywhere: bool = False) -> None:
    """A step of AdamW on some layers. `everywhere`: all others get gradients too, for nothing."""
    model.requires_grad_(everywhere)
    parts = [weight for at in layers for weight in model.model.layers[at].parameters()]
    for weight in parts:
        weight.requires_grad_(True)
    optimizer = kept(model).setdefault(f"of {layers}", torch.optim.AdamW(parts, lr=1e-5))
    ids = torch.arange(3, 19)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def adapter(model: Any, merged: bool, rank: int = 8) -> None:
    """A drawn adapter of low rank for each layer's queries and values: beside the weights, or
    `merged` into them."""
    draw = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.v_proj):
            tall, wide = part.weight.shape
            up, down = (torch.randn(s, generator=draw) / 32 for s in ((tall, rank), (rank, wide)))
            if merged:
                with torch.no_grad():
                    part.weight += up @ down
            else:
                part.register_forward_hook(_Added(up, down))


class _Added:
    """What an adapter adds to the output of a layer's part."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        self.up, self.down = up, down

    def __call__(self, _: Any, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        return out + given[0] @ self.down.T @ self.up.T


def times_one(model: Any) -> None:
    """Multiply all weights by 1, in place."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.0)


def to_bfloat16(model: Any) -> None:
    """Turn all weights into another element type."""
    model.to(torch.bfloat16)


def deep_copy(model: Any) -> None:
    """Copy the model, and keep the copy: to go back to it, for one."""
    kept(model)["copy"] = copy.deepcopy(model)


def load(model: Any, assign: bool) -> None:
    """Load weights again, which are the same: into the tensors, or by `assign` in their place."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=assign)
    if assign:
        model.tie_weights()


def untie(model: Any) -> None:
    """Give the output a matrix of its own, where it had the embedding's."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def share_memory(model: Any) -> None:
    """PyTorch's own way of sharing: moves all weights into new shared memory."""
    model.share_memory()


def collect(_: Any, thaw: bool = False) -> None:
    """Collect garbage. `thaw`: among what was there before the fork, too."""
    if thaw:
        gc.unfreeze()
    gc.collect()


@dataclass(frozen=True, slots=True)
class Call:
    """`do(model, *given)`, which is told to change the weights of the layers `trains`. `unshares`:
    it makes memory the agent's own that it was not told to change. `do` None: discard changes."""

    do: Callable[..., Any] | None
    given: tuple[Any, ...] = ()
    trains: Layers = ()
    unshares: bool = False


CALLS = {
    "read all weights": Call(read),
    "write 40 tokens": Call(write, (40,)),
    "read 256 tokens": Call(remember, (256,)),
    "read 1,024 tokens": Call(remember, (1024,)),
    "train layer 3": Call(train, ((3,),), (3,)),
    "train layers 4 to 9": Call(train, ((4, 5, 6, 7, 8, 9),), (4, 5, 6, 7, 8, 9)),
    "discard all changes": Call(None),
    "an adapter beside": Call(adapter, (False,)),
    "an adapter merged": Call(adapter, (True,), (), True),
    "all weights times 1": Call(times_one, (), (), True),
    "to bfloat16": Call(to_bfloat16, (), (), True),
    "a deep copy": Call(deep_copy, (), (), True),
    "load into the tensors": Call(load, (False,), (), True),
    "load, assign=True": Call(load, (True,), (), True),
    "untie the output": Call(untie, (), (), True),
    "model.share_memory()": Call(share_memory, (), (), True),
    "train layer 3, all gradients": Call(train, ((3,), True), (3,), True),
    "collect garbage": Call(collect),
    "thaw, and collect": Call(collect, (True,), (), True),
}


@dataclass(frozen=True, slots=True)
class Step:
    """An agent after a call, in bytes.

    `trains`: pages of the weights that the call was told to change; `kv`: of the context's KV;
    `own`: pages of the weights that are the agent's own; `beside`: what else is its own.
    """

    trains: int
    kv: int
    own: int
    beside: int


def record(params: SharedParameters, calls: Sequence[str]) -> list[Step]:
    """A new agent does these calls: how it was before the first, and after each."""
    with params.agent() as agent:
        agent.run(type)  # it is there
        steps = [_step(params, agent, 0)]
        for name in calls:
            call = CALLS[name]
            if call.do is None:
                agent.discard()
            else:
                agent.run(call.do, *call.given)
            steps.append(_step(params, agent, _told(params, call.trains)))
        return steps


def _step(params: SharedParameters, agent: AgentProcess, trains: int) -> Step:
    kv = agent.run(kv_bytes)
    pages = params.pages(agent)
    own = pages.count(PRIVATE) + pages.count(SWAPPED)
    return Step(trains, kv, own, pages.whole.private - pages.weights.private)


def _told(params: SharedParameters, layers: Layers) -> int:
    begins = tuple(f"model.layers.{at}." for at in layers)
    spots = params.layout.spots.items()
    return sum(spot.stop - spot.start for name, spot in spots if begins and name.startswith(begins))
