"""The gate: what it takes, what NaN does, and whose calibration a lab is opened with."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf, nan
from typing import Any

import pytest
from toy import ToyModel

from inms_lab.books.gate import OPEN, Calibration, Gate
from inms_lab.config import Config
from inms_lab.errors import BadInput, NotCalibrated
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab

KNOWN = Calibration("toy", 0.02, (0.01, 0.03), 0.95, (0.93, 0.97), 50, 1.0, 0.01, "made up")


def opened(gate: Any, model: Any = None) -> Lab:
    return Lab(model or ToyModel(), config=Config(4, 4, 16, 1000, 400, 400, 400), gate=gate)


# whose calibration -------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{}, {"max_kl": None, "min_agreement": None}])
def test_a_calibration_of_another_model_opens_no_lab(bounds: dict[str, Any]) -> None:
    other = Gate(calibration=replace(KNOWN, model="other"), **bounds)
    with pytest.raises(NotCalibrated, match=r"is of the model other, and the lab's is toy: .*"):
        opened(other)


def test_a_calibration_of_this_model_opens_one() -> None:
    with opened(Gate(calibration=KNOWN)) as lab:
        assert lab.engine.terms.gate == Gate(calibration=KNOWN)


def test_a_model_without_weights_stands_for_the_one_that_was_measured() -> None:
    with opened(Gate(calibration=KNOWN), DryModel(100, 200, 1)) as lab:
        assert lab.engine.terms.gate == Gate(calibration=KNOWN)


# NaN ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"kl_interval": (nan, nan)},
        {"kl_interval": (0.0, nan)},
        {"agreement_interval": (nan, nan)},
        {"agreement_interval": (nan, 1.0)},
    ],
)
def test_nan_is_within_no_bound(bad: dict[str, Any]) -> None:
    assert "nan, the bound is" in Gate(calibration=replace(KNOWN, **bad)).excess()
    assert Gate(None, None, replace(KNOWN, **bad)).excess() == ""


@pytest.mark.parametrize("bad", ["prefill_ms", "tile_ms"])
def test_a_time_that_is_nan_never_pays(bad: str) -> None:
    worth = Gate(calibration=replace(KNOWN, **{bad: nan})).worth(1000, 4)
    assert worth is not None
    assert not worth.pays


# what is none ------------------------------------------------------------------------------------

JUNK = ["a", True, [1], nan, -1, (), b"1"]


@pytest.mark.parametrize("value", JUNK)
@pytest.mark.parametrize("name", ["max_kl", "min_agreement", "horizon", "calibration"])
def test_bounds_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        Gate(**{name: value})


@pytest.mark.parametrize(
    "wrong",
    [{"horizon": None}, {"horizon": 2.5}, {"horizon": 0}, {"horizon": inf}, {"min_agreement": 2}],
)
def test_more_bounds_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Gate(**wrong)


def test_bounds_at_their_ends() -> None:
    assert Gate(max_kl=inf, min_agreement=0, calibration=KNOWN).excess() == ""
    assert Gate(max_kl=0, min_agreement=1, horizon=1, calibration=KNOWN).excess() != ""


@pytest.mark.parametrize("value", ["x", 0.05, True, False, KNOWN, Gate, {}])
def test_a_gate_that_is_none(value: Any) -> None:
    with pytest.raises(BadInput, match="gate is a Gate"):
        opened(value)


@pytest.mark.parametrize("value", [*JUNK[:3], -1, None, "0.1"])
@pytest.mark.parametrize("name", ["kl", "agreement", "prefill_ms", "tile_ms", "num_samples"])
def test_numbers_of_a_calibration_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        replace(KNOWN, **{name: value})


@pytest.mark.parametrize(
    "value", ["ab", 0.1, None, (), (0.1,), (0.1, "x"), (0.2, 0.1), (-1, 1), [0.1, 0.2], (0, True)]
)
@pytest.mark.parametrize("name", ["kl_interval", "agreement_interval"])
def test_intervals_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        replace(KNOWN, **{name: value})


def test_an_agreement_in_per_cent_is_none() -> None:
    with pytest.raises(BadInput, match="from 0 to 1"):
        replace(KNOWN, agreement_interval=(93, 97))


@pytest.mark.parametrize("wrong", [{"model": 5}, {"model": ""}, {"model": None}, {"what": 5}])
def test_words_of_a_calibration_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="digest"):
        replace(KNOWN, **wrong)


def test_plain_data_gives_the_same_again_or_a_named_error() -> None:
    assert Calibration.of(asdict(KNOWN)) == KNOWN
    assert Calibration.of({k: v for k, v in asdict(KNOWN).items() if k != "what"}).what == ""
    for plain in ({}, {"model": "toy"}, [], "x", None):
        with pytest.raises(BadInput, match="a calibration"):
            Calibration.of(plain)  # type: ignore[arg-type]
    for gate in (Gate(calibration=KNOWN), Gate(), OPEN):
        assert Gate.of(gate.about()) == gate
