"""Small modules on shared weights, and what agents do with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from inms_lab.parameters import SharedParameters
from inms_lab.parameters.kernel import holders

linux = pytest.mark.skipif(
    not os.path.exists("/proc/self/pagemap"), reason="Linux' figures of pages"
)
PATIENCE = 60.0  # seconds until something must have happened


def mlp(width: int = 64) -> torch.nn.Module:
    """Three layers, drawn always alike."""
    torch.manual_seed(0)
    parts = (torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    return torch.nn.Sequential(*parts, torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 4))


@contextmanager
def shared(module: torch.nn.Module | None = None, **settings: Any) -> Iterator[SharedParameters]:
    """Shared parameters of a module, closed in the end, of which nothing is left then."""
    settings.setdefault("preload", ("shared_models",))
    params = SharedParameters(mlp() if module is None else module, **settings)
    try:
        yield params
    finally:
        params.close()


def llama() -> torch.nn.Module:
    """A tiny language model with tied embeddings."""
    import models  # with all of transformers: agents import this module and want none of it

    return models.llama(tie_word_embeddings=True)


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of all that a module knows."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def change(model: torch.nn.Module, name: str) -> None:
    """Change one tensor."""
    with torch.no_grad():
        model.get_parameter(name).add_(1)


def read(model: torch.nn.Module) -> float:
    """Touch every weight."""
    return sum(float(tensor.sum()) for tensor in model.state_dict().values())


def spoil(model: torch.nn.Module, by: float = 1.0) -> None:
    """Change every weight."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def train(model: torch.nn.Module, steps: int = 20, seed: int = 0) -> list[float]:
    """Steps of Adam on one drawn batch; gives the losses."""
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, texts, labels = [], torch.randn(8, 64), torch.arange(8) % 4
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(texts), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether all values agree, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def soon(what: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What it gives as soon as that is true."""
    until = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < until, f"{what} did not become true"
        time.sleep(0.02)
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended (one that nobody has waited for counts)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def others() -> list[int]:
    """Who else holds shared weights of this process."""
    return [pid for pid in holders(f"inms-weights-{os.getpid()}") if pid != os.getpid()]


def tell(model: torch.nn.Module, out: Any, number: int = 1) -> float:
    """Send a megabyte to another agent; gives its sum."""
    draft = out.draft({"kv": torch.empty(512, 512, device="meta")})
    kv = draft.tensors["kv"]
    kv.copy_(torch.arange(512 * 512).view(512, 512) % (number + 5))
    total = float(kv.sum())
    del kv
    out.send(draft)
    return total


def hear(model: torch.nn.Module, into: Any) -> dict[str, float]:
    """Receive it: its sum, and what share of its pages is this process' own now."""
    from inms_lab.parameters import kernel

    kv = into.receive()["kv"]
    total = float(kv.sum())
    states = kernel.page_states("self", kv.data_ptr(), kv.nbytes)
    assert states is not None
    return {"sum": total, "copied": float((states != kernel.SHARED).mean())}


def has_a_child(model: torch.nn.Module) -> None:
    """Fork a process that stays for a minute, and wait for it."""
    if not os.fork():
        time.sleep(60)
        os._exit(0)
    time.sleep(60)


def num_open(model: torch.nn.Module) -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def pid_of(model: torch.nn.Module) -> int:
    """This process."""
    return os.getpid()
