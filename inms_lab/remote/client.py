"""Agents of a lab in another process, for programs that load no model: no torch, no numpy.

    lab = inms_lab.connect(address)              # what `lab.serve().address` says over there
    with lab.agent("backend", groups=["checkout"]) as me:
        me.attach("checkout")
        me.read("How are prices stored?")
        print(me.write(32))

The agents live in the lab's process. Here are their leases: this process beats for them, and when
it ends, in whatever way, they end too. Errors are those of the engine, by class.
"""

from __future__ import annotations

import atexit
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from inms_lab.errors import BadInput, InmsError, LabClosed, LabUnreachable, MessageRefused
from inms_lab.output import Output
from inms_lab.remote import wire
from inms_lab.remote.line import Line

GOODBYE = 1.0  # seconds that an exit waits for the lab

_CLIENTS: set[Client] = set()  # not closed yet


def connect(address: str, timeout: float = 5.0) -> Client:
    """A client of the lab that serves at `address`. Raises `BadInput` for what is no address,
    `LabUnreachable` where nobody answers within `timeout` seconds, `MessageRefused` for a foreign
    token."""
    kind, place, token = wire.split(address)
    family = socket.AF_INET if kind == "tcp" else getattr(socket, "AF_UNIX", None)
    if family is None:
        raise BadInput("this system has no sockets in the file system: `lab.serve(tcp=True)`")
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(("127.0.0.1", int(place)) if kind == "tcp" else place)
    except (OSError, ValueError) as error:
        sock.close()
        why = getattr(error, "strerror", None) or error
        raise LabUnreachable(
            f"no lab serves at this address ({why}): ask it for a new one"
        ) from None
    return Client(Line(sock), token, timeout)


class Client:
    """A connection to one lab. Its agents end with `close`, or when this process ends."""

    def __init__(self, line: Line, token: str, timeout: float) -> None:
        self._line = line
        try:
            interval = line.ask("hello", timeout, version=wire.VERSION, token=token)
            if not (isinstance(interval, float) and interval > 0):
                raise MessageRefused("what answers at this address is no lab")
        except BaseException:
            line.end(LabUnreachable("this client was never let in"))
            raise
        line.greeted(interval)
        atexit.unregister(_goodbye)
        atexit.register(_goodbye)  # once
        _CLIENTS.add(self)

    def agent(self, name: str, *, groups: Sequence[str] = ()) -> RemoteAgent:
        """A new agent of the lab, with a lease that this process holds. As `lab.agent`."""
        if not isinstance(groups, (list, tuple)):
            raise BadInput(f"groups is a list of names, not {groups!r}")
        made = self._line.ask("open", name=name, groups=list(groups))
        return RemoteAgent(self._line, name, *made)

    def close(self) -> None:
        """End its agents, and leave."""
        _CLIENTS.discard(self)
        if self._line.is_ours:
            with suppress(InmsError):
                self._line.ask("bye", GOODBYE)
            self._line.end(LabClosed("this client is closed: connect again"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteAgent:
    """An agent of a lab in another process. Its methods wait for their answers; several threads may
    call several agents at once."""

    def __init__(self, line: Line, name: str, agent: int, epoch: int) -> None:
        self.name, self.epoch = name, epoch
        self._line, self._agent = line, agent
        self._number = 0
        line.beating[agent] = epoch

    def __repr__(self) -> str:
        return f"<remote agent {self.name}, epoch {self.epoch}>"

    def read(self, text: str | Sequence[int], *, role: str | None = "user") -> int:
        """Take a text (or token ids) into the context, privately; gives the context's length."""
        return int(self._ask("read", text=_plain(text), role=role))

    def attach(self, group: str) -> int:
        """Take the records of a team that it has not read yet into the context, by reference."""
        return int(self._ask("attach", group=group))

    def write(
        self,
        max_tokens: int = 48,
        *,
        role: str | None = "assistant",
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: bool = True,
        on_token: Callable[[str], None] | None = None,
    ) -> Output:
        """Generate up to `max_tokens` tokens, privately, and wait for them. `on_token` gets each
        piece of text, on the thread that waits. As `Agent.write`."""
        options = {"role": role, "temperature": temperature, "top_p": top_p, "seed": seed}
        if on_token is not None and not callable(on_token):
            raise BadInput(f"on_token must be a function of a piece of text, not {on_token!r}")
        text, tokens = self._ask(
            "write",
            on_token,
            max_tokens=max_tokens,
            stop=stop,
            stream=on_token is not None,
            **options,
        )
        return Output.of(text, tokens)

    def publish(self, group: str, text: str | Sequence[int], *, role: str | None = "user") -> str:
        """Make a text readable by a whole team; gives the record's name. As `team.publish`."""
        return str(self._ask("publish", group=group, text=_plain(text), role=role))

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        self._ask("rollback", num_tokens=num_tokens)

    def fork(self) -> RemoteAgent:
        """Another sequence of the same principal with the same context, and a lease of its own."""
        return RemoteAgent(self._line, self.name, *self._ask("fork"))

    @property
    def text(self) -> str:
        """Its whole context as text."""
        return str(self._ask("text"))

    @property
    def tokens(self) -> list[int]:
        """The token ids of its whole context."""
        return list(self._ask("tokens"))

    @property
    def state(self) -> str:
        """Its state in the lifecycle."""
        return str(self._ask("state"))

    def close(self) -> None:
        """End it: its private blocks go back at once."""
        self._ask("close")
        self._line.beating.pop(self._agent, None)

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(InmsError):  # it has ended in another way
            self.close()

    def _ask(self, op: str, hear: Callable[[str], None] | None = None, **fields: Any) -> Any:
        try:
            return self._line.ask(op, None, hear, self._to, **fields)
        except BaseException as error:  # an interrupt, or what `hear` raised: it is not wanted now
            if self._line.is_ours and not isinstance(error, InmsError):
                self._line.tell("stop", self._to)
            raise

    def _to(self) -> dict[str, int]:
        """Who is meant; called by one thread at a time, in the order in which requests go out."""
        self._number += 1
        return {"agent": self._agent, "epoch": self.epoch, "number": self._number}


def _plain(text: str | Sequence[int]) -> str | list[int]:
    """What can be sent of a text; published output keeps its token ids."""
    if isinstance(text, str):
        return list(text.tokens) if isinstance(text, Output) else str(text)
    try:
        return list(text)
    except TypeError:
        raise BadInput(f"text or a list of token ids is wanted, not {text!r}") from None


def _goodbye() -> None:
    """The process ends in order: its agents need not wait for their leases to run out."""
    for client in list(_CLIENTS):
        client.close()
