"""The main job: what it saves, what it must leave equal, and the shape of its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inms_lab import cli
from inms_lab.config import Config
from inms_lab.terminal import scenario
from inms_lab.terminal.demo import DemoResult, run_demo
from inms_lab.terminal.standin import SMOLLM2_135M, dry_model

KEYS = {"kv_bytes_peak", "kv_bytes_formula", "blocks_peak", "ttft_s", "wall_s", "tokens"}


def dry_demo(scale: float, block_size: int, data: Path | None = None) -> DemoResult:
    model, text = dry_model("smollm2-135m")
    parts = scenario.load(text.encode, text.decode, scale, data)
    return run_demo(model, "dry", parts, Config(block_size=block_size))


def test_at_full_size_sharing_saves_more_than_a_third_and_the_formula_is_exact() -> None:
    result = dry_demo(1.0, 256)
    assert result.tokens_per_agent == 8192
    assert result.saving >= 0.35
    for mode in result.modes.values():
        assert mode.kv_bytes_peak == mode.kv_bytes_formula
    per_block = 256 * 2 * 30 * 3 * 64 * 4
    assert result.modes["independent"].kv_bytes_peak == 96 * per_block
    assert result.modes["inms"].kv_bytes_peak == 60 * per_block
    assert result.identical_tokens is None  # a dry run generates nothing to compare


@pytest.mark.parametrize(("scale", "block_size"), [(0.125, 16), (0.1, 16), (0.33, 64), (0.5, 256)])
def test_the_formula_from_lengths_equals_the_measured_peak_to_the_byte(
    scale: float, block_size: int
) -> None:
    result = dry_demo(scale, block_size)
    for mode in result.modes.values():
        assert mode.kv_bytes_peak == mode.kv_bytes_formula
    if scale == 0.125:
        assert result.saving >= 0.25
    assert result.modes["inms"].computed_tokens < result.modes["independent"].computed_tokens


def test_real_texts_where_they_are() -> None:
    data = Path(__file__).parents[2] / "shared" / "data"
    if not data.is_dir():
        pytest.skip("no ../shared/data here: the package's own texts are tested instead")
    result = dry_demo(1.0, 256, data)
    assert result.saving >= 0.35
    assert "tau_airline" in result.source


def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    args = ["demo", "--dry-run", "--json", "--own-texts", "--scale", "0.05"]
    out = CliRunner().invoke(cli.app, args)
    assert out.exit_code == 0, out.output
    printed = json.loads(out.stdout)
    assert set(printed["modes"]) == {"independent", "global", "inms"}
    assert all(set(mode) >= KEYS for mode in printed["modes"].values())
    assert {"model", "agents", "block_size", "identical_tokens", "tokens_equal_global"} <= set(
        printed
    )
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2_135M | {"num_hidden_layers": 3}))
    out = CliRunner().invoke(cli.app, [*args, "--model", str(tmp_path)])
    small = json.loads(out.stdout)
    ratio = printed["modes"]["inms"]["kv_bytes_peak"] / small["modes"]["inms"]["kv_bytes_peak"]
    assert ratio == 10


def test_the_table_is_readable() -> None:
    out = CliRunner().invoke(cli.app, ["demo", "--dry-run", "--own-texts"])
    assert out.exit_code == 0, out.output
    for words in ("independent", "KV at the peak", "by formula", "Dry run", "inms saves 37.5%"):
        assert words in out.stdout


@pytest.mark.model
@pytest.mark.slow
def test_on_the_default_model_sharing_changes_no_token() -> None:
    args = ["demo", "--json", "--own-texts", "--scale", "0.04"]
    out = CliRunner().invoke(cli.app, args)
    assert out.exit_code == 0, out.output
    printed = json.loads(out.stdout)
    assert printed["identical_tokens"] is True
    assert printed["tokens_equal_global"] is True
    for mode in printed["modes"].values():
        assert mode["kv_bytes_peak"] == mode["kv_bytes_formula"]
        assert len(mode["ttft_s"]) == len(mode["tokens"]) == 3
        assert mode["bookkeeping_s"] < 0.03 * mode["wall_s"]
    assert len({tuple(tokens) for tokens in printed["modes"]["inms"]["tokens"]}) == 3
