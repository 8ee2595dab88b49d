"""The command line: answers, and errors that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from inms_lab import cli
from inms_lab.terminal.standin import SMOLLM2_135M

SEVEN_B = SMOLLM2_135M | {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from inms_lab.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_bill_of_a_7b_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SEVEN_B))
    args = ["bill", "--config", str(config), "--agents", "8", "--tokens", "16k", "--shared", "0.6"]
    out = CliRunner().invoke(cli.app, [*args, "--memory", "24GiB"])
    assert out.exit_code == 0, out.output
    assert "64.0 GiB" in out.stdout
    assert "30.4 GiB" in out.stdout
    out = CliRunner().invoke(cli.app, [*args, "--memory", "24GiB", "--json"])
    assert json.loads(out.stdout)


def test_help_names_every_command() -> None:
    out = run("--help")
    assert out.returncode == 0
    for command in ("demo", "lab", "bill", "claims", "model", "doctor"):
        assert command in out.stdout


@pytest.mark.parametrize(
    ("args", "name", "words"),
    [
        (("bill", "--config", "nowhere.json"), "ModelNotFound", "config.json"),
        (("demo", "--dry-run", "--scale", "-1"), "BadInput", "positive"),
        (("demo", "--dry-run", "--scale", "9"), "BadInput", "smaller --scale"),
        (("demo", "--dry-run", "--block-size", "0"), "BadInput", "block_size"),
        (("demo", "--dry-run", "--pool-bytes", "much"), "BadInput", "24GiB"),
        (("demo", "--dry-run", "--pool-bytes", "1MiB"), "TextTooLarge", "larger pool"),
        (("demo", "--dry-run", "--model", "no/such-model"), "ModelNotFound", "config.json"),
        (("demo", "--dry-run", "--data", "nowhere"), "BadInput", "nowhere"),
    ],
)
def test_errors_are_one_line_with_a_name(args: tuple[str, ...], name: str, words: str) -> None:
    out = run(*args, *(("--own-texts",) if args[0] == "demo" and "--data" not in args else ()))
    assert out.returncode == 2, out.stdout + out.stderr
    last = out.stderr.strip().splitlines()[-1]
    assert last.startswith(name)
    assert words in last
    assert "Traceback" not in out.stderr


def test_claims_are_printed_as_json_too() -> None:
    out = CliRunner().invoke(cli.app, ["claims", "--json"])
    assert out.exit_code == 0
    assert len(json.loads(out.stdout)) >= 2


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no such signal here")
def test_the_server_ends_with_the_command_that_started_it() -> None:
    code = "from inms_lab.cli import main; main()"
    arguments = ["lab", "--no-browser", "--port=0", "--ServerApp.ip=127.0.0.1"]
    root = Path(__file__).resolve().parents[1]
    shell = [sys.executable, "-c", code, *arguments, "--allow-root"]
    command = subprocess.Popen(shell, cwd=root, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (servers := psutil.Process(command.pid).children()):
        assert time.monotonic() < end, "no server was started"
        time.sleep(0.1)
    command.terminate()
    assert command.wait(30) == 143
    assert not psutil.wait_procs(servers, 10)[1], "it is still running"
