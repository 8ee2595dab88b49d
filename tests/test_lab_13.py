"""Lab 13: what processes with one model cost, calls that un-share, and exercise `unshare`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from shared_models import linux, others, shared, soon

from inms_lab.errors import AgentClosed
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.region import PAGE, Memory, Piece, View
from inms_lessons import EXERCISES, Wrong, agent_calls, copies_of_weights, examine
from inms_lessons.agent_calls import CALLS, MIB, Step, record
from inms_lessons.copies import solutions_in
from inms_lessons.results import results
from inms_lessons.unsharing import FIRST, KEEPS, ROOM, SCRIPTS, grown_by, in_mib, runs, unshares

LAB = Path(__file__).resolve().parents[1] / "labs" / "13_one_copy_of_the_weights.ipynb"
Rule = Callable[[list[Step]], Any]


def run(source: str) -> Rule:
    """The function that the cell of an exercise defines."""
    exec(source, names := dict[str, Any]())
    found: Rule = names["unshare"]
    return found


def wrong_of(answer: object) -> Wrong:
    found = examine("unshare", answer)
    assert found is not None
    return found


def first(steps: list[Step], guilty: Callable[[Step, Step], bool]) -> int | None:
    """The first call that `guilty(before, after)` names."""
    pairs = enumerate(pairwise(steps), 1)
    return next((number for number, (was, now) in pairs if guilty(was, now)), None)


def good(steps: list[Step]) -> int | None:
    def guilty(was: Step, now: Step) -> bool:
        room = ROOM + KEEPS * now.trains + now.kv - was.kv
        return now.own - was.own > now.trains or now.beside - was.beside > room

    return first(steps, guilty)


# by hand ----------------------------------------------------------------------------------------


@linux
def test_the_word_for_a_page_is_the_kernels() -> None:
    memory, view = Memory.create(2 * PAGE, "lesson"), View(2 * PAGE)
    view.lay([Piece(0, 2 * PAGE, memory)])
    assert copies_of_weights.told(view) == ["absent", "absent"]
    text = view.bytes_at(0, 2 * PAGE)
    assert not any(text.raw)
    assert copies_of_weights.told(view) == ["shared", "shared"]
    text[PAGE] = b"\0"
    assert copies_of_weights.told(view) == ["shared", "private"]


# the end: before any test that keeps parameters for the next ------------------------------------


@linux
def test_in_the_end_all_have_ended() -> None:
    with shared(preload=()) as params:
        agent = params.agent()
        copies_of_weights.assert_clean(params)
        assert not others()
        with pytest.raises(AgentClosed):
            agent.run(agent_calls.read)


@linux
def test_who_still_holds_the_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_of_weights, "PATIENCE", 0.0)
    with shared(preload=()) as params:
        monkeypatch.setattr(copies_of_weights, "holders", lambda name: [os.getpid(), 4_000_000])
        with pytest.raises(AssertionError, match=r"processes \[4000000\] still hold"):
            copies_of_weights.assert_clean(params)
    soon(lambda: not others())


# calls ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def params() -> Iterator[SharedParameters]:
    """A Llama of 150 MiB with drawn weights: its copies are more than a call takes for its work."""
    sizes = {"vocab_size": 16384, "hidden_size": 512, "intermediate_size": 1536, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 10}
    model = models.llama(**sizes, **heads, tie_word_embeddings=True)
    with shared(model, preload=("torch._dynamo",)) as made:
        yield made


@linux
def test_each_call_takes_what_it_is_said_to_take(params: SharedParameters) -> None:
    """On another model than the lab's, for which what is small beside a call's own work is not
    judged."""
    small = {"an adapter merged", "untie the output", "thaw, and collect"}
    quick = [name for name in CALLS if name != "read 1,024 tokens"]  # as 256 are, for longer
    size, grown = params.num_bytes, {name: grown_by(params, name) for name in quick}
    for name, growth in grown.items():
        assert name in small or unshares(growth) == CALLS[name].unshares, (name, growth)
    assert grown["an adapter merged"].own > 0 == grown["an adapter merged"].trains
    assert grown["untie the output"].beside >= 16384 * 512 * 4
    assert grown["thaw, and collect"].beside > 10 * MIB > grown["collect garbage"].beside
    for name in ("all weights times 1", "load into the tensors"):
        assert grown[name].own == size
    for name in ("a deep copy", "load, assign=True", "model.share_memory()"):
        assert grown[name].own == 0
        assert size < grown[name].beside < size + ROOM
    assert grown["train layer 3"].own == grown["train layer 3"].trains > 0
    assert grown["read 256 tokens"].kv == 256 * 10 * 2 * 4 * 64 * 4
    assert in_mib(grown).loc["a deep copy", "own"] == 0


@linux
def test_an_adapter_gives_the_same_beside_the_weights_and_merged_into_them() -> None:
    ids = torch.arange(3, 19)[None]
    logits, drawn = [], models.llama(num_hidden_layers=2).eval()
    for merged in (False, True):
        model = deepcopy(drawn)
        before = model(ids).logits
        agent_calls.adapter(model, merged)
        logits.append(model(ids).logits)
        assert not torch.allclose(logits[-1], before, atol=1e-2)
    assert torch.allclose(*logits, atol=1e-4)


@linux
def test_a_record_has_a_step_before_the_first_call_and_one_after_each(
    params: SharedParameters,
) -> None:
    start, trained, undone = record(params, ["train layer 3", "discard all changes"])
    assert (start.own, start.trains, start.kv) == (0, 0, 0)
    assert trained.own == trained.trains > 0
    assert (undone.own, undone.trains) == (0, 0)
    assert params.agents == []


# figures ----------------------------------------------------------------------------------------


@linux
def test_copies_are_counted_over_all_agents(params: SharedParameters) -> None:
    team = [params.agent() for _ in range(3)]
    for agent in team:
        agent.run(agent_calls.read)
    assert copies_of_weights.copies(params) == pytest.approx(1.0, abs=0.02)
    team[0].run(agent_calls.times_one)
    assert copies_of_weights.copies(params) == pytest.approx(2.0, abs=0.02)
    assert copies_of_weights.private(team[0]) > params.num_bytes / MIB
    assert copies_of_weights.private(team[1]) < 40
    for agent in team:
        agent.close()


def test_the_figures_that_are_shown_are_those_of_eight_agents_too() -> None:
    measured = results("parameters")
    rows = {row["pattern"]: row for row in measured["rows"] if row["agents"] == 8}
    assert rows.keys() == {"tensors", "pages", "scattered"}
    assert {row["agents"] for row in measured["mapped"]} >= {1, 8, 16}
    assert measured["changed"] == 0.15
    assert rows["scattered"]["saved"] < 0, "the lab says that it costs more than not to share"
    alone, one = (
        next(row for row in part if row["agents"] == 1)
        for part in (measured["rows"], measured["mapped"])
    )
    assert alone["whole"] > alone["independent"]["whole"], "the lab says that one alone is dearer"
    assert one["whole"] < alone["whole"]


# the exercise -----------------------------------------------------------------------------------


def test_the_solution_passes_and_the_stub_does_not() -> None:
    solution = solutions_in(json.loads(LAB.read_text("utf-8")))["unshare"]
    assert examine("unshare", run(solution)) is None
    assert examine("unshare", good) is None
    wrong = wrong_of(run(EXERCISES["unshare"].stub))
    assert wrong.where == "run 1"
    assert wrong.came == "4, but it was told to train 13.5 MiB of weights"
    assert "AdamW keeps 3 times as much beside" in wrong.hint


def test_recorded_runs_are_of_all_kinds_and_in_accord_with_the_rule() -> None:
    found = runs()
    assert [run.calls for run in found] == [(FIRST, *script) for script in SCRIPTS]
    for run in found:
        assert len(run.steps) == len(run.calls) + 1
        guilty = [n for n in range(1, len(run.steps)) if unshares(run.grown(n))]
        assert guilty == ([run.guilty] if run.guilty else [])
        assert len(run.table()) == len(run.steps)
    assert [run.guilty for run in found].count(None) == 2
    guilty = [run.grown(run.guilty) for run in found if run.guilty]
    assert {step.own > step.trains for step in guilty} == {True, False}
    assert {step.trains > 0 for step in guilty} == {True, False}


@linux
@pytest.mark.slow
@pytest.mark.model
def test_a_run_that_is_made_anew_is_like_the_recorded_one() -> None:
    calls = (FIRST, "train layer 3", "model.share_memory()", "read 256 tokens")
    (recorded,) = [run for run in runs() if run.calls == calls]
    with SharedParameters("smollm2-135m") as params, params.agent() as mapped:
        mapped.run(agent_calls.read)
        steps = record(params, calls)
    for was, now in zip(recorded.steps, steps, strict=True):
        assert (now.trains, now.kv, now.own) == (was.trains, was.kv, was.own)
        assert abs(now.beside - was.beside) < ROOM
    assert good(steps) == recorded.guilty


def ignoring_kv(was: Step, now: Step) -> bool:
    room = ROOM + KEEPS * now.trains
    return now.own - was.own > now.trains or now.beside - was.beside > room


def told_by_own_alone(was: Step, now: Step) -> bool:
    return now.own - was.own > now.trains


WRONG: dict[str, tuple[Rule, str, str, str]] = {  # the rule; run, what is said of it, and of why
    "nobody is ever guilty": (
        lambda steps: None,
        "run 2",
        "None: all are innocent",
        "more pages its own than it was told",
    ),
    "somebody is always guilty": (
        lambda steps: len(steps) - 1,
        "run 1",
        "beside for its work",
        "64.0 MiB beside are no copy",
    ),
    "pages of the weights alone": (
        lambda steps: first(steps, told_by_own_alone),
        "run 4",
        "None: all are innocent",
        "can lie elsewhere",
    ),
    "what is beside alone": (
        lambda steps: first(steps, lambda a, b: b.beside - a.beside > ROOM + 3 * b.trains),
        "run 2",
        "None: all are innocent",
        "more pages its own",
    ),
    "KV is not taken off": (
        lambda steps: first(steps, ignoring_kv),
        "run 5",
        "more KV",
        "take it off",
    ),
    "training is guilty": (
        lambda steps: first(steps, lambda a, b: b.own > a.own),
        "run 1",
        "4, but it was told to train 13.5 MiB",
        "AdamW keeps 3 times",
    ),
    "an optimizer is guilty": (
        lambda steps: first(
            steps,
            lambda a, b: b.own - a.own > b.trains or b.beside - a.beside > ROOM + b.kv - a.kv,
        ),
        "run 3",
        "2, but it was told to train 81.0 MiB",
        "AdamW keeps 3 times",
    ),
    "who trains is never guilty": (
        lambda steps: None if (n := good(steps)) and steps[n].trains else n,
        "run 6",
        "None: all are innocent",
        "keeps 3 bytes beside each byte",
    ),
    "totals, not what is added": (
        lambda steps: first(steps, lambda a, b: b.own > b.trains),
        "run 1",
        "6, but it took",
        "up to 64.0 MiB beside",
    ),
    "the last one that is above": (
        lambda steps: next(
            (n for n in range(len(steps) - 1, 0, -1) if steps[n].own > 400 * MIB), None
        ),
        "run 2",
        "4, but it took",
        "what an earlier call took is still there",
    ),
    "as much as it was told, exactly": (
        lambda steps: first(steps, lambda a, b: b.own - a.own != b.trains),
        "run 1",
        "5, but it was told to train",
        "it made 0.0 MiB its own",
    ),
    "any difference is guilty": (
        lambda steps: (
            None
            if good(steps) in (2, 3)
            else first(steps, lambda a, b: abs(b.own - a.own) > b.trains)
        ),
        "run 2",
        "None: all are innocent",
        "more pages its own",
    ),
    "the sign is lost": (
        lambda steps: first(steps, lambda a, b: abs(b.own - a.own) > b.trains or good([a, b]) == 1),
        "run 7",
        "that call gave pages back",
        "mind the sign",
    ),
    "counted from nought": (
        lambda steps: good(steps) and good(steps) - 1,
        "run 2",
        "2, but it took",
        "do you mean the call behind it? steps[n] is after call n",
    ),
    "only large copies": (
        lambda steps: first(steps, lambda a, b: b.own - a.own > 100 * MIB),
        "run 3",
        "None: all are innocent",
        "more pages its own",
    ),
    "the step itself": (
        lambda steps: steps[3],
        "run 1",
        "Step(trains=",
        "return that n",
    ),
    "a number that is none": (lambda steps: 99, "run 1", "99", "return that n"),
    "the beginning": (lambda steps: 0, "run 1", "0", "steps[0] is before the first call"),
    "true": (lambda steps: True, "run 1", "True", "return that n"),
    "half": (lambda steps: 1.5, "run 1", "1.5", "return that n"),
    "an error": (lambda steps: steps[99], "run 1", "IndexError", "one more of them than calls"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_rules_are_told_apart(what: str) -> None:
    rule, where, came, hint = WRONG[what]
    wrong = wrong_of(rule)
    assert wrong.where == where
    assert came in wrong.came
    assert hint in wrong.hint
    assert wrong.log is None
    assert "call" not in wrong.picture.columns
    assert wrong.words()


def test_a_rule_cannot_change_what_the_next_is_asked() -> None:
    def destroys(steps: list[Step]) -> int | None:
        answer = good(steps)
        steps.clear()
        return answer

    assert examine("unshare", destroys) is None
    assert examine("unshare", good) is None


@pytest.mark.parametrize("answer", [None, 3, "unshare"])
def test_what_is_no_function_is_said_to_be_none(answer: object) -> None:
    assert "a function unshare" in wrong_of(answer).expected
