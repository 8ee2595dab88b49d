"""What is told when the books do not balance, and the log that is kept of it.

The message names the fault, what it is known to come from, the last events and the history of the
block in question. The log is saved beside the notebook (else in a folder for temporary files), with
the moment and the block, so that a dashboard of the file opens there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inms_lab.books.ledger import Ledger
from inms_lab.errors import InmsError, LabReadOnly, LedgerViolation
from inms_lab.logs import audit
from inms_lab.logs.audit import Fault
from inms_lab.logs.history import block_history
from inms_lab.logs.log import Log

LAST = 5  # events that the message shows
LIVES = 12  # changes of the block that it shows
FEW = 4  # faults that it shows
LOOKS = 100  # moments at which the log's own books are looked at, to find where they went wrong
MOST = 1000  # files of one moment in a folder


def violation(log: Log, books: Ledger, faults: list[Fault]) -> LedgerViolation:
    """The error for these faults (at least one), found when the log was as long as it is."""
    told = [fault for fault in faults if fault.block is not None]
    block = told[0].block if told else None
    words = "; ".join(str(fault) for fault in faults[:FEW])
    if len(faults) > FEW:
        words += f"; and {len(faults) - FEW} more"
    lines = [words, f"found at event {len(log)}, in step {books.num_steps}: {origin(log)}"]
    lines += ["the last events were", *(f"  {event!r}" for event in log.events[-LAST:])]
    lines += _history(log, block)
    error = LedgerViolation("\n".join(lines))
    error.fault, error.at, error.block = str((told or faults)[0]), len(log), block
    return error


def origin(log: Log) -> str:
    """Whether the log's own events lead to books that do not balance, and which did first."""
    wrong = audit.first_impossible(log)
    if wrong is not None:
        return f"event {wrong[0]} of the log cannot have happened ({wrong[1]})"
    first = first_fault(log)
    if first is None:
        return "the log's own books balance, so something changed them that was no event"
    return f"by the log itself, event {first[0]} is the first after which {first[1]}"


def first_fault(log: Log) -> tuple[int, str] | None:
    """The first event after which the log's own books do not balance, and the fault; None: none."""
    start, every = log.first, max(1, len(log.events) // LOOKS)
    while True:
        books, good = log.replay(start), start
        for index, event in enumerate(log.events[start - log.first :], start):
            books.reduce(event)
            if (index + 1 - start) % every and index + 1 < len(log):
                continue
            faults = audit.faults(books)
            if faults and every == 1:
                return index, str(faults[0])
            if faults:
                break
            good = index + 1
        else:
            return None
        start, every = good, 1


def _history(log: Log, block: tuple[str, int] | None) -> list[str]:
    if block is None:
        return []
    try:
        changes = block_history(log, *block)
    except (InmsError, LookupError, ValueError) as error:
        return [f"the history of block {block[1]} of {block[0]} cannot be told ({error})"]
    rows = [
        f"  event {c.index}, step {c.step}: {c.event} {c.cause}".rstrip()
        + f", {c.holder or 'the pool'}: refcount {c.before} -> {c.after}, {c.state}, held by "
        + (", ".join(c.holders) or "nobody")
        for c in changes
    ]
    left = [f"  ({len(rows) - LIVES} earlier changes)"] if len(rows) > LIVES else []
    return [f"what the log says of block {block[1]} of {block[0]}", *left, *rows[-LIVES:]]


def keep(log: Log, error: LedgerViolation, folders: Iterable[Path] | None = None) -> None:
    """Save the log at this moment, in the first of the folders that can be written (none given: the
    current one, then one for temporary files), and say so in the error. Nothing is overwritten;
    that it could not be saved is said, not raised."""
    marked = _marked(log, error)
    reasons = []
    for folder in _folders() if folders is None else folders:
        try:
            path = _reserved(folder, error.at)
        except OSError as reason:
            reasons.append(str(reason))
            continue
        try:
            marked.save(path)
        except Exception as reason:  # a violation is to be told, whatever else goes wrong
            path.unlink(missing_ok=True)
            reasons.append(str(reason))
            continue
        error.path = str(path)
        break
    words = f"the log was saved: Dashboard({error.path!r}) shows this moment (it has all texts)"
    if not error.path:
        words = f"the log could not be saved ({'; '.join(reasons) or 'no folder was given'})"
    error.args = (f"{error}\n{words}",)


def _folders() -> Iterable[Path]:
    """The folders to try, each looked for when it is needed."""
    for find in (Path.cwd, lambda: Path(tempfile.mkdtemp(prefix="inms-lab-"))):
        try:
            yield find()
        except OSError:
            continue


def _marked(log: Log, error: LedgerViolation) -> Log:
    """A copy of the log that says what is to be looked at, without what cannot have happened."""
    out = log.copy()
    wrong = audit.first_impossible(out)
    if wrong is not None:
        del out.events[wrong[0] - out.first :]
        out.decisions = [d for d in out.decisions if d.stop <= len(out)]
    pool_id, block = error.block or ("", -1)
    where: dict[str, Any] = {"at": len(out), "pool": pool_id, "block": block}
    out.about = {**log.about, "violation": {**where, "text": error.fault}}
    return out


def _reserved(folder: Path, at: int) -> Path:
    """An empty file that was not there before, for its owner alone."""
    for number in range(1, MOST):
        path = folder / f"violation-at-{at}{f'-{number}' * (number > 1)}.inmslog"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder} has {MOST - 1} logs of event {at} already: remove some")


def read_only(error: LedgerViolation) -> LabReadOnly:
    """What who would change the books is told from then on."""
    saved = f"; the log is in {error.path}" if error.path else ""
    return LabReadOnly(
        f"the lab is read-only since event {error.at}: {error.fault}{saved}. Texts, tokens, the "
        "log, the bill and views can still be read; close it and make a new lab to go on"
    )
