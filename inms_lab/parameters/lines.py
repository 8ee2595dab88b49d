"""Lines between agents' processes, over which tensors go by reference.

out, into = ada.line_to(ben)
ada.run(tell, out)    # def tell(model, out): out.send({"kv": kv}), an `Outbox` there
ben.run(hear, into)   # def hear(model, into): kv = into.receive()["kv"], an `Inbox` there
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from inms_lab.errors import AgentClosed, BadInput
from inms_lab.parameters.child import Me
from inms_lab.parameters.inbox import Inbox
from inms_lab.parameters.postbox import Outbox
from inms_lab.parameters.travel import file_from

if TYPE_CHECKING:
    from inms_lab.parameters.agent import AgentProcess

OUTBOX, INBOX = "outbox", "inbox"
_HERE: dict[tuple[int, str], Outbox | Inbox] = {}  # the ends of lines that this process has


class End:
    """One end of a line, as the agents' creator has it. In the agent that it belongs to, it arrives
    as its `Outbox` or `Inbox`; passed to another one, it raises `BadInput` there. A line that is of
    use no more is closed at one of its ends; else it ends with the agents."""

    def __init__(self, number: int, agent: AgentProcess, way: str) -> None:
        self.number, self.way, self._agent = number, way, agent

    def __repr__(self) -> str:
        return f"<{self.way} of {self._agent.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _here, (self.number, self._agent.name, self.way)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self!r} has no {name} here: pass it to {self._agent.name}.run(...), where it is one"
        )

    def close(self) -> None:
        """The agent lets its end go, when it has done what it was asked before."""
        with suppress(AgentClosed):
            self._agent._start(drop, self.number, self.way)


def _here(number: int, owner: str, way: str) -> Outbox | Inbox:
    if (number, way) not in _HERE:
        raise BadInput(f"the {way} of {owner} is of use to it alone: pass it to {owner}.run(...)")
    return _HERE[number, way]


def keep_outbox(me: Me, number: int, budget: int) -> None:
    """An agent gets the sending end, which comes over its line."""
    _HERE[number, OUTBOX] = Outbox(_came(me), budget)


def keep_inbox(me: Me, number: int) -> None:
    """An agent gets the receiving end."""
    _HERE[number, INBOX] = Inbox(_came(me))


def drop(me: Me, number: int, way: str) -> None:
    """An agent closes an end."""
    if (number, way) in _HERE:
        _HERE.pop((number, way)).close()


def _came(me: Me) -> socket.socket:
    return socket.socket(fileno=file_from(me.line))
