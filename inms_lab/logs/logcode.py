"""Events, decisions and snapshots as plain JSON data, and back, with every type checked.

    row     a frozen value of ours: a list of its fields in order; bytes as hex, tuples as lists
    packed  any part of a snapshot: what JSON lacks is an object with one key that names its type
What is read is only ever compared with the declared types and handed to our own constructors: a
file cannot name a class that is not ours, and nothing in it is run. Wrong data is a `ValueError`
that says what was expected.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from inms_lab.books.events import EVENT_TYPES, Commanded, Event, PoolOpened, Released
from inms_lab.decisions.outcome import Decided, Decision

Reader = Callable[[Any], Any]
NEW_FIELDS = {Commanded: 3, Released: 1}  # behind those that a file of version 1 has
LARGEST = 1 << 31  # numbers of events have 32 bits
PLAIN = (bool, int, float, str, type(None))  # what JSON has of its own


def row(value: Any) -> Any:
    """A frozen value's fields, or a field of one, as JSON data."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [row(part) for part in value]
    if isinstance(value, PLAIN):
        return value
    return [row(getattr(value, name)) for name in type(value).__slots__]


def event_row(event: Event) -> list[Any]:
    """An event as `[type name, fields ...]`."""
    return [type(event).__name__, *row(event)]


def event_of(data: Any) -> Event:
    """The event that `event_row` gave this list for."""
    if not isinstance(data, list) or not data or data[0] not in _EVENTS:
        name = data[0] if isinstance(data, list) and data else data
        raise ValueError(f"no event is called {name!r:.40}")
    event: Event = _EVENTS[data[0]](data[1:])
    return event


def decided_of(data: Any) -> Decided:
    """The decision that `row` gave this list for."""
    decided: Decided = _DECIDED(data)
    return decided


def pack(value: Any) -> Any:
    """Any plain value of ours, losslessly."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list):
        return [pack(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [pack(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(part)] for key, part in value.items()]}
    if isinstance(value, frozenset):
        return {"set": [pack(part) for part in sorted(value)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, array) and value.typecode == "i":
        return {"ints": value.tolist()}
    if isinstance(value, PoolOpened):
        return {"pool": event_row(value)}
    raise ValueError(f"a {type(value).__name__} is no plain data")


def unpack(data: Any) -> Any:
    """The value that `pack` gave this for."""
    if isinstance(data, PLAIN):
        return data
    if isinstance(data, list):
        return [unpack(part) for part in data]
    ((kind, part),) = data.items()
    if kind == "dict":
        return {unpack(key): unpack(value) for key, value in part}
    return _UNPACK[kind](part)


def ints(data: Any) -> array[int]:
    """Token ids: a list of whole numbers of 32 bits."""
    if not isinstance(data, list) or not all(type(part) is int for part in data):
        raise ValueError("token ids are a list of whole numbers")
    try:
        return array("i", data)
    except OverflowError:
        raise ValueError("a token id is too large") from None


def _exactly(kind: type) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise ValueError(f"{data!r:.40} is no {kind.__name__}")
        return data

    return read


def _int(data: Any) -> int:
    if type(data) is not int or not -LARGEST <= data < LARGEST:
        raise ValueError(f"{data!r:.40} is no whole number of 32 bits")
    return data


def _bytes(data: Any) -> bytes:
    if type(data) is not str:
        raise ValueError(f"{data!r:.40} is no hex string")
    return bytes.fromhex(data)


def _list(data: Any) -> list[Any]:
    if type(data) is not list:
        raise ValueError(f"{data!r:.40} is no list")
    return data


def _reader(kind: Any) -> Reader:
    """What reads a field of the declared type `kind`."""
    if kind in (bytes, int):
        return _bytes if kind is bytes else _int
    if get_origin(kind) is not tuple:
        return _values(kind) if kind is Decision else _exactly(kind)
    parts = get_args(kind)
    if parts[1:] == (...,):
        each = _reader(parts[0])
        return lambda data: tuple(map(each, _list(data)))
    readers = [_reader(part) for part in parts]
    return lambda data: tuple(r(d) for r, d in zip(readers, _list(data), strict=True))


def _values(kind: type) -> Reader:
    """What reads a row of the dataclass `kind`."""
    hints = get_type_hints(kind)
    readers = [_reader(hints[f.name]) for f in fields(kind)]
    if kind is Decided:  # a budget may stand for no bound at all
        readers[[f.name for f in fields(kind)].index("budget")] = _exactly(int)
    least = len(readers) - NEW_FIELDS.get(kind, 0)  # a file of version 1 has none of these

    def read(data: Any) -> Any:
        if not least <= len(_list(data)) <= len(readers):
            raise ValueError(f"{kind.__name__} has {len(readers)} fields, not {len(data)}")
        return kind(*[reader(part) for reader, part in zip(readers, data, strict=False)])

    return read


_EVENTS = {kind.__name__: _values(kind) for kind in EVENT_TYPES}
_DECIDED = _values(Decided)
_UNPACK: dict[str, Reader] = {
    "tuple": lambda data: tuple(map(unpack, _list(data))),
    "set": lambda data: frozenset(map(unpack, _list(data))),
    "bytes": _bytes,
    "ints": ints,
    "pool": lambda data: _EVENTS["PoolOpened"](_list(data)[1:]),
}
