"""Hot blocks in several regions: never an old byte, never more than the budget."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from inms_lab.bench import replicas as bench
from inms_lab.errors import BadInput
from inms_lab.parameters.replicas import Replicas
from inms_lab.parameters.slots import Region, Slot

BYTES = 64


def made(
    count: int = 8, regions: int = 3, budget: int = 2, homes: list[int] | None = None, **how: int
) -> Replicas:
    """Blocks whose bytes are their number, and no looks at what is hot but those asked for."""
    blocks = torch.arange(count, dtype=torch.uint8)[:, None].repeat(1, BYTES)
    places = [Region(budget * BYTES) for _ in range(regions)]
    return Replicas(blocks, places, homes, hot=0.1, **({"every": 0} | how))


def filled(value: int) -> torch.Tensor:
    return torch.full((BYTES,), value, dtype=torch.uint8)


def warm(replicas: Replicas, number: int, reads: int = 20) -> None:
    for _ in range(reads):
        replicas.read(number)


# --- what a reader gets -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_read_what_a_dictionary_would_give(seed: int) -> None:
    rng = random.Random(seed)
    count, regions = rng.randint(1, 12), rng.randint(1, 4)
    replicas = made(count, regions, rng.randint(0, 3), every=rng.choice([0, 3]), half_life=10)
    plain = {number: (number, 0) for number in range(count)}  # value, how often written
    for _ in range(400):
        number = int(count ** rng.random()) - 1
        if rng.random() < 0.1:
            value = rng.randrange(256)
            plain[number] = (value, plain[number][1] + 1)
            assert replicas.write(number, filled(value)) == plain[number][1]
        elif rng.random() < 0.05:
            replicas.tend()
        else:
            got = replicas.read(number)
            assert (got.value == plain[number][0]).all()
            assert got.version == plain[number][1]
    replicas.check()
    assert sum(replicas.reads) == replicas._clock


def test_a_write_lets_all_replicas_go_before_anybody_can_read_it() -> None:
    replicas = made(budget=4)
    warm(replicas, 0)
    while replicas.tend():
        pass
    assert sorted(replicas.copies(0)) == [0, 1, 2]
    assert {replicas.read(0).region for _ in range(60)} == {0, 1, 2}
    replicas.write(0, filled(77))
    assert replicas.copies(0) == [0]
    assert replicas.invalidated == 2
    got = [replicas.read(0) for _ in range(9)]
    assert {one.region for one in got} == {0}
    assert all((one.value == 77).all() for one in got)
    replicas.check()


def test_who_reads_while_it_is_written_keeps_the_old_bytes_and_a_writer_without_room_waits() -> (
    None
):
    replicas = made()
    slots, old = replicas._slots, replicas._blocks[0].home
    with replicas._books:
        slots.begin(old)  # as a reader does, who now takes its time
    replicas.write(0, filled(91))
    assert (slots.bytes(old) == 0).all()
    assert (replicas.read(0).value == 91).all()
    writer = threading.Thread(target=replicas.write, args=(0, filled(92)))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()  # the only row to spare is still read
    assert (replicas.read(0).value == 91).all()
    with replicas._books:
        slots.end(old)
    writer.join(20)
    assert not writer.is_alive()
    assert (replicas.read(0).value == 92).all()
    replicas.check()


def test_a_replica_of_bytes_that_were_written_meanwhile_is_thrown_away() -> None:
    replicas = made()
    warm(replicas, 0)
    plain, wrote = replicas._slots.bytes, []

    def raced(slot: Slot) -> torch.Tensor:
        if not replicas._slots.is_home(slot) and not wrote:
            wrote.append(slot)
            replicas.write(0, filled(55))
        return plain(slot)

    replicas._slots.bytes = raced  # type: ignore[method-assign]
    assert replicas.tend() == 0
    assert wrote
    assert replicas.copies(0) == [0]
    assert (replicas.read(0).value == 55).all()
    replicas.check()
    assert replicas.tend() == 1


def test_threads_never_read_an_old_or_a_torn_block() -> None:
    load = bench.Load(
        blocks=6, block_bytes=32768, regions=3, budget=3, writes=0.2, threads=1, bandwidth=1e12
    )
    blocks = torch.zeros(load.blocks, load.block_bytes, dtype=torch.uint8)
    regions = [Region(load.budget * load.block_bytes) for _ in range(load.regions)]
    replicas = Replicas(blocks, regions, every=7, half_life=50)
    checked = bench._Checked(load, replicas)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(600):
                number = int(load.blocks ** rng.random()) - 1
                (checked.write if rng.random() < 0.2 else checked.read)(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert checked.stale == 0
    assert replicas.made
    assert replicas.invalidated
    replicas.check()


# --- where replicas are -----------------------------------------------------------------------


def test_reads_go_where_the_load_by_bandwidth_is_least() -> None:
    blocks = torch.zeros(2, BYTES, dtype=torch.uint8)
    replicas = Replicas(blocks, [Region(BYTES, 3.0), Region(BYTES, 1.0)], [0, 0], every=0)
    warm(replicas, 0, 40)
    assert replicas.reads == [40, 0]
    assert replicas.tend() == 1
    warm(replicas, 0, 4000)
    fast, slow = replicas.reads
    assert 2.8 < fast / slow < 3.2
    high, low = sorted(replicas.loads(), reverse=True)
    assert high / low < 1.1


def test_a_hot_block_gets_copies_and_a_cold_one_none() -> None:
    replicas = made(count=8, homes=[0] * 8)
    for number in [0] * 30 + [1, 2, 3]:
        replicas.read(number)
    replicas.tend()
    replicas.tend()
    assert len(replicas.copies(0)) == 3
    assert replicas.copies(1) == replicas.copies(7) == [0]


def test_replicas_stay_within_the_budget_and_the_hotter_takes_the_place_of_the_colder() -> None:
    replicas = made(count=8, regions=2, budget=1, homes=[0] * 8, half_life=20)
    warm(replicas, 0)
    assert replicas.tend() == 1
    warm(replicas, 1, 4)  # not much hotter
    assert replicas.tend() == 0
    assert replicas.copies(0) == [0, 1]
    warm(replicas, 1, 40)
    assert replicas.tend() == 1
    assert (replicas.copies(0), replicas.copies(1)) == ([0], [0, 1])
    replicas.check()
    nowhere = made(budget=0)
    warm(nowhere, 0)
    assert nowhere.tend() == 0


def test_what_has_grown_cold_loses_its_replicas() -> None:
    replicas = made(half_life=20)
    warm(replicas, 0)
    assert replicas.tend() == 1
    for number in range(1, 8):
        warm(replicas, number, 20)
    replicas.tend()
    assert replicas.copies(0) == [0]
    assert replicas.dropped
    replicas.check()


# --- the measurement and bad input ------------------------------------------------------------


def test_the_measurement_finds_calmer_regions_and_no_old_read() -> None:
    load = bench.Load(
        blocks=32, block_bytes=1024, calls=1500, budget=8, threads=2, bandwidth=1e9, skew=1.3
    )
    found = bench.measure(load, repeat=3)
    without, having = found["rows"]
    assert having["max_to_mean"]["max"] < without["max_to_mean"]["min"]
    assert found["max_to_mean_ratio"]["ratio"] < 1
    assert found["stale_reads"] == 0
    assert without["made"]["max"] == 0 < having["made"]["min"]
    assert having["invalidated"]["max"] > 0


def test_bad_input_is_refused() -> None:
    blocks, region = torch.zeros(2, BYTES, dtype=torch.uint8), Region(0)
    for wrong in (
        lambda: Replicas(blocks.float(), [region]),
        lambda: Replicas(blocks, []),
        lambda: Replicas(blocks, [Region(-1)]),
        lambda: Replicas(blocks, [Region(0, 0.0)]),
        lambda: Replicas(blocks, [region], [0]),
        lambda: Replicas(blocks, [region], [0, 1]),
        lambda: Replicas(blocks, [region], hot=0),
        lambda: made().read(8),
        lambda: made().read(-1),
        lambda: made().write(0, torch.zeros(3, dtype=torch.uint8)),
        lambda: made().write(9, filled(0)),
        lambda: bench.Load(block_bytes=12),
        lambda: bench.Load(writes=1.0),
        lambda: bench.measure(repeat=0),
    ):
        with pytest.raises(BadInput):
            wrong()
