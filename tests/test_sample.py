"""Sampling is a function of logits, seed and position, and follows the stated distribution."""

from __future__ import annotations

import pytest
import torch

from inms_lab.errors import BadInput
from inms_lab.serving.sample import Sampling, sample

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.125, 0.125]))


def shares(how: Sampling, count: int = 4000) -> list[float]:
    drawn = torch.tensor([sample(LOGITS, how, position) for position in range(count)])
    return [(drawn == token).float().mean().item() for token in range(4)]


def test_greedy_takes_the_largest() -> None:
    assert sample(torch.tensor([0.1, 3.0, 2.0]), Sampling(), 7) == 1


def test_the_same_seed_and_position_give_the_same_token_whatever_was_drawn_before() -> None:
    how = Sampling(temperature=1.0, seed=3)
    forward = [sample(LOGITS, how, position) for position in range(50)]
    backward = [sample(LOGITS, how, position) for position in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [sample(LOGITS, Sampling(1.0, seed=4), position) for position in range(50)]


def test_shares_follow_the_probabilities_temperature_and_top_p() -> None:
    assert shares(Sampling(temperature=1.0)) == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)
    sharp = torch.softmax(LOGITS / 0.5, 0).tolist()
    assert shares(Sampling(temperature=0.5)) == pytest.approx(sharp, abs=0.03)
    assert shares(Sampling(1.0, top_p=0.7)) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.03)
    assert shares(Sampling(1.0, top_p=0.01)) == [1, 0, 0, 0]


@pytest.mark.parametrize("values", [(-1.0, 1.0), (1.0, 0.0), (1.0, 1.5)])
def test_what_makes_no_sense_is_refused(values: tuple[float, float]) -> None:
    with pytest.raises(BadInput):
        Sampling(*values)
