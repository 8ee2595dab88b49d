"""Threads over one lab, interleaved at random; the toy model's KV is a witness of its context."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

from interleaved import Border, Chance, together
from toy import ToyModel

from inms_lab.config import Config
from inms_lab.errors import AgentClosed, BadInput, PoolExhausted, RecordSuperseded
from inms_lab.logs import audit
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.group import Group
from inms_lab.notebook.lab import Lab
from inms_lab.serving.request import Request

OLD, NEW = [1, 1, 1, 1], [2, 2, 2, 2]


class Yielding(ToyModel):
    """Others get a turn within a forward, between two holders."""

    chance: Callable[[], None] = staticmethod(lambda: None)

    def _read(self, span: Any, store: Any) -> int:
        self.chance()
        return super()._read(span, store)


class LabThreads:
    """One lab, and rounds of threads that use it."""

    def __init__(self, seed: int, left_out: bool = False) -> None:
        self.chance = Chance(seed)
        model = Yielding()
        model.chance = self.chance  # type: ignore[method-assign]
        config = Config(4, 4, 16, 1000, 64, 200, 160)
        self.lab = Lab(model, config=config, gate=None)
        self.lab.preload([3, 1, 4, 1, 3], progress=False)
        self.team = self.lab.group("t")
        self.lab.engine.cache.lock = Border(self.chance, left_out)  # type: ignore[assignment]
        self.num_rounds = 0

    def round(self, num_threads: int = 3, num_ops: int = 5) -> None:
        """Threads with an agent each and one that only looks; all agents are closed behind it."""
        self.num_rounds += 1
        names = [f"r{self.num_rounds}.{n}" for n in range(num_threads)]
        agents, over = self.team.agents(*names, f"r{self.num_rounds}.s"), Event()
        switcher = agents.pop()
        switcher.read([4, *OLD, 4], role=None).result()
        works: list[Callable[[], object]] = [
            lambda a=agent: self.use(a, self.team, num_ops)  # type: ignore[misc]
            for agent in agents
        ]
        works += [lambda: self.switch(switcher, over), lambda: self.look(switcher, over)]
        errors = together(works)
        if errors:
            raise errors[0]
        for agent in [*self.lab.agents.values(), *self.lab.forks]:
            with suppress(AgentClosed):
                agent.close().result()
        self.lab.forks.clear()

    def use(self, agent: Agent, team: Group, num_ops: int) -> None:
        """Random verbs; what the agent has then is what it asked for, in order."""
        rng, own = self.chance.rng, list(agent.lab.prompts[0].tokens)
        assert agent.read([1], role=None).result() == len(own) + 1
        own.append(1)
        for _ in range(num_ops):
            drawn = rng.random()
            try:
                if drawn < 0.3:
                    own += self.read(agent, rng)
                elif drawn < 0.5:
                    own += agent.write(rng.randrange(1, 4), role=None).result().tokens
                elif drawn < 0.6 and len(own) > 1:
                    count = rng.randrange(1, 1 + min(6, len(own) - 1))
                    agent.rollback(count).result()
                    del own[-count:]
                elif drawn < 0.7:
                    fork = agent.fork().result()
                    fork.read([2, 3], role=None).result()
                    assert fork.tokens == [*own, 2, 3]
                    fork.close()
                elif drawn < 0.85:
                    self.publish(agent, team, rng)
                else:
                    with suppress(RecordSuperseded):
                        agent.attach(team).result()
                    own = agent.tokens
            except PoolExhausted:
                return
            self.chance()
            assert agent.tokens == own, "its context is not what it asked for"
            assert agent.state == "ready"

    def read(self, agent: Agent, rng: random.Random) -> list[int]:
        """Several texts at once: answered in the order in which they were asked."""
        texts = [[rng.randrange(5) for _ in range(rng.randrange(1, 7))] for _ in range(3)]
        pending = [agent.read(text, role=None) for text in texts]
        lengths = [one.result() for one in reversed(pending)]
        assert lengths == sorted(lengths, reverse=True), "requests overtook each other"
        return [token for text in texts for token in text]

    def publish(self, agent: Agent, team: Group, rng: random.Random) -> None:
        """A new record, or a new version of one."""
        text = [rng.randrange(5) for _ in range(rng.randrange(2, 7))]
        old = rng.choice(team.records) if len(team.records) > 2 else None
        with suppress(RecordSuperseded, BadInput):
            team.publish(text, by=agent, replaces=old)

    def switch(self, agent: Agent, over: Event) -> None:
        """Replace four tokens in the middle again and again."""
        try:
            start = len(agent.tokens) - 5
            for number in range(8):
                text: Sequence[int] = OLD if number % 2 else NEW
                request = Request(agent.seq_id, "rewrite", list(text), start=start, count=4)
                agent.ask(request).result()
        finally:
            over.set()

    def look(self, agent: Agent, over: Event) -> None:
        """Whoever looks sees the context before an edit or behind it, never half of it."""
        at = len(self.lab.prompts[0].tokens)
        whole = ([4, *OLD, 4], [4, *NEW, 4])
        while not over.is_set():
            found = agent.tokens[at:]
            assert found in whole, f"a torn context: {found}"
            assert agent.outdated == []
            assert repr(self.lab)
            self.chance()

    def end(self) -> None:
        """Balanced books, equal to what the log makes of them; no request is left."""
        lab = self.lab
        assert not lab.engine.desk.queues
        assert not lab.engine.desk.running
        assert audit.faults(lab.engine.ledger) == []
        assert lab.log.replay().snapshot() == lab.engine.ledger.snapshot()
        lab.assert_clean()
