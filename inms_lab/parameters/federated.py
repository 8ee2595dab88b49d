"""Federated rounds: clients train on data of their own, and the average of their weights is shared.

Only pages that were changed are written, each client's and their average; then all clients map the
new version (federated averaging, McMahan et al. 2017). `bench.federated` has the plain way, in
which all weights travel, to compare with.

rounds = Rounds(params, [params.agent("ada"), params.agent("bob")], train, [texts, more_texts])
rounds.run(10)

Pages that anybody changed get the same bits as in the plain way. Where nobody did, that averages
equal values, which may come out different in the last bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from inms_lab.errors import AgentClosed, AgentDied, BadInput, InmsError, MergeRefused
from inms_lab.model.progress import bar
from inms_lab.parameters.agent import AgentProcess
from inms_lab.parameters.averaging import average, weights_of
from inms_lab.parameters.shared import SharedParameters

Train = Callable[[torch.nn.Module, Any], float]
T = TypeVar("T")
NOT_SYNCHRONISING = ("train", "validate")


@dataclass(slots=True)
class Round:
    """What a round did.

    `losses`: of each client whose weights were averaged, as its training gave it. `left_out`:
    client -> why its weights are not in the average, or why it does not have the new ones.
    `refused`: why the average was not taken, or nothing. `version`: the newest one afterwards.
    `num_bytes`: written so that weights get from process to process. `seconds`: by part, of the
    clock, clients work at the same time.
    """

    number: int
    losses: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    version: int = 0
    num_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """The mean of the losses, weighted as the weights are."""
        return sum(self.shares[name] * loss for name, loss in self.losses.items())

    @property
    def synchronisation(self) -> float:
        """Seconds of everything but training and validation."""
        return sum(s for part, s in self.seconds.items() if part not in NOT_SYNCHRONISING)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """The seconds of a block belong to this part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started


class Rounds:
    """Federated averaging by touched pages.

    `train(model, data)` runs in each client's process with that client's `data` and gives its loss;
    it changes the model in place. `weights`: how much each client counts, the number of its samples
    (`len` of its data) unless given. `validate`: as in `SharedParameters.merge`; an average that is
    refused is thrown away, and all go on from the version they had.

    `clients` may be replaced between rounds, one by one. What a client had changed before belongs
    to its first round. Raises `BadInput`.
    """

    def __init__(
        self,
        params: SharedParameters,
        clients: Sequence[AgentProcess],
        train: Train,
        data: Sequence[Any],
        weights: Sequence[float] | None = None,
        validate: Callable[[torch.nn.Module], Any] | None = None,
    ) -> None:
        if not isinstance(params, SharedParameters):
            raise BadInput(f"rounds go on SharedParameters, not on {params!r}")
        if not callable(train) or not (validate is None or callable(validate)):
            raise BadInput(f"train and validate are functions, not {train!r} and {validate!r}")
        if not (isinstance(clients, Iterable) and isinstance(data, Iterable)):
            raise BadInput(f"clients and their data are lists, not {clients!r} and {data!r}")
        self.params, self.clients, self.train = params, list(clients), train
        self.data, self.validate = list(data), validate
        self.weights = weights_of(self.data, weights)
        self.history: list[Round] = []
        self._check()

    def run(self, count: int, *, progress: bool = True) -> list[Round]:
        """So many rounds, under a bar; see `round`."""
        if not isinstance(count, int) or count < 1:
            raise BadInput(f"rounds are 1 or more, not {count!r}")
        with bar(count, "federated rounds", unit="round", enabled=progress) as shown:
            for _ in range(count):
                shown.set_postfix(loss=f"{self.round().loss:.4g}")
                shown.update()
        return self.history[-count:]

    def round(self) -> Round:
        """One round. A client that dies, raises or gives a loss that is no number is left out of
        it. If all are, the first one's error is raised. Whatever is raised, an interrupt too, the
        clients' changes are taken back."""
        self._check()
        now = Round(len(self.history) + 1)
        try:
            self._ready(now)
            self._synchronise(now, self._trained(now))
        except BaseException:
            self._take_back()
            raise
        self.history.append(now)
        return now

    def _check(self) -> None:
        if not self.clients or len(self.clients) != len(self.data):
            counts = f"{len(self.clients)} and {len(self.data)}"
            raise BadInput(f"clients and their data are equally many, at least one; not {counts}")
        mine = {id(agent) for agent in self.params.agents}
        for at, client in enumerate(self.clients):
            if id(client) not in mine or client in self.clients[:at]:
                raise BadInput(
                    f"{client!r} is closed, no agent of these parameters, or here twice: give "
                    "agents that params.agent(...) made"
                )

    def _ready(self, now: Round) -> None:
        """Everybody has the newest version."""
        newest = self.params.version
        late = [client for client in self.clients if client.base.number != newest.number]
        with now.timed("move"):
            self._each(now, late, lambda client: client.move(newest))

    def _trained(self, now: Round) -> list[AgentProcess]:
        """All train at the same time; who has done so, in order."""
        errors: list[Exception] = []
        with now.timed("train"):
            pairs = zip(self.clients, self.data, strict=True)
            going = [(c, c.start(self.train, d)) for c, d in pairs if c.name not in now.left_out]
            try:
                for client, answer in going:
                    try:
                        now.losses[client.name] = _number(client, answer.result())
                    except Exception as error:
                        errors.append(error)
                        now.left_out[client.name] = _told(error)
            except BaseException:
                for client, answer in going:
                    if not answer.done():
                        client.interrupt()
                raise
        if not now.losses and errors:
            raise errors[0]
        return [client for client in self.clients if client.name in now.losses]

    def _synchronise(self, now: Round, trained: list[AgentProcess]) -> None:
        base = self.params.version
        with now.timed("delta"):
            found = self._each(now, trained, AgentProcess.delta)
            self._count(now, found)
        with now.timed("average"):
            deltas, shares = list(found.values()), list(now.shares.values())
            one = average(base, deltas, self.params.layout, shares)
        now.num_bytes = sum(delta.num_bytes for delta in [*deltas, one])
        with now.timed("publish"):
            try:
                self.params.merge(one, validate=self._validation(now))
            except MergeRefused as error:
                now.refused = str(error)
        now.seconds["publish"] -= now.seconds.get("validate", 0.0)
        newest = self.params.version
        now.version = newest.number
        with now.timed("move"):
            self._each(now, self.clients, lambda client: client.move(newest, discard=True))

    def _validation(self, now: Round) -> Callable[[torch.nn.Module], Any] | None:
        if (validate := self.validate) is None:
            return None

        def timed(module: torch.nn.Module) -> Any:
            with now.timed("validate"):
                return validate(module)

        return timed

    def _count(self, now: Round, names: Collection[str]) -> None:
        """These clients' weights are averaged."""
        if not names:
            raise AgentDied(f"nobody is left in round {now.number}: {now.left_out}")
        now.losses = {name: now.losses[name] for name in names}
        counts = {c.name: w for c, w in zip(self.clients, self.weights, strict=True)}
        total = sum(counts[name] for name in names)
        now.shares = {name: counts[name] / total for name in names}

    def _each(
        self, now: Round, clients: Sequence[AgentProcess], act: Callable[[AgentProcess], T]
    ) -> dict[str, T]:
        """What each client's act gives, all at the same time; who fails is left out."""
        found: dict[str, T] = {}
        with ThreadPoolExecutor(max(1, len(clients))) as pool:
            for client, answer in [(client, pool.submit(act, client)) for client in clients]:
                try:
                    found[client.name] = answer.result()
                except Exception as error:
                    now.left_out.setdefault(client.name, _told(error))
        return found

    def _take_back(self) -> None:
        for client in self.clients:
            with suppress(AgentDied, AgentClosed):
                client.discard()


def _number(client: AgentProcess, loss: Any) -> float:
    try:
        number = float(loss)
    except (TypeError, ValueError):
        raise BadInput(f"train gives a loss, a number; from {client.name} came {loss!r}") from None
    if not math.isfinite(number):
        raise BadInput(f"its loss is {number}: train less fast, or look at its data")
    return number


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, InmsError) else f"{type(error).__name__}: {error}"
