"""Rotary positions: turning a query or key by a number of positions, in a model's own layout.

A rotation turns pairs of channels, pair i by shift x inv_freq[i] radians. Models differ in which
channels are a pair and in how many channels take part:

    half-split    (i, i + n/2)      Llama, Qwen, Mistral, Phi
    interleaved   (2i, 2i + 1)      Cohere, GLM
    partial       only the first n of D channels turn, the others stay

Turns add up, and a score depends on the difference alone: (R(t)q).(R(s+D)k) = (R(t-D)q).(R(s)k), so
a query can meet a key that was rotated for another place. A factor on a model's cos and sin
(`attention_scaling`, in YaRN) is a constant of q and k as attention receives them, no part of a
turn. Source: RoFormer (Su et al. 2021), section 3.2. Not here: which layout a model has
(model/positions.py finds it by experiment).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """One layer's rotation: `inv_freq` [n/2] in radians per position, and the layout."""

    inv_freq: torch.Tensor
    interleaved: bool
    head_dim: int

    @property
    def num_rotated(self) -> int:
        """Channels that turn, n; the other D - n stay."""
        return 2 * len(self.inv_freq)

    @property
    def name(self) -> str:
        """Layout in words, for reports."""
        layout = "interleaved" if self.interleaved else "half-split"
        is_partial = self.num_rotated < self.head_dim
        return f"{layout}, partial {self.num_rotated}/{self.head_dim}" if is_partial else layout

    def turn(self, x: torch.Tensor, shift: int | torch.Tensor) -> torch.Tensor:
        """Turn x [..., D] by `shift` positions (one, or [...] of them); float32 [..., D]."""
        shifts = torch.as_tensor(shift, device=x.device).double()
        angle = shifts.unsqueeze(-1) * self.inv_freq.to(x.device).double()
        return self.apply(x, angle.cos().float(), angle.sin().float())

    def apply(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Turn x [..., D] by angles whose cos and sin [..., n/2] are given; float32 [..., D]."""
        x, n = x.float(), self.num_rotated
        if self.interleaved:
            a, b = x[..., 0:n:2], x[..., 1:n:2]
        else:
            a, b = x[..., : n // 2], x[..., n // 2 : n]
        turned = a * cos - b * sin, b * cos + a * sin
        if self.interleaved:
            return torch.cat((torch.stack(turned, dim=-1).flatten(-2), x[..., n:]), dim=-1)
        return torch.cat((*turned, x[..., n:]), dim=-1)


@lru_cache(maxsize=4096)
def factors(rotation: Rotation, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [n/2] of a turn by `shift`, float32 of angles in float64; kept for the next step.

    One shift is always computed by itself: a row's bits do not depend on which others there are.
    """
    angle = shift * rotation.inv_freq.double()
    return angle.cos().float(), angle.sin().float()
