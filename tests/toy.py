"""A toy lab for tests: a real engine around a model whose KV is a witness of its whole context.

The toy model's state at a token is the trie node of everything up to that token. It keeps this
state as its "KV", reads its predecessors' states through the block tables and checks that they form
one chain. So a block that was given away, overwritten or mounted behind other text is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from threading import Event as Flag
from typing import Any

import torch
from bruteforce import Books

from inms_lab.attention.batch import Span
from inms_lab.attention.pages import GivenBack
from inms_lab.attention.store import KVStore
from inms_lab.books.events import Event, Released, Stepped
from inms_lab.books.gate import Gate
from inms_lab.books.label import PUBLIC, group, join, private
from inms_lab.books.ledger import Ledger
from inms_lab.books.lifecycle import RECLAIMED
from inms_lab.config import Config
from inms_lab.decisions.policy import MODES, Policy
from inms_lab.serving.engine import Engine
from inms_lab.serving.request import Request


class Interrupt(BaseException):
    """What a toy step is stopped with, half-way."""


class ToyStore:
    """One state per slot, None while nothing is there."""

    bytes_per_token = 1

    def __init__(self) -> None:
        self.slots: dict[str, list[int | None]] = {}
        self.num_copied = 0

    def open(self, pool_id: str, num_slots: int) -> None:
        self.slots[pool_id] = [None] * num_slots

    def close(self) -> None:
        self.slots.clear()

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        for block in blocks:
            self.slots[pool_id][block * block_size : (block + 1) * block_size] = [None] * block_size

    def give_back(self, pool_id: str, blocks: Iterable[int], block_size: int) -> GivenBack:
        self.clear(pool_id, [*blocks], block_size)
        return GivenBack()

    def resident(self, pool_id: str) -> int | None:
        return None

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None:
        (src_pool, src), (dst_pool, dst) = source, target
        self.slots[dst_pool][dst : dst + num_slots] = self.slots[src_pool][src : src + num_slots]
        self.num_copied += num_slots


class ToyModel:
    """The next token is a function of the whole context; states are numbered as they appear."""

    digest = "toy"
    tokenizer = None
    stop_tokens: frozenset[int] = frozenset()
    unsafe = ""

    def __init__(self, vocab_size: int = 5, max_context: int = 1000) -> None:
        self.vocab_size, self.max_context = vocab_size, max_context
        self.states: dict[tuple[int, Hashable], int] = {}
        self.parents: list[int] = [-1]  # of each state; state 0 stands before every text
        self.interrupt = False  # stop the next step in its middle
        self.fragments = (
            False  # whether KV may be read behind other text than it was encoded behind
        )

    def new_store(self) -> ToyStore:
        return ToyStore()

    def weights_bytes(self) -> tuple[int, int]:
        return 0, 0

    def state(self, before: int, token: Hashable) -> int:
        """The state after `token`."""
        new = self.states.setdefault((before, token), len(self.parents))
        if new == len(self.parents):
            self.parents.append(before)
        return new

    def run(self, tokens: Iterable[int]) -> list[int]:
        """The states of a whole text, without any cache."""
        out = [0]
        for token in tokens:
            out.append(self.state(out[-1], token))
        return out[1:]

    def next_token(self, state: int) -> int:
        """Greedy choice after `state`."""
        return (state * 0x9E3779B97F4A7C15 % 2**64 >> 40) % self.vocab_size

    def generate(self, tokens: Iterable[int], count: int) -> list[int]:
        """What `write` gives for a context of `tokens`, without any cache."""
        state, out = self.run(tokens)[-1], []
        for _ in range(count):
            out.append(self.next_token(state))
            state = self.state(state, out[-1])
        return out

    def put(self, store: Any, pool_id: str, slot: int, state: int) -> None:
        """The slot's KV is written."""
        store.slots[pool_id][slot] = state

    def get(self, store: Any, pool_id: str, slot: int) -> int | None:
        """The state that the slot's KV stands for."""
        state: int | None = store.slots[pool_id][slot]
        return state

    def forward(
        self, spans: list[Span], store: Any, tile: int, cancel: Flag | None = None
    ) -> torch.Tensor:
        rows = []
        for number, span in enumerate(spans):
            if self.interrupt and number == len(spans) - 1:
                self.interrupt = False
                raise Interrupt
            state = self._read(span, store)
            for index, token in enumerate(span.tokens):
                state = self.state(state, token)
                if span.slots:
                    self.put(store, *span.slots[index], state)
            if span.wants_logits:
                rows.append(self.next_token(state))
        logits = torch.zeros(len(rows), self.vocab_size)
        logits[torch.arange(len(rows)), torch.tensor(rows, dtype=torch.long)] = 1.0
        return logits

    def _read(self, span: Span, store: Any) -> int:
        state = 0
        for tile in span.tiles:
            stretches = (tile.slot, *tile.more)
            for at in range(tile.first, min(tile.first + tile.length, span.start)):
                number, offset = divmod(at - tile.first, tile.step or tile.length)
                found = self.get(store, tile.pool_id, stretches[number] + offset)
                assert found is not None, f"position {at} is read and was never written"
                state = self.after(state, found, f"position {at}")
        return state

    def after(self, state: int, found: int, where: str = "it") -> int:
        """The state of a reader in `state` that reads KV of the state `found`."""
        if self.parents[found] == state:
            return found
        assert self.fragments, f"{where} was computed behind other text"
        return self.state(state, ("fragment", found))


class TensorModel(ToyModel):
    """The same over a real store of tiny shape: the state as keys, its negative as values."""

    def new_store(self) -> Any:
        return KVStore(num_layers=2, num_kv_heads=1, head_dim=2)

    def put(self, store: Any, pool_id: str, slot: int, state: int) -> None:
        kv = torch.full((1, 1, 2), float(state))
        for layer in range(2):
            store.write(pool_id, layer, torch.tensor([slot]), kv, -kv)

    def get(self, store: Any, pool_id: str, slot: int) -> int | None:
        rows = [half[0, slot, :] for n in range(2) for half in store.layer(pool_id, n)]
        keys, values = rows[0], rows[1]
        assert torch.equal(keys, -values)
        assert torch.equal(torch.stack(rows[:2]), torch.stack(rows[2:]))
        return int(keys[0]) or None


class Toy:
    """An engine with the independent books beside it, compared after every event."""

    def __init__(
        self,
        mode: str | Policy = "inms",
        *,
        size: int = 4,
        tile: int = 4,
        blocks: tuple[int, int, int] = (8, 8, 16),  # of the global, the group, the private pool
        budget: int = 1000,
        groups: tuple[str, ...] = ("team",),
        compare: bool = True,
        model: ToyModel | None = None,
        gate: Gate | None = None,
    ) -> None:
        policy = MODES[mode] if isinstance(mode, str) else mode
        config = Config(size, tile, budget, 1000, *(n * size for n in blocks), debug=compare)
        self.model = model or ToyModel()
        self.model.fragments = gate is not None
        self.engine = Engine(self.model, self.model.new_store(), policy, config, gate)
        self.cache, self.log, self.ledger = self.engine.cache, self.engine.log, self.engine.ledger
        self.books = Books(self.log.tokens)
        self.known_states: dict[tuple[int, int], int] = {}
        self.on_event: list[Callable[[Event], None]] = []
        if compare:
            self._hook()
        self.groups = groups
        self.engine.open_pools(groups, 1)

    def _hook(self) -> None:
        enter = self.cache._enter

        def entered(event: Event) -> None:
            enter(event)
            self.books.apply(event)
            compare_books(self.books, self.ledger)
            if isinstance(event, Stepped):
                compare_slots(self)
            for hook in self.on_event:
                hook(event)

        self.cache._enter = entered  # type: ignore[method-assign]

    # holders --------------------------------------------------------------------------------

    def agent(self, name: str, *groups: str) -> int:
        """A new agent, cleared for these groups."""
        clearance = join(private(name), *map(group, groups or self.groups))
        return self.engine.register("agent", name, clearance)

    def prompt(self, *texts: Sequence[int]) -> int:
        """Sealed global texts, computed."""
        seq_id = self.engine.register("prompt", "prompt", PUBLIC)
        for text in texts:
            self.ask(seq_id, "append", text, tier="global", seal=True)
        self.run()
        return seq_id

    def record(self, team: str, *texts: Sequence[int], behind: Sequence[Sequence[int]] = ()) -> int:
        """A record of the group: these texts behind the sealed global texts `behind`."""
        name = f"{team}/{len(self.ledger.sequences)}"
        seq_id = self.engine.register("record", name, group(team))
        for text in behind:
            self.ask(seq_id, "append", text, tier="global", seal=True)
        for text in texts:
            offset, length = self.log.add_tokens(text)
            self.cache.record(Released(seq_id, "author", team, offset, length))
            self.ask(seq_id, "append", text, tier="group", group=team, seal=True, offset=offset)
        self.run()
        return seq_id

    # requests -------------------------------------------------------------------------------

    def ask(self, seq_id: int, verb: str, tokens: Sequence[int] = (), **options: Any) -> Request:
        """Queue a request."""
        return self.engine.submit(Request(seq_id, verb, list(tokens), **options))

    def do(self, seq_id: int, verb: str, tokens: Sequence[int] = (), **options: Any) -> Any:
        """Ask and run until everything is done; gives the answer."""
        request = self.ask(seq_id, verb, tokens, **options)
        self.run()
        return request.future.result(timeout=0)

    def enter(self, seq_id: int, verb: str, tokens: Sequence[int] = (), **options: Any) -> Any:
        """Ask and let it enter the books, without a step."""
        request = self.ask(seq_id, verb, tokens, **options)
        self.engine.enter()
        return request.future.result(timeout=0) if request.future.done() else None

    def step(self, budget: int | None = None) -> Any:
        """One step, with a token budget of its own."""
        if budget is not None:
            self.engine.config = replace(self.engine.config, token_budget=budget)
        return self.engine.step()

    def run(self, limit: int = 500) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.engine.step()
        raise AssertionError(f"still busy after {limit} steps")

    # looking --------------------------------------------------------------------------------

    def table(self, seq_id: int) -> list[tuple[str, list[int]]]:
        """(pool id, blocks) of each segment."""
        return [(s.pool_id, list(s.blocks)) for s in self.ledger.sequences[seq_id].segments]

    def states(self, seq_id: int) -> list[int | None]:
        """What the holder's slots contain, in order."""
        out: list[int | None] = []
        for segment in self.ledger.sequences[seq_id].segments:
            for at in range(segment.computed):
                slot = segment.blocks[at // segment.block_size] * segment.block_size
                slot += at % segment.block_size
                out.append(self.model.get(self.cache.store, segment.pool_id, slot))
        return out

    def held(self) -> dict[str, int]:
        """Held blocks by pool."""
        return {pool_id: pool.num_held for pool_id, pool in self.ledger.pools.items()}


def compare_books(books: Books, ledger: Ledger) -> None:
    """The ledger says what the tables say."""
    for pool_id, pool in ledger.pools.items():
        assert dict(pool.refs) == books.refs(pool_id), pool_id
        assert dict(pool.keys) == books.keys(pool_id), pool_id
        assert set(pool.cached) == books.cached(pool_id), pool_id
        assert set(pool.free) == books.free(pool_id), pool_id
        assert len(pool.free) + len(pool.cached) + len(pool.refs) == pool.spec.num_blocks
        assert len(pool.index) <= len(pool.keys) <= pool.spec.num_blocks
    assert ledger.records == books.records
    assert ledger.num_steps == books.num_steps
    for seq_id, holder in books.holders.items():
        segments = ledger.sequences[seq_id].segments
        reclaimed = ledger.sequences[seq_id].state == RECLAIMED
        assert reclaimed == (seq_id not in ledger.live)
        assert [(p.pool_id, p.table) for p in holder.parts] == [
            (s.pool_id, s.blocks) for s in segments
        ], seq_id
        if holder.live:
            assert [p.tokens for p in holder.parts] == [list(s.tokens) for s in segments], seq_id
            assert [p.slots for p in holder.parts] == [s.length for s in segments], seq_id
            assert [p.written for p in holder.parts] == [s.computed for s in segments], seq_id


def compare_slots(toy: Toy) -> None:
    """Every slot of every holder contains the state of exactly its own context."""
    for seq_id, holder in toy.books.holders.items():
        if holder.live:
            wanted = [
                state_of(toy, context) for p in holder.parts for context in p.contexts[: p.written]
            ]
            assert toy.states(seq_id) == wanted, seq_id


def state_of(toy: Toy, context: tuple[int, int]) -> int:
    """The toy model's state after a context of the independent books."""
    known, todo = toy.known_states, [context]
    while todo:
        behind, mark = toy.books.trie.made_of.get(todo[-1], ((0, 0), None))
        missing = [c for c in (behind, mark[1] if isinstance(mark, tuple) else None) if c]
        missing = [c for c in missing if c not in known and c != (0, 0)]
        if missing:
            todo += missing
            continue
        before = known.get(behind, 0)
        if isinstance(mark, int):
            known[todo.pop()] = toy.model.state(before, mark)
        elif isinstance(mark, tuple):
            known[todo.pop()] = toy.model.after(before, known[mark[1]])
        else:  # a namespace, or a cut
            known[todo.pop()] = before
    return known[context]


def plain(ledger: Ledger) -> dict[str, Any]:
    """`ledger.snapshot()`, cut loose from the ledger."""
    from copy import deepcopy

    return deepcopy(ledger.snapshot())
