"""Three pool policies under one churn (churn.py): who dies, with how much memory free, and what
isolation costs. `inms-lab bench fragmentation` prints it, a row a policy, the median over seeds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inms_lab.studies.churn import LIVES, POLICIES, TENANT, Churn, Machine, Op, script

Row = dict[str, Any]


@dataclass(slots=True)
class Fate:
    """How a policy fared. `died`: the operation at which a tenant could not come; None: it lived.

    Blocks, at that moment or at the end: `live` hold text (`tenants` are a tenant's), `free` hold
    nothing, `stuck` of those lie in regions that some pool has, `longest` lie in regions that are
    nobody's and lie together. `internal`: share of the live blocks' slots without a token.
    `refused` of `asked` texts found no room; `used`: mean share of blocks in use, tenants included.
    `regions`: for each its owner and its blocks by lifetime; `series`: (live and tenants', taken)
    blocks after each operation.
    """

    policy: str
    order: str
    died: int | None = None
    live: int = 0
    tenants: int = 0
    free: int = 0
    stuck: int = 0
    longest: int = 0
    internal: float = 0.0
    asked: int = 0
    refused: int = 0
    used: float = 0.0
    regions: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    series: list[tuple[int, int]] = field(default_factory=list)


def play(churn: Churn, seed: int, policy: str, order: str = "queue") -> Fate:
    """One policy under the churn of this seed, until a tenant cannot come or to the end."""
    machine, fate = Machine(churn, policy, order), Fate(policy, order)
    texts: dict[int, tuple[Op, tuple[int, ...]]] = {}
    rooms: dict[int, Sequence[int]] = {}
    total, tenant = churn.regions * churn.region, churn.opening * churn.region
    for at, now in enumerate(script(churn, seed)):
        for op in now:
            if op.verb == "open":
                room = machine.reserve(TENANT, churn.opening, churn.together)
                if room is None:
                    fate.died = at
                    break
                rooms[op.owner] = room
            elif op.verb == "close":
                for number in rooms.pop(op.owner):
                    machine.owners[number] = ""
            elif op.verb == "take":
                fate.asked += 1
                blocks = machine.pools[op.life].take(churn.blocks(op.tokens))
                fate.refused += blocks is None
                if blocks is not None:
                    texts[op.owner] = (op, blocks)
                    fate.live += len(blocks)
            elif op.owner in texts:
                _, blocks = texts.pop(op.owner)
                machine.pools[op.life].give(blocks)
                fate.live -= len(blocks)
        fate.tenants = len(rooms) * tenant
        taken = (churn.regions - machine.owners.count("")) * churn.region
        fate.series.append((fate.live + fate.tenants, taken))
        if fate.died is not None:
            break
    used, taken = fate.series[-1]
    fate.free, fate.stuck, fate.longest = (
        total - used,
        taken - used,
        machine.longest() * churn.region,
    )
    slots = fate.live * churn.block_size
    fate.internal = 1 - sum(op.tokens for op, _ in texts.values()) / slots if slots else 0.0
    fate.used = sum(used for used, _ in fate.series) / len(fate.series) / total
    counts: list[Counter[str]] = [Counter() for _ in machine.owners]
    for op, blocks in texts.values():
        for block in blocks:
            counts[block // churn.region][op.life] += 1
    fate.regions = [(o, dict(c)) for o, c in zip(machine.owners, counts, strict=True)]
    return fate


def peaks(churn: Churn, seed: int) -> tuple[dict[str, int], int]:
    """The most regions that each lifetime needs at once, and all of them together, whatever the
    policy: what perfect sharing would take, were memory handed out block by block."""
    now: Counter[str] = Counter()
    most: dict[str, int] = dict.fromkeys((*LIVES, TENANT), 0)
    sizes: dict[int, int] = {}
    together = 0
    for step in script(churn, seed):
        for op in step:
            if op.verb in ("take", "open"):
                tenant = churn.opening * churn.region
                sizes[op.owner] = churn.blocks(op.tokens) if op.verb == "take" else tenant
                now[op.life] += sizes[op.owner]
            else:
                now[op.life] -= sizes.pop(op.owner)
            most[op.life] = max(most[op.life], now[op.life])
            together = max(together, now.total())
    return {life: -(-n // churn.region) for life, n in most.items()}, -(-together // churn.region)


def needed(churn: Churn, seed: int, policy: str, order: str = "queue") -> int:
    """The fewest regions with which a policy refuses nothing and does not die: for `own` divided
    as this churn needs it, for the others found by halving."""
    parts, together = peaks(churn, seed)
    if policy == "own":
        return sum(parts.values())

    def enough(regions: int) -> bool:
        fate = play(replace(churn, regions=regions), seed, policy, order)
        return fate.died is None and not fate.refused

    low, high = together, max(sum(parts.values()), together + 1)
    while not enough(high):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def measure(churn: Churn, seed: int, repeat: int, order: str) -> Row:
    """Each policy under `repeat` churns, from `seed` on; medians over them. At the moment of death
    (of those that died) what was free, in per cent of all memory and in bytes, and the largest
    request that would have found room; then what every policy needs to refuse nothing."""
    seeds = range(seed, seed + repeat)
    fates = {policy: [play(churn, s, policy, order) for s in seeds] for policy in POLICIES}
    needs = {policy: [needed(churn, s, policy, order) for s in seeds] for policy in POLICIES}
    best = [peaks(churn, s)[1] for s in seeds]
    size = churn.block_size * churn.bytes_per_token
    rows = [_row(policy, fates[policy], churn, size) for policy in POLICIES]
    for row in rows:
        need = needs[row["policy"]]
        row["needs_regions"] = statistics.median(need)
        more = (100 * (n / least - 1) for n, least in zip(need, best, strict=True))
        row["more_than_peak_percent"] = round(statistics.median(more), 1)
    first = Counter(first_dead([fates[policy][i] for policy in POLICIES]) for i in range(repeat))
    return {
        "seeds": f"{seeds[0]} to {seeds[-1]}",
        "operations": churn.operations,
        "order": order,
        "memory_bytes": churn.regions * churn.region * size,
        "region_bytes": churn.region * size,
        "together": churn.together,
        "peak_regions": statistics.median(best),
        "dies_first": dict(first),
        "policies": rows,
    }


def first_dead(fates: Sequence[Fate]) -> str:
    """Which of these died first, in one churn; several, where they died at one operation."""
    ends = {fate.policy: fate.died for fate in fates if fate.died is not None}
    return " and ".join(p for p, at in ends.items() if at == min(ends.values())) or "none"


def _row(policy: str, fates: Sequence[Fate], churn: Churn, size: int) -> Row:
    total = churn.regions * churn.region
    dead = [fate for fate in fates if fate.died is not None]

    def median(values: Iterable[float], digits: int | None = 1) -> float | None:
        found = [*values]
        return round(statistics.median(found), digits) if found else None

    return {
        "policy": policy,
        "died": f"{len(dead)} of {len(fates)}",
        "at_operation": median((f.died for f in dead if f.died is not None), None),
        "free_percent": median(100 * f.free / total for f in dead),
        "free_bytes": median((f.free * size for f in dead), None),
        "largest_bytes": median((f.longest * size for f in dead), None),
        "external_percent": median(100 * f.stuck / total for f in fates),
        "internal_percent": median(100 * f.internal for f in fates),
        "refused_percent": median(100 * f.refused / f.asked for f in fates),
        "used_percent": median(100 * f.used for f in fates),
    }
