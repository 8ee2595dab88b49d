"""A model's digest: the same wherever the content is, another one if a single weight differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from inms_lab.errors import ModelNotFound
from inms_lab.model import digest
from inms_lab.model.source import model_digest

ROOT = Path(__file__).parents[1]


def write_model(folder: Path, **changed: float) -> Path:
    """Write two shards of which single values can be changed: `a=7.0` sets a[0]."""
    folder.mkdir(exist_ok=True)
    for name in ("a", "b"):
        weight = np.arange(64, dtype=np.float32)
        weight[0] = changed.get(name, 0.0)
        save_file({"w": weight}, folder / f"{name}.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of files that were read in full from now on."""
    names: list[str] = []
    whole = digest.hash_file

    def watched(path: Path) -> str:
        names.append(path.name)
        return whole(path)

    monkeypatch.setattr(digest, "hash_file", watched)
    return names


def test_three_fresh_processes_agree(model: Path) -> None:
    program = f"from inms_lab.model.digest import *; print(model_digest(Path({str(model)!r})))"
    seen = set()
    for seed in ("0", "1", "random"):
        (model / digest.SIDECAR).unlink(missing_ok=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        seen.add(out.strip())
    assert seen == {model_digest(model)}
    assert len(bytes.fromhex(seen.pop())) == 16


def test_copies_agree_and_one_changed_weight_differs(tmp_path: Path) -> None:
    first = model_digest(write_model(tmp_path / "1"))
    assert model_digest(write_model(tmp_path / "2")) == first
    others = [
        model_digest(write_model(tmp_path / "3", a=7.0)),
        model_digest(write_model(tmp_path / "4", b=7.0)),
        model_digest(write_model(tmp_path / "5", a=7.0, b=7.0)),
    ]
    assert len({first, *others}) == 4


def test_configuration_counts_and_the_tokenizer_does_not(model: Path) -> None:
    before = model_digest(model)
    (model / "tokenizer.json").write_text("{}")
    assert model_digest(model) == before
    (model / "config.json").write_text('{"model_type": "llamb"}')
    assert model_digest(model) != before


def test_a_renamed_shard_counts(model: Path) -> None:
    before = model_digest(model)
    (model / "a.safetensors").rename(model / "c.safetensors")
    assert model_digest(model) != before


def test_the_second_call_reads_no_weights(model: Path, hashed: list[str]) -> None:
    first = model_digest(model)
    assert hashed == ["config.json", "a.safetensors", "b.safetensors"]
    assert model_digest(model) == first
    assert len(hashed) == 3


def test_a_weight_changed_in_place_is_noticed_and_only_that_file_is_read(
    model: Path, hashed: list[str]
) -> None:
    before = model_digest(model)
    hashed.clear()
    write_model(model, b=7.0)
    stamp = (model / "b.safetensors").stat().st_mtime_ns + 10**9
    for name in ("a.safetensors", "config.json"):  # written again, but their times put back
        recorded = json.loads((model / digest.SIDECAR).read_text())["files"][name][1]
        os.utime(model / name, ns=(recorded, recorded))
    os.utime(model / "b.safetensors", ns=(stamp, stamp))
    assert model_digest(model) != before
    assert hashed == ["b.safetensors"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "files": [1]}'])
def test_a_damaged_sidecar_is_ignored_and_replaced(
    model: Path, text: str, hashed: list[str]
) -> None:
    first = model_digest(model)
    (model / digest.SIDECAR).write_text(text)
    assert model_digest(model) == first
    assert len(hashed) == 6
    assert model_digest(model) == first
    assert len(hashed) == 6


def test_a_sidecar_of_another_format_is_not_believed(model: Path) -> None:
    first = model_digest(model)
    sidecar = model / digest.SIDECAR
    record = json.loads(sidecar.read_text())
    for facts in record["files"].values():
        facts[2] = "0" * 64
    sidecar.write_text(json.dumps(record | {"format": 2}))
    assert model_digest(model) == first


def test_a_read_only_folder_is_computed_each_time(
    model: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> tuple[int, str]:
        raise PermissionError("read-only")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    assert model_digest(model) == model_digest(model)
    assert len(hashed) == 6
    assert not (model / digest.SIDECAR).exists()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = digest.hash_file

    def racing(path: Path) -> str:
        found = whole(path)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(digest, "hash_file", racing)
    model_digest(model)
    assert not (model / digest.SIDECAR).exists()


def test_the_sidecar_is_as_readable_as_the_model(model: Path) -> None:
    (model / "config.json").chmod(0o644)
    model_digest(model)
    modes = [(model / name).stat().st_mode for name in ("config.json", digest.SIDECAR)]
    assert modes[0] == modes[1]


def test_a_folder_without_a_model_has_no_digest(model: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(ModelNotFound, match="is no model folder"):
        model_digest(model)
