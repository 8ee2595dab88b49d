"""Attention of query rows over single tiles, and the merge of tile results by log-sum-exp.

`read_tiles` gives, for each tile, softmax(q k^T) v over that tile alone and its log-sum-exp;
`merge` joins the tiles of each row. Both treat every row by itself and in logical order, so a row's
result does not depend on which other rows or tiles are computed with it. The sum over tiles is a
binary tree on the tile's logical number: absent tiles behind a row's last one add exact zeros.
Source: the online softmax (Milakov and Gimelshein 2018), merged as in FlashAttention's split form.
"""

from __future__ import annotations

import torch

# A private operator, the only one that gives the log-sum-exp and reads K/V where they lie; where a
# torch build lacks it, the plain form serves.
_FLASH_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def read_tiles(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each tile by itself: q [K, R, D]; k, v [n, K, tile, D]; mask [R, tile] additive or None.

    Gives out [n, K, R, D] in q's dtype and lse [n, K, R] in float32. K/V are read where they lie.
    """
    if _FLASH_CPU is not None and q.device.type == "cpu":
        rows = q.unsqueeze(0).expand(k.shape[0], -1, -1, -1)
        out, lse = _FLASH_CPU(rows, k, v, 0.0, False, attn_mask=mask, scale=scale)
        return out, lse
    return read_tiles_plain(q, k, v, mask, scale)


def read_tiles_plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from public operations, in float32; for other devices and as the slower truth."""
    scores = torch.matmul(q.float().unsqueeze(0), k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.matmul(torch.exp(scores - lse.unsqueeze(-1)), v.float())
    return out.to(q.dtype), lse


def merge(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Join tile results: out [M, N, D] and lse [M, N] of N rows in logical order give [N, D].

    An absent tile has lse -inf and out 0. A row of absent tiles only gives 0 (never NaN).
    """
    top = lse.amax(dim=0)
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    weight = torch.exp(lse - top)
    total = _tree(weight)
    summed = _tree(out.float() * weight.unsqueeze(-1))
    return summed / torch.where(total == 0, torch.ones_like(total), total).unsqueeze(-1)


def merge_state(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two attention states, out [N, D] and lse [N], as one; (0, -inf) is the identity."""
    lse = torch.logaddexp(lse_a, lse_b)
    return merge(torch.stack((out_a, out_b)), torch.stack((lse_a, lse_b))), lse


def _tree(x: torch.Tensor) -> torch.Tensor:
    """Sum over dim 0 as a binary tree on the index: trailing zeros change no bit of it."""
    while len(x) > 1:
        even = len(x) // 2 * 2
        paired = x[0:even:2] + x[1:even:2]
        x = torch.cat((paired, x[even:])) if even < len(x) else paired
    return x[0]
