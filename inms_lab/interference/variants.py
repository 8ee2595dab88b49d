"""The ways in which a reader can have a fragment, each beside full prefill, for one sample.

    full prefill     computed behind the reader's own context: the truth
    public           encoded behind the public prefix, mounted at a shift
    alone            encoded behind nothing
    private          encoded behind the public prefix and another agent's private prompt
    first k          `public`, its first tokens recomputed (as in EPIC); whole blocks as it is
    deviating x %    `public`, those tokens recomputed whose KV deviates most in the first layers
                     that can deviate (as in CacheBlend); "in blocks": whole blocks of them
    not shifted      `public`, read as if it stood where it was encoded
    wrong way        `public`, shifted by minus the shift
    missing          not there at all

Every token recomputed gives full prefill again (a test holds it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inms_lab.errors import BadInput
from inms_lab.interference import compare
from inms_lab.interference.contexts import Part, Scratch
from inms_lab.interference.samples import Sample

FULL, PUBLIC, ALONE, PRIVATE = "full prefill", "public", "alone", "private"
NOT_SHIFTED, WRONG_WAY, MISSING = "not shifted", "wrong way", "missing"
EARLY = slice(1, 3)  # layers at which deviation is looked at: layer 0 has none


@dataclass(frozen=True, slots=True)
class Settings:
    """What a measurement depends on besides model and samples.

    `first`: tokens recomputed at the front; `share`: of the tokens that deviate most; `block`:
    tokens of a block; `bucket`: neighbouring tokens whose KV error is kept as one number.
    """

    first: int = 64
    share: float = 0.15
    block: int = 16
    bucket: int = 16
    tile: int = 64

    def __post_init__(self) -> None:
        if min(self.first, self.block, self.bucket, self.tile) < 1 or not 0 <= self.share <= 1:
            raise BadInput(f"{self}: sizes are 1 or more, share is 0 to 1")

    @property
    def names(self) -> tuple[str, ...]:
        """The variants, the truth first."""
        return (FULL, PUBLIC, ALONE, PRIVATE, *self.recomputed, NOT_SHIFTED, WRONG_WAY, MISSING)

    @property
    def recomputed(self) -> tuple[str, str, str]:
        """Those that compute a part of the fragment afresh."""
        some = f"deviating {self.share:.0%}"
        return f"first {self.first}", some, f"{some} in blocks"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one variant gave for one sample. The continuation has T tokens."""

    kl: list[float]  # nats [T]
    agrees: list[bool]  # the same best token [T]
    surprise: list[float]  # nats [T], of the tokens that came
    kv_error: list[list[float]]  # [layers, buckets], keys and values together; []: no fragment
    num_recomputed: int = 0


def examine(scratch: Scratch, sample: Sample, settings: Settings) -> dict[str, Outcome]:
    """Every variant of this sample, in two forwards; the scratch is as before afterwards."""
    with scratch.room():
        public = scratch.lay(sample.public)
        own, other = (scratch.lay(part, [public]) for part in (sample.own, sample.other))
        before = [public, own]
        full = scratch.lay(sample.fragment, before)
        record = scratch.lay(sample.fragment, [public])
        alone = scratch.lay(sample.fragment)
        leaky = scratch.lay(sample.fragment, [public, other])
        scratch.compute()
        truth = scratch.kv(full)
        deviation = early_deviation(compare.kv_as_read(scratch, [record], sample.place), truth)
        picked = dict(zip(settings.recomputed, picks(deviation, settings), strict=True))
        ways: dict[str, Sequence[Part]] = {FULL: [full], PUBLIC: [record]}
        ways |= {ALONE: [alone], PRIVATE: [leaky], MISSING: []}
        ways |= {NOT_SHIFTED: [record.turned(0)], WRONG_WAY: [record.turned(-1)]}
        ways |= {name: scratch.recompute(record, picked[name], before) for name in picked}
        for name in settings.names:
            scratch.ask(sample.continuation, [*before, *ways[name]])
        logits = [rows[:-1] for rows in scratch.compute()]  # the last predicts what nobody wrote
        out = {}
        for name, rows in zip(settings.names, logits, strict=True):
            error = None
            if ways[name]:
                read = compare.kv_as_read(scratch, ways[name], sample.place)
                error = compare.kv_error(truth, read)
            num = len(picked.get(name, ())) if name != FULL else len(full)
            out[name] = _outcome(logits[0], rows, sample.continuation, error, settings.bucket, num)
        return out


def early_deviation(reused: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """Per token [T] how far KV [layers, 2, K, T, D] is from fresh KV in the first layers.

    A server finds it by computing those layers for all tokens: layer l's KV needs l layers.
    """
    return compare.kv_error(fresh[EARLY], reused[EARLY]).mean(dim=(0, 1))


def picks(deviation: torch.Tensor, settings: Settings) -> tuple[list[int], list[int], list[int]]:
    """Tokens to recompute for each of `settings.recomputed`."""
    count = len(deviation)
    first = list(range(min(settings.first, count)))
    most = most_deviating(deviation, settings.share)
    return first, most, most_deviating(deviation, settings.share, settings.block)


def most_deviating(deviation: torch.Tensor, share: float, block: int = 1) -> list[int]:
    """Indices of the `share` of tokens with the largest deviation [T], in whole blocks, rounded
    up; a block counts by its mean."""
    blocks = deviation.split(block)
    order = sorted(range(len(blocks)), key=lambda i: (-float(blocks[i].mean()), i))
    taken = sorted(order[: math.ceil(share * len(blocks) - 1e-9)])
    return [i * block + j for i in taken for j in range(len(blocks[i]))]


def _outcome(
    truth: torch.Tensor,
    got: torch.Tensor,
    tokens: Sequence[int],
    error: torch.Tensor | None,
    bucket: int,
    num_recomputed: int,
) -> Outcome:
    """From logits [T, vocab] and the KV error [layers, 2, fragment], if there is a fragment."""
    means = []
    if error is not None:
        buckets = error.mean(dim=1).split(bucket, dim=-1)
        means = torch.stack([x.mean(dim=-1) for x in buckets], dim=-1).tolist()
    return Outcome(
        kl=compare.kl(truth, got).tolist(),
        agrees=compare.agreement(truth, got).tolist(),
        surprise=compare.surprise(got, tokens).tolist(),
        kv_error=means,
        num_recomputed=num_recomputed,
    )
