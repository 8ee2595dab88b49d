"""Agents with contexts of a given size, ready to write: computed, or quickly drawn at random.

How long a step takes does not depend on what the keys and values are. So a measurement may have
the books allocate everything as usual and put random numbers where the model's would be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Event as Flag
from typing import Any

import torch

from inms_lab.attention.batch import Span
from inms_lab.attention.store import KVStore, runs
from inms_lab.config import Config, default_block_size
from inms_lab.decisions.outcome import StepReport
from inms_lab.errors import BadInput
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.usage import held_bytes

NOISE = 64  # slots that are drawn; what is longer repeats them
Clock = Callable[[], tuple[float, ...]]
WARM_UP = 3  # steps of a round that its median does not count


@dataclass(frozen=True, slots=True)
class Work:
    """`agents` contexts of `shared` common tokens and `own` tokens, `room` more in each to write.

    `drawn`: contexts are drawn at random instead of computed.
    """

    shared: int
    own: int
    agents: int
    room: int = 0
    seed: int = 0
    drawn: bool = False

    def __post_init__(self) -> None:
        if self.shared < 0 or min(self.own, self.agents) < 1:
            raise BadInput("a context has own tokens, and there is at least one agent")

    def text(self, kind: str, number: int, length: int, vocab_size: int) -> list[int]:
        """Token ids that nobody else has."""
        rng = random.Random(f"{self.seed} {kind} {number}")
        return [rng.randrange(vocab_size) for _ in range(length)]

    def config(self, runner: Runner, mode: str, prefill: int = 128, pieces: int = 1) -> Config:
        """Pools that hold just these contexts, each segment rounded up to whole blocks."""
        longest, limit = self.shared + self.own + self.room, runner.max_context
        if longest > limit:
            raise BadInput(f"a context would have {longest} tokens, the model takes {limit}")
        size = default_block_size(limit)
        unit = size * runner.new_store().bytes_per_token
        common = -(-self.shared // size)
        lengths = cut(self.own, pieces)
        lengths[-1] += self.room
        own = sum(-(-length // size) for length in lengths)
        each = own + common if mode == "independent" else own
        return Config(
            block_size=size,
            context=limit,
            prefill_budget=prefill,
            global_bytes=max(1, common) * unit,
            group_bytes=max(1, common) * unit,
            private_bytes=each * self.agents * unit,
        )


class Drawn:
    """A model whose KV is drawn at random while `drawing`; everything else is the model's own."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner, self.drawing = runner, False
        self.spans: Sequence[Span] = ()  # of the last forward
        two, layers, heads, dim = runner.new_store().shape
        make = torch.Generator().manual_seed(seed)
        self._noise = torch.randn(two, layers, heads, NOISE, dim, generator=make)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def forward(
        self, spans: Sequence[Span], store: KVStore, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        """The model's logits, or none that mean anything."""
        self.spans = spans
        if not self.drawing:
            return self.runner.forward(spans, store, tile, cancel)
        for span in spans:
            for pool_id in {pool_id for pool_id, _ in span.slots}:
                slots = sorted(slot for pool, slot in span.slots if pool == pool_id)
                region = store.regions[pool_id]
                for first, count in runs(slots):
                    for at in range(first, first + count, NOISE):
                        part = region[:, :, :, at : min(at + NOISE, first + count)]
                        part.copy_(self._noise[:, :, :, : part.shape[3]])
        return torch.zeros(sum(span.wants_logits for span in spans), self.runner.vocab_size)


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of each step in which every agent writes a token, the first `WARM_UP` of each round
    included; of it bookkeeping, and parts that a clock told; KV bytes held at the most."""

    rounds: tuple[tuple[float, ...], ...]
    bookkeeping: tuple[float, ...]  # of counted steps
    held: int
    parts: tuple[tuple[float, ...], ...] = ()  # of counted steps

    @property
    def counted(self) -> list[float]:
        """Those behind the warm-up."""
        return [seconds for steps in self.rounds for seconds in steps[WARM_UP:]]

    @property
    def worst(self) -> float:
        """The longest time between two tokens of an agent."""
        return max(max(steps) for steps in self.rounds)


class Contexts:
    """A lab with these contexts in it. Close it, or use it in a `with` block."""

    def __init__(
        self,
        runner: Runner,
        work: Work,
        *,
        mode: str = "inms",
        prefill: int = 128,
        pieces: int = 1,
    ) -> None:
        """`prefill`: tokens of a step for prefill while somebody writes; `pieces`: segments that
        each agent's own text is cut into."""
        self.work, self.pieces = work, pieces
        config = work.config(runner, mode, prefill, pieces)
        self.model = Drawn(runner, work.seed)
        self.lab = Lab(self.model, mode=mode, gate=None, config=config)
        self.agents: list[Agent] = []
        try:
            self._fill()
        except BaseException:
            self.lab.close()
            raise

    def _fill(self) -> None:
        work, vocab = self.work, self.model.vocab_size
        copies = 1 if self.lab.policy.encodes_prompts else work.agents
        total = copies * work.shared + work.agents * work.own
        self.model.drawing = work.drawn
        with bar(total, "contexts", unit="token", enabled=not work.drawn) as shown:

            def show(report: StepReport) -> None:
                shown.update(sum(chunk.num_written for chunk in report.chunks))

            with self.lab.watching(show):
                if work.shared:
                    prefix = work.text("shared", 0, work.shared, vocab)
                    self.lab.preload(prefix, progress=False)
                for number in range(work.agents):
                    agent = self.lab.agent(f"agent {number}")
                    text = work.text("own", number, work.own, vocab)
                    for length in cut(work.own, self.pieces)[:-1]:
                        agent.read(text[:length], role=None, seal=True).result()
                        del text[:length]
                    agent.read(text, role=None).result()
                    self.agents.append(agent)
        self.model.drawing = False

    def write(self, count: int, rounds: int = 1, clock: Clock = tuple) -> Steps:
        """`count` steps a round behind the warm-up; afterwards the contexts are as before.
        `clock`: seconds so far of parts of a step, read at the end of each."""
        found, spent, engine = list[tuple[float, ...]](), list[float](), self.lab.engine
        parts = list[tuple[float, ...]]()
        per_token, held = engine.cache.store.bytes_per_token, 0

        def note(report: StepReport) -> None:
            nonlocal held
            alone = all(chunk.stop - chunk.start == 1 for chunk in report.chunks)
            if len(report.tokens) == len(report.chunks) == len(self.agents) and alone:
                notes.append((time.perf_counter(), engine.bookkeeping, *clock()))
                held = max(held, held_bytes(engine.ledger, per_token))

        for _ in range(rounds):
            notes: list[tuple[float, ...]] = []
            self.all_write(WARM_UP + count + 1, note)
            steps = [tuple(y - x for x, y in zip(a, b, strict=True)) for a, b in pairwise(notes)]
            found.append(tuple(step[0] for step in steps))
            spent += [step[1] for step in steps[WARM_UP:]]
            parts += [step[2:] for step in steps[WARM_UP:]]
        return Steps(tuple(found), tuple(spent), held, tuple(parts))

    def all_write(self, num_tokens: int, note: Any) -> None:
        """Every agent writes at once and forgets it again; `note` hears of each step."""
        if num_tokens > self.work.room:
            raise BadInput(f"there is room for {self.work.room} tokens, not for {num_tokens}")
        with self.lab.watching(note):
            writing = [a.write(num_tokens, role=None, stop=False) for a in self.agents]
            for pending in writing:
                pending.result()
        for agent in self.agents:
            agent.rollback(num_tokens).result()

    def __enter__(self) -> Contexts:
        return self

    def __exit__(self, *_: object) -> None:
        self.lab.close()


def room_for(num_steps: int) -> int:
    """Tokens that an agent writes in a round of so many counted steps."""
    return WARM_UP + num_steps + 1


def cut(length: int, pieces: int) -> list[int]:
    """The lengths of so many nearly equal pieces, at most one a token."""
    pieces = min(pieces, length)
    return [length * (n + 1) // pieces - length * n // pieces for n in range(pieces)]
