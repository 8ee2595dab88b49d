"""How a team's texts reach its agents: one class for each way of modes.py.

`begin` makes agents and gives them what there is at first, `hear` what replaced a decision; both
take the numbers of the agents that do so now, the deciding ones before the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inms_lab.experiment import modes
from inms_lab.experiment.tasks import READER, Decision, Team, Tokens
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.publishing.records import Record
from inms_lab.serving.pending import Pending

NAMES = ("ada", "ben", "reader")


def name_of(number: int) -> str:
    """What agent `number` is called; there may be more readers than one."""
    return NAMES[number] if number <= READER else f"{NAMES[READER]} {number - READER + 1}"


class Copies:
    """Everybody reads the decisions as its own text, and hears no news."""

    news = False
    pooled = False

    def __init__(self, lab: Lab, team: Team, num_agents: int, room: int = 0) -> None:
        """`room`: tokens that a context may take, prompt included (truncated contexts only)."""
        self.lab, self.team, self.num_agents, self.room = lab, team, num_agents, room
        self.group = lab.group("team")
        self.agents: dict[int, Agent] = {}
        self.asked: list[Pending[int]] = []  # texts that may still lack their KV
        self.is_late = False  # whether the news is out

    @property
    def reader(self) -> Agent:
        """The agent that is asked."""
        return self.agents[READER]

    def begin(self, numbers: Sequence[int]) -> None:
        """Make these agents; they read what they know of."""
        self._make(numbers)
        for number in numbers:
            own, shared = self._own(number), [d.text for d in self.team.decisions]
            for text in [*shared, *own] if number >= READER else [*own, *shared]:
                self._read(number, text)
        self._settle()

    def hear(self, numbers: Sequence[int]) -> None:
        """What replaced a decision reaches these agents, if it does."""
        self.is_late = True
        for number in numbers if self.news else ():
            for decision in self._changed():
                self._read(number, decision.changed)
        self._settle()

    def _make(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            (self.agents[number],) = self.group.agents(name_of(number))

    def _own(self, number: int) -> list[Tokens]:
        """Its private text, and in pooled contexts everybody else's."""
        others = [i for i in range(self.num_agents if self.pooled else 0) if i != number]
        return [self.team.private[min(i, READER)] for i in (number, *others)]

    def _changed(self) -> list[Decision]:
        return [decision for decision in self.team.decisions if decision.changed]

    def _read(self, number: int, text: Tokens, seal: bool = False) -> None:
        self.asked.append(self.agents[number].read(text, role=None, seal=seal))

    def _settle(self) -> None:
        """Wait until all that was read has its KV."""
        for pending in self.asked:
            pending.result()
        self.asked.clear()


class Told(Copies):
    """The same, and the news is read too."""

    news = True


class Pooled(Told):
    """The same, and everybody's private text."""

    pooled = True


class Content(Copies):
    """Authors write their decisions behind their own private text; equal text is found."""

    def begin(self, numbers: Sequence[int]) -> None:
        """Authors first: whoever computed a text first, others find it."""
        self._make(numbers)
        for number in numbers:
            for text in () if number >= READER else self._own(number):
                self._read(number, text)
        self._spread(numbers, [(d.author, d.text) for d in self.team.decisions])
        for number in numbers:
            for text in self._own(number) if number >= READER else ():
                self._read(number, text)
        self._settle()

    def hear(self, numbers: Sequence[int]) -> None:
        """The author again first."""
        self._spread(numbers, [(d.author, d.changed) for d in self._changed()])

    def _spread(self, numbers: Sequence[int], texts: list[tuple[int, Tokens]]) -> None:
        for is_author in (True, False):
            for number in numbers:
                for text in (text for author, text in texts if (number == author) is is_author):
                    self._read(number, text, seal=True)
            self._settle()


class Records(Copies):
    """Decisions are published; agents attach them, and the versions that replace them."""

    def __init__(self, lab: Lab, team: Team, num_agents: int, room: int = 0) -> None:
        super().__init__(lab, team, num_agents, room)
        self.records: list[Record] = []

    def begin(self, numbers: Sequence[int]) -> None:
        """Deciding agents think first, then publish; the reader attaches before its notes."""
        self._make(numbers)
        for number in numbers:
            for text in () if number >= READER else self._own(number):
                self._read(number, text)
        if not self.records:
            self.records = [self._publish(d, d.text) for d in self.team.decisions]
        for number in numbers:
            self.asked.append(self.agents[number].attach(self.group))
            for text in self._own(number) if number >= READER else ():
                self._read(number, text)
        self._settle()

    def hear(self, numbers: Sequence[int]) -> None:
        """Publish the new versions, once; attach them."""
        self._replace()
        for number in numbers:
            self.asked.append(self.agents[number].attach(self.group))
        self._settle()

    def _replace(self) -> None:
        if not self.is_late:
            self.is_late = True
            for decision, old in zip(self.team.decisions, self.records, strict=True):
                if decision.changed:
                    self._publish(decision, decision.changed, replaces=old)

    def _publish(self, decision: Decision, text: Tokens, **options: Any) -> Record:
        return self.group.publish(text, by=self.agents[decision.author], role=None, **options)


class Rebuilt(Records):
    """On news a context is put together anew: the records that hold, then the agent's own text."""

    def hear(self, numbers: Sequence[int]) -> None:
        """New versions, then new contexts."""
        self._replace()
        for number in numbers:
            self.agents[number].close().result()
        self._make(numbers)
        for number in numbers:
            self.asked.append(self.agents[number].attach(self.group))
            for text in self._own(number):
                self._read(number, text)
        self._settle()


class Truncated(Copies):
    """A context holds its own text and as many of the newest shared tokens as there is room for."""

    def begin(self, numbers: Sequence[int]) -> None:
        """What fits of the decisions."""
        self._fill(numbers, [d.text for d in self.team.decisions])

    def hear(self, numbers: Sequence[int]) -> None:
        """The news is newest; what is dropped moves everything behind it, so all is read again."""
        for number in numbers:
            self.agents[number].close().result()
        late = [decision.changed for decision in self._changed()]
        self._fill(numbers, [*(d.text for d in self.team.decisions), *late])

    def _fill(self, numbers: Sequence[int], shared: list[Tokens]) -> None:
        self._make(numbers)
        for number in numbers:
            own, newest = self._own(number), [token for text in shared for token in text]
            room = self.room - len(self.team.prompt) - sum(map(len, own))
            del newest[: len(newest) - max(0, room)]
            for text in [tuple(newest)] * bool(newest) + own:
                self._read(number, text)
        self._settle()


WAYS: dict[str, type[Copies]] = {
    modes.COPIES: Copies,
    modes.TOLD: Told,
    modes.CONTENT: Content,
    modes.RECORDS: Records,
    modes.REBUILT: Rebuilt,
    modes.TRUNCATED: Truncated,
    modes.POOLED: Pooled,
}
