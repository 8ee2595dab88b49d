"""Whether a tenant can tell by its own clock what its neighbour holds.

An attacker measures its time to first token for a text that a victim holds, or does not hold: the
victim then holds another text of the same length, so everything else is equal. Which of the two is
drawn for each probe. How well the times tell is their AUC: 0.5 is guessing, 1 is certainty. The
same attack on one pool for everybody (mode `global`) shows that the test can see what there is.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inms_lab.bench.intervals import auc
from inms_lab.books.events import Allocated, Copied, Stepped
from inms_lab.config import Config
from inms_lab.model.forward import Forward
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

BLOCK = 16  # tokens
MODES = ("inms", "global")
PROMPT = 64  # tokens that both tenants have as their prompt, each its own


@dataclass(frozen=True, slots=True)
class Attack:
    """`probes`, one of each two with the text held; `tokens` of each text."""

    probes: int = 200
    tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What the attacker's probe cost the lab."""

    computed_tokens: int
    allocated_blocks: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement: whether the victim held the text, seconds to the first token, the work."""

    held: bool
    seconds: float
    work: Work


def measure(model: Forward, attack: Attack) -> dict[str, Any]:
    """The attack in each mode."""
    sizes = {"probes": attack.probes, "tokens": attack.tokens}
    what = {"model": getattr(model, "name", model.digest)}
    return {**sizes, **what, "modes": [row(mode, run(model, mode, attack)) for mode in MODES]}


def run(model: Forward, mode: str, attack: Attack) -> list[Probe]:
    """All probes in one mode: each side is a tenant in `inms`, in `global` there is one pool."""
    rng = random.Random(attack.seed)
    pairs = (rng.sample((True, False), 2) for _ in range(-(-attack.probes // 2)))
    held = [one for pair in pairs for one in pair]  # neighbours in time, so drift is in both
    with _lab(model, mode, attack) as lab:
        victim, attacker = _sides(lab, mode, rng)
        probes = [_probe(lab, victim, attacker, attack, h, rng, n) for n, h in enumerate(held)]
        lab.check()
    return probes


def row(mode: str, probes: Sequence[Probe]) -> dict[str, Any]:
    """What the probes of a mode say."""
    sides = {held: [p for p in probes if p.held == held] for held in (True, False)}
    times = {held: [p.seconds for p in mine] for held, mine in sides.items()}
    value, low, high = auc(times[False], times[True])
    work = {held: {p.work for p in mine} for held, mine in sides.items()}
    means = {
        name: {
            field: round(statistics.fmean(asdict(p.work)[field] for p in sides[held]), 1)
            for field in Work.__slots__
        }
        for name, held in (("work held", True), ("work not held", False))
    }
    return {
        "mode": mode,
        "auc": round(value, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "contains_half": low <= 0.5 <= high,
        "held_ms": round(1e3 * statistics.median(times[True]), 2),
        "not_held_ms": round(1e3 * statistics.median(times[False]), 2),
        "equal_work": work[True] == work[False] and len(work[True]) == 1,
        **means,
    }


def drawn(seed: int = 0) -> Any:
    """A small model with random weights: how long it takes does not depend on what it says."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from inms_lab.model import from_model

    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return from_model(LlamaForCausalLM(config).eval(), name="drawn")


Maker = Callable[[str], Agent]


def _lab(model: Forward, mode: str, attack: Attack) -> Lab:
    room = 4 * (attack.tokens + PROMPT + 4 * BLOCK) * model.new_store().bytes_per_token
    most = min(model.max_context, 2 * (attack.tokens + PROMPT))
    sizes = (BLOCK, 0, 512, most, room, room, room)
    return Lab(model, mode=mode, config=Config(*sizes), gate=None)


def _sides(lab: Lab, mode: str, rng: random.Random) -> tuple[Maker, Maker]:
    """Who makes the victim's agents, and who the attacker's."""
    prompt = _text(lab, rng, PROMPT)
    if mode == "global":
        lab.preload(prompt, progress=False)
        return lab.agent, lab.agent
    victim, attacker = lab.tenant("victim"), lab.tenant("attacker")
    for side in (victim, attacker):
        side.preload(prompt, progress=False)
    return victim.agent, attacker.agent


def _probe(
    lab: Lab,
    victim: Maker,
    attacker: Maker,
    attack: Attack,
    held: bool,
    rng: random.Random,
    number: int,
) -> Probe:
    text, other = (_text(lab, rng, attack.tokens) for _ in range(2))
    theirs, ours = victim(f"v{number}"), attacker(f"a{number}")
    theirs.read(text if held else other, role=None).result()
    text = array("i", text).tolist()  # other objects: the processor's caches are to tell nothing
    at, started = len(lab.log), time.perf_counter()
    ours.read(text, role=None)
    ours.write(1, role=None, stop=False).result()
    seconds = time.perf_counter() - started
    work = work_of(lab, ours.seq_id, at)
    for agent in (ours, theirs):
        agent.close().result()
    return Probe(held, seconds, work)


def work_of(lab: Lab, seq_id: int, at: int) -> Work:
    """What was done for a holder from log index `at` on."""
    events, size = lab.log.since(at), lab.engine.cache.store.bytes_per_token
    mine = [e for e in events if getattr(e, "seq_id", -1) == seq_id]
    return Work(
        sum(item[1] for e in events if isinstance(e, Stepped) for item in e.items
            if item[0] == seq_id),
        sum(len(e.blocks) for e in mine if isinstance(e, Allocated)),
        sum(e.num_slots * size for e in mine if isinstance(e, Copied)),
    )  # fmt: skip


def _text(lab: Lab, rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(lab.model.vocab_size) for _ in range(length)]
