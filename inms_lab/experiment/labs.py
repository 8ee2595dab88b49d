"""The labs that a run plays in, and what it depends on beside the model and the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inms_lab.books.gate import Gate
from inms_lab.config import Config
from inms_lab.experiment.int8 import Int8
from inms_lab.experiment.modes import Mode
from inms_lab.model.forward import Forward
from inms_lab.notebook.lab import Lab

ROOM = 4096  # tokens that each pool has room for; the private one twice as many


@dataclass(frozen=True, slots=True)
class Settings:
    """`gate`: what fragments must satisfy. `quick`: agents whose KV nobody else can use are
    counted, not computed; then there is no wall time for their modes."""

    block_size: int = 16
    scorer: str = "likelihood"
    gate: Gate | None = None
    quick: bool = False


def open_lab(model: Forward, mode: Mode, settings: Settings, num_agents: int = 3) -> Lab:
    """A lab in this mode with room for a team."""
    served: Any = Int8(model) if mode.int8 else model
    room = ROOM * -(-num_agents // 3) * max(1, served.new_store().bytes_per_token)
    config = Config(
        block_size=settings.block_size,
        context=model.max_context,
        global_bytes=room,
        group_bytes=room,
        private_bytes=2 * room,
    )
    gate = settings.gate if mode.gated else None
    return Lab(served, mode=mode.policy, gate=gate, config=config)
