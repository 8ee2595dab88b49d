"""Agent threads over one memory by the three calls, with a clock of where their time goes.

Each thread lives through agents: register behind the common prompt, then for each of its own blocks
a forward (products of the default model's sizes, no lock held) and `write_block`, then destroy.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from inms_lab.attention.store import KVStore
from inms_lab.bench.clock import Clock, Clocked
from inms_lab.books.events import Event, PoolOpened
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.label import PUBLIC, private
from inms_lab.books.sequence import Sequence as Holder
from inms_lab.decisions.policy import DEFAULT, MODES
from inms_lab.serving.blocks import Blocks, Part, Place
from inms_lab.serving.cache import KVCache

LAYERS, KV_HEADS, DIM = 30, 3, 64  # the default model's KV
WIDTH, INNER = 576, 1536  # and its products: about these, in each of its layers
BLOCK = 16  # tokens
WAITING, BOOKS = "waiting for the lock", "books"
PARTS = ("forward", WAITING, BOOKS, "hash", "copy", "write")


@dataclass(frozen=True, slots=True)
class Load:
    """`threads` agents at a time, `prompt` tokens in common, `own` each; `layers` of the model's
    products make the forward of a block."""

    threads: int = 8
    prompt: int = 1024
    own: int = 256
    layers: int = LAYERS
    seed: int = 0


class Noted(Blocks):
    """The three calls with a clock for their parts."""

    clock: Clock

    def _hash(self, seq: Holder) -> None:
        with self.clock.part("hash"):
            super()._hash(seq)

    def _move(self, events: tuple[Event, ...]) -> None:
        with self.clock.part("copy"):
            super()._move(events)


class Agents:
    """Threads that live through agents until they are stopped."""

    def __init__(self, load: Load, coarse: bool, store: Any = None) -> None:
        self.load, self.coarse, self.clock = load, coarse, Clock(PARTS)
        self.cache = KVCache(store or KVStore(LAYERS, KV_HEADS, DIM))
        per_agent, prompt = -(-load.own // BLOCK) + 1, -(-load.prompt // BLOCK)
        for pool_id, tier, ceiling in MODES["inms"].pools(()):
            blocks = prompt if tier == "global" else per_agent * load.threads
            self.cache.record(PoolOpened(pool_id, tier, DEFAULT, BLOCK, blocks, ceiling))
        self.cache.lock = Clocked(self.clock, WAITING, BOOKS)  # type: ignore[assignment]
        space = Namespace(model="bench", tenant=DEFAULT)
        self.blocks = Noted(self.cache, MODES["inms"], space, coarse)
        self.blocks.clock = self.clock
        make = torch.Generator().manual_seed(load.seed)
        self.kv = torch.randn(2, LAYERS, KV_HEADS, BLOCK, DIM, generator=make)
        shapes = ((WIDTH, WIDTH * 2), (WIDTH, INNER * 2), (INNER, WIDTH))
        self.weights = [torch.randn(shape, generator=make) for shape in shapes]
        self.rows = [torch.randn(BLOCK, width, generator=make) for width, _ in shapes]
        self.prompt = text(load.seed, "prompt", load.prompt)
        holder, _ = self.blocks.register_sequence(
            "prompt", PUBLIC, [Part(self.prompt, "global")], "prompt"
        )
        while self.blocks.write_block(holder, self._put).num_tokens:
            pass

    def run(self, seconds: float) -> float:
        """Tokens a second that all threads together have written."""
        over, written = threading.Event(), [0.0] * self.load.threads
        start = threading.Barrier(self.load.threads + 1)
        self.clock.reset()
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                start.wait()
                for life in count():
                    if over.is_set():
                        return
                    self.live(number, life, over, written)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(self.load.threads)]
        for thread in threads:
            thread.start()
        start.wait()
        started = time.perf_counter()
        over.wait(seconds)
        over.set()
        took = time.perf_counter() - started
        total = sum(written)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return total / took

    def live(self, number: int, life: int, over: threading.Event, written: list[float]) -> None:
        """An agent's life. What it wrote is counted layer by layer of its forwards, so that short
        runs can be compared."""

        def done(tokens: float) -> None:
            if not over.is_set():
                written[number] += tokens

        layers = self.load.layers
        own = text(self.load.seed, f"{number} {life}", self.load.own)
        parts = [Part(self.prompt, "global"), Part(own)]
        seq_id, found = self.blocks.register_sequence(f"a{number}", private(f"a{number}"), parts)
        assert found == len(self.prompt), "the prompt is not shared"
        for _ in range(-(-len(own) // BLOCK)):
            if over.is_set():
                break
            with self.clock.part("forward"):
                for _ in range(layers):
                    self.forward()
                    done(BLOCK / layers)
            self.blocks.write_block(seq_id, self._put)
            if not layers:
                done(BLOCK)
        self.blocks.destroy_sequence(seq_id)

    def forward(self) -> None:
        """The products of a layer for the tokens of a block, in torch, on the caller's thread."""
        for rows, weights in zip(self.rows, self.weights, strict=True):
            torch.mm(rows, weights)

    def _put(self, place: Place) -> None:
        """The KV of a block is put in its place."""
        with self.clock.part("write"):
            regions = getattr(self.cache.store, "regions", None)
            if regions is not None:
                stop = place.slot + place.num_tokens
                regions[place.pool_id][:, :, :, place.slot : stop] = self.kv[
                    :, :, :, : place.num_tokens
                ]


def text(seed: int, name: str, length: int) -> list[int]:
    """Token ids that nobody else has."""
    rng = random.Random(f"{seed} {name}")
    return [rng.randrange(40_000) for _ in range(length)]
