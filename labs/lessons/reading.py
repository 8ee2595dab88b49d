"""A decode step of many readers of one text, without a model: the lab decides who holds what, the
engine's own plan says which tiles are read, and the KV that is read is made up.

Readers("inms") keep the text once, Readers("independent") each have a copy of it. What stands in a
slot depends on the token and its position only, so both read the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inms_lab.attention.batch import Batch, build
from inms_lab.attention.store import KVStore
from inms_lab.config import Config
from inms_lab.decisions.outcome import Chunk
from inms_lab.kernels.native import Native
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.serving.spans import span_of
from inms_lab.studies.geometry import from_config
from inms_lab.terminal.standin import SMOLLM2_135M

from .small_labs import Words

GEOMETRY = from_config(SMOLLM2_135M)
BLOCK = 256  # tokens, of a block and of a tile
NAMES = ("ada", "ben", "eve", "dan", "fay", "gus", "ida", "leo")
KINDS = 1009  # of tokens that have a KV of their own


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the public prompt, of the text that all read, and of each reader's own text."""

    prompt: int = 512
    shared: int = 4096
    own: int = 2048

    @property
    def context(self) -> int:
        """Tokens of one reader's context."""
        return self.prompt + self.shared + self.own


class Readers:
    """A lab with a prompt, a text that a team shares, and `num` readers of it with own text."""

    def __init__(
        self,
        mode: str = "inms",
        num: int = len(NAMES),
        lengths: Lengths = Lengths(),
        layers: int = 1,
    ) -> None:
        """`layers`: how many have KV, so that one is not read twice in a row from a cache."""
        self.lengths, self.layers = lengths, layers
        per_token, words = GEOMETRY.kv_bytes_per_token, Words()
        parts = (lengths.prompt, lengths.shared, lengths.own)
        prompt, text, own = (-(-part // BLOCK) * BLOCK * per_token for part in parts)
        private = num * (prompt + text + own)
        config = Config(BLOCK, 0, 2 * BLOCK, lengths.context, prompt, text, private)
        model = DryModel(GEOMETRY.hidden_size**2, lengths.context, per_token)
        self.lab = Lab(model, mode=mode, config=config, gate=None)
        self.lab.text, self.lab.log.piece = words, words.piece
        self.lab.preload(_text("rule", lengths.prompt), progress=False)
        team = self.lab.group("team")
        names = [*NAMES, *(f"reader-{i}" for i in range(len(NAMES), num))][:num]
        self.agents = team.agents(*names)
        team.publish(_text("page", lengths.shared), by=self.agents[0])
        for agent in self.agents:
            agent.attach(team).result()
            agent.read(_text(agent.name, lengths.own)).result()
        self._store: KVStore | None = None

    @property
    def computed(self) -> int:
        """Tokens of prefill until all had their context."""
        return self.lab.engine.num_computed

    @property
    def held(self) -> int:
        """Tokens that the blocks have room for which somebody holds."""
        return BLOCK * sum(pool.num_held for pool in self.lab.engine.ledger.pools.values())

    def step(self, num: int | None = None, native: Native | None = None) -> Step:
        """The step in which the first `num` readers (None: all) each decode one token, as the
        engine plans it. `native`: compiled kernels are to read; None: torch does."""
        if self._store is None:
            self._store = self._filled()
        books, spans = self.lab.engine.ledger, []
        for agent in self.agents[:num]:
            seq = books.sequences[agent.seq_id]
            last = Chunk(seq.seq_id, seq.num_tokens - 1, seq.num_tokens, recompute=True)
            spans.append(span_of(seq, last, BLOCK))
        heads = GEOMETRY.num_heads
        batch = build(spans, self._store, BLOCK, heads, row_multiple=1, native=native)
        return Step(batch, self.layers)

    def context(self, reader: int, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [K, S, D] of a reader's whole context, gathered into one piece."""
        self.step(1)
        assert self._store is not None
        seq = self.lab.engine.ledger.sequences[self.agents[reader].seq_id]
        parts: list[tuple[torch.Tensor, ...]] = []
        for part in seq.segments:
            slots = _slots(part.blocks)[: len(part.tokens)]
            parts.append(tuple(x[:, slots] for x in self._store.layer(part.pool_id, layer)))
        keys, values = (torch.cat(halves, dim=1) for halves in zip(*parts, strict=True))
        return keys, values

    def _filled(self) -> KVStore:
        """KV of every block that a reader holds: of its tokens and their positions."""
        shape = GEOMETRY.num_kv_heads, GEOMETRY.head_dim
        store, rng = KVStore(self.layers, *shape), torch.Generator().manual_seed(0)
        kinds = torch.randn(2, self.layers, shape[0], KINDS, shape[1], generator=rng)
        places = torch.randn(self.layers, shape[0], self.lengths.context, shape[1], generator=rng)
        books, filled = self.lab.engine.ledger, set[tuple[str, int]]()
        for name, pool in books.pools.items():
            store.open(name, len(pool.refs) * BLOCK)
        for agent in self.agents:
            for part in books.sequences[agent.seq_id].segments:
                if (part.pool_id, part.blocks[0]) in filled:
                    continue
                filled.add((part.pool_id, part.blocks[0]))
                slots = _slots(part.blocks)[: len(part.tokens)]
                kv = kinds[:, :, :, torch.tensor(part.tokens) % KINDS]
                kv[0] += places[:, :, part.first_position :][:, :, : len(part.tokens)]
                store.regions[part.pool_id][:, :, :, slots] = kv
        return store


@dataclass(frozen=True, slots=True)
class Step:
    """A step's plan. Its counts are of one layer, read by torch's operators."""

    batch: Batch
    layers: int

    @property
    def bytes(self) -> int:
        """Of KV that one layer reads: of each planned read all its slots, however many ask."""
        _, _, kv_heads, dim = self.batch.store.shape
        slots = sum(read.count * self.batch.tile for read in self.batch.reads)
        return slots * 2 * kv_heads * dim * self.batch.store.dtype.itemsize

    @property
    def scores(self) -> int:
        """Products of a query with a key that one layer computes, over all heads."""
        pairs = sum(read.count * self.batch.tile * len(read.rows) for read in self.batch.reads)
        return pairs * self.batch.store.shape[2]

    def queries(self) -> torch.Tensor:
        """Made up, the same for the same reader: [T, H, D]."""
        shape = self.batch.num_rows, GEOMETRY.num_heads, GEOMETRY.head_dim
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def attend(self, layer: int = 0) -> torch.Tensor:
        """What one layer gives for each reader [T, H, D]."""
        q = self.queries()
        new = q[:, : GEOMETRY.num_kv_heads]  # its KV stands there already: nothing is written
        return self.batch.attend(layer, q, new, new, GEOMETRY.head_dim**-0.5)


def milliseconds(steps: Sequence[Step], repeat: int = 5) -> list[float]:
    """How long one layer of each step takes here: the median of passes over its layers. The steps
    take turns, so that what else the machine does falls on all of them."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(repeat):
        for step, taken in zip(steps, times, strict=True):
            started = time.perf_counter()
            for layer in range(step.layers):
                step.attend(layer)
            taken.append(1000 * (time.perf_counter() - started) / step.layers)
    return [statistics.median(taken) for taken in times]


def _text(word: str, count: int) -> str:
    return " ".join(f"{word}-{i}" for i in range(count))


def _slots(blocks: Sequence[int]) -> torch.Tensor:
    """The slots of these blocks, in order."""
    return (torch.tensor(blocks)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
