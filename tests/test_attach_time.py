"""Attaching by reference: time to first token and blocks, as benchmarks/attach.py measures them."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from attach import MOST, measure, ratio  # noqa: E402


@pytest.mark.model
@pytest.mark.slow
def test_a_record_of_512_tokens_by_reference_takes_less_than_a_third_and_no_block() -> None:
    from inms_lab.model import load

    (pair,) = measure(load("smollm2-135m"), 1, 512, 100, warm=0, progress=False)
    mounted, computed = pair
    assert (mounted.computed, mounted.blocks, mounted.shift) == (0, 0, 100)
    assert (computed.computed, computed.shift) == (512, 0)
    assert computed.blocks > 0
    assert ratio([pair]) <= MOST == 0.3


def test_the_measurement_that_is_kept_says_so_too() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "attach.json").read_text("utf-8"))
    mounted, computed = (kept[name]["runs"] for name in ("by reference", "computed"))
    pairs = zip(mounted, computed, strict=True)
    found = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
    assert kept["tokens"] == 512
    assert found == pytest.approx(kept["median_ratio"], abs=1e-3)
    assert kept["holds"] == (found <= MOST)
    assert {(run["computed"], run["blocks"]) for run in mounted} == {(0, 0)}
    assert {run["computed"] for run in computed} == {512}
