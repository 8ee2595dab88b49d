"""Lab 15: messages and their copies, layers ahead, hot blocks, and exercise `afford`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_models import linux

from inms_lab.errors import BadInput
from inms_lab.parameters.grouping import crossing, grouped, in_order
from inms_lab.parameters.prefetch import Prefetch
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.affording import CASES, Job, best
from inms_lessons.copies import solutions_in
from inms_lessons.hot_blocks import (
    blocks_of,
    busiest,
    counted,
    homes,
    play,
    replicated,
    served,
    trace,
    uneven,
)
from inms_lessons.layers_ahead import OnDisk, Timelines, timeline, told
from inms_lessons.moving import (
    Latencies,
    Line,
    conversation,
    first_win,
    latencies,
    matrix,
    own_pages,
    race,
    savings,
)
from inms_lessons.results import results

LAB = Path(__file__).resolve().parents[1] / "labs" / "15_moving_less.ipynb"
Afford = Callable[[Job], Any]


def run(source: str) -> Afford:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Afford = names["afford"]
    return found


def wrong_of(answer: object) -> Wrong:
    found = examine("afford", answer)
    assert found is not None
    return found


# messages ---------------------------------------------------------------------------------------


@linux
def test_a_page_is_the_readers_own_when_it_was_written_and_not_before() -> None:
    line = Line()
    line.outbox.send(torch.full((512, 512), 7.0))
    got = line.inbox.receive()
    assert got is not None
    came = got.pop("tensor")
    assert (came == 7).all()
    assert own_pages(came) == 0
    came[0, 0] = came[-1, -1] = 8
    assert own_pages(came) == 2
    with pytest.raises(AssertionError, match="somebody keeps a message"):
        line.assert_clean()
    del came


@linux
def test_a_line_whose_messages_are_let_go_leaves_nothing() -> None:
    line = Line()
    line.outbox.send(torch.ones(4096))
    assert line.inbox.receive()
    line.assert_clean()


@linux
def test_a_race_is_run_by_two_processes_and_leaves_none() -> None:
    threads = torch.get_num_threads()
    found = race([4 << 10, 1 << 20], repeat=2)
    assert torch.get_num_threads() == threads
    assert list(found) == ["by reference", "late reference", "third buffer", "pipe"]
    assert all([size for size, _ in line] == [4 << 10, 1 << 20] for line in found.values())
    assert all(time > 0 for line in found.values() for _, time in line)
    Line().assert_clean()


def test_the_figures_shown_are_those_that_the_text_speaks_of() -> None:
    messages = results("messages")
    lines = latencies(messages)
    wins = first_win(lines, "by reference", "pipe")
    assert wins is not None
    assert 8 << 10 <= wins <= 512 << 10, "tens of KiB"
    late = first_win(lines, "late reference", "pipe")
    assert late is not None
    assert late > wins
    assert lines["pipe"][0][1] < lines["by reference"][0][1] < lines["late reference"][0][1]
    for line in lines.values():
        assert line[0][0] == 4 << 10
        assert line[-1][0] == 256 << 20
    assert lines["by reference"][-1][1] < 20 * lines["by reference"][0][1], "grows little"
    assert max(lines, key=lambda name: lines[name][-1][1]) == "pipe"
    assert messages["claims"]["zero-copy-messages"]["verdict"] == "holds"
    table = savings(messages)
    assert list(table.index) == ["1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB"]
    assert table.notna().all().all()
    local = results("locality")
    assert local["numa_nodes"] == 1
    assert local["pages"]["cold_share"] == 0
    assert local["claims"]["locality"]["verdict"] == "does not hold"
    assert results("replicas")["falls"]
    assert results("replicas")["stale_reads"] == 0


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.6, 0.9, "faster"), (1.01, 1.2, "slower"), (0.9, 1.1, "no difference can be told")],
)
def test_what_is_said_of_a_cold_start_follows_from_its_figures(
    low: float, high: float, said: str
) -> None:
    measured = results("prefetch")
    measured["rows"] = [dict(row) for row in measured["rows"]]
    measured["rows"][-1] |= {"low": low, "high": high}
    assert told(measured).endswith(said)
    assert f"{measured['rows'][0]['major_faults']} times" in told(measured)


def test_from_which_size_on_a_line_is_below() -> None:
    one, other = [(1, 5.0), (2, 5.0), (3, 5.0)], [(1, 1.0), (2, 6.0), (3, 9.0)]
    assert first_win({"a": one, "b": other}, "a", "b") == 2
    assert first_win({"a": one, "b": other}, "b", "a") is None
    assert first_win({"a": one, "b": [(1, 9.0)] * 3}, "a", "b") == 1


def test_latencies_are_drawn_in_factors_with_and_without_plotly() -> None:
    chart = Latencies({"a": [(4096, 20.0), (1 << 20, 4000.0)]}, "<times>")
    assert chart.figure().layout.xaxis.type == chart.figure().layout.yaxis.type == "log"
    picture = chart.svg()
    for word in ("&lt;times&gt;", "4 KiB", "1 MiB", "10 µs", "10 ms"):
        assert word in picture
    assert str(chart) == "<times>: a: 4 KiB 20 µs, 1 MiB 4 ms"


# layers -----------------------------------------------------------------------------------------


def test_a_timeline_by_hand() -> None:
    assert [timeline((3,) * 4, (2,) * 4, degree)[-1].done for degree in (0, 1, 2, 4)] == [
        20,
        14,
        14,
        14,
    ]
    rough = Timelines((2, 2, 2, 14) * 3, (5,) * 12, (0, 1, 2, 3, 4))
    assert list(rough.ends().values()) == [120, 89, 74, 65, 65]
    first, second = timeline((3, 3), (2, 2), 0)
    assert (second.turn, second.loads, second.there, second.done) == (5, 5, 8, 10)
    assert (first.waits, second.waits) == (3, 3)


@pytest.mark.parametrize("seed", range(30))
def test_a_timeline_never_beats_its_bounds_nor_gets_worse_by_asking_further_ahead(
    seed: int,
) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    loads, computes = ([rng.randint(0, 9) for _ in range(count)] for _ in range(2))
    ends = [timeline(loads, computes, degree)[-1].done for degree in range(count + 1)]
    assert ends[0] == sum(loads) + sum(computes)
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] >= max(sum(loads) + computes[-1], loads[0] + sum(computes))
    for degree in range(count + 1):
        found = timeline(loads, computes, degree)
        for number, one in enumerate(found):
            assert one.there - one.loads == loads[number]
            assert one.done - one.computes == computes[number]
            assert one.computes >= one.there
            ahead = sum(other.loads < one.done for other in found[number + 1 :])
            assert ahead <= degree, "more layers in memory than were asked for"


def test_a_timeline_refuses_what_is_none() -> None:
    for bad in (-1, 1.5, None, True):
        with pytest.raises(BadInput, match="0 or more layers"):
            timeline((1,), (1,), bad)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="each layer"):
        timeline((1, 2), (1,), 0)


def test_timelines_are_drawn_to_scale() -> None:
    picture = Timelines((3,) * 4, (2,) * 4, (0, 1)).svg()
    assert picture.count("<rect") == 2 * 4 * 2
    assert "20 ms" in picture
    assert "14 ms" in picture


@linux
def test_a_stack_on_disk_gives_the_same_bits_with_room_for_few_layers() -> None:
    stack = OnDisk(6, 256)
    plain = stack.run()
    assert stack.layers_here() == 6
    stack.cold()
    assert stack.layers_here() == 0
    where = (stack.module, stack.view, stack.layout)
    with Prefetch(*where, 1, 2 * stack.layer_bytes, stack.piece) as ahead:
        for _ in range(3):
            assert torch.equal(stack.run(), plain)
    assert stack.layers_here() <= 2
    assert ahead.let_go >= 10 * stack.layer_bytes


# regions ----------------------------------------------------------------------------------------


def test_reads_go_to_the_less_busy_copy() -> None:
    reads = (64, 32, 21, 16, 13, 11, 9, 8)
    assert served(reads, homes(8, 4), 4) == [77, 43, 30, 24]
    copies = replicated(reads, 4, 1)
    assert copies[0] == [0, 3]
    loads = served(reads, copies, 4)
    assert sum(loads) == sum(reads)
    assert abs(loads[0] - loads[3]) <= 1
    assert uneven([2, 2]) == 1
    assert [len(one) for one in replicated(reads, 4, 99)] == [4] * 8


@pytest.mark.parametrize("seed", range(20))
def test_the_model_gives_every_read_to_a_copy_and_is_never_below_the_mean(seed: int) -> None:
    rng = random.Random(seed)
    reads = tuple(rng.randint(0, 40) for _ in range(rng.randint(1, 10)))
    regions, replicas = rng.randint(1, 5), rng.randint(0, 12)
    copies = replicated(reads, regions, replicas)
    assert sum(len(one) - 1 for one in copies) == min(replicas, len(reads) * (regions - 1))
    assert all(len(set(one)) == len(one) for one in copies)
    loads = served(reads, copies, regions)
    assert sum(loads) == sum(reads)
    assert busiest(reads, regions, replicas) == max(loads) >= sum(reads) / regions


def test_the_engine_evens_out_what_the_model_says_is_uneven() -> None:
    calls = trace(64, 4000)
    alone, helped = (play(calls, 64, 4, room) for room in (0, 4))
    reads = counted(calls, 64)
    assert sum(reads) == 4000
    assert list(alone.reads) == served(reads, homes(64, 4), 4)
    assert uneven(alone.reads) > 1.5
    assert uneven(helped.reads) < 1.05
    written = play(calls, 64, 4, 4, writes=50)
    assert written.stale == 0 < written.invalidated


def test_a_write_leaves_one_copy() -> None:
    blocks = blocks_of(8, 4, 2)
    for _ in range(400):
        blocks.read(0)
    assert len(blocks.copies(0)) == 4
    blocks.write(0, torch.ones(64, dtype=torch.uint8))
    assert blocks.copies(0) == [0]


def test_teams_that_arrive_by_turns_are_found() -> None:
    agents = [f"a{number}" for number in range(8)]
    traffic = conversation(agents, 2, 400).traffic()
    places = grouped(agents, [4, 4], traffic)
    assert {places[agent] for agent in agents[::2]} != {places[agent] for agent in agents[1::2]}
    assert crossing(traffic, places) < 0.2 * sum(traffic.values())
    assert crossing(traffic, in_order(agents, [4, 4])) > 0.5 * sum(traffic.values())
    table = matrix(traffic, agents)
    assert sum(map(sum, table)) == 2 * sum(traffic.values()) == 800
    assert table == [list(row) for row in zip(*table, strict=True)]


# the exercise -----------------------------------------------------------------------------------


def fits(job: Job) -> list[tuple[int, int]]:
    return [
        (degree, replicas)
        for degree in range(job.most_ahead + 1)
        for replicas in range(job.most_replicas + 1)
        if job.taken(degree, replicas) <= job.budget
    ]


def rest(job: Job, degree: int) -> int:
    """The replicas for which there is room beside so many layers ahead."""
    return max(0, min(job.most_replicas, (job.budget - (1 + degree) * job.layer) // job.block))


def good(job: Job) -> tuple[int, int]:
    return min(fits(job), key=lambda one: (job.ms(*one), job.taken(*one)))


def by_ahead_first(job: Job) -> tuple[int, int]:
    """Layers as long as one more saves anything, then replicas."""
    degree = 0
    while job.passing(degree + 1) < job.passing(degree) and (2 + degree) * job.layer <= job.budget:
        degree += 1
    return degree, min(range(rest(job, degree) + 1), key=lambda n: (job.reading(n), n))


def by_replicas_first(job: Job) -> tuple[int, int]:
    """Replicas as many as help, then layers."""
    replicas = min(range(rest(job, 0) + 1), key=lambda n: (job.reading(n), n))
    left = (job.budget - replicas * job.block) // job.layer - 1
    return min(range(min(left, job.most_ahead) + 1), key=lambda d: (job.passing(d), d)), replicas


def by_steps(job: Job) -> tuple[int, int]:
    """Replicas until one more saves nothing."""
    degree, replicas = good(job)[0], 0
    while replicas < rest(job, degree) and job.reading(replicas + 1) < job.reading(replicas):
        replicas += 1
    return degree, replicas


def test_the_solution_passes_and_the_stub_does_not() -> None:
    solution = solutions_in(json.loads(LAB.read_text("utf-8")))["afford"]
    assert examine("afford", run(solution)) is None
    assert examine("afford", good) is None
    assert [best(job) for job in CASES] == [good(job) for job in CASES]
    wrong = wrong_of(run(EXERCISES["afford"].stub))
    assert "2, 0: 127 ms" in wrong.came
    assert "a degree of 1 is as quick" in wrong.hint
    assert isinstance(wrong.picture, Timelines)


WRONG: dict[str, tuple[Afford, str, str]] = {  # the answer, what is said of it, and of why
    "all for replicas": (lambda j: (0, rest(j, 0)), "0, 8", "waits for the disk for 48 ms"),
    "no replica": (lambda j: (good(j)[0], 0), "1, 0", "5 more replicas fit"),
    "one replica too few": (lambda j: (1, rest(j, 1) - 1), "1, 4", "1 more replicas fit"),
    "one replica too many": (lambda j: (1, rest(j, 1) + 1), "96 MiB", "round down"),
    "the layer at work is forgotten": (
        lambda j: (1, (j.budget - j.layer) // j.block),
        "takes 112 MiB",
        "lies in memory too",
    ),
    "each has the budget": (
        lambda j: (j.budget // j.layer - 1, j.budget // j.block),
        "2, 11 takes 160 MiB",
        "share one budget",
    ),
    "layers that do not fit": (lambda j: (4, 0), "120 MiB", "5 layers of 24 MiB do not fit"),
    "always one ahead": (
        lambda j: (1, rest(j, 1)),
        "1, 9: 130 ms with 120 MiB",
        "waits for the disk for 29 ms",
    ),
    "layers first": (by_ahead_first, "1, 2: 169 ms", "saves 7 ms; 3 replicas in its place"),
    "replicas first": (by_replicas_first, "0, 10: 160 ms", "waits for the disk"),
    "replicas until one saves nothing": (by_steps, "1, 3: 95 ms", "2 more replicas fit"),
    "a replica as dear as a layer": (lambda j: (1, rest(j, 1) // 3), "1, 1", "more replicas fit"),
    "all that fits of equally quick ones": (
        lambda j: (good(j)[0], max(n for d, n in fits(j) if j.ms(d, n) == j.ms(*good(j)))),
        "as quick, with",
        "smallest number of replicas",
    ),
    "the greatest of equally quick degrees": (
        lambda j: max(one for one in fits(j) if j.ms(*one) == j.ms(*good(j))),
        "as quick, with",
        "smallest degree",
    ),
    "more ahead than there are": (
        lambda j: good(j) if j.budget < 4000 else (12, 0),
        "12, 0",
        "there are 12 layers",
    ),
    "more replicas than places": (
        lambda j: good(j) if j.budget < 4000 else (3, 121),
        "3, 121",
        "6 regions have 24 blocks each",
    ),
    "below nought": (lambda j: (1, -2), "1, -2", "a degree of 0 and no replica"),
    "halves": (lambda j: (1, j.budget / 8), "(1, 11.5)", "without a rest"),
    "true": (lambda j: (True, 3), "(True, 3)", "return degree, replicas"),
    "one number": (lambda j: 1, "1", "return degree, replicas"),
    "three numbers": (lambda j: (1, 2, 3), "(1, 2, 3)", "return degree, replicas"),
    "nothing": (lambda j: None, "None", "return degree, replicas"),
    "words": (lambda j: "12", "'12'", "return degree, replicas"),
    "an error": (lambda j: (j.budget // 0, 0), "ZeroDivisionError", "by hand"),
    "a model asked for less than nothing": (
        lambda j: (j.ms(-1, 0), 0),
        "a degree is 0 or more layers",
        "by hand",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_answers_are_told_apart(what: str) -> None:
    answer, came, hint = WRONG[what]
    wrong = wrong_of(answer)
    assert came in wrong.came
    assert hint in wrong.hint
    assert wrong.where.startswith("the job ")
    if wrong.picture is not None:
        assert "<svg" in wrong.picture.svg()


@pytest.mark.parametrize("answer", [None, 3, "afford"])
def test_what_is_no_function_is_said_to_be_none(answer: object) -> None:
    assert "a function afford" in wrong_of(answer).expected


def test_a_hint_never_tells_the_answer() -> None:
    for answer, _, _ in WRONG.values():
        wrong = wrong_of(answer)
        assert "(1, 5)" not in wrong.words()
        assert "1, 5" not in wrong.expected + wrong.hint


def test_an_endless_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def endless(job: Job) -> None:
        while True:
            job.ms(0, 0)

    monkeypatch.setitem(EXERCISES, "afford", replace(EXERCISES["afford"], seconds=0.3))
    assert "stopped after 0.3 seconds" in wrong_of(endless).came
