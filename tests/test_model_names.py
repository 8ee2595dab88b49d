"""A name leads to a whole folder, local or the hub's, or to a message that says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from inms_lab.errors import ModelCorrupted, ModelNotFound
from inms_lab.model import source
from inms_lab.model.source import DEFAULT_MODEL, default_folder, resolve, verify

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=1, **sizes)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def local(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "local"))


def test_a_local_folder_is_taken_as_it_is(local: Path) -> None:
    assert resolve(local) == resolve(str(local)) == local
    assert verify(local) is False  # there is no manifest to compare with
    model = AutoModelForCausalLM.from_pretrained(resolve(local), dtype=torch.float32)
    assert model.config.num_hidden_layers == 2


def test_a_cut_local_weight_file_is_refused(local: Path) -> None:
    weights = local / "model.safetensors"
    for size in (weights.stat().st_size - 1, 20, 4, 0):
        os.truncate(weights, size)
        for look in (resolve, verify):
            with pytest.raises(ModelCorrupted, match=r"model\.safetensors is cut short"):
                look(local)


def test_nonsense_in_a_weight_file_is_refused_without_reading_it_all(local: Path) -> None:
    weights = local / "model.safetensors"
    for content in (b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", bytes(64)):
        weights.write_bytes(content)
        with pytest.raises(ModelCorrupted, match="cut short or damaged"):
            resolve(local)


def test_a_missing_shard_is_refused(local: Path) -> None:
    index = local / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(ModelCorrupted, match="lacks model-00002-of-00002"):
        resolve(local)
    index.write_text("{")
    with pytest.raises(ModelCorrupted, match="is damaged"):
        resolve(local)


def test_folders_that_are_no_models_say_what_is_missing(local: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve(local / "config.json")
    (local / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"has no \*\.safetensors"):
        resolve(local)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        resolve(tmp_path / "empty")


def test_an_unknown_name_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, **_: Any) -> str:
        raise ConnectionError("no route\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound) as caught:
        resolve("nobody/nothing")
    message = str(caught.value)
    for part in ("'nobody/nothing'", "no route", "spelling", "network", "folder", DEFAULT_MODEL):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["", "./none", "/none/at/all", "a/b/c", "~/none", "c:\\none"])
def test_a_missing_path_never_asks_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str, **_: Any) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", asked)
    with pytest.raises(ModelNotFound, match="there is no folder"):
        resolve(name)


def test_a_hub_id_is_downloaded_as_safetensors(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(local)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("someone/something") == local
    assert asked["name"] == "someone/something"
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]
    os.truncate(local / "model.safetensors", 40)
    with pytest.raises(ModelCorrupted, match="delete"):
        resolve("someone/something")


def test_the_cache_is_the_argument_else_the_variable_else_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INMS_LAB_CACHE", str(tmp_path / "from_env"))
    assert default_folder(tmp_path / "given").is_relative_to(tmp_path / "given")
    assert default_folder().is_relative_to(tmp_path / "from_env")
    monkeypatch.setenv("INMS_LAB_CACHE", "")
    assert "inms-lab" in default_folder().parts
    monkeypatch.setenv("INMS_LAB_CACHE", "~/here")
    assert default_folder().is_relative_to(Path.home() / "here")


def test_naming_a_model_loads_no_heavy_library() -> None:
    program = (
        "import sys, inms_lab.model.source; "
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert out.strip() == "[]"


def test_no_source_file_names_a_host() -> None:
    for path in Path(source.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8").lower()
        assert [sign for sign in ("http", ".org", ".co/") if sign in text] == [], path
