"""CUDA graphs of steps that have one shape: a step is launched at once, not kernel by kernel.

NOT RUN YET on a GPU: nothing uses it but benchmarks/gpu.sh (`Graphs(runner).install()`). Tests
replay by computing again, so they hold everything but CUDA's own recording.

A step's shape is its number of rows and its plan's sizes, rounded up to buckets; a plan says itself
how much of a bucket is in use, so a graph serves every step of its shape. A shape is recorded when
it is met again, and the first replays of a graph are compared with the step computed plainly: what
differs, or cannot be recorded, ends the use of graphs, and `reason` says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from inms_lab.attention.batch import Batch
from inms_lab.attention.launched import Launched
from inms_lab.model.runner import Runner

Forward: TypeAlias = Callable[[], torch.Tensor]

GRAPHS = 8  # at most; the one that was used longest ago goes
CHECKED = 2  # replays of a graph that are compared
OFF = 1e-2  # of the logits' spread, how far they may be apart


@dataclass(slots=True)
class _Graph:
    """A recorded step: `batch` has the tensors that it reads, `replay` gives the logits."""

    batch: Batch
    replay: Forward
    checked: int = 0

    def take(self, batch: Batch) -> None:
        """The next replay computes this batch."""
        for name in ("input_ids", "position_ids", "logit_rows"):
            getattr(self.batch, name).copy_(getattr(batch, name))
        assert isinstance(self.batch.compiled, Launched)
        assert isinstance(batch.compiled, Launched)
        self.batch.compiled.take(batch.compiled)


def on_cuda(forward: Forward) -> Forward:
    """Record `forward` as a CUDA graph. It must not wait for the device."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        forward()  # what is built at first use is built before
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = forward()

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    return replay


class Graphs:
    """The graphs of one model; `record` makes one of a forward."""

    def __init__(self, runner: Runner, record: Callable[[Forward], Forward] = on_cuda) -> None:
        self.runner, self.record = runner, record
        self.reason = ""  # why no graph is used any more
        self.replays = 0
        self._met: set[tuple[int, ...]] = set()
        self._graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()

    def install(self) -> None:
        """Let the runner's forwards use graphs from now on."""
        self.runner.run = self.run  # type: ignore[method-assign]

    def run(self, batch: Batch) -> None:
        """One forward; the logits stay in the runner's `last_logits`."""
        self.runner.last_logits = self.logits(batch)

    def compute(self, batch: Batch) -> torch.Tensor:
        """A step's logits, computed kernel by kernel."""
        Runner.run(self.runner, batch)
        return self.runner.last_logits

    def logits(self, batch: Batch) -> torch.Tensor:
        """The logits of a step: [rows that want them, vocab]."""
        key = self._key(batch)
        if key is None or key not in self._met:
            self._met |= {key} if key is not None else set()
            return self.compute(batch)
        try:
            graph = self._graphs.get(key) or self._recorded(key, batch)
            graph.take(batch)
            logits = graph.replay().clone()  # the next replay writes into the same place
        except RuntimeError as error:  # CUDA's
            self._stop(f"a step cannot be recorded ({error})")
            return self.compute(batch)
        self._graphs.move_to_end(key)
        self.replays += 1
        if graph.checked == CHECKED:
            return logits
        graph.checked += 1
        plain = self.compute(batch)
        if not (logits - plain).abs().max() <= OFF * plain.float().std():
            self._stop("a recorded step gave other logits than the same step computed plainly")
        return plain

    def _key(self, batch: Batch) -> tuple[int, ...] | None:
        """The shape of a batch; None: it is not for graphs."""
        reader, stopped = batch.compiled, batch.cancel is not None and batch.cancel.is_set()
        if self.reason or stopped or type(batch) is not Batch or not isinstance(reader, Launched):
            return None
        if batch.turned is not None:  # its angles are looked up while it is computed
            return None
        return batch.input_ids.numel(), batch.logit_rows.numel(), *reader.shape

    def _recorded(self, key: tuple[int, ...], batch: Batch) -> _Graph:
        assert isinstance(batch.compiled, Launched)
        own = {n: getattr(batch, n).clone() for n in ("input_ids", "position_ids", "logit_rows")}
        mine = replace(batch, **own, compiled=batch.compiled.grown(), calls=[], cancel=None)
        graph = self._graphs[key] = _Graph(mine, self.record(lambda: self.compute(mine)))
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def _stop(self, reason: str) -> None:
        self.reason = reason
        self._graphs.clear()
