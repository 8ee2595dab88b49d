"""Interference is measured against full prefill: parts at any place, recompute, variants."""

from __future__ import annotations

import random
from collections.abc import Iterator

import models
import pytest
import torch

from inms_lab.errors import BadInput, ContextTooLong, TextTooLarge, UnsafeShift
from inms_lab.interference.contexts import Part, Scratch
from inms_lab.model import Runner, from_model

TILE = 16


@pytest.fixture(scope="module")
def runner() -> Runner:
    return from_model(models.llama())


@pytest.fixture
def scratch(runner: Runner) -> Iterator[Scratch]:
    made = Scratch(runner, TILE, 2048)
    yield made
    made.close()


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=count)


PUBLIC, OWN, RECORD, ANSWER = (words(n, seed) for seed, n in enumerate((20, 33, 50, 12)))
PLACE = len(PUBLIC) + len(OWN)  # where the reader has the record


def truth(runner: Runner) -> torch.Tensor:
    """Stock transformers over the reader's whole context, from the record's last token on."""
    return runner.dense(PUBLIC + OWN + RECORD + ANSWER)[PLACE + len(RECORD) - 1 :]


def context(scratch: Scratch) -> tuple[list[Part], Part]:
    """The reader's own context, and the record as encoded behind the public part of it."""
    public = scratch.lay(PUBLIC)
    record, own = scratch.lay(RECORD, [public]), scratch.lay(OWN, [public])
    return [public, own], record


# --- contexts ---------------------------------------------------------------------------------


def test_a_part_that_is_a_prefix_is_exact(runner: Runner, scratch: Scratch) -> None:
    before, _ = context(scratch)
    record = scratch.encode(RECORD, before)
    assert (scratch.logits(ANSWER, [*before, record]) - truth(runner)).abs().max() < 1e-4
    more = scratch.logits(
        ANSWER[5:], [*before, record, scratch.encode(ANSWER[:5], [*before, record])]
    )
    assert (more - truth(runner)[5:]).abs().max() < 1e-4


@pytest.mark.parametrize("build", models.WANTED.values(), ids=models.WANTED)
def test_everything_recomputed_equals_full_prefill(build: models.Builder) -> None:
    runner = from_model(build())
    scratch = Scratch(runner, TILE, 2048)
    before, record = context(scratch)
    runs = scratch.recompute(record, range(len(RECORD)), before)
    scratch.ask(ANSWER, [*before, *runs])
    (got,) = scratch.compute()
    assert (got - truth(runner)).abs().max() < 1e-4 * truth(runner).abs().max()


def test_a_record_behind_another_context_is_not_exact_but_its_first_layer_is(
    runner: Runner, scratch: Scratch
) -> None:
    before, record = context(scratch)
    full = scratch.lay(RECORD, before)
    scratch.compute()
    reused, fresh = scratch.kv(record, at=PLACE), scratch.kv(full)
    error = (reused - fresh).abs().amax(dim=(1, 2, 3, 4))
    assert error[0] < 1e-4
    assert error[1:].min() > 0.1
    assert (scratch.logits(ANSWER, [*before, record]) - truth(runner)).abs().max() > 0.1


@pytest.mark.parametrize("picks", [(), (0, 1, 17, 49), range(3, 40), (48,)])
def test_kept_runs_between_recomputed_ones_stand_in_their_own_slots(
    runner: Runner, scratch: Scratch, picks: tuple[int, ...]
) -> None:
    """Recomputing tokens of a part that is exact changes nothing, whichever they are."""
    before, record = context(scratch)
    full = scratch.encode(RECORD, [*before])
    there = scratch.kv(record), scratch.kv(full)
    runs = scratch.recompute(full, picks, before)
    assert sum((run.tokens for run in runs), ()) == full.tokens
    kept = [run for run in runs if full.slot <= run.slot < full.slot + len(full)]
    assert sum(map(len, kept)) == len(RECORD) - len(picks)
    assert all(run.slot - full.slot == run.first - full.first for run in kept)
    assert (scratch.logits(ANSWER, [*before, *runs]) - truth(runner)).abs().max() < 1e-4
    runs = scratch.recompute(record, picks, before)
    assert (scratch.logits(ANSWER, [*before, *runs]) - truth(runner)).abs().max() > 0.1
    for part, bits in zip((record, full), there, strict=True):
        assert torch.equal(scratch.kv(part), bits)  # recompute writes elsewhere


def test_a_part_anywhere_has_the_same_kv_up_to_the_turn_of_its_keys(scratch: Scratch) -> None:
    here, there = scratch.lay(RECORD), scratch.lay(RECORD, at=900)
    scratch.compute()
    assert (scratch.kv(there, at=0) - scratch.kv(here)).abs().max() < 1e-3
    assert (scratch.kv(there) - scratch.kv(here)).abs().max() > 0.1


def test_several_questions_of_one_forward_equal_single_ones(scratch: Scratch) -> None:
    before, record = context(scratch)
    scratch.compute()
    contexts = [before, [*before, record], [*before, record.turned(0)], [before[0], record]]
    single = [scratch.logits(ANSWER[:n], c) for n, c in zip((3, 0, 7, 12), contexts, strict=True)]
    for n, c in zip((3, 0, 7, 12), contexts, strict=True):
        scratch.ask(ANSWER[:n], c)
    together = scratch.compute()
    assert [len(rows) for rows in together] == [4, 1, 8, 13]
    assert all(torch.equal(a, b) for a, b in zip(single, together, strict=True))
    assert not torch.equal(together[1][0], together[2][0])


def test_bad_input_is_named(runner: Runner, scratch: Scratch) -> None:
    part = scratch.encode(RECORD)
    with pytest.raises(BadInput, match="at least one token"):
        scratch.lay([])
    with pytest.raises(BadInput, match="at least one token"):
        scratch.ask(ANSWER, [])
    with pytest.raises(BadInput, match="leaves no room"):
        scratch.lay(OWN, [part], at=10)
    with pytest.raises(BadInput, match="0 to 49"):
        scratch.recompute(part, [50])
    with pytest.raises(ContextTooLong, match="takes 1024"):
        scratch.lay(OWN, at=1000)
    with pytest.raises(TextTooLarge, match="num_slots"):
        scratch.lay(words(2048, 9))
    with scratch.room():
        scratch.lay(words(500, 9))
        taken = scratch.used
    assert scratch.used == taken - 512
    unsafe = Scratch(from_model(models.hunyuan()), TILE, 256)
    part = unsafe.encode(RECORD)
    assert unsafe.logits(ANSWER, [part]).shape == (13, 320)
    with pytest.raises(UnsafeShift):
        unsafe.logits(ANSWER, [unsafe.encode(OWN), part])
    with pytest.raises(UnsafeShift):
        unsafe.kv(part, at=7)
