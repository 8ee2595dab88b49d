"""The churn and the policies' machine: the same for all, nothing handed out twice, regions go back
when they are empty and not before, and a death is what it says: memory free, and no room."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from inms_lab.bench.fragmentation import measure, needed, peaks, play
from inms_lab.cli import app
from inms_lab.errors import BadInput
from inms_lab.studies.churn import (
    LIVES,
    LONG,
    POLICIES,
    SHORT,
    TENANT,
    WHOLE,
    Churn,
    Machine,
    script,
)

CHURN = Churn(operations=1000)


def test_a_seed_is_one_churn_and_every_arrival_ends_once() -> None:
    assert script(CHURN, 3) == script(CHURN, 3) != script(CHURN, 4)
    steps = script(replace(CHURN, operations=1500), 3)
    came, gone, live = dict[int, int](), dict[int, int](), Counter[str]()
    lives: dict[str, list[int]] = {life: [] for life in (*LIVES, TENANT)}
    for at, now in enumerate(steps):
        for op in now:
            if op.verb in ("take", "open"):
                assert op.owner not in came
                came[op.owner] = at
                live[op.life] += 1
                assert live[TENANT] <= CHURN.tenants
            else:
                assert op.owner in came
                assert op.owner not in gone
                gone[op.owner] = at
                live[op.life] -= 1
                lives[op.life].append(at - came[op.owner])
    mean = {life: sum(spans) / len(spans) for life, spans in lives.items() if spans}
    assert WHOLE not in mean, "the prompt stays"
    assert mean[SHORT] < mean[LONG] / 10
    assert mean[TENANT] > mean[SHORT]


@pytest.mark.parametrize("order", ["queue", "lowest"])
@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_have_one_holder_and_empty_regions_go_back(policy: str, order: str) -> None:
    churn = replace(CHURN, regions=40, region=4, own=(10, 20), prompt=160, tenants=1, opening=6)
    machine, draw = Machine(churn, policy, order), random.Random(1)
    held: dict[int, tuple[str, tuple[int, ...]]] = {}
    refused = 0
    for number in range(1500):
        if held and draw.random() < 0.48:
            life, blocks = held.pop(draw.choice([*held]))
            machine.pools[life].give(blocks)
        else:
            life, count = draw.choice(LIVES), draw.randint(1, 12)
            got = machine.pools[life].take(count)
            if got is None:
                refused += 1
                room = len(machine.pools[life].pool.free)
                assert room < count
                if policy != "own":
                    assert room + machine.owners.count("") * churn.region < count
            else:
                assert len(set(got)) == count
                held[number] = life, got
        taken = Counter(block for _, blocks in held.values() for block in blocks)
        assert not taken or max(taken.values()) == 1
        used = {block // churn.region for block in taken}
        if policy == "own":
            assert machine.owners.count("") == 40 - 10 - 20 - 3
        else:
            assert {n for n, owner in enumerate(machine.owners) if owner} == used
        for life, blocks in held.values():
            owners = {machine.owners[block // churn.region] for block in blocks}
            assert owners == {"one" if policy == "one" else life}
        for pool in {id(p): p for p in machine.pools.values()}.values():
            mine = {n for n, owner in enumerate(machine.owners) if owner == pool.name}
            inside = {block for n in mine for block in range(n * 4, n * 4 + 4)}
            assert inside == pool.pool.free.keys() | pool.pool.refs.keys()
    assert refused > 5
    for life, blocks in held.values():
        machine.pools[life].give(blocks)
    assert policy == "own" or machine.owners == [""] * churn.regions


def test_the_lowest_blocks_are_taken_where_that_is_the_order() -> None:
    churn = replace(CHURN, regions=8, region=4)
    pools = {order: Machine(churn, "one", order).pools[SHORT] for order in ("queue", "lowest")}
    for order, want in (("queue", (6, 7)), ("lowest", (0, 1))):
        first, second = pools[order].take(2), pools[order].take(4)
        assert (first, second) == ((0, 1), (2, 3, 4, 5))
        pools[order].give((0, 1))  # behind 6 and 7 in the queue
        assert pools[order].take(2) == want


def test_reserving_finds_the_first_run_that_is_long_enough() -> None:
    machine = Machine(replace(CHURN, regions=10), "one")
    machine.owners[:] = ["", "", "x", "", "", "", "x", "", "", ""]
    assert [*machine.runs()] == [(0, 2), (3, 3), (7, 3)]
    assert machine.longest() == 3
    assert machine.reserve("y", 4) is None
    assert machine.reserve("y", 3) == range(3, 6)
    assert machine.reserve("z", 4, together=False) == [0, 1, 7, 8]
    assert machine.owners == ["z", "z", "x", "y", "y", "y", "x", "z", "z", ""]
    assert machine.reserve("w", 2, together=False) is None


@pytest.mark.parametrize("seed", range(3))
def test_one_pool_dies_with_room_for_a_tenant_that_lies_scattered(seed: int) -> None:
    """Not a rounding: what is free would do for the tenant several times over."""
    churn = Churn()
    fate = play(churn, seed, "one")
    assert fate.died is not None
    tenant = churn.opening * churn.region
    assert fate.free > 2 * tenant > tenant > fate.longest
    free = [not owner for owner, _ in fate.regions]  # counted again
    runs = "".join("." if nobodys else "x" for nobodys in free).split("x")
    assert max(map(len, runs)) * churn.region == fate.longest
    live = sum(n for _, lives in fate.regions for n in lives.values())
    assert live == fate.live
    total = churn.regions * churn.region
    assert fate.free == total - fate.live - fate.tenants
    assert fate.stuck == fate.free - free.count(True) * churn.region
    (now,) = [now for at, now in enumerate(script(churn, seed)) if at == fate.died]
    assert any(op.verb == "open" for op in now), "a tenant came"
    assert len(fate.series) == fate.died + 1


@pytest.mark.parametrize("together", [True, False])
def test_own_pools_never_die_whatever_comes(together: bool) -> None:
    for seed in range(4):
        churn = replace(
            CHURN, together=together, peak_every=10
        )  # more peaks than there is room for
        fate = play(churn, seed, "own")
        assert fate.died is None
        assert fate.refused > 0, "that is what it costs"
        assert len(fate.series) == churn.operations


def test_what_every_policy_needs_is_enough_and_a_region_less_is_not() -> None:
    churn = replace(CHURN, operations=300)
    for seed in range(2):
        parts, together = peaks(churn, seed)
        own = needed(churn, seed, "own")
        assert own == sum(parts.values()) >= together
        divided = replace(churn, regions=own, own=(parts[LONG], parts[SHORT]))
        slack = churn.tenants * churn.opening - parts[TENANT]
        divided = replace(divided, regions=own + slack)
        fate = play(divided, seed, "own")
        assert (fate.died, fate.refused) == (None, 0)
        for policy in ("one", "classes"):
            count = needed(churn, seed, policy)
            fate = play(replace(churn, regions=count), seed, policy)
            assert (fate.died, fate.refused) == (None, 0)
            less = play(replace(churn, regions=count - 1), seed, policy)
            assert less.died is not None or less.refused
            assert count >= together


def test_peaks_are_those_of_the_texts_alone() -> None:
    churn = replace(CHURN, operations=200)
    parts, together = peaks(churn, 1)
    fate = play(replace(churn, regions=400), 1, "one")  # room for everything: nothing is refused
    assert fate.refused == 0
    assert -(-max(used for used, _ in fate.series) // churn.region) <= together
    assert max(parts.values()) <= together <= sum(parts.values())


def test_the_command_prints_a_row_a_policy_with_its_seeds() -> None:
    asked = [
        "bench",
        "fragmentation",
        "--json",
        "--repeat",
        "2",
        "--operations",
        "250",
        "--seed",
        "5",
    ]
    out = CliRunner().invoke(app, asked)
    assert out.exit_code == 0, out.output
    result = json.loads(out.stdout)
    assert (result["bench"], result["seeds"], result["order"]) == (
        "fragmentation",
        "5 to 6",
        "queue",
    )
    assert [row["policy"] for row in result["policies"]] == [*POLICIES]
    own = result["policies"][1]
    assert (own["died"], own["free_bytes"]) == ("0 of 2", None)
    again = measure(Churn(operations=250), 5, 2, "queue")
    assert again == {name: result[name] for name in again}
    assert sum(result["dies_first"].values()) == 2


@pytest.mark.parametrize(
    "arguments", [{"regions": 0}, {"region": 0}, {"opening": 0}, {"block_size": 0}]
)
def test_sizes_of_nothing_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="must be at least 1"):
        Churn(**arguments)


def test_unknown_names_and_divisions_that_do_not_fit_are_refused() -> None:
    for policy, order in (("two", "queue"), ("one", "last")):
        with pytest.raises(BadInput, match="there are one, own, classes"):
            Machine(CHURN, policy, order)
    with pytest.raises(BadInput, match="are more than 100"):
        Machine(replace(CHURN, regions=100), "own")
