"""How each layer of a model uses positions, found by experiment.

One token is computed at several positions, each time as a context of its own, so that it attends to
itself alone and what enters a layer cannot depend on the position, unless the position is part of
the input. What the layer's attention then receives must have moved by a rotation:

    rot(q(p), D) = q(p + D), the same for k    a Rotation (rope.py): safe to use at a shift
    q(p) = q(p + D), the same for k            no positions in this layer: the shift is 0
    v of the first layer moves                 positions are added to the input: model refused
    q(p) moves with the longest position       frequencies depend on the length
    anything else                              unsafe: not to be used at another position
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inms_lab.attention.rope import Rotation
from inms_lab.errors import ModelRefused
from inms_lab.model.probe import Bench, Watched, probe_tokens
from inms_lab.model.runner import Runner

BASE = 5  # the position from which shifts are counted
NEAR = (0, 1, 37)  # shifts that no model takes for a long context
FURTHER = 411
NUM_TOKENS = 2  # different tokens, each at all positions


@dataclass(frozen=True, slots=True)
class Finding:
    """One layer: its rotation, None without one; `unsafe` is the reason, or empty."""

    rotation: Rotation | None
    unsafe: str
    error: float  # largest deviation of q and k from the rotation, relative to their length

    @property
    def name(self) -> str:
        """In words, for reports."""
        if self.unsafe:
            return f"unsafe: {self.unsafe}"
        return self.rotation.name if self.rotation else "none"


class Positions:
    """The experiments on one model; `near` is the first forward that it ever does under us."""

    def __init__(self, runner: Runner, tile: int) -> None:
        self.runner, self.bench = runner, Bench(runner, tile, seed=3)
        self.near = self._watch(NEAR)

    def _watch(self, shifts: Sequence[int]) -> Watched:
        tokens = probe_tokens(self.runner, NUM_TOKENS)
        return self.bench.watch(
            [token for token in tokens for _ in shifts],
            [BASE + shift for _ in tokens for shift in shifts],
        )

    def _tolerance(self, shift: int) -> float:
        # Results round like the weights do, and angles like fp32 numbers of the position's size.
        return max(1e-4, 6 * torch.finfo(self.runner.dtype).eps) + (BASE + shift) * 2.0**-22

    def check_input(self) -> None:
        """Raise `ModelRefused` if what enters the first layer depends on the position."""
        values = _by_shift(self.near.seen[0][2], len(NEAR))
        if not all(_deviation(value, values[0]) <= self._tolerance(0) for value in values):
            raise ModelRefused(
                "its positions are learned and added to the input, not rotated into queries and "
                "keys, so its KV could never be used at another position"
            )

    def constant_length(self) -> int:
        """Tokens up to which a context, and all that is batched with it, has one set of angles."""
        same, other = NEAR[-1], _last_shift(self.runner)
        if not self._moves_with(other):
            return self.runner.max_context
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (same, middle) if self._moves_with(middle) else (middle, other)
        return BASE + other

    def _moves_with(self, shift: int) -> bool:
        """Whether near tokens change because some other token stands far away."""
        far = self._watch([*NEAR, shift])
        for near, both in zip(self.near.seen, far.seen, strict=True):
            for x, y in zip(near[:2], both[:2], strict=True):
                pairs = zip(_by_shift(x, len(NEAR)), _by_shift(y, len(NEAR) + 1), strict=False)
                if not all(_deviation(b, a) <= self._tolerance(NEAR[-1]) for a, b in pairs):
                    return True
        return False

    def findings(self, named: str = "") -> list[Finding]:
        """What each layer does at positions up to the runner's `max_context`.

        `named` is a reason that makes every rotation of this model unsafe.
        """
        last = _last_shift(self.runner)
        shifts = sorted({*NEAR, min(FURTHER, last), last})
        rotations = list(_rotations(self.runner))
        out = []
        for q, k, _ in self._watch(shifts).seen:
            xs = (_by_shift(x, len(shifts)) for x in (q, k))
            found = self._finding([m for x in xs for m in _moves(x, shifts)], rotations)
            spoilt = named and found.rotation
            out.append(Finding(None, named, found.error) if spoilt else found)
        return out

    def _finding(self, moves: list[_Move], rotations: list[Rotation]) -> Finding:
        still = [_deviation(move.base, move.there) for move in moves]
        if self._is_exact(moves, still):
            return Finding(None, "", max(still))
        if not rotations:
            return Finding(None, "the model has no rotary frequencies (`inv_freq`)", max(still))
        errors = {r: [_deviation(m.turned(r, 1), m.there) for m in moves] for r in rotations}
        best = min(rotations, key=lambda r: max(errors[r]))
        if self._is_exact(moves, errors[best]):
            return Finding(best, "", max(errors[best]))
        return Finding(None, self._reason(moves, rotations), max(errors[best]))

    def _is_exact(self, moves: list[_Move], errors: Sequence[float]) -> bool:
        pairs = zip(moves, errors, strict=True)
        return all(error <= self._tolerance(move.shift) for move, error in pairs)

    def _reason(self, moves: list[_Move], rotations: list[Rotation]) -> str:
        for rotation in rotations:
            if self._is_exact(moves, [_deviation(m.turned(rotation, -1), m.there) for m in moves]):
                return "it rotates the other way round"
        lengths = [_deviation(_length(move.base), _length(move.there)) for move in moves]
        if not self._is_exact(moves, lengths):
            return "a norm or a scale after the rotation makes q or k longer at some positions"
        return "q and k do not move by a rotation with the model's `inv_freq`"


@dataclass(frozen=True, slots=True)
class _Move:
    """q or k of one layer [tokens, heads, D] at the base position and `shift` positions later."""

    shift: int
    base: torch.Tensor
    there: torch.Tensor

    def turned(self, rotation: Rotation, sign: int) -> torch.Tensor:
        return rotation.turn(self.base, sign * self.shift)


def _last_shift(runner: Runner) -> int:
    return runner.max_context - 1 - BASE


def _moves(xs: Sequence[torch.Tensor], shifts: Sequence[int]) -> Iterator[_Move]:
    for shift, x in zip(shifts, xs, strict=True):
        yield _Move(shift, xs[0], x)


def _by_shift(x: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """Rows [tokens x shifts, heads, D] as one [tokens, heads, D] for each shift."""
    return x.float().unflatten(0, (NUM_TOKENS, count)).unbind(1)


def _deviation(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest distance of two vectors (dimension -1), relative to the length of the true one."""
    length = truth.norm(dim=-1)
    least = 1e-3 * float(length.max()) + 1e-30  # a head of zeros that stays zero has not moved
    return float(((x - truth).norm(dim=-1) / length.clamp(min=least)).max())


def _length(x: torch.Tensor) -> torch.Tensor:
    return x.norm(dim=-1, keepdim=True)


def _rotations(runner: Runner) -> Iterator[Rotation]:
    """Every rotation that the model's frequencies could mean; most models have two."""
    known: list[torch.Tensor] = []
    dim = runner.geometry.head_dim
    for name, buffer in runner.model.named_buffers():
        if not name.endswith("inv_freq") or buffer.dim() != 1 or 2 * len(buffer) > dim:
            continue
        if not any(torch.equal(buffer, other) for other in known):
            known.append(buffer)
            yield from (Rotation(buffer.float().clone(), layout, dim) for layout in (False, True))


def named_reason(runner: Runner) -> str:
    """Why the model's own configuration rules out a shift that the experiments may not see."""
    kinds = {str(kind) for m in runner.model.modules() for kind in _values(m, "rope_type")}
    for kind in sorted(kinds):
        if "dynamic" in kind or kind == "longrope":
            return f"its frequencies depend on the length of the context ({kind})"
    parameters = getattr(runner.config, "rope_parameters", None) or {}
    nested = (v for v in parameters.values() if isinstance(v, dict))
    if any("mrope_section" in p for p in (parameters, *nested)):
        return "its rotary positions have several dimensions (mrope)"
    return ""


def _values(module: Any, name: str) -> list[Any]:
    value = getattr(module, name, None)
    return list(value.values()) if isinstance(value, dict) else [value]
