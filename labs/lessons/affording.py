"""Exercise `afford`: how many layers ahead, and how many replicas, under one budget of memory.

An answer is compared with the best of all that fit, by the two models of the lab: the time line of
`layers_ahead` and the regions of `hot_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inms_lab.errors import BadInput

from .charts import Bars
from .hot_blocks import busiest, counted, replicated, served, trace
from .layers_ahead import Timelines, timeline
from .wrong import Wrong, in_a_line, shown, whole

FORM = "two whole numbers: degree, replicas"


@dataclass(frozen=True, slots=True)
class Job:
    """A pass through layers on disk, and then reads of blocks.

    `budget`: MiB that both may take together; `layer`, `block`: MiB of one. `loads`, `computes`: ms
    of each layer; `reads` of each block, each of which takes `read` ms of its region's time.
    """

    name: str
    budget: int
    layer: int
    block: int
    loads: tuple[int, ...]
    computes: tuple[int, ...]
    reads: tuple[int, ...]
    read: int = 1
    regions: int = 6

    def ms(self, degree: int, replicas: int) -> int:
        """How long it takes. Raises `BadInput` for what is no number of layers, or of replicas."""
        if type(replicas) is not int or replicas < 0:
            raise BadInput(f"replicas are 0 or more blocks, not {replicas!r}")
        return self.passing(degree) + self.reading(replicas)

    def passing(self, degree: int) -> int:
        """Milliseconds until the last layer is computed."""
        return timeline(self.loads, self.computes, degree)[-1].done

    def reading(self, replicas: int) -> int:
        """Milliseconds until the busiest region has served its reads."""
        return self.read * busiest(self.reads, self.regions, replicas)

    def taken(self, degree: int, replicas: int) -> int:
        """MiB: the layer that is computed, those ahead of it, and the replicas."""
        return (1 + degree) * self.layer + replicas * self.block

    @property
    def most_ahead(self) -> int:
        """Layers that can be ahead of one."""
        return len(self.loads) - 1

    @property
    def most_replicas(self) -> int:
        """Until every region has every block."""
        return len(self.reads) * (self.regions - 1)


def _reads(blocks: int, calls: int, skew: float = 1.1) -> tuple[int, ...]:
    return counted(trace(blocks, calls, skew), blocks)


EVEN, ROUGH = (6,) * 8, (2, 2, 2, 14) * 3
ZIPF = _reads(24, 240)
CASES = (
    Job("even layers", 92, 24, 8, EVEN, (4,) * 8, ZIPF),
    Job("every fourth layer is large", 124, 24, 8, ROUGH, (5,) * 12, ZIPF),
    Job("little memory", 42, 24, 8, EVEN, (4,) * 8, ZIPF),
    Job("slow to compute", 66, 24, 8, (1,) * 8, (9,) * 8, ZIPF, read=2),
    Job("all blocks alike", 200, 24, 8, ROUGH, (5,) * 12, (10,) * 24),
    Job("much memory", 4000, 24, 8, ROUGH, (5,) * 12, ZIPF),
)


@lru_cache(maxsize=64)
def best(job: Job) -> tuple[int, int]:
    """Of all that fits the quickest, and of equally quick ones what takes least memory."""
    fits = [
        (job.ms(degree, replicas), job.taken(degree, replicas), degree, replicas)
        for degree in range(job.most_ahead + 1)
        for replicas in range(job.most_replicas + 1)
        if job.taken(degree, replicas) <= job.budget
    ]
    _, _, degree, replicas = min(fits)
    return degree, replicas


def afford(function: object) -> Wrong | None:
    """`function(job)` gives (degree, replicas)."""
    if not callable(function):
        return Wrong("a function afford(job)", shown(function))
    for job in CASES:
        answer = _answer(function, job)
        wrong = answer if isinstance(answer, Wrong) else _judged(job, *answer)
        if wrong is not None:
            return wrong
    return None


def _answer(function: Callable[..., Any], job: Job) -> tuple[int, int] | Wrong:
    where = f"the job {job.name!r}"
    try:
        answer = function(job)
    except Exception as error:
        return Wrong(FORM, in_a_line(error), where, "call it by hand with a job of CASES, and look")
    try:
        numbers = [whole(part) for part in answer]
    except Exception:
        numbers = []
    degree, replicas = numbers if len(numbers) == 2 else (None, None)
    if degree is None or replicas is None:
        hint = "return degree, replicas"
        if numbers and any(isinstance(part, float) for part in answer):
            hint = "layers and blocks are whole: // divides without a rest"
        return Wrong(FORM, shown(answer), where, hint)
    if degree < 0 or replicas < 0:
        hint = "with too little memory the least is a degree of 0 and no replica"
        return Wrong("numbers from 0 on", f"{degree}, {replicas}", where, hint)
    return degree, replicas


def _judged(job: Job, degree: int, replicas: int) -> Wrong | None:
    where = f"the job {job.name!r}"
    said = f"{degree}, {replicas}"
    taken = job.taken(degree, replicas)
    if taken > job.budget:
        what = f"at most {job.budget} MiB"
        return Wrong(what, f"{said} takes {taken} MiB", where, _over(job, degree, replicas))
    if degree > job.most_ahead or replicas > job.most_replicas:
        what = f"at most {job.most_ahead} layers ahead and {job.most_replicas} replicas"
        hint = f"there are {len(job.loads)} layers: no more than the others can be ahead of one"
        if degree <= job.most_ahead:
            hint = f"{job.regions} regions have {len(job.reads)} blocks each by then: what more?"
        return Wrong(what, said, where, hint)
    found, wanted = job.ms(degree, replicas), job.ms(*best(job))
    least = job.taken(*best(job))
    if found > wanted:
        came = f"{said}: {found} ms with {taken} MiB"
        return _slow(job, degree, replicas, f"{wanted} ms, which fits into the budget", came)
    if taken > least:
        came = f"{said}: as quick, with {taken} MiB"
        hint = "which is the smallest degree that is as quick?"
        if job.passing(degree) < job.passing(degree - 1) if degree else True:
            hint = "which is the smallest number of replicas that is as quick?"
        return Wrong(f"{wanted} ms with {least} MiB: no more than it needs", came, where, hint)
    return None


def _over(job: Job, degree: int, replicas: int) -> str:
    """Why it is too much."""
    if job.taken(degree, replicas - 1) <= job.budget:
        return "one replica too many: round down"
    if job.taken(degree - 1, replicas) <= job.budget:
        return "the layer that is computed lies in memory too: a degree of 2 means 3 layers"
    if job.taken(degree, 0) > job.budget and replicas * job.block <= job.budget:
        return f"{1 + degree} layers of {job.layer} MiB do not fit, even without a replica"
    return "layers and replicas share one budget: what the one takes, the other does not have"


def _slow(job: Job, degree: int, replicas: int, what: str, came: str) -> Wrong:
    """It fits, and something else that fits is quicker."""
    where = f"the job {job.name!r}"
    ahead, more = best(job)
    waits = sum(one.waits for one in timeline(job.loads, job.computes, degree))
    lines = Timelines(job.loads, job.computes, (degree,))
    loads = served(job.reads, replicated(job.reads, job.regions, replicas), job.regions)
    names = {f"region {number}": load for number, load in enumerate(loads)}
    bars = Bars(names, f"reads with {replicas} replicas", "reads", sum(loads) / len(loads))
    if degree == ahead and replicas > more:
        hint = "one more replica can make the busiest region busier: ask for each number of them"
        return Wrong(what, came, where, hint, picture=bars)
    if degree == ahead:
        left = (job.budget - job.taken(degree, replicas)) // job.block
        hint = f"{left} more replicas fit, and the busiest region serves {max(loads)} reads"
        return Wrong(what, came, where, hint, picture=bars)
    if degree < ahead:
        hint = f"the processor waits for the disk for {waits} ms: how many of them does one more "
        hint += "layer ahead save, and how many do the replicas that it takes the place of?"
        return Wrong(what, came, where, hint, picture=lines)
    if job.passing(degree) == job.passing(degree - 1):
        hint = f"a degree of {degree - 1} is as quick: the last layer ahead saves nothing, and "
        hint += f"takes the memory of {job.layer // job.block} replicas"
        return Wrong(what, came, where, hint, picture=lines)
    gain = job.passing(degree - 1) - job.passing(degree)
    hint = f"the last layer ahead saves {gain} ms; {job.layer // job.block} replicas in its place "
    hint += "save more"
    return Wrong(what, came, where, hint, picture=bars)
