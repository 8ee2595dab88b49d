"""One client on the lab's side: its agents, and what its requests ask of the lab.

Requests are taken in on the service's thread and carried out on the lab's, in the order of their
arrival. Whatever a client sends, it can only touch agents that it opened itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

from inms_lab.books.lifecycle import LIVE
from inms_lab.errors import (
    BadInput,
    InmsError,
    LeaseExpired,
    MessageRefused,
    StepInterrupted,
    UnknownGroup,
)
from inms_lab.leases import Lease
from inms_lab.notebook.agent import Agent
from inms_lab.output import Output
from inms_lab.remote import wire
from inms_lab.serving.commands import entry
from inms_lab.serving.pending import Pending
from inms_lab.serving.request import Request

if TYPE_CHECKING:
    from inms_lab.notebook.lab import Lab
    from inms_lab.notebook.service import Service

Message = dict[str, Any]


class Session:
    """What one connection has opened and asked for. `send` puts a message on the way, from any
    thread."""

    def __init__(self, service: Service, send: Callable[[Message], None]) -> None:
        self.service, self.lab, self.send = service, service.lab, send
        self.agents: dict[int, tuple[Agent, Lease]] = {}
        self.numbers: dict[int, int] = {}  # of each agent's newest request
        self.taken: set[int] = set()  # requests that are not answered yet
        self.waiting: dict[int, int] = {}  # those that the lab knows: request -> agent, -1: none
        self.gone = False

    # the service's thread -------------------------------------------------------------------

    def take(self, message: Message) -> None:
        """A request that `wire.check` let through. Raises what its sender is to be told."""
        if message["op"] == "beat":
            beat = self.lab.keeper.leases.beat
            mine = self.agents
            lost = [p for p in message["agents"] if p[0] not in mine or not beat(*p)]
            self.send({"id": message["id"], "ok": lost})
            return
        if message["op"] == "hello":
            raise MessageRefused("this client has said hello already")
        if message["id"] in self.taken:
            raise MessageRefused(f"request {message['id']} is being carried out: a duplicate")
        if len(self.taken) >= wire.MAX_WAITING:
            raise MessageRefused(f"{wire.MAX_WAITING} requests wait already: await their answers")
        if "agent" in message:
            self._number(message["agent"], message["number"])
        self.taken.add(message["id"])  # first: it may be answered at once
        self.lab.driver.post(partial(self._act, message))

    def _number(self, agent: int, number: int) -> None:
        if agent not in self.numbers:
            raise LeaseExpired(f"agent {agent} is not, or no longer, one of this client's")
        if number <= self.numbers[agent]:
            raise MessageRefused(
                f"request number {number} of agent {agent} came after number "
                f"{self.numbers[agent]}: it is a duplicate, or late"
            )
        self.numbers[agent] = number

    # the lab's thread -----------------------------------------------------------------------

    def _act(self, message: Message) -> None:
        if self.gone:
            return
        op, number = message["op"], message["id"]
        self.waiting[number] = message.get("agent", -1)
        try:
            self.lab.driver.refuse_closed()
            if "agent" in message:
                agent, lease = self._own(message["agent"], message["epoch"])
                found = getattr(self, f"_{op}")(agent, lease, message)
            else:
                found = getattr(self, f"_{op}")(message)
        except Exception as error:
            self.answer(number, error=error)
        else:
            if isinstance(found, Pending):
                found.tell(partial(self.answer, number))
            else:
                self.answer(number, found)
        if self.waiting:
            self.service.drive()

    def _own(self, agent: int, epoch: int) -> tuple[Agent, Lease]:
        self.lab.keeper.leases.require(agent, epoch)
        if agent not in self.agents:
            raise LeaseExpired(f"agent {agent} is not, or no longer, one of this client's")
        return self.agents[agent]

    def answer(self, number: int, value: Any = None, error: BaseException | None = None) -> None:
        """Answer a request, once: a later answer to it is nobody's."""
        if self.waiting.pop(number, None) is None:
            return
        self.taken.discard(number)
        if isinstance(error, CancelledError):
            error = StepInterrupted("this request was cancelled")
        if error is not None:
            self.send({"id": number, "error": wire.told(error)})
            return
        if isinstance(value, Agent):  # a fork
            value = self._adopt(value)
        elif isinstance(value, Output):
            value = [str(value), value.tokens]
        self.send({"id": number, "ok": value})

    def give_up(self, error: BaseException) -> None:
        """Nobody drives on: what waits is answered with `error`, and none of it happens later."""
        for number, agent in list(self.waiting.items()):
            if agent in self.agents:
                stop(self.lab, agent, error if isinstance(error, Exception) else None)
            self.answer(number, error=error)

    def leave(self, verb: str, cause: str) -> None:
        """The client is gone: its agents end. Where `auto_recovery` is off those whose client died
        are marked, and stay."""
        self.gone = True
        keeper, self.waiting = self.lab.keeper, {}
        for agent, lease in list(self.agents.values()):
            if verb == "expire":
                keeper.leases.lapse(lease.holder, lease.epoch, cause)
                stop(self.lab, agent.seq_id, None)
            else:
                keeper.end(lease, verb, cause)
        if verb == "expire" and self.agents:
            keeper.tick()
        self.agents, self.numbers = {}, {}

    # operations -----------------------------------------------------------------------------

    def _adopt(self, agent: Agent) -> list[int]:
        lease = self.lab.keeper.grant(agent)
        self.numbers[agent.seq_id] = -1
        self.agents[agent.seq_id] = (agent, lease)
        return [agent.seq_id, lease.epoch]

    def _room(self) -> None:
        if len(self.agents) >= wire.MAX_AGENTS:  # those that the lab has ended need no room
            for seq_id, (agent, _) in list(self.agents.items()):
                if agent.state not in LIVE:
                    self._drop(seq_id)
        if len(self.agents) >= wire.MAX_AGENTS:
            raise BadInput(f"a client has {wire.MAX_AGENTS} agents at most: close some")

    def _drop(self, seq_id: int) -> None:
        self.agents.pop(seq_id, None)
        self.numbers.pop(seq_id, None)

    def _open(self, message: Message) -> list[int]:
        self._room()
        return self._adopt(self.lab.agent(message["name"], groups=message["groups"]))

    def _bye(self, message: Message) -> None:
        self.leave("close", "its client said goodbye")
        self.waiting[message["id"]] = -1  # the goodbye itself is answered

    def _read(self, agent: Agent, _: Lease, message: Message) -> Pending[int]:
        return agent.read(message["text"], role=message["role"])

    def _attach(self, agent: Agent, _: Lease, message: Message) -> Pending[int]:
        return agent.attach(self._team(message["group"]))

    def _team(self, name: str) -> Any:
        groups = self.lab.home.groups  # not those of its tenants: whether they are is not told
        if name not in groups:
            raise UnknownGroup(f"there is no group {name!r} in this lab")
        return groups[name]

    def _write(self, agent: Agent, _: Lease, message: Message) -> Pending[Output]:
        names = ("role", "temperature", "top_p", "seed", "stop")
        options = {name: message[name] for name in names}
        if message["stream"]:
            options["on_token"] = lambda text: self.send({"id": message["id"], "piece": text})
        return agent.write(message["max_tokens"], **options)

    def _publish(self, agent: Agent, _: Lease, message: Message) -> Pending[str]:
        team = self._team(message["group"])
        record, done = team.publishing(message["text"], by=agent, role=message["role"])
        return Pending(self.lab.driver, done.future, lambda _: record.name)

    def _rollback(self, agent: Agent, _: Lease, message: Message) -> Pending[None]:
        return agent.rollback(message["num_tokens"])

    def _fork(self, agent: Agent, _: Lease, message: Message) -> Pending[Agent]:
        self._room()
        return agent.fork()

    def _text(self, agent: Agent, *_: object) -> str:
        return agent.text

    def _tokens(self, agent: Agent, *_: object) -> list[int]:
        return agent.tokens

    def _state(self, agent: Agent, *_: object) -> str:
        return agent.state

    def _stop(self, agent: Agent, _: Lease, message: Message) -> None:
        stop(self.lab, agent.seq_id, StepInterrupted("its client was interrupted"))

    def _close(self, agent: Agent, lease: Lease, message: Message) -> Pending[None]:
        pending = agent.close()

        def closed(_: None) -> None:
            self.lab.keeper.leases.release(lease.holder, lease.epoch, "closed")
            self._drop(agent.seq_id)

        return Pending(self.lab.driver, pending.future, closed)


def stop(lab: Lab, seq_id: int, error: Exception | None) -> None:
    """What one agent generates ends here, and what it asked for is answered with `error` (lab's
    thread only). The agent stays."""
    engine = lab.engine
    seq = engine.ledger.sequences[seq_id]
    if seq.is_asked and lab.violation is None:
        where = (engine.ledger, engine.log, engine.policy)
        engine.cache.commit(entry(*where, Request(seq_id, "stop"), engine.context, engine.terms))
    engine.desk.drop(seq_id, error or InmsError("its client is gone"))
    lab.driver.awake.set()
