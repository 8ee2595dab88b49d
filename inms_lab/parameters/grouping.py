"""Agents that talk much are placed together: which agent belongs into which region. No torch.

A region (a processor's core, a NUMA node, a device, a machine) holds a bounded number of agents.
The cost of a placement is the traffic between agents of different regions. The best placement is a
graph partition, which is NP-hard; here groups are merged greedily, those first that talk most for
their size, and then agents move and change places while that helps (the moves of Kernighan and Lin
1970, one at a time).
"""

from __future__ import annotations

import math
import random
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from inms_lab.errors import BadInput

Traffic = Mapping[tuple[str, str], float]  # (one agent, another) -> messages, or bytes
Placement = dict[str, int]  # agent -> region


class Talk:
    """Who talks with whom: counts of messages, or bytes. Any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], float] = defaultdict(float)

    def said(self, sender: str, receiver: str, amount: float = 1.0) -> None:
        """One message; the direction does not matter here. Raises `BadInput`."""
        if not (math.isfinite(amount) and amount >= 0):
            raise BadInput(f"an amount of traffic is 0 or more, not {amount!r}")
        if sender != receiver:
            with self._lock:
                self._counts[min(sender, receiver), max(sender, receiver)] += amount

    def traffic(self) -> dict[tuple[str, str], float]:
        """What was counted until now, by pairs in the order of their names."""
        with self._lock:
            return dict(self._counts)


def crossing(traffic: Traffic, placement: Mapping[str, int]) -> float:
    """Traffic across regions. Raises `BadInput` for an agent without a region."""
    try:
        return sum(amount for (a, b), amount in traffic.items() if placement[a] != placement[b])
    except KeyError as error:
        raise BadInput(f"agent {error} has traffic and no region: place all agents") from None


def in_order(agents: Sequence[str], rooms: Sequence[int]) -> Placement:
    """Each region filled before the next one begins. `rooms`: agents that a region holds.

    Raises `BadInput` where they do not fit."""
    _require(agents, rooms)
    places = [region for region, room in enumerate(rooms) for _ in range(room)]
    return dict(zip(agents, places, strict=False))


def at_random(agents: Sequence[str], rooms: Sequence[int], seed: int = 0) -> Placement:
    """In an order that is drawn."""
    _require(agents, rooms)
    return in_order(random.Random(seed).sample(list(agents), len(agents)), rooms)


def grouped(agents: Sequence[str], rooms: Sequence[int], traffic: Traffic) -> Placement:
    """A placement with little traffic across regions, never more than in order of arrival.

    The same input gives the same placement. Raises `BadInput` where agents do not fit, or where
    traffic is of others.
    """
    _require(agents, rooms)
    near = _neighbours(agents, traffic)
    groups = _merged(agents, max(rooms, default=0), near)
    starts = [_packed(groups, rooms, near), in_order(agents, rooms)]
    return min((_improved(start, rooms, near) for start in starts),
               key=lambda found: crossing(traffic, found))  # fmt: skip


Near = dict[str, dict[str, float]]  # agent -> the others that it talks with -> how much


def _neighbours(agents: Sequence[str], traffic: Traffic) -> Near:
    near: Near = {agent: {} for agent in agents}
    for (a, b), amount in traffic.items():
        if a not in near or b not in near:
            raise BadInput(f"{a} and {b} have traffic: both must be among the agents to be placed")
        if a != b:
            near[a][b] = near[a].get(b, 0.0) + amount
            near[b][a] = near[b].get(a, 0.0) + amount
    return near


def _merged(agents: Sequence[str], most: int, near: Near) -> list[list[str]]:
    """Groups of at most `most` agents: the two with the most traffic for their size become one,
    until no two that talk fit together."""
    groups = [[agent] for agent in agents]
    while True:
        best, pair = 0.0, None
        for i, j in combinations(range(len(groups)), 2):
            size = len(groups[i]) + len(groups[j])
            if size <= most:
                between = sum(near[a].get(b, 0.0) for a in groups[i] for b in groups[j])
                if between / size > best:
                    best, pair = between / size, (i, j)
        if pair is None:
            return groups
        groups[pair[0]] += groups.pop(pair[1])


def _packed(groups: list[list[str]], rooms: Sequence[int], near: Near) -> Placement:
    """Largest first, each where it talks most of those regions where it fits; where it fits
    nowhere, its agents one by one."""
    left, placement = list(rooms), Placement()
    waiting = sorted(groups, key=len, reverse=True)
    while waiting:
        group = waiting.pop(0)
        fits = [region for region, room in enumerate(left) if room >= len(group)]
        if not fits:
            waiting[:0] = [[agent] for agent in group]
            continue
        pull = [0.0] * len(rooms)
        for agent in group:
            for other, amount in near[agent].items():
                if other in placement:
                    pull[placement[other]] += amount
        region = max(fits, key=lambda at: (pull[at], left[at]))
        left[region] -= len(group)
        placement.update(dict.fromkeys(group, region))
    return placement


def _improved(start: Placement, rooms: Sequence[int], near: Near) -> Placement:
    """The best move of one agent, or exchange of two, again and again until none helps."""
    placement = dict(start)
    while True:
        best, moves = 1e-9, Placement()
        for agent, region in placement.items():
            for to in _with_room(placement, rooms):
                gain = _pull(near, placement, agent, to) - _pull(near, placement, agent, region)
                if gain > best:
                    best, moves = gain, {agent: to}
        for a, b in combinations(placement, 2):
            here, there = placement[a], placement[b]
            if here != there:
                gain = _pull(near, placement, a, there) - _pull(near, placement, a, here)
                gain += _pull(near, placement, b, here) - _pull(near, placement, b, there)
                gain -= 2 * near[a].get(b, 0.0)  # they still talk across
                if gain > best:
                    best, moves = gain, {a: there, b: here}
        if not moves:
            return placement
        placement.update(moves)


def _with_room(placement: Placement, rooms: Sequence[int]) -> list[int]:
    inside = list(placement.values())
    return [region for region, room in enumerate(rooms) if inside.count(region) < room]


def _pull(near: Near, placement: Placement, agent: str, region: int) -> float:
    """How much an agent talks with those of a region."""
    return sum(amount for other, amount in near[agent].items() if placement[other] == region)


def _require(agents: Sequence[str], rooms: Sequence[int]) -> None:
    if len(set(agents)) != len(agents):
        raise BadInput("an agent is named twice: each has one place")
    if any(not isinstance(room, int) or room < 0 for room in rooms) or sum(rooms) < len(agents):
        raise BadInput(
            f"{len(agents)} agents do not fit into regions for {list(rooms)}: give more room"
        )
