"""Lab 10: many forks of one agent that write in the same step, in a lab without weights."""

from __future__ import annotations

from inms_lab.books.events import Copied, Stepped
from inms_lab.decisions.copies import Copies
from inms_lab.errors import BadInput
from inms_lab.logs.log import Log
from inms_lab.notebook.lab import Lab

from .small_labs import LETTER_BYTES, letter_lab

MOST = 200  # writers


def storm(writers: int, copy_budget: int, block_size: int = 4) -> Lab:
    """A lab in which so many forks, whose last block is theirs together and half full, have each
    written a letter of their own. All ask before the first of them is served."""
    if not 1 <= writers <= MOST:
        raise BadInput(f"a storm has 1 to {MOST} writers, not {writers}")
    room = 2 * writers + 4
    lab = letter_lab(block_size, room, copy_budget=copy_budget)
    agent = lab.agent("ada")
    agent.read("m" * (block_size + block_size // 2)).result()
    forks = [future.result() for future in [agent.fork() for _ in range(writers)]]
    asked = [fork.read(chr(ord("A") + number % 26)) for number, fork in enumerate(forks)]
    for answer in asked:
        answer.result()
    return lab


def copied(log: Log) -> list[int]:
    """Blocks that each step copied on write, from the first step that copied any."""
    out, now = list[int](), 0
    for event in log.events:
        now += isinstance(event, Copied)
        if isinstance(event, Stepped):
            if now or out:
                out.append(now)
            now = 0
    return out


def first_step(log: Log) -> int:
    """The moment after the first step that copied on write; where none did, the end."""
    books = enumerate(log.events, log.first + 1)
    begun = next((at for at, event in books if isinstance(event, Copied)), len(log))
    return next((at for at, event in books if isinstance(event, Stepped)), begun)


def play(writers: int, block_bytes: int, copy_budget: int) -> tuple[Copies, Log]:
    """What the copy budget did in such a storm, with blocks of so many bytes; and its log."""
    with storm(writers, copy_budget, block_bytes // LETTER_BYTES) as lab:
        return lab.copies, lab.log
