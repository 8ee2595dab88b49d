"""The converted default model is the model that its file holds: weights, tokens, logits, text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from inms_lab.model import convert, package
from inms_lab.model.source import model_digest, resolve, verify


@pytest.fixture(scope="session")
def smollm_folder() -> Path:
    return resolve(progress=False)


@pytest.fixture(scope="session")
def smollm(smollm_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smollm_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(smollm_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm_folder)


def test_half_split_puts_pair_members_into_halves() -> None:
    # Two heads of size 6: rows (0 1)(2 3)(4 5) are the rotary pairs of the first head.
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert convert._half_split(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@pytest.mark.model
def test_every_hash_is_right_and_the_digest_is_the_same_everywhere(smollm_folder: Path) -> None:
    assert verify(smollm_folder) is True
    # Conversion is deterministic: results recorded on one machine name the same model on another.
    assert model_digest(smollm_folder) == "0353bf434bd601e86409615f6b762139"


@pytest.mark.model
def test_the_head_is_the_embedding_and_is_stored_once(smollm: Any, smollm_folder: Path) -> None:
    assert smollm.lm_head.weight is smollm.model.embed_tokens.weight
    with safe_open(smollm_folder / "model.safetensors", "np") as file:
        names = set(file.keys())
    assert "lm_head.weight" not in names
    assert names | {"lm_head.weight"} == set(smollm.state_dict())
    assert {tensor.dtype for tensor in smollm.state_dict().values()} == {torch.float32}


@pytest.mark.model
def test_geometry_is_the_models(smollm: Any) -> None:
    config = smollm.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (30, 9)
    assert (config.num_key_value_heads, config.head_dim) == (3, 64)
    assert config.max_position_embeddings == 8192
    assert not hasattr(config, "quantization_config")


@pytest.mark.slow
@pytest.mark.model
def test_weights_and_logits_are_those_of_the_gguf_file(smollm: Any, tokenizer: Any) -> None:
    pytest.importorskip("accelerate")  # transformers' GGUF loader, the independent one, wants it
    gguf = package.find_installed()
    if gguf is None:
        pytest.skip("the package with the GGUF file is not installed")
    other = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    expected = other.state_dict()
    unequal = [n for n, w in smollm.state_dict().items() if not torch.equal(w, expected[n])]
    assert unequal == []
    ids = tokenizer("Three agents share one memory.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(smollm(ids).logits, other(ids).logits)


@pytest.mark.model
def test_the_model_answers_sensibly(smollm: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    output = smollm.generate(ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, ids.shape[1] :])


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "  two\n\nlines\t x",
        "naïve 🙂 中文 don't",
        "<|im_start|>user\nHi<|im_end|>\n",
        " ",
        "",
    ],
)
def test_text_survives_its_tokens(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.model
def test_digits_stand_alone_and_do_not_split_the_spaces_before_them(tokenizer: Any) -> None:
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a  12\n\n3")["input_ids"])
    assert pieces == ["a", "ĠĠ", "1", "2", "ĊĊ", "3"]


@pytest.mark.model
def test_special_tokens_are_the_models(tokenizer: Any) -> None:
    # <file_sep> is named nowhere but in the file's own list of control tokens
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
    assert tokenizer("".join(special))["input_ids"] == [0, 1, 2, 5]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert len(tokenizer) == 49152
    assert tokenizer.decode([1, 28120, 2], skip_special_tokens=True) == "hello"
    assert tokenizer.model_max_length == 8192


@pytest.mark.model
def test_files_are_as_readable_as_the_user_makes_files(smollm_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    expected = (tmp_path / "mine").stat().st_mode
    recorded = json.loads((smollm_folder / "inms-manifest.json").read_text())["files"]
    assert {(smollm_folder / name).stat().st_mode for name in recorded} == {expected}
