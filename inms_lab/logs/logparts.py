"""The parts of a log as JSON lines, and a log put together from such lines, without trust.

A log file (logfile.py) and a journal (journal.py) hold the same lines, each in a frame of its own:
    {"tokens": [...]}       the token table, a few thousand ids a line
    {"pieces": {id: ...}}   base64 of the bytes that token ids stand for
    {"decided": [...]}      what planning answered, one a line
    {"durations": {step: seconds}} and {"errors": {holder: traceback}}
    [name, fields ...]      the events, one a line
Wrong data is a `ValueError`, `TypeError`, `LookupError` or `AttributeError` that says what was
expected, or a `RecursionError`: `WRONG` in short.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from inms_lab.books.events import Event, PoolOpened
from inms_lab.books.ledger import Ledger
from inms_lab.errors import InmsError
from inms_lab.logs.audit import impossible
from inms_lab.logs.log import Log
from inms_lab.logs.logcode import decided_of, event_of, ints, unpack

WRONG = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
MOST_REPLAYED = 200_000  # events up to which a file is replayed when it is read
MAX_BLOCKS = 1 << 21  # of all pools in a file: books take about 150 bytes a block
CHUNK = 4096  # token ids in a line
FLOOR, RATIO = 1 << 20, 100  # bytes that a small compressed file, and one of any size, unpacks to
MASKED, UNKNOWN = "\u2592".encode(), b"?"  # shown for a masked token, and for one without a piece


def token_lines(tokens: Any) -> Iterator[dict[str, Any]]:
    """An `array` of token ids, a few thousand a line."""
    for at in range(0, len(tokens), CHUNK):
        yield {"tokens": tokens[at : at + CHUNK].tolist()}


def piece_line(piece: Callable[[int], bytes], tokens: Iterable[int]) -> dict[str, Any]:
    """What these token ids stand for; masked ones (below 0) stand for nothing."""
    return {"pieces": {str(t): b64encode(piece(t)).decode() for t in sorted(tokens) if t >= 0}}


def occurring(snapshot: dict[str, Any] | None) -> set[int]:
    """The token ids of a snapshot's texts."""
    sequences = (snapshot or {"sequences": {}})["sequences"].values()
    segments = (segment for sequence in sequences for segment in sequence["segments"])
    return {token for segment in segments for token in segment["tokens"]}


def parsed(text: bytes) -> Any:
    """JSON, without halves of surrogate pairs and the numbers that JSON does not have. Raises one
    of `WRONG`."""
    data = json.loads(text, parse_constant=_no_constant)
    if b"\\u" in text:
        json.dumps(data, ensure_ascii=False).encode()
    return data


def dumped(data: Any) -> bytes:
    """JSON, without blanks. Raises `TypeError` or `ValueError` for what is no plain data."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


class Parts:
    """A log that is put together, line by line."""

    def __init__(self) -> None:
        self.log = Log()
        self.pieces: dict[int, bytes] = {}
        self.num_blocks = 0
        self.sections: dict[str, Callable[[Any], None]] = {
            "tokens": lambda data: self.log.tokens.extend(ints(data)),
            "pieces": self._pieces,
            "decided": lambda data: self.log.decisions.append(decided_of(data)),
            "durations": lambda data: self.log.durations.update(numbered(data, (int, float))),
            "errors": lambda data: self.log.errors.update(numbered(data, (str,))),
        }

    def begin(self, header: dict[str, Any]) -> None:
        """`first` and `about`, as a file's header says them."""
        first, about = header["first"], header["about"]
        sane = type(first) is int and first >= 0 and isinstance(about, dict)
        if not sane or type(about.get("bytes_per_token", 0)) is not int:
            raise ValueError("the header's `first` or `about`")
        self.log.first, self.log.about = first, about

    def snapshot(self, data: Any) -> None:
        """The books at `first`, as `pack` gave them."""
        snapshot = unpack(data)
        if snapshot is not None:
            for pool in snapshot["pools"].values():
                self._sized(pool["spec"])
            Ledger.replay(snapshot, (), self.log.tokens)  # its parts are all there
        fresh = Log(snapshot, first=self.log.first)
        fresh.about, self.log = self.log.about, fresh

    def take(self, data: Any) -> None:
        """The next line."""
        if isinstance(data, list):
            self.log.events.append(self._sized(event_of(data)))
            return
        (section,) = data
        self.sections[section](data[section])

    def impossible(self) -> str | None:
        """Why this log cannot have happened, in words; None: it can, or is too long to try."""
        log = self.log
        try:
            if len(log.events) <= MOST_REPLAYED:
                return impossible(log)
            log.replay(log.first)
        except (*WRONG, InmsError) as error:
            return f"the books that it begins with make no sense ({error!r:.80})"
        return None

    def _pieces(self, data: Any) -> None:
        pieces = self.pieces
        pieces.update((int(token), b64decode(text, validate=True)) for token, text in data.items())
        self.log.piece = lambda token: pieces.get(token, MASKED if token < 0 else UNKNOWN)

    def _sized(self, event: Event) -> Event:
        """The event, unless books with it would take more memory than any machine's pools need."""
        if isinstance(event, PoolOpened):
            self.num_blocks += max(0, event.num_blocks)
            if self.num_blocks > MAX_BLOCKS:
                raise ValueError(f"pools of {self.num_blocks} blocks in all (at most {MAX_BLOCKS})")
        return event


def numbered(data: Any, kinds: tuple[type, ...]) -> dict[int, Any]:
    """An object whose keys are whole numbers."""
    if not all(type(value) in kinds for value in data.values()):
        raise ValueError("a value is of the wrong type")
    return {int(number): value for number, value in data.items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
