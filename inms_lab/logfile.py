"""A log as a file: gzip of JSON lines, the same bytes for the same log, read without trust.

    line 1   {"format": "inms-log", "version": 2, "first", "num_events", "num_tokens", "redacted",
             "about"}
    then     {"snapshot": the books at `first`, or null}
             {"tokens": [...]}       the token table, a few thousand ids a line
             {"pieces": {id: ...}}   base64 of the bytes that the ids which occur stand for
             {"decided": [...]}      what planning answered, one a line
             {"durations": {step: seconds}} and {"errors": {holder: traceback}}
             [name, fields ...]      the events, one a line
    last     {"end": {"events", "tokens", "decisions"}}, so that a file which was cut off is noticed
`logcode.py` says how values become JSON. A file is written beside its place and then moved there.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inms_lab.audit import impossible
from inms_lab.errors import (
    BadInput,
    LogCutShort,
    LogDamaged,
    LogTooLarge,
    LogUnreadable,
    LogVersionUnknown,
    NotALog,
)
from inms_lab.events import Event, PoolOpened
from inms_lab.ledger import Ledger
from inms_lab.log import Log
from inms_lab.logcode import decided_of, event_of, event_row, ints, pack, row, unpack

FORMAT, VERSION, READS = "inms-log", 2, (1, 2)
MAX_BYTES = 2 << 30  # of JSON, before compression
MOST_REPLAYED = 200_000  # events up to which a file is replayed when it is read
MAX_BLOCKS = 1 << 24  # of a pool in a file
CHUNK = 4096  # token ids in a line
MASKED, UNKNOWN = "\u2592".encode(), b"?"  # shown for a masked token, and for one without a piece
# what a redacted file still tells
REDACT: dict[str, tuple[str, ...] | None] = {
    "nothing": None,
    "private": ("prompt", "released"),
    "all": (),
}


def save(log: Log, path: str | Path, redact: str = "nothing") -> None:
    """Write `log` to `path`. `redact`, what is masked: nothing; private (all text but the sealed
    prompt and what was published to a group); or all (every text)."""
    if redact not in REDACT:
        raise BadInput(f"redact is one of {', '.join(REDACT)}, not {redact!r}")
    log, keep = log.copy(), REDACT[redact]
    if keep is not None:
        from inms_lab.redact import redacted

        log = redacted(log, keep)
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            for line in _lines(log, redact):
                file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode())
                file.write(b"\n")
        part.replace(path)
    except (TypeError, ValueError) as error:
        raise BadInput(f"this log cannot be written as JSON: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def load(path: str | Path, max_bytes: int = MAX_BYTES) -> Log:
    """The log in the file at `path`, or a `LogUnreadable` that says what is wrong with it.

    `max_bytes`: of JSON text; a file that unpacks to more is not read to its end.
    """
    reader = _Reader(Path(path))
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(max_bytes - reader.num_bytes + 1):
                reader.num_bytes += len(line)
                if reader.num_bytes > max_bytes:
                    limit = f"{max_bytes} bytes of JSON: pass a larger max_bytes to read it"
                    raise LogTooLarge(f"{path} holds more than {limit}")
                reader.read(line)
    except EOFError:
        raise LogCutShort(reader.at("the file ends too early: copy it again")) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        if reader.num_lines == 0 and isinstance(error, gzip.BadGzipFile):
            raise NotALog(f"{path} is no gzip file: a log is saved with log.save(path)") from None
        raise LogDamaged(reader.at(f"the compressed data is damaged ({error})")) from None
    return reader.finish()


def _lines(log: Log, redact: str) -> Iterator[Any]:
    """The file's lines as JSON data, in order."""
    snapshot = log.snapshot
    sizes = {"first": log.first, "num_events": len(log.events), "num_tokens": len(log.tokens)}
    yield {"format": FORMAT, "version": VERSION, **sizes, "redacted": redact, "about": log.about}
    yield {"snapshot": pack(snapshot)}
    for at in range(0, len(log.tokens), CHUNK):
        yield {"tokens": log.tokens[at : at + CHUNK].tolist()}
    if log.piece is not None:
        known = sorted({t for t in _occurring(log, snapshot) if t >= 0})
        yield {"pieces": {str(t): b64encode(log.piece(t)).decode() for t in known}}
    for decided in log.decisions:
        yield {"decided": row(decided)}
    yield {"durations": {str(step): seconds for step, seconds in log.durations.items()}}
    yield {"errors": {str(seq_id): told for seq_id, told in log.errors.items()}}
    yield from map(event_row, log.events)
    yield {"end": _counts(log)}


def _counts(log: Log) -> dict[str, int]:
    sizes = {"events": len(log.events), "tokens": len(log.tokens)}
    return sizes | {"decisions": len(log.decisions)}


def _occurring(log: Log, snapshot: dict[str, Any] | None) -> set[int]:
    """The token ids of the table and of the snapshot's texts."""
    ids = set(log.tokens)
    for sequence in (snapshot or {"sequences": {}})["sequences"].values():
        ids.update(token for segment in sequence["segments"] for token in segment["tokens"])
    return ids


class _Reader:
    """The lines that were read so far, and the log that comes of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = self.num_bytes = 0
        self.header: dict[str, Any] = {}
        self.log = Log()
        self.end: dict[str, Any] | None = None
        self.sections: dict[str, Callable[[Any], None]] = {
            "snapshot": self._snapshot,
            "tokens": lambda data: self.log.tokens.extend(ints(data)),
            "pieces": self._pieces,
            "decided": lambda data: self.log.decisions.append(decided_of(data)),
            "durations": lambda data: self.log.durations.update(_numbered(data, (int, float))),
            "errors": lambda data: self.log.errors.update(_numbered(data, (str,))),
            "end": self._end,
        }

    def at(self, what: str) -> str:
        """The message `what`, with the place in the file."""
        return f"{self.path}, line {self.num_lines + 1}: {what}"

    def read(self, line: bytes) -> None:
        """The next line."""
        try:
            if not line.endswith(b"\n"):
                raise LogCutShort(self.at("the line is not finished: copy the file again"))
            if self.end is not None:
                raise ValueError("something follows the end line")
            data = json.loads(line, parse_constant=_no_constant)
            self._header(data) if self.num_lines == 0 else self._body(data)
        except LogUnreadable:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            if self.num_lines == 0:
                raise NotALog(f"{self.path} is no log: its first line is no header") from None
            raise LogDamaged(self.at(f"damaged: {error}")) from None
        self.num_lines += 1

    def finish(self) -> Log:
        """The log, when the file has ended."""
        if self.num_lines == 0:
            raise LogCutShort(f"{self.path} is empty: copy it again")
        if self.end is None:
            raise LogCutShort(self.at("the end line is missing: copy the file again"))
        wrong = impossible(self.log) if len(self.log.events) <= MOST_REPLAYED else None
        if wrong is not None:
            raise LogDamaged(f"{self.path}: damaged: {wrong}: copy the file again")
        return self.log

    def _header(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise NotALog(f"{self.path} is no log of this program: its first line does not say so")
        if data.get("version") not in READS:
            found = f"this file is of version {data.get('version')!r:.20}"
            raise LogVersionUnknown(
                f"{self.path}: {found}, this program reads {VERSION}: update it"
            )
        first, about = data["first"], data["about"]
        sane = type(first) is int and first >= 0 and isinstance(about, dict)
        if not sane or type(about.get("bytes_per_token", 0)) is not int:
            raise LogDamaged(self.at("damaged: the header's `first` or `about`"))
        self.header = data
        self.log.first, self.log.about = first, about

    def _body(self, data: Any) -> None:
        (section,) = ("event",) if isinstance(data, list) else data
        if (section == "snapshot") != (self.num_lines == 1):
            raise ValueError("the snapshot is on line 2, and only there")
        if section == "event":
            self.log.events.append(_sized(event_of(data)))
        else:
            self.sections[section](data[section])

    def _snapshot(self, data: Any) -> None:
        snapshot = unpack(data)
        if snapshot is not None:
            for pool in snapshot["pools"].values():
                _sized(pool["spec"])
            Ledger.replay(snapshot, (), self.log.tokens)  # its parts are all there
        fresh = Log(snapshot, first=self.log.first)
        fresh.about, self.log = self.log.about, fresh

    def _pieces(self, data: Any) -> None:
        pieces = {int(token): b64decode(text, validate=True) for token, text in data.items()}
        self.log.piece = lambda token: pieces.get(token, MASKED if token < 0 else UNKNOWN)

    def _end(self, data: Any) -> None:
        found = _counts(self.log)
        promised = (self.header["num_events"], self.header["num_tokens"])
        if data != found or promised != (found["events"], found["tokens"]):
            raise ValueError(f"the file holds {found}, not what it says")
        self.end = data


def _numbered(data: Any, kinds: tuple[type, ...]) -> dict[int, Any]:
    """An object whose keys are whole numbers."""
    if not all(type(value) in kinds for value in data.values()):
        raise ValueError("a value is of the wrong type")
    return {int(number): value for number, value in data.items()}


def _sized(event: Event) -> Event:
    """The event, unless books with it would take more memory than any machine's pool needs."""
    if isinstance(event, PoolOpened) and event.num_blocks > MAX_BLOCKS:
        raise ValueError(f"a pool of {event.num_blocks} blocks (at most {MAX_BLOCKS})")
    return event


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
