"""Fingerprints: typed, chained, the same everywhere; and what the engine does with them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import Toy

from inms_lab.books.events import Shared
from inms_lab.books.fingerprint import DIGEST_BYTES, Namespace, block_key, cut, digest, label_bytes
from inms_lab.books.segment import Segment
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.plan import plan_extend

ROOT = Namespace(model="m", weight_version=3, adapter="a", tenant="t", salt="s").root()
LABEL = label_bytes(("agent:a", "group:g"))
words = st.text(st.characters(codec="utf-8"), max_size=4)


def ints(tokens: Iterable[int]) -> array[int]:
    return array("i", tokens)


def segment(tokens: list[int], *, opened: bool = True, size: int = 4, first: int = 0) -> Segment:
    place = (first, ROOT, first, ROOT)  # read where it was encoded
    out = Segment("p", "private", ("agent:a",), size, *place, LABEL, opened, True)
    out.tokens.extend(tokens)
    return out


# --- digests ----------------------------------------------------------------------------------


def test_the_digests_are_what_they_have_always_been() -> None:
    """A change of these makes every stored key worthless: it must be meant."""
    assert DIGEST_BYTES == 16
    assert ROOT.hex() == "934329a1fecd01ea356dc4a7a123ee9a"
    assert LABEL.hex() == "8cd073e20aac958623bf3a5152105dea"
    key = block_key(ROOT, LABEL, 32, ints(range(16)))
    assert key.hex() == "5ec56c7a54cb3244d71507d4fee982d8"
    assert cut(key, 16).hex() == "d40aca47cb824bc5b5a920719c445d6d"


def test_a_block_key_is_blake2b_of_parent_label_place_and_tokens() -> None:
    tokens = [7, 70_000, 2**31 - 1, 0]
    raw = b"".join(t.to_bytes(4, "little") for t in tokens)
    want = hashlib.blake2b(ROOT + LABEL + b"32:4:" + raw, digest_size=16).digest()
    assert block_key(ROOT, LABEL, 32, ints(tokens)) == want


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_two_lists_of_parts_have_one_digest_only_if_they_are_equal(
    a: list[bytes], b: list[bytes]
) -> None:
    assert (digest(*a) == digest(*b)) == (a == b)


namespaces = st.builds(Namespace, words, st.integers(0, 3), words, words, words, words)


@given(namespaces, namespaces)
def test_two_namespaces_have_one_root_only_if_they_are_equal(a: Namespace, b: Namespace) -> None:
    assert (a.root() == b.root()) == (a == b)


@pytest.mark.parametrize("name", [f.name for f in fields(Namespace)])
def test_every_field_of_the_namespace_counts(name: str) -> None:
    other = 4 if name == "weight_version" else "other"
    assert replace(Namespace(), **{name: other}).root() != Namespace().root()


@given(st.sets(words, max_size=3), st.sets(words, max_size=3))
def test_a_label_has_one_digest_in_whatever_order_it_is_given(a: set[str], b: set[str]) -> None:
    assert label_bytes(sorted(a)) == label_bytes(sorted(a, reverse=True))
    assert (label_bytes(a) == label_bytes(b)) == (a == b)


token_lists = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(
    *(st.tuples(st.sampled_from((b"p" * 16, b"q" * 16)), st.integers(0, 11), token_lists),) * 2,
)
def test_a_key_covers_parent_position_tokens_and_their_number(
    a: tuple[bytes, int, list[int]], b: tuple[bytes, int, list[int]]
) -> None:
    keys = [block_key(parent, LABEL, at, ints(tokens)) for parent, at, tokens in (a, b)]
    assert (keys[0] == keys[1]) == (a == b)


# --- chains -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=12, max_size=12), st.integers(0, 11))
def test_one_earlier_token_changes_every_later_key_and_no_earlier_one(
    tokens: list[int], at: int
) -> None:
    other = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    first, second = segment(tokens), segment(other)
    assert [first.key(i) != second.key(i) for i in range(3)] == [i >= at // 4 for i in range(3)]


def test_an_open_block_has_no_key_and_a_sealed_one_has() -> None:
    opened, sealed = segment(list(range(6))), segment(list(range(6)), opened=False)
    assert opened.key(0) == sealed.key(0) != b""
    assert opened.key(1) == b""
    assert sealed.key(1) not in (b"", segment(list(range(8))).key(1))
    assert sealed.key(2) == b""
    hidden = replace(sealed, indexed=False)
    assert hidden.key(0) == hidden.key(1) == b""


def test_where_a_segment_ends_is_part_of_what_comes_next() -> None:
    ends = {segment(list(range(n))).end() for n in range(1, 9)}
    assert len(ends) == 8
    assert segment([1, 2, 3, 4]).end() != segment([1, 2, 3, 4]).key(0)
    assert segment([]).end() != ROOT


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_remembered_keys_are_those_of_a_fresh_segment_after_cuts_and_growth(
    tokens: list[int], data: st.DataObject
) -> None:
    grown = segment(tokens)
    for _ in range(3):
        [grown.key(i) for i in range(6)]
        grown.truncate(data.draw(st.integers(0, len(grown.tokens))))
        grown.tokens.extend(data.draw(st.lists(st.integers(0, 3), max_size=6)))
        fresh = segment(list(grown.tokens))
        assert [grown.key(i) for i in range(8)] == [fresh.key(i) for i in range(8)]
        assert grown.end() == fresh.end()


# --- in the engine ----------------------------------------------------------------------------


def hits(toy: Toy, seq_id: int, text: list[int]) -> int:
    """How many blocks of `text` a sequence would mount."""
    toy.enter(seq_id, "append", text)
    plan = plan_extend(toy.ledger, len(toy.log), seq_id, 100)
    assert isinstance(plan, Plan)
    return sum(len(e.blocks) for e in plan.events if isinstance(e, Shared))


@pytest.mark.parametrize(
    "change",
    [{"weight_version": 1}, {"adapter": "toy"}, {"tenant": "toy"}, {"salt": "toy"}, {"model": "x"}],
    ids=str,
)
def test_another_namespace_finds_nothing_until_it_has_computed_it(
    change: dict[str, object],
) -> None:
    """vllm#42125, lmdeploy#4917, sglang#37160: weights or a same-named adapter are replaced, or the
    tenant is another: not one hit until it is computed again."""
    toy = Toy("global")
    text = [1, 2, 3, 4, 0, 1, 2, 3]
    toy.do(toy.agent("a"), "append", text)
    assert hits(toy, toy.agent("b"), text) == 2
    toy.run()
    toy.engine.namespace = replace(toy.engine.namespace, **change)  # type: ignore[arg-type]
    first = toy.agent("c")
    assert hits(toy, first, text) == 0
    toy.run()
    assert hits(toy, toy.agent("d"), text) == 2
    assert len(toy.ledger.pools["common"].index) == 4


def test_equal_text_under_two_labels_has_two_keys_and_two_blocks() -> None:
    toy = Toy()
    agents = [toy.agent(name) for name in "ab"]
    for agent in agents:
        toy.do(agent, "append", [1, 1, 1, 1])
    assert [toy.table(agent) for agent in agents] == [[("private", [0])], [("private", [1])]]
    assert len(toy.ledger.pools["private"].index) == 2


@given(st.lists(st.integers(0, 9), min_size=1, max_size=23), st.booleans(), st.booleans())
def test_keys_and_texts_of_a_run_are_those_of_its_blocks(
    tokens: list[int], opened: bool, chained: bool
) -> None:
    one, run = (segment(tokens, opened=opened, first=3) for _ in range(2))
    for it in (one, run):
        it.chained = chained
    count = -(-len(tokens) // 4)
    for first in range(count + 1):
        keys = tuple(one.key(i) for i in range(first, count))
        assert run.keys_of(first, count) == keys
        assert run.texts(first, count) == [one.block_tokens(i) for i in range(first, count)]
    run.indexed = False
    assert run.keys_of(0, count) == (b"",) * count
