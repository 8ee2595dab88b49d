"""What two models take in memory whose equal pages are stored once, and what finding them takes.

A base beside itself, beside variants of it and beside an encoder with its embedding; then BERT and
GPT-2 as they are published, of which a saving has been claimed. Bytes are the kernel's: what the
memories take, and the PSS of this process' mappings of both models after it has read all pages.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inms_lab.bench.header import spread
from inms_lab.bench.own_weights import change
from inms_lab.errors import BadInput, SharingUnsupported
from inms_lab.model.progress import bar
from inms_lab.model.source import DEFAULT_MODEL
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.crossmodel import Search, memories, store_once
from inms_lab.parameters.kernel import between
from inms_lab.parameters.versions import MOST_RUNS, words
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

Row = dict[str, Any]
Change = Callable[[Any], object]
CLAIM, CLAIMED, ABOUT = "embeddings-across-models", 0.37, 0.05  # of claims.py
PROJECTIONS = ("q_proj.weight", "v_proj.weight")  # what adapters usually change


@dataclass(frozen=True, slots=True)
class Trial:
    """Shares of the weights that variants change: of whole tensors and of pages (`changed`), of
    single values (`scattered`). `rank` of a merged adapter. `repeat`: searches that are timed.
    `most_pieces`: see `store_once`. `published`: whether BERT and GPT-2 are made, or only counted.
    """

    changed: tuple[float, ...] = (0.05, 0.15)
    scattered: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    rank: int = 8
    tokens: int = 16
    repeat: int = 3
    most_pieces: int = MOST_RUNS
    published: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (*self.changed, *self.scattered)
        if not all(math.isfinite(share) and 0 < share <= 1 for share in shares):
            raise BadInput(f"--changed: shares above 0, up to 1; not {shares}")
        if min(self.rank, self.tokens, self.repeat) < 1:
            raise BadInput("rank, tokens and repeat are at least 1")


def measure(
    source: Any = DEFAULT_MODEL, trial: Trial | None = None, progress: bool = True
) -> dict[str, Any]:
    """A row a case, and the claim. `source`: a model's name or folder, or a module of transformers
    with `q_proj` and `v_proj`.

    Raises `SharingUnsupported` where no kernel tells of memory, `NotEnoughMemory` or `BadInput`.
    """
    trial = trial or Trial()
    if sys.platform != "linux":
        raise SharingUnsupported("memory is counted by Linux' own figures: measure there")
    cases = _cases(trial)
    with (
        SharedParameters(source) as base,
        bar(len(cases) + 1, "models", unit="", enabled=progress) as shown,
    ):
        rows = []
        for name, share, changes in cases:
            variant = copy.deepcopy(base.module())  # in memory of its own
            changes(variant)
            rows.append({"case": name, "changed": share, **_row(base, variant, trial)})
            shown.update()
        encoder = encoder_beside(base.module(), trial.seed)
        rows.append({"case": "encoder and decoder", "changed": None, **_row(base, encoder, trial)})
        shown.update()
    published = counted() | (_published(trial) if trial.published else {})
    return {
        "model": base.source.name,
        "weights_bytes": base.layout.weight_bytes,
        "most_pieces": trial.most_pieces,
        "rows": rows,
        "published": published,
        "claims": {CLAIM: claimed(published)},
    }


def _cases(trial: Trial) -> list[tuple[str, float, Change]]:
    def changing(pattern: str, share: float) -> tuple[str, float, Change]:
        return pattern, share, lambda model: change(model, share, pattern, trial.seed)

    return [
        ("same weights", 0.0, lambda _: None),
        *(changing("tensors", share) for share in trial.changed),
        *(changing("pages", share) for share in trial.changed),
        *(changing("scattered", share) for share in trial.scattered),
        ("merged adapter", 1.0, lambda model: merge_adapter(model, trial.rank, trial.seed)),
    ]


def merge_adapter(model: torch.nn.Module, rank: int, seed: int) -> None:
    """Add a drawn product of this rank to each query and value projection, as merging a low-rank
    adapter does."""
    draw = torch.Generator().manual_seed(seed)
    found = [p for name, p in model.named_parameters() if name.endswith(PROJECTIONS)]
    if not found:
        raise BadInput(f"this model has no {' and '.join(PROJECTIONS)}: take one that has")
    with torch.no_grad():
        for weight in found:
            up = torch.randn(weight.shape[0], rank, generator=draw)
            down = torch.randn(rank, weight.shape[1], generator=draw)
            weight.add_((0.01 * up @ down).to(weight.dtype))


def encoder_beside(decoder: Any, seed: int) -> torch.nn.Module:
    """A BERT with drawn weights of the decoder's vocabulary and width, and with its embedding."""
    from transformers import BertConfig, BertModel

    table, heads = decoder.get_input_embeddings().weight, decoder.config.num_attention_heads
    words, width = table.shape
    sizes = {"vocab_size": words, "hidden_size": width, "intermediate_size": 4 * width}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = BertModel(BertConfig(**sizes, num_attention_heads=heads)).to(table.dtype).eval()
    with torch.no_grad():
        encoder.embeddings.word_embeddings.weight.copy_(table)
    return encoder


def _row(base: SharedParameters, module: torch.nn.Module, trial: Trial) -> Row:
    """The base and another model, apart and together."""
    with SharedParameters(module) as other:
        both = (base, other)
        apart, outputs = _figures(both), [_outputs(both, trial)]
        found, searches = _searched(base, other, trial.repeat)
        stored = store_once(other, base, most_pieces=trial.most_pieces)
        together = _figures(both)
        outputs.append(_outputs(both, trial))
        return {
            "apart": apart[0],
            "together": together[0],
            "saved": round(1 - together[0] / apart[0], 4),
            "of_the_other": round(stored.saved / stored.num_bytes, 4),
            "equal_pages": found,
            "own_bytes": stored.own,
            "pieces": stored.pieces,
            "pss_apart": apart[1],
            "pss_together": together[1],
            "same_output": torch.equal(*outputs),
            **searches,
        }


def _searched(base: SharedParameters, other: SharedParameters, repeat: int) -> tuple[float, Row]:
    """The share of pages that the base has too, and how fast that is found: MiB of both models by
    the clock and by seconds of the processor, which a busy machine disturbs less."""
    size, rates, cpu_rates = (base.num_bytes + other.num_bytes) / 2**20, [], []
    for _ in range(repeat):
        began, cpu = time.perf_counter(), time.process_time()
        found = Search((other.version, other.layout), [(base.version, base.layout)])
        rates.append(size / (time.perf_counter() - began))
        cpu_rates.append(size / (time.process_time() - cpu))
    equal = 1 - len(found.own_pages) / len(found.homes)
    speed = {"mib_per_s": spread(rates, 0), "mib_per_cpu_s": spread(cpu_rates, 0)}
    return round(equal, 4), speed


def _figures(models: Sequence[SharedParameters]) -> tuple[int, int]:
    """Bytes that the memories of these models take, each once; and the PSS of a mapping of each
    in this process when all has been read, while it has no other."""
    gc.collect()  # modules that lie on the memories
    memory = memories(one.version for one in models)
    views = [one.version.view(one.num_bytes) for one in models]
    for view in views:
        words(view)[:, 0].sum()
    pss = sum(between("self", v.address, v.address + v.num_bytes).pss for v in views)
    return sum(os.fstat(one.fd).st_blocks * 512 for one in memory), pss


def _outputs(models: Sequence[SharedParameters], trial: Trial) -> torch.Tensor:
    """What all of them say to a drawn text, in a row."""
    outputs = []
    for one in models:
        module: Any = one.module()
        draw = torch.Generator().manual_seed(trial.seed)
        ids = torch.randint(module.config.vocab_size, (1, trial.tokens), generator=draw)
        with torch.inference_mode():
            outputs.append(module(ids)[0].reshape(-1))
    return torch.cat(outputs)


# --- the claim --------------------------------------------------------------------------------


def counted() -> Row:
    """Parameters of BERT and GPT-2 by their published configurations, without any weights."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    with torch.device("meta"):
        both: list[Any] = [BertModel(BertConfig()), GPT2Model(GPT2Config())]
    tables = [one.get_input_embeddings().weight for one in both]
    total = sum(p.numel() for one in both for p in one.parameters())
    embeddings = [m for one in both for m in one.modules() if isinstance(m, torch.nn.Embedding)]
    return {
        "parameters": [sum(p.numel() for p in one.parameters()) for one in both],
        "vocabularies": [table.shape[0] for table in tables],
        "of_all_embeddings": round(sum(m.weight.numel() for m in embeddings) / total, 4),
        "at_most_saved": round(min(table.numel() for table in tables) / total, 4),
    }


def _published(trial: Trial) -> Row:
    """Both with drawn weights, as if GPT-2 had BERT's table as the first rows of its own."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    with torch.random.fork_rng():
        torch.manual_seed(trial.seed)
        bert, gpt2 = BertModel(BertConfig()).eval(), GPT2Model(GPT2Config()).eval()
    table = bert.get_input_embeddings().weight
    with torch.no_grad():
        gpt2.get_input_embeddings().weight[: len(table)] = table
    with SharedParameters(bert) as base:
        return _row(base, gpt2, trial)


def claimed(published: Row) -> dict[str, str]:
    """What the count says of the claim: it holds if the most that can be saved is about that."""
    words, most = published["vocabularies"], published["at_most_saved"]
    parameters = sum(published["parameters"])
    measured = (
        f"vocabularies of {words[0]:,} and {words[1]:,} entries, not one; were all of the smaller "
        f"one in the larger, both together ({parameters:,} parameters) would take {most:.1%} less"
    )
    if "saved" in published:
        measured += f" ({published['saved']:.1%} by the kernel's figures)"
    measured += f"; all embeddings of both are {published['of_all_embeddings']:.1%} of them"
    interval = f"exact (count of the published configurations); about = within {ABOUT:.0%}"
    verdict = HOLDS if most >= (1 - ABOUT) * CLAIMED else DOES_NOT_HOLD
    return {"measured": measured, "interval": interval, "verdict": verdict}
