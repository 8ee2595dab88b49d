"""All variants of all samples: resumable, with a progress bar, as tables with intervals.

    measured = measure(runner, samples, path="captainagent.jsonl")
    measured.table()                 # one row a variant, bootstrap intervals over samples
    measured.kv_error("public")      # layers x places in the fragment

A file holds a header and one line a sample, written as soon as the sample is done. A rerun takes
the samples that are there; a file of another model or other settings is refused, never mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from inms_lab.errors import BadInput
from inms_lab.interference import compare
from inms_lab.interference.contexts import Scratch
from inms_lab.interference.resume import Lines
from inms_lab.interference.samples import Sample
from inms_lab.interference.variants import FULL, Outcome, Settings, examine
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner

FORMAT = 1
DIGITS = 5  # significant ones that a file keeps


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came out: for each sample, by name, the outcome of every variant."""

    model: str  # digest
    settings: Settings
    outcomes: dict[str, dict[str, Outcome]]

    def interval(self, variant: str, what: str, seed: int = 0) -> compare.Interval:
        """Mean over samples of "kl" (nats), "agreement" or "surprise" (nats more than the truth's),
        with its 95 % bootstrap interval."""
        return compare.bootstrap(self._values(variant, what), seed)

    def table(self, seed: int = 0) -> pd.DataFrame:
        """One row a variant: means and the ends of their 95 % intervals.

        `kl` in nats a token; `agreement` 0 to 1; `perplexity` change as a share; `recomputed`
        tokens of the fragment; `kv_error` relative, mean over layers and tokens.
        """
        rows = {}
        for name in self.settings.names:
            change = self.interval(name, "surprise", seed).through(compare.perplexity_change)
            rows[name] = {
                **_columns("kl", self.interval(name, "kl", seed)),
                **_columns("agreement", self.interval(name, "agreement", seed)),
                **_columns("perplexity", change),
                "recomputed": np.mean([o[name].num_recomputed for o in self.outcomes.values()]),
                "kv_error": float(np.mean(x)) if (x := self._errors(name)).size else np.nan,
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variant")

    def samples(self) -> pd.DataFrame:
        """One row a sample and variant, means over the continuation."""
        return pd.DataFrame(
            {
                "sample": sample,
                "variant": name,
                "kl": np.mean(outcome.kl),
                "agreement": np.mean(outcome.agrees),
                "surprise": np.mean(outcome.surprise),
                "recomputed": outcome.num_recomputed,
            }
            for sample, outcomes in self.outcomes.items()
            for name, outcome in outcomes.items()
        )

    def kv_error(self, variant: str) -> pd.DataFrame:
        """Relative KV error, mean over samples: a row a layer, a column a place in the fragment."""
        errors = self._errors(variant)
        if not errors.size:
            raise BadInput(f"{variant!r} has no fragment, so it has no KV error")
        places = [i * self.settings.bucket for i in range(errors.shape[2])]
        return pd.DataFrame(errors.mean(axis=0), columns=places).rename_axis("layer")

    def kl_by_token(self) -> pd.DataFrame:
        """KL in nats, mean over samples: a row a token of the continuation, a column a variant."""
        means = {
            name: np.mean([o[name].kl for o in self.outcomes.values()], axis=0)
            for name in self.settings.names
        }
        return pd.DataFrame(means).rename_axis("token")

    def _values(self, variant: str, what: str) -> list[float]:
        if variant not in self.settings.names:
            raise BadInput(
                f"{variant!r} is no variant; there are: {', '.join(self.settings.names)}"
            )
        values = {
            "kl": lambda o: np.mean(o[variant].kl),
            "agreement": lambda o: np.mean(o[variant].agrees),
            "surprise": lambda o: np.mean(o[variant].surprise) - np.mean(o[FULL].surprise),
        }
        return [float(values[what](outcomes)) for outcomes in self.outcomes.values()]

    def _errors(self, variant: str) -> np.ndarray:
        """[samples, layers, buckets]; empty where there is no fragment."""
        return np.array([outcomes[variant].kv_error for outcomes in self.outcomes.values()])


def measure(
    runner: Runner,
    samples: Sequence[Sample],
    settings: Settings | None = None,
    path: str | Path | None = None,
    *,
    progress: bool = True,
) -> Measurement:
    """Examine every sample that `path` does not hold yet; without `path` nothing is kept.

    Raises `BadInput` for a file of another model, other settings or another sample of that name,
    and `UnsafeShift` for a model whose keys cannot be used at another position.
    """
    settings = settings or Settings()
    if len({sample.name for sample in samples}) < len(samples):
        raise BadInput("two samples have the same name")
    header = {"format": FORMAT, "model": runner.digest, "settings": asdict(settings)}
    lines = Lines(path, header)
    done: dict[str, dict[str, Outcome]] = {}
    scratch = Scratch(runner, settings.tile, _room(samples, settings))
    try:
        with bar(len(samples), "interference", unit="sample", enabled=progress) as shown:
            for sample in samples:
                outcomes = _known(lines, sample)
                if outcomes is None:
                    outcomes = _rounded(examine(scratch, sample, settings))
                    variants = {name: asdict(outcome) for name, outcome in outcomes.items()}
                    lines.append(sample.name, {"digest": sample.digest, "variants": variants})
                done[sample.name] = outcomes
                shown.update()
    finally:
        scratch.close()
    return Measurement(runner.digest, settings, done)


def _known(lines: Lines, sample: Sample) -> dict[str, Outcome] | None:
    """The outcomes of this sample, if the file has them."""
    found = lines.find(sample.name)
    if found is None:
        return None
    if found["digest"] != sample.digest:
        raise BadInput(
            f"{lines.path} holds another sample called {sample.name!r}: give another file"
        )
    return {name: Outcome(**values) for name, values in found["variants"].items()}


def _rounded(value: Any) -> Any:
    """As a file keeps it, so that a resumed measurement equals one in a single run."""
    if isinstance(value, Outcome):
        return Outcome(**_rounded(asdict(value)))
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _columns(name: str, interval: compare.Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _room(samples: Sequence[Sample], settings: Settings) -> int:
    """Slots for the largest sample: four encodings of the fragment, recomputed tokens, answers."""
    names, tile = settings.names, settings.tile
    need = (
        len(s.public) + len(s.own) + len(s.other) + 7 * len(s.fragment)
        + len(names) * len(s.continuation)
        for s in samples
    )  # fmt: skip
    return max(need, default=0) + (10 + len(names)) * tile
