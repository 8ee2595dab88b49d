"""Check 6: is a fragment's interference within the bound, and is it worth it? Values, no torch.

A fragment is KV that is used behind another context than the one that it was encoded behind. How
much that changes the continuation is measured per model (interference/), never guessed: a `Gate`
without a calibration lets no fragment through. Only numbers decide, no clock: the milliseconds
here were measured once, so equal scripts give equal logs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
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

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Calibration:
        """From `asdict`, as it comes out of JSON."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k in known
        }
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
        if self.max_kl is not None and not self.max_kl >= 0:
            raise BadInput(f"max_kl is a KL divergence in nats, 0 or more, not {self.max_kl}")
        if self.min_agreement is not None and not 0 <= self.min_agreement <= 1:
            raise BadInput(f"min_agreement is a share, 0 to 1, not {self.min_agreement}")
        if self.horizon < 1:
            raise BadInput(f"horizon is a number of decode steps, 1 or more, not {self.horizon}")

    def excess(self) -> str:
        """Why no fragment of this model may pass; "": the interference is within the bounds."""
        known = self.calibration
        if self.max_kl is None and self.min_agreement is None:
            return ""
        if known is None:
            return "gate: this model is not calibrated"
        if self.max_kl is not None and known.kl_interval[1] > self.max_kl:
            return f"gate: KL up to {known.kl_interval[1]:.3f}, the bound is {self.max_kl:g}"
        low = known.agreement_interval[0]
        if self.min_agreement is not None and low < self.min_agreement:
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


DEFAULT = Gate()
OPEN = Gate(max_kl=None, min_agreement=None)  # everything passes: for lessons and measurements
