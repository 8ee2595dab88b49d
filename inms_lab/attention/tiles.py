"""Attention of query rows over single tiles, and the merge of tile results by log-sum-exp.

`read_tiles` gives, for each tile, softmax(q k^T) v over that tile alone and its log-sum-exp;
`merge` joins the tiles of each row. Both treat every row by itself and in logical order, so a row's
result does not depend on which other rows or tiles are computed with it.
Source: the online softmax (Milakov and Gimelshein 2018), merged as in FlashAttention's split form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

LOWEST, TINY = -1e30, 1e-38  # stand for -inf and 0 where a row has no tile at all

# A private operator, the only one that gives the log-sum-exp and reads K/V where they lie; where a
# torch build lacks it, the plain form serves.
_FLASH_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def read_tiles(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each tile by itself: q [K, R, D]; k, v [n, K, tile, D]; mask [R, tile] additive or None.

    Gives out [n, K, R, D] in q's dtype and lse [n, K, R] in float32. K/V are read where they lie.
    """
    # In float64 the operator would take the mask's numbers for others, and say nothing.
    if _FLASH_CPU is not None and q.device.type == "cpu" and q.dtype != torch.float64:
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


def merge(
    out: torch.Tensor, lse: torch.Tensor, numbers: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join tile results: out [M, N, D] and lse [M, N] of N rows give [N, D] and [N].

    The merge is a binary tree over logical tile numbers (`numbers`, ascending; None: 0 .. M-1): the
    node over tiles [j 2^k, (j+1) 2^k) is made of its halves. An absent tile (lse -inf, out 0) is an
    exact identity, so neither a row's neighbours nor a subtree that was joined before change
    a bit. A row of absent tiles only gives 0, never NaN.
    """
    at = list(range(len(out)) if numbers is None else numbers)
    out = out.float()
    while len(at) > 1:
        lefts = [i for i in range(len(at) - 1) if at[i] % 2 == 0 and at[i + 1] == at[i] + 1]
        joined = set(lefts) | {i + 1 for i in lefts}
        rest = [i for i in range(len(at)) if i not in joined]
        even = 2 * len(lefts)
        if lefts == list(range(0, even, 2)):  # all pairs stand in front: no gathering
            pairs = slice(0, even, 2), slice(1, even, 2)
            tail = slice(even, None)
        else:
            pairs = lefts, [i + 1 for i in lefts]  # type: ignore[assignment]
            tail = rest  # type: ignore[assignment]
        if lefts:
            a, b = pairs
            node, node_lse = merge_state(out[a], lse[a], out[b], lse[b])
            if rest:
                node, node_lse = torch.cat((node, out[tail])), torch.cat((node_lse, lse[tail]))
            parents = [at[i] // 2 for i in (*lefts, *rest)]
            order = sorted(range(len(parents)), key=parents.__getitem__)
            if order != list(range(len(order))):
                node, node_lse = node[order], node_lse[order]
            out, lse, at = node, node_lse, sorted(parents)
        else:
            at = [number // 2 for number in at]
    return out[0], lse[0]


def merge_state(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two attention states, out [..., D] and lse [...] in float32, as one; (0, -inf) is neutral.

    Only single roundings (no fused multiply-add), so that an element's bits do not depend on where
    in a tensor it lies.
    """
    top = torch.maximum(lse_a, lse_b).clamp_min(LOWEST)
    a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = (a + b).clamp_min(TINY)
    out = out_a * (a / total).unsqueeze(-1)
    return out.add_(out_b * (b / total).unsqueeze(-1)), top + torch.log(total)
