"""KV of a text, as it lies in a lab's memory: for lessons that compare it."""

from __future__ import annotations

from typing import Any

import torch

from inms_lab.notebook.lab import Lab


def kv_of(lab: Lab, seq_id: int, segment: int = -1) -> torch.Tensor:
    """Keys and values [layers, 2, K, T, D] of one segment of a holder's context (the last one), a
    copy; the keys as they lie, rotated for the place where the text was encoded."""
    return lab.look(lambda: _copied(lab, seq_id, segment))


def _copied(lab: Lab, seq_id: int, segment: int) -> torch.Tensor:
    part = lab.engine.ledger.sequences[seq_id].segments[segment]
    store: Any = lab.engine.cache.store
    region: torch.Tensor = store.regions[part.pool_id]
    slots = [
        block * part.block_size + slot for block in part.blocks for slot in range(part.block_size)
    ]
    return region[:, :, :, slots[: part.computed]].transpose(0, 1).clone()
