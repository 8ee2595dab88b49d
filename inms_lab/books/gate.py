"""Check 6: is a fragment's interference within the bound, and is it worth it? Values, no torch.

A fragment is KV that is used behind another context than the one that it was encoded behind. How
much that changes the continuation is measured per model (interference/), never guessed: a `Gate`
without a calibration lets no fragment through. Only numbers decide, no clock: the milliseconds
here were measured once, so equal scripts give equal logs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any

from inms_lab.errors import BadInput


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured for one model: records encoded behind public context, used elsewhere."""

    model: str  # digest
    kl: float  # nats, mean over the continuation, against full prefill
    kl_interval: tuple[float, float]  # 95 %
    agreement: float  # share of continuation tokens with the same best token
    agreement_interval: tuple[float, float]
    num_samples: int
    prefill_ms: float  # of one token
    tile_ms: float  # of one tile more in a decode step
    what: str = ""  # the data and the machine, in words

    def __post_init__(self) -> None:
        """NaN, of a measuring that went wrong, may be kept: no bound lets it through."""
        if not (isinstance(self.model, str) and self.model and isinstance(self.what, str)):
            raise BadInput(
                f"a calibration has a model's digest and words, not {self.model!r}, {self.what!r}"
            )
        count = self.num_samples
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise BadInput(f"num_samples is a whole number, 0 or more, not {count!r}")
        _check_interval("kl_interval", self.kl_interval, inf)
        _check_interval("agreement_interval", self.agreement_interval, 1)
        for name in ("kl", "agreement", "prefill_ms", "tile_ms"):
            if not _is_number(value := getattr(self, name)) or value < 0:
                raise BadInput(f"a calibration's {name} is a number, 0 or more, not {value!r}")

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Calibration:
        """From `asdict`, as it comes out of JSON."""
        if not isinstance(plain, dict):
            raise BadInput(f"a calibration is read from a dict, not from {plain!r}")
        values: dict[str, Any] = {
            f.name: tuple(value) if isinstance(value := plain[f.name], list) else value
            for f in fields(cls)
            if f.name in plain
        }
        if missing := {f.name for f in fields(cls)} - {*values, "what"}:
            raise BadInput(f"a calibration without {', '.join(sorted(missing))}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Worth:
    """What mounting a fragment is expected to save, and what reading it is expected to cost: it
    begins a tile of its own; the others would be read of a private copy too."""

    num_bytes: int  # of KV that is not held again
    saved_ms: float  # prefill that is not computed
    cost_ms: float  # of one tile more, over the gate's horizon

    @property
    def pays(self) -> bool:
        """Whether it saves more time than it costs."""
        return self.saved_ms > self.cost_ms


@dataclass(frozen=True, slots=True)
class Gate:
    """Bounds for reuse at another place; compared with the unfavourable ends of the intervals.

    `max_kl` in nats and `min_agreement` in 0 to 1; None: no bound. `horizon`: decode steps over
    which the cost of a fragment's further tile is counted.
    """

    max_kl: float | None = 0.05
    min_agreement: float | None = 0.9
    calibration: Calibration | None = None
    horizon: int = 64

    def __post_init__(self) -> None:
        kl, share, steps, known = self.max_kl, self.min_agreement, self.horizon, self.calibration
        if kl is not None and not (_is_number(kl) and kl >= 0):
            raise BadInput(f"max_kl is a KL divergence in nats, 0 or more, or None, not {kl!r}")
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise BadInput(f"min_agreement is a share, 0 to 1, or None, not {share!r}")
        if known is not None and not isinstance(known, Calibration):
            raise BadInput(f"calibration is a Calibration, or None, not {known!r}")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise BadInput(f"horizon is a whole number of decode steps, 1 or more, not {steps!r}")

    def excess(self) -> str:
        """Why no fragment of this model may pass; "": the interference is within the bounds.

        NaN is within none.
        """
        known = self.calibration
        if self.max_kl is None and self.min_agreement is None:
            return ""
        if known is None:
            return "gate: this model is not calibrated"
        if self.max_kl is not None and not known.kl_interval[1] <= self.max_kl:
            return f"gate: KL up to {known.kl_interval[1]:.3f}, the bound is {self.max_kl:g}"
        low = known.agreement_interval[0]
        if self.min_agreement is not None and not low >= self.min_agreement:
            return f"gate: agreement down to {low:.3f}, the bound is {self.min_agreement:g}"
        return ""

    def worth(self, num_tokens: int, bytes_per_token: int) -> Worth | None:
        """The balance for a fragment of `num_tokens`; None where nothing was measured."""
        if self.calibration is None:
            return None
        saved = num_tokens * self.calibration.prefill_ms
        cost = self.calibration.tile_ms * self.horizon
        return Worth(num_tokens * bytes_per_token, saved, cost)

    def about(self) -> dict[str, Any]:
        """As plain data, for the log."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Gate:
        """From `about()`."""
        known = plain.get("calibration")
        values = {**plain, "calibration": Calibration.of(known) if known else None}
        return cls(**values)


def _is_number(value: object) -> bool:
    """Whether it is a number that can be compared and shown; a whole one may be endless in JSON."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63
    return isinstance(value, float)


def _check_interval(name: str, ends: object, most: float) -> None:
    """Raises unless `ends` is a pair (low, high) between 0 and `most`, NaN aside."""
    if not (isinstance(ends, tuple) and len(ends) == 2 and all(map(_is_number, ends))):
        raise BadInput(f"{name} is a pair of numbers (low, high), not {ends!r}")
    low, high = ends
    if low > high or low < 0 or high > most:
        raise BadInput(f"{name} is (low, high), from 0 to {most:g}, not {ends!r}")


DEFAULT = Gate()
OPEN = Gate(max_kl=None, min_agreement=None)  # everything passes: for lessons and measurements
