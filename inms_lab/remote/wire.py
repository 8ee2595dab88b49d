"""What is said between an agent's process and the lab's: a JSON object a line, checked on arrival.

    request   {"id": 7, "op": "read", ...the fields of OPS["read"]}
    answer    {"id": 7, "ok": value} or {"id": 7, "error": [class name, message]}
    piece     {"id": 7, "piece": "some text"}, any number of them before the answer to a write
    notice    {"id": null, "error": [class name, message]}: of the connection, which then ends, or
              about a line that was no request

`agent` is the number that `open` gave, `epoch` that of its lease, and `number` counts an agent's
requests upwards: a duplicate, or one that comes late, is known by it. Requests are carried out in
their order; text, tokens, state and stop do not wait for what is still being computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from inms_lab import errors
from inms_lab.errors import BadInput, InmsError, MessageRefused

VERSION = 1
LIMIT = 1 << 20  # bytes of one line, either way
MAX_AGENTS = 256  # of one client
MAX_WAITING = 256  # requests of one client without an answer
MAX_NUMBER = 1 << 53  # what every JSON reader keeps exactly

Check = Callable[[Any], bool]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER


def _whole(value: Any) -> bool:
    return type(value) is int and -MAX_NUMBER < value < MAX_NUMBER


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER and math.isfinite(value)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    """A string of whole characters: halves of a pair are none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _role(value: Any) -> bool:
    return value is None or _text(value)


def _words(value: Any) -> bool:
    return _text(value) or (isinstance(value, list) and all(map(_whole, value)))


def _names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_AGENTS and all(map(_text, value))


def _pairs(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_AGENTS
        and all(isinstance(p, list) and len(p) == 2 and all(map(_count, p)) for p in value)
    )


_TO: dict[str, Check] = {"agent": _count, "epoch": _count, "number": _count}

OPS: dict[str, dict[str, Check]] = {
    "hello": {"version": _count, "token": _text},
    "beat": {"agents": _pairs},  # -> those whose lease is no longer live
    "bye": {},  # every agent of this client is closed
    "open": {"name": _text, "groups": _names},  # -> [agent, epoch]
    "read": _TO | {"text": _words, "role": _role},  # -> tokens of the context
    "attach": _TO | {"group": _text},  # -> tokens of the context
    "write": _TO
    | {"max_tokens": _whole, "role": _role, "temperature": _number, "top_p": _number}
    | {"seed": _whole, "stop": _flag, "stream": _flag},  # -> [text, token ids]
    "publish": _TO | {"group": _text, "text": _words, "role": _role},  # -> the record's name
    "rollback": _TO | {"num_tokens": _whole},
    "fork": _TO,  # -> [agent, epoch]
    "text": _TO,
    "tokens": _TO,
    "state": _TO,
    "stop": _TO,  # what the agent has asked for and is not answered yet is given up
    "close": _TO,
}


def encode(message: dict[str, Any]) -> bytes:
    """One line. Raises `MessageRefused` for what is longer than the limit, or no JSON."""
    try:
        line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageRefused(f"this cannot be sent to another process: {error}") from None
    if len(line) > LIMIT:
        raise MessageRefused(
            f"a message of {len(line):,} bytes is longer than {LIMIT:,}: send it in parts"
        )
    return line


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """The object of one line. Raises `MessageRefused`."""
    try:
        message = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested without end
        raise MessageRefused("a message is one line with one JSON object in UTF-8") from None
    if not isinstance(message, dict):
        raise MessageRefused(f"a message is a JSON object, not a {type(message).__name__}")
    return message


def _refuse(word: str) -> None:
    raise ValueError(word)


def check(message: dict[str, Any]) -> str:
    """The operation that a request asks for. Raises `MessageRefused` unless each field is there and
    has its type, and no other is."""
    if not _count(message.get("id")):
        raise MessageRefused("a request has an id: a whole number from 0 on")
    op = message.get("op")
    if not isinstance(op, str) or op not in OPS:
        raise MessageRefused(f"the op of a request is one of: {', '.join(OPS)}")
    fields = OPS[op]
    wrong = [name for name in fields if name not in message or not fields[name](message[name])]
    more = sorted(set(message) - set(fields) - {"id", "op"})
    if wrong or more:
        told = [f"{name} is missing or of the wrong type" for name in wrong]
        told += [f"{name[:40]!r} is no field of it" for name in more[:3]]
        raise MessageRefused(f"{op}: {'; '.join(told)}")
    return op


def told(error: BaseException) -> list[str]:
    """An error as its class name and message: of this project's classes, the nearest one."""
    kind = next((k for k in type(error).__mro__ if known(k)), None)
    if kind is None:
        return ["InmsError", f"{type(error).__name__}: {error}"]
    return [kind.__name__, str(error)]


def known(kind: type) -> bool:
    """Whether the other side knows this class by its name."""
    return issubclass(kind, InmsError) and getattr(errors, kind.__name__, None) is kind


def error_of(found: Any) -> InmsError:
    """The exception that a class name and a message stand for."""
    if not (isinstance(found, list) and len(found) == 2 and all(map(_text, found))):
        return MessageRefused("the lab's process answered with something that is no error")
    kind = getattr(errors, found[0], None)
    fits = isinstance(kind, type) and issubclass(kind, InmsError)
    return kind(found[1]) if fits else InmsError(found[1])  # type: ignore[misc, no-any-return]


def address(kind: str, place: str, token: str) -> str:
    """Where a lab serves, as one word."""
    return f"{kind}:{place}#{token}"


def split(where: str) -> tuple[str, str, str]:
    """Kind (unix or tcp), place (a path, or a port of this machine) and token of an address."""
    kind, _, rest = where.partition(":") if isinstance(where, str) else ("", "", "")
    place, _, token = rest.rpartition("#")
    port = place.isascii() and place.isdecimal() and 0 < int(place[:6]) < 1 << 16
    if token and place and (kind == "unix" or (kind == "tcp" and port)):
        return kind, place, token
    raise BadInput(
        "an address is what `lab.serve().address` says: 'unix:PATH#...' or 'tcp:PORT#...'"
    )
