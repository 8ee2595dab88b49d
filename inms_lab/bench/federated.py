"""What a federated round spends on synchronisation: touched pages against full copies.

Three ways, one after the other in every repetition, with the same training on the same data:

    shared    changed pages are written, averaged and mapped (`parameters.federated`)
    full      the plain way: each client sends its whole state through its line, and gets the
              average back
    named     the plain way of somebody who knows which tensors are trained: only these travel

What is trained is a part of a small model: `layer` (the last one), `rows` (a tenth of the rows of
every matrix, as adapters do), `everything`, `scattered` (one value in each page). A page that was
mapped anew is fetched, and copied when it is written, during the next training; so whole rounds are
told beside synchronisation.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inms_lab.bench.header import spread
from inms_lab.bench.intervals import ratio_of
from inms_lab.errors import BadInput, InmsError
from inms_lab.model.progress import bar
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.federated import Round, Rounds
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.shared import SharedParameters
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

CLAIM, CLAIMED = "federated-rounds", 0.60  # of claims.py: so much less time on synchronisation
PARTS = ("layer", "rows", "everything", "scattered")  # the last one leaves many pieces
ROWS = 0.1  # of each matrix
RATE = 0.05
State = dict[str, npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Load:
    """The first of `clients` trains on one sequence of `tokens`, the next on two, and so on; sizes
    of the model."""

    clients: int = 4
    tokens: int = 32
    hidden: int = 256
    layers: int = 8
    vocab: int = 2048
    seed: int = 0


class FullCopies(Rounds):
    """The plain way, made as `Rounds` are. The parameters give the first weights and stay as they
    are; `state` is the average, which nothing validates. `names`: only these tensors travel, else
    all. Its clients are agents too, so that training is the same; do not move them."""

    def __init__(self, *of_rounds: Any, names: Sequence[str] | None = None, **more: Any) -> None:
        super().__init__(*of_rounds, **more)
        self.names = list(self.params.layout.spots if names is None else names)
        self.state = _state(self.params.module(), self.names)

    def _ready(self, now: Round) -> None:
        """They have the average of the round before."""

    def _synchronise(self, now: Round, trained: list[AgentProcess]) -> None:
        with now.timed("gather"):
            found = self._each(now, trained, lambda client: client.run(_state, self.names))
            self._count(now, found)
        with now.timed("average"):
            self.state = self._average(list(found.values()), list(now.shares.values()))
        with now.timed("scatter"):
            got = self._each(now, self.clients, lambda client: client.run(_load, self.state))
        size = sum(array.nbytes for array in self.state.values())
        now.num_bytes = size * (len(found) + 1 + len(got))

    def _average(self, states: list[State], shares: list[float]) -> State:
        mixed = {}
        for name in self.names:
            kind = getattr(torch, self.params.layout.spots[name].dtype)
            values = [torch.from_numpy(state[name]).view(kind) for state in states]
            total = values[shares.index(max(shares))]
            if kind.is_floating_point:
                total = values[0] * shares[0]
                for value, share in zip(values[1:], shares[1:], strict=True):
                    total += value * share
            mixed[name] = total.view(torch.uint8).numpy()
        return mixed

    def _take_back(self) -> None:
        for client in self.clients:
            with suppress(InmsError):
                client.run(_load, self.state)


def measure(
    load: Load, parts: Sequence[str] = PARTS, repeat: int = 5, *, progress: bool = True
) -> dict[str, Any]:
    """`repeat` rounds of each way and part, behind one to warm up. Raises `BadInput`."""
    if not parts or set(parts) - set(PARTS) or repeat < 2:
        raise BadInput(f"parts are some of {', '.join(PARTS)}, repetitions 2 or more")
    total = len(parts) * (repeat + 1)
    with (
        SharedParameters(_model(load)) as params,
        bar(total, "rounds", unit="round", enabled=progress) as shown,
    ):
        rows = [_row(params, load, part, repeat, shown) for part in parts]
        size = params.layout.weight_bytes
    claims = {CLAIM: claimed(rows, load)}
    return {**asdict(load), "weights_bytes": size, "rows": rows, "claims": claims}


def claimed(rows: Sequence[dict[str, Any]], load: Load) -> dict[str, str]:
    """What the rows say of the claim, as claims.py reads it. It speaks of federated rounds whatever
    is trained: so it holds if it does for every part."""
    told = [
        f"{row['saved']:.0%} ({row['saved_low']:.0%} to {row['saved_high']:.0%}) less with "
        f"{row['part']} trained ({row['pages_share']:.0%} of the pages)"
        for row in rows
    ]
    return {
        "measured": f"{load.clients} clients, against full copies: " + "; ".join(told),
        "interval": "95 %, paired rounds",
        "verdict": HOLDS if all(row["saved"] >= CLAIMED for row in rows) else DOES_NOT_HOLD,
    }


def _row(
    params: SharedParameters, load: Load, part: str, repeat: int, shown: Any
) -> dict[str, Any]:
    with ExitStack() as clients:
        ways = _ways(params, load, part, clients)
        for number in range(repeat + 1):
            for way in ways[number % 3 :] + ways[: number % 3]:
                way.round()
            shown.update()
    shared, full, named = (way.history for way in ways)
    written = shared[-1].num_bytes / (load.clients + 1)  # by each client, and as their average
    off = max(abs(ours.loss - theirs.loss) for ours, theirs in zip(shared, full, strict=True))
    return {
        "part": part,
        "pages_share": round(written / params.num_bytes, 5),
        **_compared(shared[1:], full[1:], named[1:]),
        "losses": f"{shared[0].loss:.4f} to {shared[-1].loss:.4f}",
        "losses_differ_by": off,  # 0: the same curve bit for bit
    }


def _ways(
    params: SharedParameters, load: Load, part: str, clients: ExitStack
) -> tuple[Rounds, ...]:
    """Shared, full and named, each with clients of its own, all from the same weights."""
    draws = torch.Generator().manual_seed(load.seed)
    shapes = [(1 + number, load.tokens) for number in range(load.clients)]
    data = [torch.randint(load.vocab, shape, generator=draws) for shape in shapes]
    train = partial(_train, part=part)
    mine, theirs, others = ([clients.enter_context(params.agent()) for _ in data] for _ in range(3))
    names = _trained(list(params.layout.spots), part)
    return (
        Rounds(params, mine, train, data),
        FullCopies(params, theirs, train, data),
        FullCopies(params, others, train, data, names=names),
    )


def _compared(
    shared: Sequence[Round], full: Sequence[Round], named: Sequence[Round]
) -> dict[str, Any]:
    ways = {"shared": shared, "full": full, "named": named}
    times = {way: [one.synchronisation for one in rounds] for way, rounds in ways.items()}
    whole = [[one.synchronisation + one.seconds["train"] for one in way] for way in (shared, full)]
    ratio, low, high = ratio_of(times["shared"], times["full"])
    return {
        "saved": round(1 - ratio, 3),
        "saved_low": round(1 - high, 3),
        "saved_high": round(1 - low, 3),
        "to_named": round(ratio_of(times["shared"], times["named"])[0], 3),
        "whole_rounds": round(ratio_of(*whole)[0], 3),
        **{f"{way}_ms": spread([1e3 * s for s in found], 1) for way, found in times.items()},
        **{f"{way}_bytes": rounds[-1].num_bytes for way, rounds in ways.items()},
        **{f"{way}_parts_ms": _parts_ms(rounds) for way, rounds in ways.items()},
    }


def _parts_ms(rounds: Sequence[Round]) -> dict[str, float]:
    median = {p: statistics.median(one.seconds[p] for one in rounds) for p in rounds[0].seconds}
    return {part: round(1e3 * seconds, 1) for part, seconds in median.items()}


def _train(model: torch.nn.Module, tokens: torch.Tensor, part: str) -> float:
    """A step of plain gradient descent on a part of the weights; the loss before it."""
    mine = _trained([name for name, _ in model.named_parameters()], part)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in mine)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                _part_of(parameter, part).sub_(RATE * _part_of(parameter.grad, part))
                parameter.grad = None
    return float(loss.detach())


def _trained(names: Sequence[str], part: str) -> list[str]:
    if part != "layer":
        return list(names)
    last = max(int(name.split(".")[2]) for name in names if name.startswith("model.layers."))
    return [name for name in names if name.startswith(f"model.layers.{last}.")]


def _part_of(tensor: torch.Tensor, part: str) -> torch.Tensor:
    """A view of what is trained of it."""
    if part == "rows":
        return tensor[: max(1, round(ROWS * len(tensor)))]
    if part == "scattered":
        return tensor.view(-1)[:: PAGE // tensor.itemsize]
    return tensor


def _state(model: torch.nn.Module, names: Sequence[str]) -> State:
    """The bytes of these tensors, in place."""
    tensors = model.state_dict()
    return {name: tensors[name].reshape(-1).view(torch.uint8).numpy() for name in names}


def _load(model: torch.nn.Module, state: State) -> None:
    for name, array in _state(model, list(state)).items():
        array[:] = state[name]


def _model(load: Load) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=load.vocab,
        hidden_size=load.hidden,
        intermediate_size=3 * load.hidden,
        num_hidden_layers=load.layers,
        num_attention_heads=load.hidden // 64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(load.seed)
        return LlamaForCausalLM(config)
