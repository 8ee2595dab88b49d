"""A stand-in for a model in dry runs: its geometry, and a tokenizer that needs no file.

Token counts of the stand-in (one token per three bytes of text) are near those of a tokenizer,
not equal to them; scenarios are cut to fixed numbers of tokens, so block counts are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from inms_lab.errors import ModelNotFound
from inms_lab.model.forward import DryModel
from inms_lab.notebook.text import Text
from inms_lab.studies.geometry import from_config

SMOLLM2_135M = {  # the default model's published configuration
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


class ByteText(Text):
    """Three bytes of text are one token."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(None)
        self.vocab_size = vocab_size

    def encode(self, text: object, role: str | None = None) -> list[int]:
        """Stand-in token ids."""
        if not isinstance(text, str):
            return list(text)  # type: ignore[call-overload, no-any-return]
        raw = text.encode()
        words = (raw[at : at + 3] for at in range(0, len(raw), 3))
        return [int.from_bytes(word, "little") % self.vocab_size for word in words]

    def decode(self, tokens: Iterable[int]) -> str:
        """A placeholder: stand-in tokens do not turn back into text."""
        return f"({len(list(tokens))} tokens)"


def dry_model(name: str) -> tuple[DryModel, Text]:
    """Geometry and stand-in tokenizer of the default model, or of a folder with a config.json."""
    path = Path(name) / "config.json"
    if path.is_file():
        config = json.loads(path.read_text())
    elif name == "smollm2-135m":
        config = SMOLLM2_135M
    else:
        raise ModelNotFound(f"a dry run needs {name}/config.json, or the default model's name")
    vocab, limit = int(config["vocab_size"]), int(config["max_position_embeddings"])
    model = DryModel(vocab, limit, from_config(config).kv_bytes_per_token)
    return model, ByteText(vocab)
