"""Every way in which the lab says no to its caller: one named exception each, with what to do next.

Not here: the ordinary noes of a running system (`NoRoom`, `Refused`, `Stale`, `Deferred`): values
that a plan returns, and `assert`, which is for faults of our own.
"""

from __future__ import annotations

import builtins
import re


class InmsError(Exception):
    """Base of all of the lab's exceptions; the message says what was wrong and what to do."""


class BadInput(InmsError, ValueError):
    """The caller passed something that cannot be used."""


class EmptyText(BadInput):
    """A text without a single token."""


class TokenOutOfRange(BadInput):
    """A token id that the model's vocabulary does not have."""


class ContextTooLong(BadInput):
    """A context longer than the model's limit."""


class TextTooLarge(BadInput):
    """A text that would not fit its pool even if the pool were empty."""


class UnknownGroup(BadInput):
    """A group, agent or record that this lab does not have."""


class NotAMember(BadInput):
    """An agent asked for a group's records without belonging to the group."""


class SealedTier(BadInput):
    """A write to a tier that the writer may only read."""


class SequenceBusy(InmsError):
    """Another thread is in a call for the same sequence: wait for its end."""


class AgentClosed(InmsError, RuntimeError):
    """An agent was used after it ended."""


class LabClosed(InmsError, RuntimeError):
    """A lab was used after `close()`."""


class LeaseExpired(InmsError):
    """A lease that ran out or was replaced: late messages of its epoch are refused."""


class MessageRefused(BadInput):
    """A message between processes that is none, or that may not be sent."""


class LabUnreachable(InmsError, ConnectionError):
    """The process of a lab is gone, or does not answer."""


class PoolExhausted(InmsError, MemoryError):
    """No block can be had for an agent, and no preemption can help it."""


class StepInterrupted(InmsError):
    """A step was stopped half-way; its blocks are back in their pools and the lab is usable."""


class PlanInvalid(InmsError):
    """A plan, perhaps an edited one, breaks a rule of the door; nothing was applied."""


class IllegalMove(InmsError):
    """A lifecycle move that the state machine does not have."""


class LedgerViolation(InmsError):
    """The books do not balance; the message carries the last events and the block's history.

    `fault`: the first in words; `at`: the log index at which it was found; `block`: the (pool,
    number) in question, if it is of one; `path`: of the log that was saved, if it could be.
    """

    fault = ""
    at = -1
    block: tuple[str, int] | None = None
    path = ""


class LabReadOnly(InmsError, RuntimeError):
    """The books do not balance, so nothing may change them any more; looking goes on."""


class LogUnreadable(InmsError):
    """A log file of an unknown version, or one that is cut short or damaged."""


class NotALog(LogUnreadable):
    """A file that is something else."""


class LogVersionUnknown(LogUnreadable):
    """A log file written by a later program."""


class LogCutShort(LogUnreadable):
    """A log file that ends too early: a copy or a download that was not finished."""


class LogDamaged(LogUnreadable):
    """A log file with a line that makes no sense; the message names the line."""


class LogTooLarge(LogUnreadable):
    """A log file that would take more memory than the reader allows."""


class JournalInUse(BadInput):
    """A journal that another lab is writing."""


class JournalNotWritable(InmsError, OSError):
    """A journal cannot be begun there."""


class ModelNotFound(InmsError, FileNotFoundError):
    """No model under this name or path."""


class ModelCorrupted(InmsError):
    """A model file whose content is not what it should be."""


class ModelRefused(InmsError):
    """A model that the admission experiments turned down; the message names the reason."""


class CompilerMissing(InmsError):
    """The compiled kernels were asked for, and nothing here can compile them."""


class UnsafeShift(InmsError):
    """KV was to be used at another position, which this model's positions do not allow."""


class NotCalibrated(InmsError):
    """A gate was asked about a model whose interference nobody has measured."""


class RecordSuperseded(BadInput):
    """A record that was replaced; the message names the one that holds now."""


class ParcelRefused(BadInput):
    """Exported KV that may not enter: another model, tenant or label, or a damaged file."""


class ShelfRefused(ParcelRefused):
    """Saved global and group caches that may not enter; nothing of them did."""


class CacheNotWritable(InmsError, PermissionError):
    """The folder for converted models cannot be written."""


class NotEnoughMemory(InmsError, MemoryError):
    """The operating system gives no more memory of the kind that is needed."""


class SharingUnsupported(InmsError, RuntimeError):
    """This operating system cannot share parameters between processes."""


class AgentDied(InmsError, RuntimeError):
    """An agent's process ended before it had answered."""


class ParametersClosed(InmsError, RuntimeError):
    """Shared parameters were used after `close()`."""


class BranchRefused(InmsError, RuntimeError):
    """A branch cannot do what was asked: what it has changed would be lost."""


class MergeRefused(InmsError, RuntimeError):
    """A branch did not become a version: not valid, of an old version, or another merge goes on."""


class ProcessUnreadable(InmsError, OSError):
    """The kernel tells nothing of a process: it has ended, or is somebody else's."""


_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?=:|\s*$)")


def error_type(told: str) -> str:
    """The type of the error that a traceback, or its last line, tells of; "error" if unclear.

    Only types of Python's own and of this file are named: anything else may be somebody's text.
    """
    lines = told.splitlines()
    if lines and lines[0].startswith("Traceback "):
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    match = _TYPE.match(lines[0]) if lines else None
    name = match.group(1) if match else ""
    found = getattr(builtins, name, None) or globals().get(name)
    return name if isinstance(found, type) and issubclass(found, BaseException) else "error"
