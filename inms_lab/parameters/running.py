"""A version of shared weights behind the lab's one function of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from inms_lab.errors import ModelRefused
from inms_lab.model.loader import from_model, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from inms_lab.model.runner import Runner
    from inms_lab.parameters.shared import SharedParameters


def runner(params: SharedParameters, compile: bool = False) -> Runner:
    """The admitted `Runner` of the newest version, which it keeps. Its digest is the version's, and
    stands in every key of a KV block: what one version computed is never found by another."""
    from transformers import PreTrainedModel

    module = params.module()
    if not isinstance(module, PreTrainedModel):
        raise ModelRefused(f"a lab runs transformers' models, not a {type(module).__name__}")
    source, digest = params.source, params.version.digest
    tokenizer = None if source.folder is None else load_tokenizer(source.folder)
    return from_model(cast("PreTrainedModel", module), tokenizer, source.name, compile, digest)
