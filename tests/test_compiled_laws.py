"""The laws of purity and non-interference once more, with the compiled kernels: the same bits.

The laws themselves are in test_purity.py, test_noninterference.py, test_fragment_laws.py and
test_shift_laws.py; here their models compute by the kernels, and rows are not padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import harness
import pytest
import test_fragment_laws
import test_noninterference
import test_purity
import test_shift_laws
import torch
from harness import one_thread  # noqa: F401

from inms_lab.kernels import build
from inms_lab.model import from_model
from inms_lab.model.runner import Runner

pytestmark = [
    pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler here"),
    pytest.mark.usefixtures("compiled", "one_thread"),
]


def with_kernels(made: Callable[..., Runner]) -> Callable[..., Runner]:
    """The same models, each computing by the kernels."""

    @cache
    def compiled(*args: object) -> Runner:
        runner = made.__wrapped__(*args)  # type: ignore[attr-defined]
        runner.compile()
        runner.row_multiple = 1
        return runner

    return compiled


TINY, SHIFTING = with_kernels(harness.tiny), with_kernels(harness.shifting)


@cache
def admitted(name: str, dtype: torch.dtype = torch.float32) -> Runner:
    """What test_shift_laws reads with, admitted once more with the kernels."""
    plain = PLAIN(name, dtype)
    return from_model(plain.model, name=name, compile=True)


PLAIN = test_shift_laws.admitted.__wrapped__  # not the cached ones: a model is changed by this


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_purity, "tiny", TINY)
    monkeypatch.setattr(test_noninterference, "tiny", TINY)
    monkeypatch.setattr(test_fragment_laws, "shifting", SHIFTING)
    monkeypatch.setattr(test_shift_laws, "admitted", admitted)
    assert TINY().native is not None
    assert SHIFTING().native is not None


@pytest.mark.parametrize("name", test_purity.ARCHITECTURES)
def test_an_agent_gets_what_it_gets_alone(name: str) -> None:
    for seed in range(700, 703):
        world = harness.random_world(seed)
        test_purity.assert_pure(world, name, "inms", every_row=seed % 2 == 0)


def test_logits_equal_stock_transformers() -> None:
    for name in test_purity.ARCHITECTURES:
        test_purity.test_logits_equal_stock_transformers(name)


@pytest.mark.parametrize("seed", [3, 4])
def test_poison_and_private_texts_change_nothing(seed: int) -> None:
    test_noninterference.test_poison_beyond_the_clearance_changes_nothing(seed)
    test_noninterference.test_the_private_text_of_others_and_its_length_change_nothing(seed)


def test_a_record_has_the_same_bytes_whoever_publishes_it() -> None:
    test_noninterference.test_a_record_has_the_same_bytes_whoever_publishes_it()


def test_the_laws_break_without_the_label_check() -> None:
    test_noninterference.test_without_the_label_check_b_holds_a_block_of_a()
    test_fragment_laws.test_each_breaks_without_the_label_check_alone()


@pytest.mark.parametrize("seed", [3])
def test_the_laws_hold_with_fragments(seed: int) -> None:
    test_fragment_laws.test_poison_beyond_the_clearance_changes_nothing(seed)
    test_fragment_laws.test_the_private_text_of_others_and_its_length_change_nothing(seed)
    test_fragment_laws.test_the_three_laws_hold_in_inms()


def test_fragments_are_exact_in_their_place_and_when_computed_afresh() -> None:
    test_fragment_laws.test_a_record_at_the_place_where_it_was_encoded_is_exact()
    test_fragment_laws.test_every_block_computed_afresh_is_full_prefill()


@pytest.mark.parametrize("name", test_shift_laws.NAMES)
def test_shifted_rows_have_the_same_bits_in_any_company(name: str) -> None:
    test_shift_laws.test_21_every_agent_gets_its_shift_in_every_order(name)
    test_shift_laws.test_rows_have_the_same_bits_in_any_company_and_any_chunks(name)
