"""The lab: what a notebook imports. A model, its tiers of memory, groups and agents.

lab = Lab("smollm2-135m")                    # weights once; a pool per tier
lab.preload(SYSTEM_PROMPT, tools=TOOLS)      # global tier, sealed
team = lab.group("checkout")
architect, backend = team.agents("architect", "backend")
results = await lab.run({architect: plan_it, backend: build_it})
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inms_lab import reload
from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.config import Config
from inms_lab.decisions.copies import Copies
from inms_lab.decisions.policy import DEFAULT as DEFAULT_TENANT
from inms_lab.decisions.policy import Policy, by_name
from inms_lab.model.forward import Forward
from inms_lab.notebook import opening, usage
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.group import Group
from inms_lab.notebook.keeper import Keeper
from inms_lab.notebook.pieces import piece_of
from inms_lab.notebook.programs import Program, Programs, Results
from inms_lab.notebook.tenants import Tenant, tenant
from inms_lab.notebook.text import Text
from inms_lab.notebook.upkeep import Upkeep
from inms_lab.parameters.shared import SharedParameters
from inms_lab.publishing.records import Prompt
from inms_lab.serving.driver import Driver
from inms_lab.serving.engine import Engine
from inms_lab.serving.pending import send
from inms_lab.serving.request import Request

T = TypeVar("T")


class Lab(Upkeep):
    """One model, one engine, one thread of its own. Close it, or use it in a `with` block.

    `model` is a name, a folder, a hub id, a loaded `Runner` or `SharedParameters`; `mode` is
    independent, global, inms, or a policy. `pool_bytes` is the private pool's size; `config`
    overrides these; any other field of `Config` can be given by its name, as `copy_budget=8`.
    `compile`: kernels compiled for this machine (once), results within 2e-4.
    `gate`: bounds for text that is used at another place than it was encoded at; None: never.
    `journal`: a file that the log is written through to (`keep_journal`).
    `clock`: the seconds by which leases are judged.
    """

    def __init__(
        self,
        model: str | Path | Forward | SharedParameters = "smollm2-135m",
        *,
        mode: str | Policy = "inms",
        block_size: int | None = None,
        context: int | None = None,
        pool_bytes: int | str | None = None,
        token_budget: int = 512,
        device: str | None = None,
        dtype: Any = None,
        compile: bool = False,
        debug: bool = False,
        gate: Gate | None = DEFAULT,
        config: Config | None = None,
        journal: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        self.closed = True  # until it is built: what fails half-way needs no closing
        closed = reload.register(self)
        if closed:
            print(f"closed {closed} lab{'s' * (closed > 1)} that this cell had made before")
        self.model = opening.load_model(model, device, dtype, compile)
        limit = self.model.max_context if context is None else min(context, self.model.max_context)
        if config is None:
            config = opening.config_for(block_size, limit, token_budget, debug, pool_bytes)
        self.config = config = opening.with_settings(config, settings)
        self.policy = by_name(mode) if isinstance(mode, str) else mode
        store = self.model.new_store()
        self.text = Text(self.model.tokenizer, self.model.stop_tokens)
        where = (self.model, store, self.policy, config)
        self.engine = Engine(*where, opening.gate_for(self.model, gate))
        self.engine.log.piece = piece_of(self.model.tokenizer)
        called = getattr(self.model, "name", self.model.digest)
        name = model if isinstance(model, (str, Path)) else called
        self.engine.log.about["model"] = Path(name).name  # a path is nobody's business
        self.home = Tenant(self, DEFAULT_TENANT)
        self.tenants = {DEFAULT_TENANT: self.home}
        self.groups: dict[str, Group] = {}  # of all tenants
        self.agents, self.forks = dict[str, Agent](), list[Agent]()
        self.driver = Driver(self.engine)
        self.controls = self.driver.controls
        self.programs = Programs(self.driver)
        self.keeper = Keeper(self, clock)
        self.closed = False
        if self.policy.off:
            print(f"LESSON: checks switched off: {', '.join(sorted(self.policy.off))}")
        if journal is not None:
            self._begin_journal(journal)

    def preload(
        self, system: str | Sequence[int], *, tools: Any = None, progress: bool = True
    ) -> None:
        """Fill the global tier: a system prompt and tool schemas (text, or JSON-able), sealed.

        Every agent made afterwards starts with them.
        """
        self.home.preload(system, tools=tools, progress=progress)

    def group(self, name: str) -> Group:
        """The group called `name`, made if it is new."""
        return self.home.group(name)

    def agent(self, name: str, *, groups: Sequence[str] = ()) -> Agent:
        """A new agent that may read these groups' records; it starts with the global tier."""
        return self.home.agent(name, groups=groups)

    def tenant(self, name: str, **settings: Any) -> Tenant:
        """The tenant called `name`, made if it is new: with a prompt, groups, agents, pools and
        budgets of its own. `settings`: its quotas (`private_bytes`, `group_bytes`, `global_bytes`),
        what each of its agents keeps for sure (`floor_bytes`), its budgets of a step
        (`token_budget`, `prefill_budget`, `copy_budget`); the lab's where it names none."""
        self.refuse_closed()
        return tenant(self, name, settings)

    @property
    def prompts(self) -> list[Prompt]:
        """The sealed texts that its agents start with."""
        return self.home.prompts

    @property
    def copies(self) -> Copies:
        """What the copy-on-write budget did: blocks copied in a step, who waits, and how long."""
        return self.home.copies

    def adopt(self, fork: Agent) -> Agent:
        """Remember a forked agent, and number it."""
        self.forks.append(fork)
        fork.title = f"{fork.name}/{sum(other.name == fork.name for other in self.forks)}"
        return fork

    def submit(self, request: Request) -> Request:
        """Hand a request to the engine, from any thread; bad input raises here and now."""
        self.refuse_closed()
        return send(self.driver, request)

    def start(self, programs: Mapping[Agent, Program]) -> None:
        """Start programs without running them: drive them with `step`, `run_to` or `run`."""
        self.refuse_closed()
        self.programs.start(programs)

    async def run(self, programs: Mapping[Agent, Program] | None = None) -> Results:
        """Run the programs (and those started before) to their end, the view staying live."""
        self.refuse_closed()
        return await self.programs.run(programs or {})

    def run_to(self, index: int | None = None) -> Results:
        """The same for code without `await`: to log index `index`, or to the end."""
        self.refuse_closed()
        return self.programs.run_to(index)

    async def step(self, count: int = 1) -> None:
        """Take `count` engine steps."""
        self.refuse_closed()
        await self.programs.step(count)

    def results(self) -> Results:
        """What the programs that have ended returned."""
        return self.programs.results()

    def bill(self) -> usage.Bill:
        """Weights, KV, metadata and process memory, formula beside measured."""
        return self.look(lambda: usage.bill(self))

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        counts = f"{len(self.agents)} agents, {len(self.log)} events"
        return f"<lab: {self.policy.name}, {counts}, {self.controls.state}>"
