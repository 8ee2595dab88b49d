"""A model's sizes, read from its config.json: what a token's keys and values and the weights take.

Sizes are bytes. No model is loaded and no torch is imported, so a model that would never fit here
can be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inms_lab.errors import BadInput

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
# Caches that are not 2 x kv heads x head dim a token, and layers that are not one gated MLP.
_OTHER_CACHE = ("kv_lora_rank", "mamba_d_state", "linear_num_key_heads", "linear_attn_config")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of one token's keys and values over all layers: 2 x layers x K x D x bytes."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model that its bill depends on.

    `num_params` is an estimate for Llama-like models (biases and q/k norms left out, less than
    0.1 %), None where the layers are of another kind. `notes` are reservations that a reader of
    the bill must know.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    num_params: int | None
    notes: tuple[str, ...] = ()

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_bytes_per_token(
            self.num_layers, self.num_kv_heads, self.head_dim, self.dtype_bytes
        )

    @property
    def weights_bytes(self) -> int:
        """Estimated bytes of the weights, all in `dtype`."""
        if self.num_params is None:
            raise BadInput(
                "the weights of a model with experts are not estimated; give their size, for"
                " example --weights 15GiB (the sum of its safetensors files)"
            )
        return self.num_params * self.dtype_bytes


def from_config(config: Mapping[str, Any], dtype: str | None = None) -> Geometry:
    """Read a Hugging Face config.json; `dtype` replaces the one that it names.

    Grouped-query attention is `num_key_value_heads` (absent: one per head); a missing `head_dim`
    is hidden / heads; a multi-modal config is read from its `text_config`. Absent
    `tie_word_embeddings` counts as untied, the larger figure. Raises `BadInput` for missing keys,
    by name, and for caches of another form.
    """
    if not isinstance(config, Mapping):
        raise BadInput(f"a config.json holds an object, got {type(config).__name__}")
    text = config.get("text_config")
    c = {**config, **text} if isinstance(text, Mapping) else dict(config)
    other = [key for key in _OTHER_CACHE if c.get(key)]
    if other or "linear_attention" in (c.get("layer_types") or ()):
        raise BadInput(
            f"{', '.join(other) or 'linear_attention'}: this model's cache is not keys and values"
            " per head, so the formula 2 x layers x kv heads x head dim does not hold for it"
        )
    dtype = dtype or c.get("dtype") or c.get("torch_dtype")
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    needed = (*sizes, "vocab_size", "intermediate_size")
    missing = [key for key in needed if c.get(key) is None] + ([] if dtype else ["dtype"])
    if missing:
        raise BadInput(
            f"config.json lacks {', '.join(missing)}; it should be the file beside a model's"
            " weights (a missing dtype can be given: --dtype bfloat16)"
        )
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise BadInput(f"unknown dtype {name}; known are {', '.join(DTYPE_BYTES)}")
    layers, hidden, heads = (_count(c, key) for key in sizes)
    kv_heads = _count(c, "num_key_value_heads", heads)
    if c.get("head_dim") is None and hidden % heads:
        raise BadInput(f"hidden_size {hidden} is no multiple of {heads} heads, and no head_dim")
    head_dim = _count(c, "head_dim", hidden // heads)
    notes = []
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        notes.append(
            f"sliding window of {c['sliding_window']}: every token is counted, an upper bound"
        )
    dense = not any(c.get(key) for key in _EXPERTS)
    params = _num_params(c, layers, hidden, heads, kv_heads, head_dim) if dense else None
    if not dense:
        notes.append("experts: the size of the weights is not estimated")
    return Geometry(layers, hidden, heads, kv_heads, head_dim, name, params, tuple(notes))


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"config.json: {key} must be a positive whole number, got {value!r}")
    return value


def _num_params(
    config: Mapping[str, Any], layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> int:
    vocab, inner = _count(config, "vocab_size"), _count(config, "intermediate_size")
    attention = 2 * hidden * head_dim * (heads + kv_heads)  # q and o, k and v
    gated_mlp = 3 * hidden * inner
    norms = 2 * hidden
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + layers * (attention + gated_mlp + norms) + hidden
