"""A small network with real tasks, to be trained on branches of shared weights.

The tasks: read a digit, or a letter, of 5 x 7 pixels, a tenth of which are flipped. One network has
an output for each of the twenty signs, so tasks are kept apart by nothing but their pictures.

params = SharedParameters(network(), preload=())
branch = params.branch("letters")
learn(branch.module, pictures("letters", 400, seed=1))
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from inms_lab.errors import MergeRefused
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.branch import Branch
from inms_lab.parameters.kernel import PRIVATE, holders
from inms_lab.parameters.versions import Delta

DIGITS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""
LETTERS = """
01110 11110 01110 11100 11111 11111 01110 10001 01110 00111
10001 10001 10001 10010 10000 10000 10001 10001 00100 00010
10001 10001 10000 10001 10000 10000 10000 10001 00100 00010
10001 11110 10000 10001 11110 11110 10111 11111 00100 00010
11111 10001 10000 10001 10000 10000 10001 10001 00100 00010
10001 10001 10001 10010 10000 10000 10001 10001 00100 10010
10001 11110 01110 11100 11111 10000 01111 10001 01110 01100
"""
SIGNS = {"digits": (DIGITS, 0), "letters": (LETTERS, 10)}  # pictures, the first one's output
WIDE, HIGH = 5, 7
FLIPPED = 0.1  # of the pixels
BATCH = 32


@dataclass(frozen=True, slots=True)
class Pictures:
    """`pixels` [count, 35], 0 or 1; `signs` [count]: which of the network's outputs is right."""

    pixels: torch.Tensor
    signs: torch.Tensor

    def __len__(self) -> int:
        return len(self.signs)

    def __add__(self, other: Pictures) -> Pictures:
        both = (self.pixels, other.pixels), (self.signs, other.signs)
        return Pictures(*(torch.cat(parts) for parts in both))

    def __str__(self) -> str:
        """The first eight, side by side."""
        shown = self.pixels[:8].reshape(-1, HIGH, WIDE).permute(1, 0, 2)
        return "\n".join(
            "   ".join("".join("█" if pixel else "·" for pixel in row) for row in line)
            for line in shown
        )

    __repr__ = __str__


def pictures(
    kind: str, count: int, seed: int, only: Iterable[int] = range(10), flipped: float = FLIPPED
) -> Pictures:
    """So many drawn pictures of "digits" or "letters". `only`: of these of the ten signs."""
    text, first = SIGNS[kind]
    rows = [line.split() for line in text.split("\n") if line]
    clean = torch.tensor([[float(c) for row in rows for c in row[sign]] for sign in range(10)])
    draws, few = torch.Generator().manual_seed(seed), torch.tensor(list(only))
    signs = few[torch.randint(len(few), (count,), generator=draws)]
    flips = torch.rand(count, WIDE * HIGH, generator=draws) < flipped
    return Pictures((clean[signs] - flips.float()).abs(), signs + first)


def network(seed: int = 0, width: int = 128) -> torch.nn.Sequential:
    """Four layers that know nothing yet: see, think, weigh, say."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            OrderedDict(
                see=torch.nn.Linear(WIDE * HIGH, width),
                bend=torch.nn.ReLU(),
                think=torch.nn.Linear(width, width),
                turn=torch.nn.ReLU(),
                weigh=torch.nn.Linear(width, width),
                fold=torch.nn.ReLU(),
                say=torch.nn.Linear(width, 20),
            )
        )


def learn(
    module: torch.nn.Module,
    data: Pictures,
    steps: int = 200,
    rate: float = 0.2,
    seed: int = 0,
    only: str = "",
) -> float:
    """Plain gradient descent on drawn batches; gives the last one's loss. `only`: on parameters
    whose names begin so. (An optimizer of torch's would import much, in each agent.)"""
    parameters = [p for name, p in module.named_parameters() if name.startswith(only)]
    draws = torch.Generator().manual_seed(seed)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        some = torch.randint(len(data), (BATCH,), generator=draws)
        loss = cross_entropy(module(data.pixels[some]), data.signs[some])
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(rate * slope)
    return float(loss.detach())


def loss_of(module: torch.nn.Module, data: Pictures) -> float:
    """The mean loss of some pictures: less is better, who guesses has 3.0 (the log of 20)."""
    with torch.no_grad():
        return float(cross_entropy(module(data.pixels), data.signs))


def right(module: torch.nn.Module, data: Pictures) -> float:
    """The share of pictures that are read right."""
    with torch.no_grad():
        return float((module(data.pixels).argmax(1) == data.signs).float().mean())


def bits(weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> bytes:
    """All values of a module, or of tensors by name, as they lie in memory."""
    tensors = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    return b"".join(tensors[name].detach().numpy().tobytes() for name in sorted(tensors))


def along(
    params: SharedParameters, ends: Sequence[Branch | Delta], data: Pictures, count: int = 10
) -> list[tuple[float, float]]:
    """The loss on the line from one branch to another: (share of the other, loss of the weighted
    average). Each point is a merge that is looked at and refused, so nobody gets any of them."""
    first, second = (end if isinstance(end, Delta) else end.delta() for end in ends)
    found: list[tuple[float, float]] = []

    def look(module: torch.nn.Module) -> bool:
        found.append((share, loss_of(module, data)))
        return False

    for step in range(count + 1):
        share = step / count
        with suppress(MergeRefused):
            params.merge([first, second], weights=[1 - share, share], validate=look)
    return found


def holding() -> list[int]:
    """Other processes that hold shared weights of this one."""
    return [pid for pid in holders(f"inms-weights-{os.getpid()}") if pid != os.getpid()]


def wait_for_writes(params: SharedParameters, agent: AgentProcess, patience: float = 30.0) -> None:
    """Until it has pages of its own."""
    _wait_until(lambda: params.pages(agent).count(PRIVATE) > 0, "it has written nothing", patience)


def assert_clean(*all_params: SharedParameters, patience: float = 30.0) -> None:
    """Close them, and see that no other process holds weights of this one."""
    for params in all_params:
        params.close()
    _wait_until(lambda: not holding(), "other processes still hold shared weights", patience)


def _wait_until(what: Callable[[], bool], otherwise: str, patience: float) -> None:
    until = time.monotonic() + patience
    while not what():
        assert time.monotonic() < until, otherwise
        time.sleep(0.02)
