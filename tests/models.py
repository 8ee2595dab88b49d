"""Tiny random models of many architectures, fast enough to build in every test.

Weights are drawn wide (standard deviation 0.3), so that attention is not flat and the margin of the
best token is real. `WANTED` are those that the lab must admit, `OTHERS` are admitted too, with
rotations worth a look; the keys of both may be used at another position. `UNSAFE` are admitted, but
their keys may not. `REFUSED` are turned down by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Ernie4_5Config,
    Gemma2Config,
    GlmConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    HunYuanDenseV1Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    NanoChatConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
)

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
THETA = {"rope_theta": 10000.0}
LINEAR = THETA | {"rope_type": "linear", "factor": 4.0}
LLAMA3 = THETA | {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = THETA | {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 128,
}
DYNAMIC = THETA | {"rope_type": "dynamic", "factor": 4.0}
LONGROPE = THETA | {
    "rope_type": "longrope",
    "factor": 8.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 128,
}


def build(config_class: type[PreTrainedConfig], seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A causal language model of this configuration, with random weights (norms and biases too)."""
    config = config_class(**(SIZES | settings))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # fresh ones are all zeros or all ones, and hide mistakes
                    centre = 0.0 if name.endswith("bias") else 1.0
                    parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
    return model.eval()


def llama(**settings: Any) -> PreTrainedModel:
    """Llama with two query heads per KV head."""
    return build(LlamaConfig, **settings)


def qwen2(**settings: Any) -> PreTrainedModel:
    """Qwen2: biases on q, k and v."""
    return build(Qwen2Config, use_sliding_window=False, **settings)


def qwen3(**settings: Any) -> PreTrainedModel:
    """Qwen3: norms of q and k before the rotation."""
    return build(Qwen3Config, use_sliding_window=False, **settings)


def mistral(sliding_window: int | None = None, **settings: Any) -> PreTrainedModel:
    """Mistral, without a sliding window unless one is given."""
    return build(MistralConfig, sliding_window=sliding_window, **settings)


def linear(**settings: Any) -> PreTrainedModel:
    """Llama whose positions are divided by four."""
    return build(LlamaConfig, rope_parameters=LINEAR, **settings)


def llama3(**settings: Any) -> PreTrainedModel:
    """Llama with `llama3` frequencies."""
    return build(LlamaConfig, rope_parameters=LLAMA3, **settings)


def yarn(**settings: Any) -> PreTrainedModel:
    """Llama with YaRN: its cos and sin carry a factor, `attention_scaling`."""
    return build(LlamaConfig, rope_parameters=YARN, **settings)


def mqa(**settings: Any) -> PreTrainedModel:
    """Llama whose four query heads share one KV head."""
    return build(LlamaConfig, num_key_value_heads=1, **settings)


def mha(**settings: Any) -> PreTrainedModel:
    """Llama with a KV head for every query head."""
    return build(LlamaConfig, num_key_value_heads=4, **settings)


def granite(**settings: Any) -> PreTrainedModel:
    """Granite: a scale of the scores of its own."""
    return build(GraniteConfig, attention_multiplier=0.5, **settings)


def gpt_neox(**settings: Any) -> PreTrainedModel:
    """GPT-NeoX: only a quarter of each head is rotated; no grouped queries."""
    return build(
        GPTNeoXConfig,
        num_key_value_heads=4,
        rope_parameters=THETA | {"partial_rotary_factor": 0.25},
        **settings,
    )


def dynamic(**settings: Any) -> PreTrainedModel:
    """Llama with dynamic NTK: frequencies change beyond `max_position_embeddings`."""
    return build(LlamaConfig, rope_parameters=DYNAMIC, **settings)


def longrope(**settings: Any) -> PreTrainedModel:
    """Llama with longrope: frequencies change with the longest position of a forward."""
    return build(LlamaConfig, rope_parameters=LONGROPE, **settings)


def smollm3(**settings: Any) -> PreTrainedModel:
    """SmolLM3 whose second layer has no rotation at all."""
    return build(SmolLM3Config, no_rope_layers=[1, 0, 1], **settings)


def yarn_nope(**settings: Any) -> PreTrainedModel:
    """SmolLM3 with YaRN, its second layer without a rotation."""
    return smollm3(rope_parameters=YARN, **settings)


def llama4(**settings: Any) -> PreTrainedModel:
    """Llama 4: complex numbers, a layer without a rotation, and norms after the rotation that have
    no weights, so that they and a rotation may change places."""
    return build(
        Llama4TextConfig,
        no_rope_layers=[1, 0, 1],
        num_local_experts=2,
        num_experts_per_tok=1,
        intermediate_size_mlp=96,
        **settings,
    )


def phi(**settings: Any) -> PreTrainedModel:
    """Phi: only half of each head is rotated."""
    return build(PhiConfig, rope_parameters=THETA | {"partial_rotary_factor": 0.5}, **settings)


def stablelm(**settings: Any) -> PreTrainedModel:
    """StableLM: only a quarter of each head is rotated."""
    return build(
        StableLmConfig, rope_parameters=THETA | {"partial_rotary_factor": 0.25}, **settings
    )


def cohere(**settings: Any) -> PreTrainedModel:
    """Cohere: neighbouring channels are rotated together."""
    return build(CohereConfig, **settings)


def glm(**settings: Any) -> PreTrainedModel:
    """GLM: neighbouring channels, and only half of each head."""
    return build(GlmConfig, rope_parameters=THETA | {"partial_rotary_factor": 0.5}, **settings)


def yarn_glm(**settings: Any) -> PreTrainedModel:
    """GLM with YaRN: neighbouring channels, half of each head, a factor on cos and sin."""
    return build(GlmConfig, rope_parameters=YARN | {"partial_rotary_factor": 0.5}, **settings)


def ernie(**settings: Any) -> PreTrainedModel:
    """Ernie 4.5: neighbouring channels, in another way than Cohere."""
    return build(Ernie4_5Config, **settings)


def ministral3(**settings: Any) -> PreTrainedModel:
    """Ministral 3: queries beyond the original context are made longer."""
    return build(Ministral3Config, rope_parameters=YARN | {"llama_4_scaling_beta": 0.1}, **settings)


def gptj(**settings: Any) -> PreTrainedModel:
    """GPT-J: rotates by a table of its own, without frequencies that could be read."""
    return build(GPTJConfig, num_key_value_heads=4, rotary_dim=8, **settings)


def mrope(**settings: Any) -> PreTrainedModel:
    """Llama that says that its positions have three dimensions."""
    model = llama(**settings)
    model.config.rope_parameters["mrope_section"] = [2, 3, 3]
    return model


def hunyuan(**settings: Any) -> PreTrainedModel:
    """HunYuan: norms of q and k after the rotation."""
    return build(HunYuanDenseV1Config, use_qk_norm=True, **settings)


def nanochat(**settings: Any) -> PreTrainedModel:
    """Nanochat: turns by the negative of the usual angles."""
    return build(NanoChatConfig, **settings)


def mixtral(**settings: Any) -> PreTrainedModel:
    """Mixtral: how many rows an expert sees depends on all rows of a forward."""
    return build(MixtralConfig, num_local_experts=4, num_experts_per_tok=2, **settings)


def gpt2(**settings: Any) -> PreTrainedModel:
    """GPT-2: positions are learned and added to the input."""
    return build(GPT2Config, num_key_value_heads=4, **settings)


def opt(**settings: Any) -> PreTrainedModel:
    """OPT: positions are learned and added to the input."""
    return build(OPTConfig, num_key_value_heads=4, ffn_dim=96, **settings)


def gemma2(**settings: Any) -> PreTrainedModel:
    """Gemma2: scores are capped, and every other layer sees a window."""
    return build(Gemma2Config, **settings)


def gpt_oss(**settings: Any) -> PreTrainedModel:
    """GPT-OSS: attention sinks, windows, experts."""
    return build(GptOssConfig, num_local_experts=2, num_experts_per_tok=1, **settings)


def mistral_with_window(**settings: Any) -> PreTrainedModel:
    """Mistral whose layers see the last 32 tokens only."""
    return mistral(sliding_window=32, **settings)


def bloom(**settings: Any) -> PreTrainedModel:
    """Bloom: ALiBi, and an attention of its own."""
    return build(BloomConfig, **settings)


def mpt(**settings: Any) -> PreTrainedModel:
    """MPT: ALiBi, and an attention of its own."""
    return build(MptConfig, d_model=64, n_heads=4, n_layers=3, **settings)


def mamba(**settings: Any) -> PreTrainedModel:
    """Mamba: no attention at all."""
    return build(MambaConfig, **settings)


Builder = Callable[..., PreTrainedModel]
WANTED: dict[str, Builder] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "mistral": mistral,
    "linear": linear,
    "llama3": llama3,
    "yarn": yarn,
}
OTHERS: dict[str, Builder] = {
    "mqa": mqa,
    "mha": mha,
    "granite": granite,
    "gpt_neox": gpt_neox,
    "smollm3": smollm3,
    "yarn_nope": yarn_nope,
    "llama4": llama4,
    "phi": phi,
    "cohere": cohere,
    "ernie": ernie,
    "glm": glm,
    "yarn_glm": yarn_glm,
    "mixtral": mixtral,
}
UNSAFE: dict[str, Builder] = {
    "hunyuan": hunyuan,
    "nanochat": nanochat,
    "ministral3": ministral3,
    "gptj": gptj,
    "mrope": mrope,
    "dynamic": dynamic,
    "longrope": longrope,
}
REFUSED: dict[str, Builder] = {
    "gpt2": gpt2,
    "opt": opt,
    "gemma2": gemma2,
    "gpt_oss": gpt_oss,
    "mistral_with_window": mistral_with_window,
    "stablelm": stablelm,
    "bloom": bloom,
    "mpt": mpt,
    "mamba": mamba,
}
