"""A log as a file: gzip of JSON lines, the same bytes for the same log, read without trust.

    line 1   {"format": "inms-log", "version": 2, "first", "num_events", "num_tokens", "redacted",
             "about"}
    then     {"snapshot": the books at `first`, or null}
             the log's parts, as logparts.py lists them
    last     {"end": {"events", "tokens", "decisions"}}, so that a file which was cut off is noticed
`logcode.py` says how values become JSON; a file is written beside its place and then moved there.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inms_lab.errors import (
    BadInput,
    LogCutShort,
    LogDamaged,
    LogTooLarge,
    LogUnreadable,
    LogVersionUnknown,
    NotALog,
)
from inms_lab.logs.log import Log
from inms_lab.logs.logcode import event_row, pack, row
from inms_lab.logs.logparts import (
    FLOOR,
    MASKED,
    RATIO,
    UNKNOWN,
    WRONG,
    Parts,
    dumped,
    occurring,
    parsed,
    piece_line,
    token_lines,
)

__all__ = ["MASKED", "UNKNOWN", "load", "save"]
FORMAT, VERSION, READS = "inms-log", 2, (1, 2)
MAX_BYTES = 2 << 30  # of JSON, before compression
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
        from inms_lab.logs.redact import redacted

        log = redacted(log, keep)
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            for line in _lines(log, redact):
                file.write(dumped(line) + b"\n")
        part.replace(path)
    except (TypeError, ValueError) as error:
        raise BadInput(f"this log cannot be written as JSON: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def load(path: str | Path, max_bytes: int | None = None) -> Log:
    """The log in the file at `path`, or a `LogUnreadable` that says what is wrong with it.

    `max_bytes`: of JSON text; a file that unpacks to more is not read to its end. Without it, far
    more than logs do: a small file that unpacks to very much is no log.
    """
    reader = _Reader(Path(path))
    if max_bytes is None:
        max_bytes = min(MAX_BYTES, FLOOR + RATIO * Path(path).stat().st_size)
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
    yield from token_lines(log.tokens)
    if log.piece is not None:
        yield piece_line(log.piece, {*log.tokens, *occurring(snapshot)})
    for decided in log.decisions:
        yield {"decided": row(decided)}
    yield {"durations": {str(step): seconds for step, seconds in log.durations.items()}}
    yield {"errors": {str(seq_id): told for seq_id, told in log.errors.items()}}
    yield from map(event_row, log.events)
    yield {"end": _counts(log)}


def _counts(log: Log) -> dict[str, int]:
    sizes = {"events": len(log.events), "tokens": len(log.tokens)}
    return sizes | {"decisions": len(log.decisions)}


class _Reader:
    """The lines that were read so far, and the log that comes of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = self.num_bytes = 0
        self.header: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None
        self.parts = Parts()
        more: dict[str, Callable[[Any], None]]
        more = {"snapshot": self.parts.snapshot, "end": self._end}
        self.parts.sections |= more

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
            data = parsed(line)
            self._header(data) if self.num_lines == 0 else self._body(data)
        except LogUnreadable:
            raise
        except WRONG as error:
            if self.num_lines == 0:
                raise NotALog(f"{self.path} is no log: its first line is no header") from None
            raise LogDamaged(self.at(f"damaged: {error!s:.300}")) from None
        self.num_lines += 1

    def finish(self) -> Log:
        """The log, when the file has ended."""
        if self.num_lines == 0:
            raise LogCutShort(f"{self.path} is empty: copy it again")
        if self.end is None:
            raise LogCutShort(self.at("the end line is missing: copy the file again"))
        if (wrong := self.parts.impossible()) is not None:
            raise LogDamaged(f"{self.path}: damaged: {wrong:.300}: copy the file again")
        return self.parts.log

    def _header(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise NotALog(f"{self.path} is no log of this program: its first line does not say so")
        if data.get("version") not in READS:
            found = f"this file is of version {data.get('version')!r:.20}"
            raise LogVersionUnknown(
                f"{self.path}: {found}, this program reads {VERSION}: update it"
            )
        self.header = data
        data["first"], data["about"]  # without them it is no header at all
        try:
            self.parts.begin(data)
        except ValueError as error:
            raise LogDamaged(self.at(f"damaged: {error}")) from None

    def _body(self, data: Any) -> None:
        is_snapshot = isinstance(data, dict) and "snapshot" in data
        if is_snapshot != (self.num_lines == 1):
            raise ValueError("the snapshot is on line 2, and only there")
        self.parts.take(data)

    def _end(self, data: Any) -> None:
        found = _counts(self.parts.log)
        promised = (self.header["num_events"], self.header["num_tokens"])
        if data != found or promised != (found["events"], found["tokens"]):
            raise ValueError(f"the file holds {found}, not what it says")
        self.end = data
