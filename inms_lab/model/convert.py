"""From the default model's GGUF file to a folder that transformers loads by itself.

The file is pinned by its hash, so this reads it directly, and the result has the same bytes on
every machine and with every version of transformers. (Its own GGUF loader leaves a model that
refuses to be saved, and forgets that this tokenizer splits digits first, so that "\\n\\n1" gets
other tokens than in training.) Not here: other GGUF files; other models come as safetensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from inms_lab.errors import ModelNotFound
from inms_lab.model.progress import bar, say

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # GGUF token type


def convert(gguf_path: Path, folder: Path, *, progress: bool = True) -> None:
    """Write fp32 safetensors, configuration and tokenizer into the existing, empty `folder`.

    Needs about 0.9 GB of memory for a moment. Raises `ModelNotFound` if a package is missing, and
    `OSError` if the folder cannot be written.
    """
    try:
        from gguf import GGUFReader
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ModelNotFound(
            f"converting the default model needs {error.name}: run `pip install gguf safetensors`"
        ) from error
    say("reading the model file", enabled=progress)
    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = {}
    with bar(len(reader.tensors), "convert", unit="tensor", enabled=progress) as b:
        for name, weight in _weights(reader, fields):
            weights[name] = weight
            b.update()
    say("writing weights and tokenizer", enabled=progress)
    try:
        # transformers refuses a safetensors file that does not name its framework
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for example
        raise OSError(str(error)) from error
    _write_json(folder / "config.json", _config(fields))
    # safetensors makes its files private; a class may share one cache, so follow the user's umask
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    _write_json(folder / "generation_config.json", _special_ids(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    _tokenizer(fields).save(str(folder / "tokenizer.json"))


def _weights(reader: Any, fields: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor in fp32 under its transformers name. The output head is the embedding."""
    from gguf import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name in _GLOBAL_NAMES:
            yield _GLOBAL_NAMES[tensor.name], weight
            continue
        _, layer, part, _ = tensor.name.split(".")  # blk.<layer>.<part>.weight
        if part in heads:
            weight = _half_split(weight, heads[part])
        yield f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", weight


def _half_split(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder rows from GGUF's rotary layout (pairs side by side) to transformers' (two halves).

    `weight`: [num_heads * D, hidden].
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, hidden)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        **_special_ids(fields),
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    ids = _special_ids(fields) | {"unk_token_id": fields["tokenizer.ggml.unknown_token_id"]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
        **{key.removesuffix("_id"): tokens[token_id] for key, token_id in ids.items()},
    }


def _tokenizer(fields: dict[str, Any]) -> Any:
    """Build the byte-level BPE tokenizer that the file describes (pre-tokenizer "smollm")."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    # Digits first, as in training: spaces before a number are then one piece, not split by it.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
