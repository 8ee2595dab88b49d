"""Agents that talk much are placed together: against the optimum, and against other orders."""

from __future__ import annotations

import random
import threading
from itertools import product
from typing import Any

import pytest

from inms_lab.errors import BadInput
from inms_lab.parameters.grouping import Talk, at_random, crossing, grouped, in_order


def names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def drawn(agents: list[str], rng: random.Random, share: float = 0.6) -> dict[Any, float]:
    return {(a, b): rng.randint(1, 20) for a, b in product(agents, agents)
            if a < b and rng.random() < share}  # fmt: skip


def optimum(agents: list[str], rooms: list[int], traffic: dict[Any, float]) -> float:
    """By trying all placements."""
    places = product(range(len(rooms)), repeat=len(agents))
    fit = (p for p in places if all(p.count(r) <= room for r, room in enumerate(rooms)))
    return min(crossing(traffic, dict(zip(agents, place, strict=True))) for place in fit)


def test_hidden_teams_are_found_whatever_the_order_of_arrival() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        agents = rng.sample(names(12), 12)
        teams = [agents[0:4], agents[4:8], agents[8:12]]
        traffic = {(a, b): 1.0 for a, b in product(agents, agents) if a < b}
        traffic |= {(a, b): 10.0 for team in teams for a, b in product(team, team) if a < b}
        found = grouped(names(12), [4, 4, 4], traffic)
        assert all(len({found[agent] for agent in team}) == 1 for team in teams)
        assert crossing(traffic, found) == 48
        assert crossing(traffic, found) < crossing(traffic, in_order(names(12), [4, 4, 4]))


def test_small_cases_are_near_the_optimum_and_never_worse_than_in_order() -> None:
    ours = best = 0.0
    for seed in range(40):
        rng = random.Random(seed)
        agents, rooms = names(rng.randint(4, 7)), rng.choice([[4, 4], [3, 2, 2], [5, 3]])
        traffic = drawn(agents, rng)
        found = grouped(agents, rooms, traffic)
        inside = list(found.values())
        assert found.keys() == set(agents)
        assert all(inside.count(region) <= room for region, room in enumerate(rooms))
        least, cost = optimum(agents, rooms, traffic), crossing(traffic, found)
        assert least <= cost <= crossing(traffic, in_order(agents, rooms))
        assert found == grouped(agents, rooms, traffic)
        ours, best = ours + cost, best + least
    assert ours <= 1.05 * best


def test_larger_cases_have_less_traffic_across_than_drawn_placements() -> None:
    agents, rooms = names(24), [6, 6, 6, 6]
    traffic = drawn(agents, random.Random(1), share=0.2)
    cost = crossing(traffic, grouped(agents, rooms, traffic))
    at_best = min(crossing(traffic, at_random(agents, rooms, seed)) for seed in range(200))
    assert cost < at_best


def test_talk_counts_pairs_from_many_threads() -> None:
    talk = Talk()

    def chat(me: str, you: str) -> None:
        for _ in range(500):
            talk.said(me, you, 2.0)

    pairs = [("a", "b"), ("b", "a"), ("a", "a"), ("c", "a")]
    threads = [threading.Thread(target=chat, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert talk.traffic() == {("a", "b"): 2000.0, ("a", "c"): 1000.0}


def test_bad_input_is_refused() -> None:
    talk = Talk()
    for wrong in (
        lambda: talk.said("a", "b", -1.0),
        lambda: in_order(["a", "a"], [2]),
        lambda: in_order(["a", "b"], [1]),
        lambda: grouped(["a"], [1], {("a", "x"): 1.0}),
        lambda: crossing({("a", "b"): 1.0}, {"a": 0}),
    ):
        with pytest.raises(BadInput):
            wrong()
