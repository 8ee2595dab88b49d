"""The main job without a notebook: three agents with common texts, in each mode, side by side.

Architect, backend and frontend share a system prompt, tools and the team's decisions (published, so
the order is global, group, private), read a context of their own and write. What comes out is
measured: KV at the peak beside the formula from lengths alone, time to first token, wall time, and
whether sharing changed a single token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from inms_lab.config import Config
from inms_lab.decisions.policy import MODES
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel, Forward
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.usage import peak
from inms_lab.output import Output
from inms_lab.studies.bill import BlockBill, block_bill
from inms_lab.terminal.scenario import TokenScenario


@dataclass(slots=True)
class ModeResult:
    """One mode's run. Bytes are KV bytes of whole blocks; seconds are wall-clock."""

    kv_bytes_peak: int
    kv_bytes_formula: int
    blocks_peak: int
    ttft_s: list[float]
    preload_s: float
    wall_s: float
    bookkeeping_s: float
    computed_tokens: int
    tokens: list[list[int]]
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DemoResult:
    """All modes, and what comparing them says. `identical_tokens` is None in a dry run."""

    model: str
    agents: int
    block_size: int
    tokens_per_agent: int
    source: str
    modes: dict[str, ModeResult]
    identical_tokens: bool | None
    tokens_equal_global: bool | None
    saving: float
    saving_smooth: float
    explanation: str
    dry_run: bool

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def run_demo(
    model: Forward,
    name: str,
    scenario: TokenScenario,
    config: Config,
    say: Callable[[str], None] = lambda _: None,
    logs: dict[str, Log] | None = None,
) -> DemoResult:
    """The scenario in every mode on one model; `logs` is filled with each mode's log."""
    bill = _bill(scenario, config.block_size, model.new_store().bytes_per_token)
    modes = {}
    for mode in MODES:
        say(f"{mode}: {len(scenario.agents)} agents of {scenario.budget.total} tokens")
        modes[mode], log = _run_mode(model, mode, scenario, config, bill)
        if logs is not None:
            logs[mode] = log
    dry = isinstance(model, DryModel)
    inms, alone = modes["inms"], modes["independent"]
    n, common = len(scenario.agents), len(scenario.shared)
    lengths = [common + len(scenario.own(a)) + scenario.budget.output - 1 for a in scenario.agents]
    return DemoResult(
        model=name,
        agents=n,
        block_size=config.block_size,
        tokens_per_agent=max(lengths) + 1,
        source=scenario.text.source,
        modes=modes,
        identical_tokens=None if dry else inms.tokens == alone.tokens,
        tokens_equal_global=None if dry else inms.tokens == modes["global"].tokens,
        saving=1 - inms.kv_bytes_peak / alone.kv_bytes_peak,
        saving_smooth=(n - 1) * common / sum(lengths),
        explanation=bill.explanation(),
        dry_run=dry,
    )


def _bill(scenario: TokenScenario, block_size: int, bytes_per_token: int) -> BlockBill:
    """Blocks from lengths alone; the last token that an agent writes needs no KV."""
    common = [len(scenario.system), len(scenario.tools), len(scenario.record)]
    own = [[len(scenario.own(a)) + scenario.budget.output - 1] for a in scenario.agents]
    return block_bill(common, own, block_size, bytes_per_token)


def _run_mode(
    model: Forward, mode: str, scenario: TokenScenario, config: Config, bill: BlockBill
) -> tuple[ModeResult, Log]:
    lab = Lab(model, mode=mode, config=config)
    started = time.perf_counter()
    lab.preload(scenario.system, tools=scenario.tools, progress=False)
    team = lab.group("checkout")
    agents = team.agents(*scenario.agents)
    team.publish(scenario.record, by=agents[0], role=None)
    preloaded = time.perf_counter()

    async def program(me: Agent) -> Output:
        me.attach(team)
        me.read(scenario.own(me.name), role=None)
        return await me.write(scenario.budget.output, role=None, stop=False)

    lab.start(dict.fromkeys(agents, program))
    results = lab.run_to()
    ended = time.perf_counter()
    for error in lab.programs.failures.values():
        lab.close()
        raise error
    first = [agent.requests[0].first_token_at - preloaded for agent in agents]
    top = peak(lab.log, lab.engine.cache.store.bytes_per_token)
    lab.assert_clean()
    outputs = [results[agent.name] for agent in agents]
    shares = mode != "independent"
    result = ModeResult(
        kv_bytes_peak=top.num_bytes,
        kv_bytes_formula=bill.shared_bytes if shares else bill.independent_bytes,
        blocks_peak=top.num_blocks,
        ttft_s=[round(seconds, 4) for seconds in first],
        preload_s=round(preloaded - started, 4),
        wall_s=round(ended - started, 4),
        bookkeeping_s=round(lab.engine.bookkeeping, 4),
        computed_tokens=lab.engine.num_computed,
        tokens=[output.tokens for output in outputs],
        texts=[str(output) for output in outputs],
    )
    return result, lab.log
