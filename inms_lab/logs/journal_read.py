"""A journal read again: to its end, or to the moment at which its process died.

What was being written at that moment is an unfinished last record: it is cut, and the log's `note`
says so. Damage with whole records behind it is no death but damage: `LogDamaged`, with its place.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from inms_lab.errors import LogCutShort, LogDamaged, LogTooLarge, LogVersionUnknown, NotALog
from inms_lab.logs.journal import MAGIC, VERSION
from inms_lab.logs.log import Log
from inms_lab.logs.logparts import WRONG, Parts, parsed

MAX_BYTES = 1 << 30
HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8}) (?=[\[{])")


def read_journal(path: str | Path, max_bytes: int = MAX_BYTES) -> Log:
    """The log in the journal at `path`; also while it is being written.

    Raises `NotALog`, `LogVersionUnknown`, `LogCutShort` (it ends before the log begins),
    `LogTooLarge`, and `LogDamaged` with the byte at which something is wrong.
    """
    path = Path(path)
    if path.stat().st_size > max_bytes:
        raise LogTooLarge(f"{path} has more than {max_bytes} bytes: pass a larger max_bytes")
    reader = _Reader(path)
    with path.open("rb") as file:
        reader.begin(file.readline(64))
        while line := file.readline():
            if (text := _whole(line, reader.num_records)) is None:
                reader.cut = _to_the_end(path, file, reader.num_bytes)
                break
            reader.take(text)
            reader.num_bytes += len(line)
    return reader.finish()


def _whole(line: bytes, number: int | None) -> bytes | None:
    """A line's JSON, if it is the whole record `number` (None: a whole record of any number)."""
    found = HEAD.match(line)
    if found is None or not line.endswith(b"\n"):
        return None
    said, length, check = (int(part, 16) for part in found.groups())
    text = line[found.end() : -1]
    right = length == len(text) and check == zlib.crc32(text, zlib.crc32(line[:18]))
    return text if right and number in (None, said) else None


def _to_the_end(path: Path, file: BinaryIO, at: int) -> int:
    """The bytes of a tail without a whole record, which begins at byte `at`."""
    file.seek(at)
    while line := file.readline():
        if _whole(line, None) is not None:
            raise LogDamaged(
                f"{path}, byte {at}: damaged, and whole records follow: this is not where a run "
                "ended; copy the file again"
            )
    return file.tell() - at


class _Reader:
    """The records that were read so far, and the log that comes of them."""

    def __init__(self, path: Path) -> None:
        self.path, self.parts = path, Parts()
        self.num_bytes = self.num_records = self.cut = 0
        self.closed = False
        self.parts.sections |= {"about": self._about, "end": self._end}

    def begin(self, line: bytes) -> None:
        """The first line."""
        if not line.startswith(MAGIC):
            raise NotALog(f"{self.path} is no journal: a lab writes one with Lab(journal=path)")
        if not line.endswith(b"\n"):
            raise self._empty()
        if line != MAGIC + b"%d\n" % VERSION:
            found = line[len(MAGIC) : -1].decode("ascii", "replace")
            raise LogVersionUnknown(
                f"{self.path}: this journal is of version {found!r:.20}, this program reads "
                f"{VERSION}: update it"
            )
        self.num_bytes = len(line)

    def take(self, text: bytes) -> None:
        """The next record."""
        try:
            if self.closed:
                raise ValueError("something follows the end")
            data = parsed(text)
            if self.num_records == 0:
                self.parts.begin(data)
                self.parts.snapshot(data["snapshot"])
            else:
                for part in data:
                    self.parts.take(part)
        except WRONG as error:
            place = f"{self.path}, byte {self.num_bytes}"
            raise LogDamaged(f"{place}: damaged: {error!s:.200}") from None
        self.num_records += 1

    def finish(self) -> Log:
        """The log, when the file has ended, with a note where the run had not."""
        if self.num_records == 0:
            raise self._empty()
        log = self.parts.log
        log.decisions = [d for d in log.decisions if d.stop <= len(log)]
        if (wrong := self.parts.impossible()) is not None:
            raise LogDamaged(f"{self.path}: damaged: {wrong:.300}: copy the file again")
        if not self.closed:
            log.note = f"this run was not closed: the log ends at event {len(log)}, the last one "
            log.note += "that was written"
        if self.cut:
            log.note += f"; an unfinished record of {self.cut} bytes behind it was cut"
        return log

    def _empty(self) -> LogCutShort:
        return LogCutShort(f"{self.path} ends before its log begins: there is nothing to open")

    def _about(self, data: Any) -> None:
        self.parts.begin({"first": self.parts.log.first, "about": data})

    def _end(self, data: Any) -> None:
        log = self.parts.log
        if data != (found := {"events": len(log), "tokens": len(log.tokens)}):
            raise ValueError(f"the file holds {found}, not {data!r:.60}")
        self.closed = True
