"""A lab on shared weights: the version is in every key (symptom 9: vllm#42125, lmdeploy#4917)."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
from shared_models import linux, shared

from inms_lab import Lab
from inms_lab.errors import ModelRefused, ShelfRefused
from inms_lab.parameters import SharedParameters

pytestmark = linux
TEXT = list(range(3, 43))
SIZES = {"block_size": 16, "context": 256}


def written(params: SharedParameters, shelf: Path | None = None) -> tuple[list[int], int]:
    """What an agent writes behind the prompt, and how many of its tokens were found."""
    with Lab(params, **SIZES) as lab:
        lab.preload(TEXT)
        if shelf is not None:
            lab.save_shared(shelf)
        agent = lab.agent("a")
        output = agent.write(8).result()
        lab.check()
        return list(output.tokens), lab.model.digest


def test_a_lab_runs_on_the_newest_version_and_keeps_it() -> None:
    model = models.llama(tie_word_embeddings=True)
    with Lab(model_of(model), **SIZES) as lab:
        lab.preload(TEXT)
        plain = list(lab.agent("a").write(8).result().tokens)
    with shared(models.llama(tie_word_embeddings=True)) as params:
        old, first = written(params)
        assert old == plain
        assert first == params.version.digest
        with Lab(params, **SIZES) as lab:
            lab.preload(TEXT)
            task = params.branch("task")
            with torch.no_grad():
                task.module.get_input_embeddings().weight.neg_()  # type: ignore[operator]
            params.merge(task)
            assert list(lab.agent("a").write(8).result().tokens) == old
        new, second = written(params)
        assert new != old
        assert second == params.version.digest != first


def test_kv_of_one_version_is_never_taken_for_anothers(tmp_path: Path) -> None:
    with shared(models.llama(tie_word_embeddings=True)) as params:
        written(params, tmp_path / "old.inmskv")
        with Lab(params, **SIZES) as lab:
            assert lab.load_shared(tmp_path / "old.inmskv")
        task = params.branch("task")
        with torch.no_grad():
            task.module.get_input_embeddings().weight.mul_(1.5)  # type: ignore[operator]
        params.merge(task)
        with Lab(params, **SIZES) as lab:
            with pytest.raises(ShelfRefused, match="model"):
                lab.load_shared(tmp_path / "old.inmskv")
            lab.preload(TEXT)
            lab.agent("a").read([1]).result()
            assert lab.engine.ledger.pools["global"].num_held  # computed afresh


def test_a_module_that_is_no_language_model_is_refused() -> None:
    with shared() as params, pytest.raises(ModelRefused, match="not a Sequential"):
        Lab(params)


def model_of(model: torch.nn.Module):  # type: ignore[no-untyped-def]
    """A runner of a module in memory."""
    from inms_lab.model import from_model

    return from_model(model)  # type: ignore[arg-type]
