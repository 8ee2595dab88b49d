"""The lab: what a notebook imports. A model, its tiers of memory, groups and agents.

lab = Lab("smollm2-135m")                    # weights once; a pool per tier
lab.preload(SYSTEM_PROMPT, tools=TOOLS)      # global tier, sealed
team = lab.group("checkout")
architect, backend = team.agents("architect", "backend")
results = await lab.run({architect: plan_it, backend: build_it})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inms_lab import opening, reload, usage
from inms_lab.agent import Agent, check_name
from inms_lab.config import Config
from inms_lab.driver import Driver
from inms_lab.engine import Engine
from inms_lab.errors import BadInput, UnknownGroup
from inms_lab.gate import DEFAULT, Gate
from inms_lab.group import Group
from inms_lab.label import group, join, private
from inms_lab.model.forward import Forward
from inms_lab.pieces import piece_of
from inms_lab.policy import Policy, by_name
from inms_lab.preload import preload
from inms_lab.programs import Program, Programs, Results
from inms_lab.records import Prompt
from inms_lab.request import Request
from inms_lab.text import Text
from inms_lab.upkeep import Upkeep

T = TypeVar("T")


class Lab(Upkeep):
    """One model, one engine, one thread of its own. Close it, or use it in a `with` block.

    `model` is a name, a folder, a hub id, or a loaded `Runner`; `mode` is independent, global,
    inms, or a policy. `pool_bytes` is the private pool's size; `config` overrides these; any other
    field of `Config` can be given by its name, as `copy_budget=8`.
    `compile`: kernels compiled for this machine (once), results within 2e-4.
    `gate`: bounds for text that is used at another place than it was encoded at; None: never.
    `journal`: a file that the log is written through to (`keep_journal`).
    """

    def __init__(
        self,
        model: str | Path | Forward = "smollm2-135m",
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
        name = model if isinstance(model, (str, Path)) else getattr(model, "name", model.digest)
        self.engine.log.about["model"] = Path(name).name  # a path is nobody's business
        self.engine.open_pools((), store.bytes_per_token)
        self.prompts: list[Prompt] = []
        self.groups: dict[str, Group] = {}
        self.agents, self.forks = dict[str, Agent](), list[Agent]()
        self.driver = Driver(self.engine)
        self.controls = self.driver.controls
        self.programs = Programs(self.driver)
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
        self._open()
        preload(self, system, tools, progress)

    def group(self, name: str) -> Group:
        """The group called `name`, made if it is new."""
        if check_name(name) not in self.groups:
            self._open()
            self.driver.call(lambda: self._make_group(name))
        return self.groups[name]

    def _make_group(self, name: str) -> None:
        if name not in self.groups:
            per_token = self.engine.cache.store.bytes_per_token
            self.engine.open_pools((*self.groups, name), per_token)
            self.groups[name] = Group(self, name)

    def agent(self, name: str, *, groups: Sequence[str] = ()) -> Agent:
        """A new agent that may read these groups' records; it starts with the global tier."""
        self._open()
        check_name(name)
        if isinstance(groups, str):
            raise BadInput(f"groups is a list of names: groups=[{groups!r}]")
        for team in groups:
            if team not in self.groups:
                raise UnknownGroup(f"there is no group {team!r}: make it with lab.group({team!r})")
        return self.driver.call(lambda: self._make_agent(name, tuple(groups)))

    def _make_agent(self, name: str, groups: tuple[str, ...]) -> Agent:
        same = (known for known in (*self.agents.values(), *self.forks) if known.name == name)
        if any(known.state != "reclaimed" for known in same):
            raise BadInput(
                f"an agent called {name!r} exists, or a fork of it: close it, or run the cells "
                "from `Lab(...)` on"
            )
        clearance = join(private(name), *map(group, groups))
        seq_id = self.engine.register("agent", name, clearance)
        self.agents[name] = made = Agent(self, name, seq_id, groups)
        for prompt in self.prompts:
            self.submit(prompt.request(seq_id))
        return made

    def adopt(self, fork: Agent) -> Agent:
        """Remember a forked agent, and number it."""
        self.forks.append(fork)
        fork.title = f"{fork.name}/{sum(other.name == fork.name for other in self.forks)}"
        return fork

    def submit(self, request: Request) -> Request:
        """Hand a request to the engine, from any thread; bad input raises here and now."""
        self._open()
        return self.driver.call(lambda: self.engine.submit(request))

    def start(self, programs: Mapping[Agent, Program]) -> None:
        """Start programs without running them: drive them with `step`, `run_to` or `run`."""
        self._open()
        self.programs.start(programs)

    async def run(self, programs: Mapping[Agent, Program] | None = None) -> Results:
        """Run the programs (and those started before) to their end, the view staying live."""
        self._open()
        return await self.programs.run(programs or {})

    def run_to(self, index: int | None = None) -> Results:
        """The same for code without `await`: to log index `index`, or to the end."""
        self._open()
        return self.programs.run_to(index)

    async def step(self, count: int = 1) -> None:
        """Take `count` engine steps."""
        self._open()
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
