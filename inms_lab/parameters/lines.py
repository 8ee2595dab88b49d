"""Lines between agents' processes, over which tensors go by reference.

out, into = ada.line_to(ben)
ada.run(tell, out)    # def tell(model, out): out.send({"kv": kv}), an `Outbox` there
ben.run(hear, into)   # def hear(model, into): kv = into.receive()["kv"], an `Inbox` there
"""

from __future__ import annotations

import socket
from multiprocessing import reduction
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.parameters.child import Me
from inms_lab.parameters.inbox import Inbox
from inms_lab.parameters.postbox import Outbox

OUTBOX, INBOX = "outbox", "inbox"
_HERE: dict[tuple[int, str], Outbox | Inbox] = {}  # the ends of lines that this process has


class End:
    """One end of a line, as the agents' creator has it. In the agent that it belongs to, it arrives
    as its `Outbox` or `Inbox`; passed to another one, it raises `BadInput` there."""

    def __init__(self, number: int, owner: str, way: str) -> None:
        self.number, self.owner, self.way = number, owner, way

    def __repr__(self) -> str:
        return f"<{self.way} of {self.owner}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _here, (self.number, self.owner, self.way)


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


def _came(me: Me) -> socket.socket:
    return socket.socket(fileno=reduction.recv_handle(me.line))
