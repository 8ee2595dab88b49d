"""The journal: a log that is written through to a file while it grows (journal_read.py reads it).

    line 1      "inms-journal 1", the version of all that follows
    then        NUMBER LENGTH CRC JSON, a record a line; the first three are 8 hex digits each:
                the record's number from 0 on, its JSON's bytes, the CRC-32 of all of these
    record 0    {"first", "about", "snapshot"}: where the log begins
    the others  lists of the lines that logparts.py names: what came since the record before. Tokens
                stand before the events that name them, so whatever the last whole record is, the
                log up to it replays. {"about": {...}}: it changed. {"end": {counts}}: closed, whole
Each record is handed to the operating system at once: it outlives the process, and with `fsync` the
machine. The file holds every text, like `log.save(path)`; the log that is read from it can be saved
redacted. What cannot be written (a full disk) stops the journal, never the log.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from inms_lab.errors import BadInput, JournalInUse, JournalNotWritable
from inms_lab.logs.log import Log
from inms_lab.logs.logcode import event_row, pack, row
from inms_lab.logs.logparts import dumped, occurring, piece_line, token_lines

MAGIC, VERSION = b"inms-journal ", 1
MOST = 1024  # events that wait for the end of a step; lines in a record


class Journal:
    """Writes `log` to a new file at `path`; closed by `close()`, or by whoever ends the process.

    `soon(act)` has `act()` called on the thread that owns the log, at the end of what it does now
    (a step); without it, call `write()`. `fsync`: wait for the disk at each record.
    A journal that is at `path` already is kept beside it (`earlier`); nothing is overwritten.
    Raises `JournalInUse`, `JournalNotWritable`, and `BadInput` for a file of another kind.
    """

    def __init__(
        self,
        log: Log,
        path: str | Path,
        *,
        fsync: bool = False,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        if log.on_change is not None:
            raise BadInput("this log has a journal: close that first")
        self.log, self.path, self.fsync = log, Path(path), fsync
        self.problem = ""  # why nothing is written any more
        self.earlier: Path | None = None
        self.num_bytes = self.num_records = 0  # written
        self.num_events = self._at = log.first  # events that are written; that are taken up
        self._tokens = self._durations = self._errors = 0
        self._decision = log.first_decision
        self._pieces, self._about = set[int](), dict(log.about)
        self._soon, self._due = soon, False
        self._lock = FileLock(f"{self.path}.lock", timeout=0, thread_local=False)
        self._file: BinaryIO | None = self._opened()
        try:
            self._put_raw(MAGIC + b"%d\n" % VERSION)
            snapshot = log.snapshot
            self._pieces_due = occurring(snapshot)
            self._put({"first": log.first, "about": log.about, "snapshot": pack(snapshot)})
        except (OSError, TypeError, ValueError) as error:
            self._let_go()
            wrong = JournalNotWritable if isinstance(error, OSError) else BadInput
            raise wrong(f"{self.path} cannot be written: {error}") from error
        log.on_change = self._changed
        self.write()

    @property
    def is_open(self) -> bool:
        """Whether what happens is still written."""
        return self._file is not None

    def write(self) -> None:
        """Write what came since the last time. Never raises for the file's sake."""
        self._due = False
        if self._file is None:
            return
        try:
            parts = self._parts()
            while record := list(islice(parts, MOST)):
                self._put(record)
                self.num_events = self._at
        except (OSError, TypeError, ValueError) as error:
            self._stop(error)

    def close(self) -> None:
        """Write the rest, say that this is all, let go of the file."""
        if self._file is None:
            return
        self.write()
        if self._file is not None:
            counts = {"events": len(self.log), "tokens": len(self.log.tokens)}
            try:
                self._put([{"end": counts}])
            except OSError as error:
                self._stop(error)
        self._let_go()

    def _changed(self) -> None:
        """Something was logged: it is written soon, or now where that is much already."""
        if len(self.log) - self._at >= MOST:
            self.write()
        elif self._soon is not None and not self._due:
            self._due = True
            self._soon(self.write)

    def _parts(self) -> Iterator[Any]:
        log = self.log
        if log.about != self._about:
            self._about = dict(log.about)
            yield {"about": self._about}
        tokens = log.tokens[self._tokens :]
        yield from token_lines(tokens)
        self._tokens += len(tokens)
        if log.piece is not None and (tokens or self._pieces_due):
            new = (self._pieces_due | set(tokens)) - self._pieces
            self._pieces |= new
            self._pieces_due = set()
            if new:
                yield piece_line(log.piece, new)
        first, events = log.stretch(self._at)
        if first != self._at:
            raise ValueError(f"the log forgot the events {self._at} to {first} before")
        for event in events:
            self._at += 1
            yield event_row(event)
        for number, decided in log.decisions_since(self._decision):
            self._decision = number + 1
            yield {"decided": row(decided)}
        for name, table in (("durations", log.durations), ("errors", log.errors)):
            have = getattr(self, f"_{name}")
            if len(table) > have:
                setattr(self, f"_{name}", len(table))
                late = [*islice(reversed(table.items()), len(table) - have)][::-1]
                yield {name: {str(key): value for key, value in late}}

    # the file -------------------------------------------------------------------------------

    def _opened(self) -> BinaryIO:
        """A new file at `path`, ours alone."""
        if not self.path.parent.is_dir():
            raise JournalNotWritable(f"there is no folder {self.path.parent}: make it first")
        try:
            self._lock.acquire()
        except Timeout:
            raise JournalInUse(
                f"{self.path} is being written by another lab: close that one, or name another file"
            ) from None
        except OSError as error:
            raise JournalNotWritable(f"{self.path} cannot be written: {error}") from error
        try:
            self._keep_earlier()
            return self.path.open("xb", buffering=0)
        except OSError as error:
            self._lock.release()
            raise JournalNotWritable(f"{self.path} cannot be written: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def _keep_earlier(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise BadInput(f"{self.path} is no file: name another place for the journal")
        if self.path.stat().st_size == 0:
            self.path.unlink()
            return
        if not is_journal(self.path):
            raise BadInput(f"{self.path} is no journal and is left alone: name another file")
        number = 1
        while (kept := self.path.with_stem(f"{self.path.stem}.{number}")).exists():
            number += 1
        self.earlier = self.path.rename(kept)

    def _put(self, data: Any) -> None:
        text = dumped(data)
        head = b"%08x %08x " % (self.num_records, len(text))
        self._put_raw(b"%b%08x %b\n" % (head, zlib.crc32(text, zlib.crc32(head)), text))
        self.num_records += 1

    def _put_raw(self, line: bytes) -> None:
        assert self._file is not None
        left = memoryview(line)
        while left:
            left = left[self._file.write(left) or 0 :]
        if self.fsync:
            os.fsync(self._file.fileno())
        self.num_bytes += len(line)

    def _stop(self, error: Exception) -> None:
        """No more: what was written stays, up to its last whole record."""
        self.problem = f"the journal {self.path} ends at event {self.num_events}: {error}"
        with suppress(OSError):
            assert self._file is not None
            self._file.truncate(self.num_bytes)
        self._let_go()
        warnings.warn(f"{self.problem}; the lab goes on without it", RuntimeWarning, stacklevel=2)

    def _let_go(self) -> None:
        if self.log.on_change == self._changed:
            self.log.on_change = None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
            with suppress(OSError):
                Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


def is_journal(path: str | Path) -> bool:
    """Whether the file begins like a journal. Raises `OSError` where it cannot be read."""
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
