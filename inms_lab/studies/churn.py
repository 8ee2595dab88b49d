"""The same churn of allocations under three pool policies: which runs out of memory with memory
free, and what does isolation cost? Bookkeeping only; no torch.

What is the lab's own: `Pool` (its free queue, held blocks) and the rounding up to whole blocks.
What is a model: the policies that have more than one way to get memory. A machine has `regions` of
`region` blocks. A pool gives a region back when no block of it is held, and not before. A tenant
needs `opening` whole regions when it comes (that lie `together`, if so asked), or it cannot come:
that is the death that is looked for. A text that finds no room is refused and counted: in the lab
it would wait.

    one      one pool for all lifetimes; it takes regions as it needs them
    own      a pool for each tier with regions of its own, reserved; none ever borrows (the lab's)
    classes  a pool for each class of lifetimes; they take regions as they need them

Free blocks are handed out in the order in which they became free (`queue`, as the lab does) or the
lowest first (`lowest`: regions at the end empty sooner).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from inms_lab.books.events import PoolOpened
from inms_lab.books.pool import Pool
from inms_lab.errors import BadInput

WHOLE, LONG, SHORT = LIVES = ("whole run", "long", "short")  # global, group, private text
POLICIES = ("one", "own", "classes")
ORDERS = ("queue", "lowest")
TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Churn:
    """What happens, drawn from a seed. Sizes in tokens are (least, most); lifetimes are means, in
    operations. `peak_every`: how many operations lie between two long retrievals, on average."""

    operations: int = 2000
    regions: int = 128
    region: int = 16  # blocks
    block_size: int = 16  # tokens
    bytes_per_token: int = 45 * 1024  # of SmolLM2-135M in float32
    prompt: int = 1500
    record: tuple[int, int] = (40, 400)
    record_life: int = 600
    records: float = 0.06  # of the operations; the others are private contexts
    context: tuple[int, int] = (100, 1600)
    context_life: int = 12
    retrieval: tuple[int, int] = (4000, 9000)
    retrieval_life: int = 5
    peak_every: int = 60
    opening: int = 10  # regions
    tenants: int = 3  # at once
    tenant_life: int = 450
    together: bool = True  # a tenant's regions must lie together; else any that are nobody's do
    own: tuple[int, int] = (25, 67)  # regions of the long and the short tier, under `own`

    def __post_init__(self) -> None:
        for name in ("operations", "regions", "region", "block_size", "bytes_per_token", "opening"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}")

    def blocks(self, tokens: int) -> int:
        """Blocks that a text takes."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Op:
    """`take` tokens for a text that lives so long, `drop` it, a tenant's `open` and `close`."""

    verb: str
    owner: int
    life: str = ""
    tokens: int = 0


def script(churn: Churn, seed: int) -> list[list[Op]]:
    """What happens at each operation: what has ended by then, and one arrival or more."""
    draw = random.Random(seed)
    ends: list[tuple[int, int, Op]] = []
    out: list[list[Op]] = []
    owner = tenants = 0

    def comes(at: int, verb: str, life: str, tokens: int, mean: int) -> Op:
        nonlocal owner
        owner += 1
        if mean:
            over = Op("close" if verb == "open" else "drop", owner, life)
            heapq.heappush(ends, (at + 1 + int(draw.expovariate(1 / mean)), owner, over))
        return Op(verb, owner, life, tokens)

    for at in range(churn.operations):
        now: list[Op] = []
        while ends and ends[0][0] <= at:
            now.append(heapq.heappop(ends)[2])
            tenants -= now[-1].verb == "close"
        if at == 0:
            now.append(comes(at, "take", WHOLE, churn.prompt, 0))
        if tenants < churn.tenants and draw.random() < 3 * churn.tenants / churn.tenant_life:
            tenants += 1
            now.append(comes(at, "open", TENANT, 0, churn.tenant_life))
        if draw.random() < churn.records:
            now.append(comes(at, "take", LONG, draw.randint(*churn.record), churn.record_life))
        else:
            now.append(comes(at, "take", SHORT, draw.randint(*churn.context), churn.context_life))
        if draw.random() < 1 / churn.peak_every:
            tokens = draw.randint(*churn.retrieval)
            now.append(comes(at, "take", SHORT, tokens, churn.retrieval_life))
        out.append(now)
    return out


class Slabs:
    """A pool on some of the machine's regions: on fixed ones, or on as many as it needs."""

    def __init__(self, machine: Machine, name: str, reserved: int | None, order: str) -> None:
        self.machine, self.name, self.order = machine, name, order
        self.grows = reserved is None
        churn = machine.churn
        size = churn.regions * churn.region
        self.pool = Pool(PoolOpened(name, name, "", churn.block_size, size))
        self.pool.free.clear()
        self.held: Counter[int] = Counter()  # region -> blocks
        for number in machine.reserve(name, reserved) or () if reserved else ():
            self._grant(number)

    def take(self, count: int) -> tuple[int, ...] | None:
        """So many blocks; None, and nothing changed, where there is no room."""
        machine, free, region = self.machine, self.pool.free, self.machine.churn.region
        missing = -(-max(0, count - len(free)) // region)
        if missing and not (self.grows and machine.owners.count("") >= missing):
            return None
        for _ in range(missing):
            number = machine.owners.index("")
            machine.owners[number] = self.name
            self._grant(number)
        lowest = self.order == "lowest"
        blocks = tuple(heapq.nsmallest(count, free)) if lowest else self.pool.next_free(count)
        self.pool.allocate(blocks, ())
        self.held.update(block // region for block in blocks)
        return blocks

    def give(self, blocks: tuple[int, ...]) -> None:
        """Let blocks go; regions that are empty now go back to the machine, unless reserved."""
        region = self.machine.churn.region
        self.pool.release(blocks[::-1])
        self.held.subtract(block // region for block in blocks)
        for number in {block // region for block in blocks} if self.grows else ():
            if not self.held[number]:
                for block in range(number * region, (number + 1) * region):
                    del self.pool.free[block]
                self.machine.owners[number] = ""

    def _grant(self, number: int) -> None:
        region = self.machine.churn.region
        self.pool.free.update(dict.fromkeys(range(number * region, (number + 1) * region)))


class Machine:
    """All regions: whose each is ("": nobody's), and the pools on them."""

    def __init__(self, churn: Churn, policy: str, order: str = "queue") -> None:
        if policy not in POLICIES or order not in ORDERS:
            names = ", ".join((*POLICIES, *ORDERS))
            raise BadInput(f"no policy or order is called {policy!r}, {order!r}: there are {names}")
        self.churn, self.owners = churn, [""] * churn.regions
        if policy == "own":
            prompt = -(-churn.blocks(churn.prompt) // churn.region)
            parts = dict(zip(LIVES, (prompt, *churn.own), strict=True))
            kept = churn.tenants * churn.opening
            if sum(parts.values()) + kept > churn.regions:
                raise BadInput(f"{parts} and {kept} for tenants are more than {churn.regions}")
            self.pools = {life: Slabs(self, life, n, order) for life, n in parts.items()}
        elif policy == "classes":
            self.pools = {life: Slabs(self, life, None, order) for life in LIVES}
        else:
            self.pools = dict.fromkeys(LIVES, Slabs(self, "one", None, order))

    def reserve(self, name: str, count: int, together: bool = True) -> Sequence[int] | None:
        """The first `count` regions that are nobody's and lie `together`; None: there are none."""
        found: Sequence[int] | None
        if together:
            first = next((at for at, length in self.runs() if length >= count), None)
            found = None if first is None else range(first, first + count)
        else:
            free = [number for number, owner in enumerate(self.owners) if not owner]
            found = free[:count] if len(free) >= count else None
        for number in found or ():
            self.owners[number] = name
        return found

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first, count) of the regions that are nobody's and lie together."""
        for owner, same in groupby(range(len(self.owners)), self.owners.__getitem__):
            numbers = [*same]
            if not owner:
                yield numbers[0], len(numbers)

    def longest(self) -> int:
        """The most regions that lie together and are nobody's."""
        return max((length for _, length in self.runs()), default=0)
