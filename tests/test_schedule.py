"""Who goes next: sealed texts, then those that decode, then those that prefill, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy import Toy, plain

from inms_lab.config import Config
from inms_lab.decisions.outcome import Chunk
from inms_lab.decisions.schedule import schedule
from inms_lab.errors import BadInput

TEXT = [1, 2, 3, 4, 0, 1]


def test_nobody_without_work_is_scheduled() -> None:
    toy = Toy()
    idle, new, ended = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.do(idle, "append", TEXT)
    toy.ask(ended, "append", TEXT)
    toy.engine.enter()
    assert schedule(toy.ledger) == [ended]
    toy.enter(ended, "close")
    assert schedule(toy.ledger) == []
    toy.enter(new, "append", TEXT)
    assert schedule(toy.ledger) == [new]


def test_sealed_texts_come_first_then_decoding_then_prefill_by_registration() -> None:
    toy = Toy(budget=7)
    prefilling = toy.agent("a")
    decoding = [toy.agent("b"), toy.agent("c")]
    late = toy.agent("d")
    for agent in decoding:
        toy.ask(agent, "write", [2], count=5)
        toy.step()
    toy.enter(late, "append", TEXT)
    toy.enter(prefilling, "append", TEXT)
    prompt = toy.engine.register("prompt", "prompt", frozenset())
    record = toy.engine.register("record", "r", frozenset({"group:team"}))
    toy.enter(record, "append", TEXT, tier="group", group="team", seal=True)
    toy.enter(prompt, "append", TEXT, tier="global", seal=True)
    before = plain(toy.ledger)
    assert schedule(toy.ledger) == [prompt, record, *decoding, prefilling, late]
    assert plain(toy.ledger) == before


def test_the_token_budget_goes_down_the_list_and_nobody_gets_a_second_share() -> None:
    toy = Toy(budget=9)
    first, second, third = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.ask(first, "write", [2], count=9)
    toy.step()
    toy.ask(second, "append", TEXT)
    toy.ask(third, "append", TEXT)
    report = toy.step()
    assert report.chunks == (Chunk(first, 1, 2), Chunk(second, 0, 6), Chunk(third, 0, 2))
    report = toy.step(budget=4)
    assert report.chunks == (Chunk(first, 2, 3), Chunk(third, 2, 5))
    report = toy.step(budget=1)
    assert report.chunks == (Chunk(first, 3, 4),)


def test_a_wanted_logit_takes_one_token_of_the_budget() -> None:
    toy = Toy(budget=2)
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", TEXT)
    toy.ask(first, "logits")
    toy.ask(second, "append", TEXT)
    report = toy.step()
    assert report.chunks == (Chunk(first, 5, 6, recompute=True), Chunk(second, 0, 1))


def test_every_holder_with_work_is_served_within_the_prefill_of_those_before_it() -> None:
    toy = Toy(budget=5, blocks=(4, 4, 40))
    agents = [toy.agent(name) for name in "abcdef"]
    turns = [toy.ask(agent, "write", [agent % 5] * 7, count=4) for agent in agents]
    toy.run(limit=40)
    for agent, turn in zip(agents, turns, strict=True):
        assert turn.future.result(timeout=0) == toy.model.generate([agent % 5] * 7, 4)


def test_a_long_text_takes_its_own_budget_only_while_somebody_decodes() -> None:
    toy = Toy()
    toy.engine.config = replace(toy.engine.config, prefill_budget=4)
    writer, reader, other = toy.agent("a"), toy.agent("b"), toy.agent("c")
    toy.ask(reader, "append", TEXT)
    assert toy.step().chunks == (Chunk(reader, 0, 6),), "nobody decodes: all at once"
    toy.ask(writer, "write", [2], count=9)
    toy.step()
    toy.ask(reader, "append", TEXT)
    toy.ask(other, "append", TEXT)
    chunks = [toy.step().chunks for _ in range(4)]
    assert all(chunk[0].seq_id == writer for chunk in chunks), "a token in every step"
    assert [chunk[1:] for chunk in chunks] == [
        (Chunk(reader, 6, 10),),
        (Chunk(reader, 10, 12), Chunk(other, 0, 2)),
        (Chunk(other, 2, 6),),
        (),
    ]


def test_a_prefill_budget_is_at_least_one_token() -> None:
    with pytest.raises(BadInput, match="prefill_budget"):
        Config(prefill_budget=0)
