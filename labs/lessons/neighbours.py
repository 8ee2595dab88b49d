"""Neighbours on one machine: what a loud one does to a quiet one, and what a probe can tell.

Labs without weights, so times mean nothing: what is counted is work (tokens computed, blocks taken)
and waiting (steps). An `Attack` is a seeded script that runs against the settings of an operator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from inms_lab.books.events import Allocated, Freed, Stepped
from inms_lab.errors import InmsError
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

from .small_labs import BLOCK, WORD_BYTES, word_lab

Maker = Callable[[str], Agent]
UNIT = BLOCK * WORD_BYTES  # bytes of a block
ROUNDS = 5  # turns that each agent of the quiet tenant takes in an attack
FLOOD = 6  # texts of the loud tenant in each round
SECRETS = (
    "the vault opens at nine with the blue key",
    "the vault opens at noon with the old key",
    "the vault opens at six with the small key",
    "the vault opens at ten with the iron key",
)


def words(name: str, count: int) -> str:
    """A text of so many words, in turn a name and a number."""
    return " ".join(name if number % 2 == 0 else str(number) for number in range(count))


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn took: tokens computed and blocks taken for the agent, steps until its answer."""

    computed: int
    blocks: int
    steps: int


def turn(lab: Lab, agent: Agent, text: str) -> Turn:
    """The agent reads a text, and what that took."""
    at, steps = len(lab.log), lab.engine.ledger.num_steps
    agent.read(text, role=None).result()
    events = lab.log.since(at)
    items = [item for e in events if isinstance(e, Stepped) for item in e.items]
    mine = [e for e in events if isinstance(e, Allocated) and e.seq_id == agent.seq_id]
    return Turn(
        sum(count for seq_id, count, _, _ in items if seq_id == agent.seq_id),
        sum(len(e.blocks) for e in mine),
        lab.engine.ledger.num_steps - steps,
    )


def offices(mode: str, seed: int = 0) -> tuple[Lab, Agent, int]:
    """A lab in which a victim has read one of the `SECRETS`, an attacker in it, and which it was.

    `global`: one pool for everybody; `inms`: each of the two is a tenant. The secret is drawn from
    the seed, in each mode another time.
    """
    lab, secret = word_lab(mode), random.Random(f"{mode} {seed}").randrange(len(SECRETS))
    if mode == "global":
        victim, attacker = lab.agent("victim"), lab.agent("attacker")
    else:
        victim, attacker = (lab.tenant(name).agent("one") for name in ("victim", "attacker"))
    victim.read(SECRETS[secret], role=None).result()
    return lab, attacker, secret


@dataclass(frozen=True, slots=True)
class Setup:
    """What an operator decides, in blocks: what the quiet tenant may have in all, what each of its
    agents keeps for sure, and what the loud tenant may have."""

    quiet: int
    floor: int
    loud: int


@dataclass(frozen=True, slots=True)
class Needs:
    """A machine of `blocks` blocks. The quiet tenant has so many `agents`, who come back again and
    again, each to a context that `keeps` so many blocks. It has batch jobs too, one at a time: one
    of `burst` blocks has to find room beside them, a larger one may be refused."""

    blocks: int
    agents: int
    keeps: int
    burst: int

    @property
    def where(self) -> str:
        """As the exercise calls it."""
        return f"protect({self.blocks}, {self.agents}, {self.keeps}, {self.burst})"

    @property
    def room(self) -> int:
        """What a batch job needs beside the agents: it is promised what every agent keeps."""
        return max(self.burst, self.keeps)

    def best(self) -> Setup:
        """As little as the quiet tenant needs, so that the loud one has as much as can be."""
        quiet = self.agents * self.keeps + self.room
        return Setup(quiet, self.keeps, self.blocks - quiet)


@dataclass(slots=True)
class Fate:
    """How an attack went. `again`: tokens that agents of the quiet tenant computed again, `harmed`
    the first of them, at log index `at`; `denied`: what the quiet tenant was refused, in words;
    `refused` of `asked` texts of the loud one."""

    log: Log
    again: int = 0
    harmed: str = ""
    at: int = 0
    block: tuple[str, int] | None = None
    denied: str = ""
    refused: int = 0
    asked: int = 0


@dataclass(slots=True)
class Attack:
    """A seeded attack on one machine: the loud tenant reads texts of all sizes, as many as it can,
    while the quiet one does its work."""

    needs: Needs
    setup: Setup
    seed: int = 0
    lab: Lab = field(init=False)
    fate: Fate = field(init=False)

    def run(self) -> Fate:
        """Play it to its end. Raises `BadInput` for settings that no tenant can have."""
        rng, needs = random.Random(self.seed), self.needs
        with word_lab(num_blocks=needs.blocks, token_budget=BLOCK * needs.blocks) as self.lab:
            self.fate = Fate(self.lab.log)
            quiet, loud, floor = self.setup.quiet, self.setup.loud, self.setup.floor
            mine = self.lab.tenant("quiet", private_bytes=quiet * UNIT, floor_bytes=floor * UNIT)
            theirs = self.lab.tenant("loud", private_bytes=loud * UNIT)
            agents = self._arrive(mine.agent)
            for number in range(ROUNDS):
                if self.fate.denied or self.fate.harmed:
                    break
                self._flood(theirs.agent, number, rng)
                most = rng.randint(2, needs.agents * needs.keeps + 1)
                for size in (needs.burst, *(needs.room + more for more in (1, most))):
                    self._batch(mine.agent, number, size)
                for agent in agents:
                    self._turn(agent, number)
            self.fate.log = self.lab.log.copy()
        return self.fate

    def _arrive(self, make: Maker) -> list[Agent]:
        agents = []
        for number in range(self.needs.agents):
            try:
                agent = make(f"a{number}")
                text = words(agent.name, self.needs.keeps * BLOCK - ROUNDS)
                agent.read(text, role=None).result()
                agents.append(agent)
            except InmsError as error:
                self._deny(f"agent a{number}", error)
        return agents

    def _flood(self, make: Maker, number: int, rng: random.Random) -> None:
        """Texts from one block up to the whole machine; agents come and are not closed."""
        for count in range(FLOOD):
            size = rng.randint(1, self.needs.blocks)
            self.fate.asked += 1
            try:
                agent = make(f"l{number}.{count}")
                agent.read(words(agent.name, size * BLOCK), role=None).result()
            except InmsError:
                self.fate.refused += 1

    def _batch(self, make: Maker, number: int, size: int) -> None:
        name = f"batch{number}.{size}"
        try:
            job = make(name)
        except InmsError as error:
            self._deny(f"its batch job of {size} blocks", error)
            return
        try:
            job.read(words(name, size * BLOCK), role=None).result()
            job.close().result()
        except InmsError as error:  # it has ended with this
            if size <= self.needs.burst:
                self._deny(f"its batch job of {size} blocks", error)
            with suppress(InmsError):
                job.close().result()

    def _deny(self, who: str, error: InmsError) -> None:
        if not self.fate.denied:
            self.fate.denied, self.fate.at = f"{who}: {error}", len(self.lab.log)

    def _turn(self, agent: Agent, number: int) -> None:
        at = len(self.lab.log)
        try:
            took = turn(self.lab, agent, f"turn{number}")
        except InmsError as error:
            self._deny(f"agent {agent.name}", error)
            return
        if took.computed > 1 and not self.fate.harmed:
            self.fate.again, self.fate.harmed = took.computed - 1, agent.name
            lost = [
                (index, e)
                for index, e in enumerate(self.lab.log.since(0)[:at])
                if isinstance(e, Freed) and e.seq_id == agent.seq_id and e.blocks
            ]
            if lost:
                self.fate.at, event = lost[-1][0] + 1, lost[-1][1]
                self.fate.block = (event.pool_id, event.blocks[-1])
