"""The copy-on-write budget of a step, and the line of writers that wait for it.

A storm (many forks that write in one step) is spread over steps: at most `budget` blocks are copied
in each. Who finds the budget used up waits in a line, and the line is served first in later steps,
so with n writers ahead a wait is at most n / budget steps. A writer copies all that its chunk needs
or nothing. What waits, the longest wait and the peak are there to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MANY = 1 << 30  # blocks: where nothing bounds what may be copied
NEW = "no block with this fingerprint"
READ = "another holder reads this block"
STORM = "the copy-on-write budget of this step is used up"


@dataclass(frozen=True, slots=True)
class Copies:
    """What the copy-on-write budget did so far. `peak`: blocks copied in one step, at most;
    `longest_wait`, in steps; `num_waited`: copies that had to wait; `waiting`: who does now."""

    budget: int
    peak: int
    num_copied: int
    num_waited: int
    longest_wait: int
    waiting: tuple[str, ...]

    def __repr__(self) -> str:
        line = f"; waiting: {', '.join(self.waiting)}" if self.waiting else ""
        return (
            f"{self.num_copied} blocks copied on write, at most {self.peak} in a step "
            f"(budget {self.budget}); {self.num_waited} waited, at most {self.longest_wait} "
            f"steps{line}"
        )


class CopyLine:
    """First come, first served; holders are known by their sequence id."""

    def __init__(self) -> None:
        self.line: dict[int, int] = {}  # who waits -> the step in which it first asked
        self.left, self._step = 0, 0
        self._taken = self.peak = self.num_copied = self.num_waited = self.longest = 0

    def begin(self, budget: int, waits: Callable[[int], bool]) -> None:
        """A step begins: `budget` blocks may be copied; who does not wait any longer leaves."""
        self.left, self._taken, self._step = budget, 0, self._step + 1
        self.line = {seq_id: since for seq_id, since in self.line.items() if waits(seq_id)}

    def place(self, seq_id: int) -> int:
        """How many stand before it: those of the line, in their order, then everybody else."""
        if seq_id not in self.line:
            return len(self.line)
        return list(self.line).index(seq_id)

    def has_turn(self, seq_id: int) -> bool:
        """Whether it may copy a block now and still leave one to each that stands before it."""
        return self.place(seq_id) < self.left

    def wait(self, seq_id: int) -> None:
        """It found the budget used up: it waits from this step on."""
        self.line.setdefault(seq_id, self._step)

    def took(self, seq_id: int, count: int) -> None:
        """It was planned and copied `count` blocks, perhaps none after all: it waits no more."""
        self.left -= count
        self._taken += count
        self.num_copied += count
        self.peak = max(self.peak, self._taken)
        since = self.line.pop(seq_id, None)
        if since is not None:
            self.num_waited += 1
            self.longest = max(self.longest, self._step - since)

    def report(self, budget: int, name: Callable[[int], str | None]) -> Copies:
        """As values to read; a wait that is not over counts up to now. `name` gives None for who
        does not wait any longer."""
        now = max((self._step - since for since in self.line.values()), default=0)
        numbers = (self.peak, self.num_copied, self.num_waited, max(self.longest, now))
        return Copies(budget, *numbers, tuple(filter(None, map(name, self.line))))
