"""Several models, each page that they have in common in memory once; nobody can tell."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from shared_models import linux, llama, mlp, same, spoil, values
from transformers import BertConfig, BertModel

from inms_lab.bench import crossmodel as bench
from inms_lab.errors import BadInput, MergeRefused, NotEnoughMemory, ParametersClosed
from inms_lab.parameters import SharedParameters, crossmodel
from inms_lab.parameters.crossmodel import Stored, store_once
from inms_lab.parameters.kernel import PRIVATE, between
from inms_lab.parameters.region import PAGE, Memory
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

pytestmark = linux
VALUES = PAGE // 4  # of a page, in float32
TEXT = torch.arange(12)[None]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closes:
        yield closes


def shared(stack: ExitStack, source: Any, **more: Any) -> SharedParameters:
    return stack.enter_context(SharedParameters(source, **more))


def pages(stack: ExitStack, *numbers: int, name: str = "table") -> SharedParameters:
    """One tensor, whose pages are filled with these numbers."""
    return shared(
        stack, {name: torch.tensor(numbers, dtype=torch.float32).repeat_interleave(VALUES)}
    )


def bits(params: SharedParameters) -> dict[str, bytes]:
    return {
        name: value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in params.tensors().items()
    }


def held(*models: SharedParameters) -> int:
    """What the kernel says that all their memories take."""
    files = {piece.memory.fd for one in models for piece in one.version.pieces}
    return sum(os.fstat(fd).st_blocks * 512 for fd in files)


def stored(params: SharedParameters, *others: SharedParameters, **more: Any) -> Stored:
    """`store_once`, after which the bytes, the version and what is told of the memory must be
    right."""
    before, version = bits(params), params.version
    told = store_once(params, *others, **more)
    assert bits(params) == before
    assert (params.version.number, params.version.digest) == (version.number, version.digest)
    assert held(params, *others) - held(*others) == told.own
    assert told.shared + told.own + told.repeated == told.num_bytes == params.num_bytes
    assert told.pieces == len(params.version.pieces)
    assert all(a.stop == b.start for a, b in pairwise(params.version.pieces))
    return told


def said(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = model(TEXT)[0].clone()
    return output


# --- a model and a variant of it ---------------------------------------------------------------


def test_a_second_model_with_the_same_weights_takes_no_memory(stack: ExitStack) -> None:
    base, other = shared(stack, llama()), shared(stack, llama())
    before = said(other.module())
    told = stored(other, base)
    assert (told.own, told.shared, told.saved) == (0, other.num_bytes, other.num_bytes)
    assert torch.equal(said(other.module()), before)


def test_of_a_variant_only_the_tensors_that_differ_are_stored(stack: ExitStack) -> None:
    base, tuned = shared(stack, mlp()), mlp()
    with torch.no_grad():
        tuned[2].weight.mul_(1.5)  # type: ignore[operator, union-attr]
    other = shared(stack, tuned)
    spot = other.layout.spots["2.weight"]
    assert stored(other, base).own == spot.stop - spot.start
    assert not same(values(base.module()), values(other.module()))


def test_of_a_tensor_only_the_pages_that_differ_are_stored(stack: ExitStack) -> None:
    base = pages(stack, 1, 2, 3, 4, 5, 6)
    other = pages(stack, 1, 2, 8, 4, 9, 6)
    told = stored(other, base)
    assert (told.own, told.shared, told.pieces) == (2 * PAGE, 4 * PAGE, 5)


def test_single_values_that_differ_everywhere_save_nothing(stack: ExitStack) -> None:
    base, tuned = shared(stack, llama()), llama()
    with torch.no_grad():
        for weight in tuned.parameters():
            weight.view(-1)[::VALUES] += 1
    other = shared(stack, tuned)
    version = other.version
    assert stored(other, base).saved == 0
    assert other.version is version, "it was copied for nothing"


def test_equal_bytes_are_found_under_any_name_and_in_any_place(stack: ExitStack) -> None:
    table = torch.randn(40, VALUES)
    base = shared(stack, {"first": torch.randn(3, VALUES), "embedding": table})
    longer = torch.cat([table, torch.randn(2, VALUES)])
    other = shared(stack, {"wte": longer, "also": table[7:9].clone()})
    told = stored(other, base)
    assert (told.own, told.pieces) == (2 * PAGE, 3)


def test_other_bits_of_equal_numbers_are_other_bytes(stack: ExitStack) -> None:
    base = shared(stack, {"a": torch.zeros(VALUES), "b": torch.full((VALUES,), torch.nan)})
    other = shared(stack, {"a": -torch.zeros(VALUES), "b": torch.full((VALUES,), torch.nan)})
    told = stored(other, base)
    assert (told.own, told.shared) == (PAGE, PAGE)
    assert torch.signbit(other.tensors()["a"]).all()


def test_what_a_model_has_several_times_is_stored_once(stack: ExitStack) -> None:
    """Zero pages are the usual case."""
    params = pages(stack, 0, 1, 0, 0, 2, 0)
    told = stored(params)
    assert (told.own, told.repeated) == (3 * PAGE, 3 * PAGE)


def test_a_digest_alone_makes_no_pages_equal(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = pages(stack, 1, 2, 3), pages(stack, 3, 4, 2, 1, name="renamed")
    monkeypatch.setattr(crossmodel, "digest", lambda _: b"the same for all")
    assert stored(other, base).own == 3 * PAGE  # what it finds is the first of all


@pytest.mark.parametrize("seed", range(6))
def test_each_page_is_stored_once_whatever_the_models_are(stack: ExitStack, seed: int) -> None:
    """Against sets of pages: what none of the others has, once."""
    draw = np.random.default_rng(seed)

    def drawn() -> SharedParameters:
        names = draw.choice(["a", "b", "c", "d"], draw.integers(1, 5), replace=False)
        contents = [draw.integers(0, 12, draw.integers(1, 30)) for _ in names]
        tensors = {
            name: torch.from_numpy(numbers).float().repeat_interleave(VALUES)
            for name, numbers in zip(names.tolist(), contents, strict=True)
        }
        return shared(stack, tensors, shm_chunk_size=7 * PAGE)

    first, second, third = drawn(), drawn(), drawn()
    stored(second, first)
    told = stored(third, first, second)
    have = {page for one in (first, second) for page in _pages(one)}
    assert told.own == len(set(_pages(third)) - have) * PAGE


def _pages(params: SharedParameters) -> list[bytes]:
    whole = b"".join(bits(params).values())
    return [whole[at : at + PAGE] for at in range(0, len(whole), PAGE)]


@pytest.mark.parametrize("most", [3, 4, 8, 9])
def test_a_process_gets_no_more_pieces_than_allowed(stack: ExitStack, most: int) -> None:
    """The longest runs stay shared."""
    numbers = list(range(1, 41))
    base = pages(stack, *numbers)
    for at in (2, 5, 9, 14, 20, 30, 31):
        numbers[at] = -at
    told = stored(pages(stack, *numbers), base, most_pieces=most)
    lengths = sorted((2, 2, 3, 4, 5, 9, 8))
    assert told.pieces <= most
    assert told.shared == sum(lengths[-((most - 1) // 2) :]) * PAGE


def test_storing_it_again_or_the_other_way_round_takes_nothing_more(stack: ExitStack) -> None:
    base, other = pages(stack, 1, 2, 3, 4), pages(stack, 1, 7, 3, 4)
    stored(other, base)
    for params, beside in ((other, base), (base, other), (other, base)):
        stored(params, beside)
        assert held(base, other) == 5 * PAGE


def test_a_variant_outlives_its_base_and_nothing_outlives_both(stack: ExitStack) -> None:
    base, other = shared(stack, mlp()), shared(stack, mlp())
    stored(other, base)
    inodes = {os.fstat(piece.memory.fd).st_ino for piece in other.version.pieces}
    base.close()
    del base
    assert same(values(other.module()), values(mlp().eval()))
    assert mapped_or_open() >= inodes
    other.close()
    del other
    stack.close()
    gc.collect()
    assert not mapped_or_open() & inodes


def mapped_or_open() -> set[int]:
    """Inodes of our memories in this process."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the listing itself
            if "memfd:inms" in os.readlink(link):
                found.add(link.stat().st_ino)
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return found | {int(line.split()[4]) for line in lines if "memfd:inms" in line}


# --- who writes, and who goes on ---------------------------------------------------------------


def test_a_merge_into_one_model_does_not_reach_the_other(stack: ExitStack) -> None:
    base, other = shared(stack, mlp()), shared(stack, mlp())
    stored(other, base)
    for one, bystander in ((other, base), (base, other)):
        before = bits(bystander)
        branch = one.branch("task")
        spoil(branch.module)
        one.merge(branch)
        assert same(values(one.module()), values(branch.module))
        assert bits(bystander) == before


def test_agents_that_run_go_on_and_their_work_is_not_lost(stack: ExitStack) -> None:
    base, other = shared(stack, mlp()), shared(stack, mlp())
    agent = other.agent("early")
    agent.run(spoil)
    spoilt = agent.run(values)
    stored(other, base)
    assert same(agent.run(values), spoilt)
    assert same(other.agent("late").run(values), values(mlp().eval()))
    other.merge(agent)
    assert same(values(other.module()), spoilt)
    agent.move(other.version, discard=True)
    assert same(agent.run(values), spoilt)
    assert same(values(base.module()), values(mlp().eval()))


def encoder_and_decoder() -> tuple[Any, Any]:
    """Two tiny models of one vocabulary and width, with one embedding of 8 pages."""
    decoder = models.gpt2(vocab_size=128, hidden_size=64)
    torch.manual_seed(1)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96}
    encoder = BertModel(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)).eval()
    with torch.no_grad():
        encoder.get_input_embeddings().weight.copy_(decoder.get_input_embeddings().weight)
    return encoder, decoder


def teach(model: torch.nn.Module) -> None:
    """Steps that change the embedding too."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(TEXT)[0].square().mean().backward()
        optimizer.step()


def read_all(model: torch.nn.Module) -> None:
    for weight in model.state_dict().values():
        weight.sum()


def test_an_encoder_and_a_decoder_have_one_embedding_until_one_of_them_trains(
    stack: ExitStack,
) -> None:
    encoder, decoder = encoder_and_decoder()
    expected = [said(encoder), said(decoder)]
    first, second = shared(stack, encoder), shared(stack, decoder)
    table = 128 * 64 * 4
    assert stored(second, first).shared >= table
    here, agent = first.branch("encoder"), second.agent("decoder")
    assert torch.equal(said(here.module), expected[0])
    assert torch.equal(agent.run(said), expected[1])
    read_all(here.module)
    agent.run(read_all)
    gc.collect()  # other modules that lay on these memories
    spans = (("self", here.view.address, first), (agent.pid, agent.address, second))
    pss = sum(between(pid, at, at + params.num_bytes).pss for pid, at, params in spans)
    assert pss == pytest.approx(held(first, second), abs=64 * 1024)

    agent.run(teach)
    assert not torch.equal(agent.run(said), expected[1])
    assert torch.equal(said(here.module), expected[0])
    assert torch.equal(second.agent().run(said), expected[1])
    name = "transformer.wte.weight"
    assert second.pages(agent).by_name()["private"][name] == table // PAGE
    assert first.pages(here).count(PRIVATE) == 0


# --- what cannot be done -----------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(stack: ExitStack) -> None:
    base, other = pages(stack, 1, 2), pages(stack, 1, 2)
    with pytest.raises(BadInput, match="beside itself"):
        store_once(base, base)
    with pytest.raises(BadInput, match="most_pieces"):
        store_once(other, base, most_pieces=2)
    base.close()
    for pair in ((other, base), (base, other)):
        with pytest.raises(ParametersClosed):
            store_once(*pair)


def test_during_a_merge_nothing_is_laid_anew(stack: ExitStack) -> None:
    base, other = shared(stack, mlp()), shared(stack, mlp())
    branch = other.branch("task")
    spoil(branch.module)

    def meanwhile(_: torch.nn.Module) -> None:
        with pytest.raises(MergeRefused, match="merge is going on"):
            store_once(other, base)

    other.merge(branch, validate=meanwhile)
    assert stored(other, base).saved < other.num_bytes
    assert same(values(other.module()), values(branch.module))


def test_without_memory_for_what_differs_all_stays(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = pages(stack, 1, 2), pages(stack, 1, 3)
    version = other.version

    def none(*_: object) -> Memory:
        raise NotEnoughMemory("none")

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "create", none)
        with pytest.raises(NotEnoughMemory):
            store_once(other, base)
    assert other.version is version
    assert stored(other, base).own == PAGE


# --- measured ----------------------------------------------------------------------------------


def test_the_measurement_tells_what_each_case_saves() -> None:
    trial = bench.Trial(changed=(0.2,), scattered=(0.5,), repeat=1, published=False)
    found = bench.measure(llama(), trial, progress=False)
    rows = {row["case"]: row for row in found["rows"]}
    assert all(row["same_output"] for row in rows.values())
    for row in rows.values():
        assert row["pss_apart"] == pytest.approx(row["apart"], abs=4 * PAGE)
        rounded = row["pieces"] * 1024  # the kernel tells whole KiB of each mapping
        assert row["together"] - rounded <= row["pss_together"] <= row["together"]
    assert rows["same weights"]["saved"] == 0.5
    assert 0 < rows["tensors"]["saved"] < 0.5
    assert 0 < rows["merged adapter"]["saved"] < 0.5
    assert rows["scattered"]["saved"] < rows["pages"]["saved"] < 0.5
    assert found["claims"][bench.CLAIM]["verdict"] == DOES_NOT_HOLD


def test_an_adapter_needs_projections() -> None:
    with pytest.raises(BadInput, match="q_proj"):
        bench.merge_adapter(mlp(), 2, 0)
    with pytest.raises(BadInput, match="shares"):
        bench.Trial(changed=(0.0,))
    with pytest.raises(BadInput, match="repeat"):
        bench.Trial(repeat=0)


def test_the_claim_is_judged_by_the_published_sizes() -> None:
    """109.5 M and 124.4 M parameters are what the models' papers and cards say."""
    counted = bench.counted()
    assert counted["parameters"] == [109_482_240, 124_439_808]
    assert counted["at_most_saved"] == round(30522 * 768 / (109_482_240 + 124_439_808), 4)
    words, places = 30522 + 50257, 512 + 2 + 1024
    everything = round((words + places) * 768 / (109_482_240 + 124_439_808), 4)
    assert counted["of_all_embeddings"] == everything
    assert bench.claimed(counted)["verdict"] == DOES_NOT_HOLD
    assert bench.claimed(counted | {"at_most_saved": 0.36})["verdict"] == HOLDS
