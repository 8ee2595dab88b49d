"""Tenants: users of one lab that must not see, slow down or push out each other.

Each has its own prompt, groups, agents and pools, and its own budgets of a step. Pools never lend,
so what a tenant may use is its quota: when it is used up, its own cached blocks are evicted, then
its own agents without work give way, then its later ones, and then it is refused, with the reason.
No other tenant's history plays a part in any of it. A lab is itself a tenant, the one called
"default"; names of the others' agents and groups begin with the tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inms_lab.books.label import group, join, private
from inms_lab.config import Config
from inms_lab.decisions.copies import Copies
from inms_lab.decisions.policy import DEFAULT, PRIVATE, pool_of
from inms_lab.errors import BadInput, PoolExhausted, UnknownGroup
from inms_lab.notebook.agent import Agent, check_name
from inms_lab.notebook.group import Group
from inms_lab.notebook.opening import with_settings
from inms_lab.notebook.preload import preload
from inms_lab.publishing.records import Prompt

if TYPE_CHECKING:
    from inms_lab.notebook.lab import Lab

TENANTS_OWN = (
    *("private_bytes", "group_bytes", "global_bytes", "floor_bytes"),
    *("token_budget", "prefill_budget", "copy_budget"),
)


class Tenant:
    """Made by `lab.tenant(name)`."""

    def __init__(self, lab: Lab, name: str, own: Config | None = None) -> None:
        self.lab, self.name = lab, name
        self.prompts: list[Prompt] = []
        engine = lab.engine
        engine.open_pools((), engine.cache.store.bytes_per_token, name, own)

    @property
    def config(self) -> Config:
        """Its sizes and budgets."""
        return self.lab.engine.shares[self.name].config

    @property
    def agents(self) -> dict[str, Agent]:
        """Its agents by their names in the lab."""
        return {n: a for n, a in list(self.lab.agents.items()) if a.tenant == self.name}

    @property
    def groups(self) -> dict[str, Group]:
        """Its groups by their names in the lab."""
        return {n: g for n, g in list(self.lab.groups.items()) if g.tenant is self}

    @property
    def copies(self) -> Copies:
        """What its copy-on-write budget did: blocks copied in a step, who waits, and how long."""

        def report() -> Copies:
            share, books = self.lab.engine.shares[self.name], self.lab.engine.ledger
            agents = (*self.lab.agents.values(), *self.lab.forks)
            names = {agent.seq_id: agent.title for agent in agents if agent.seq_id in books.live}
            return share.copies.report(share.config.copy_budget, names.get)

        return self.lab.look(report)

    def preload(
        self, system: str | Sequence[int], *, tools: Any = None, progress: bool = True
    ) -> None:
        """As `Lab.preload`, for this tenant's agents."""
        self.lab.refuse_closed()
        preload(self, system, tools, progress)

    def full(self, name: str) -> str:
        """A name of this tenant's as the lab knows it."""
        check_name(name)
        if self.name != DEFAULT:
            return f"{self.name}/{name}"
        first, slash, _ = name.partition("/")
        if slash and first in self.lab.tenants:
            raise BadInput(f"{name!r} would be a name of the tenant {first}: choose another")
        return name

    def group(self, name: str) -> Group:
        """The group called `name`, made if it is new."""
        full = self.full(name)
        if full not in self.lab.groups:
            self.lab.refuse_closed()
            self.lab.driver.call(lambda: self._make_group(full))
        return self.lab.groups[full]

    def _make_group(self, full: str) -> None:
        if full not in self.lab.groups:
            engine = self.lab.engine
            names = (*self.groups, full)
            engine.open_pools(names, engine.cache.store.bytes_per_token, self.name)
            self.lab.groups[full] = Group(self, full)

    def agent(self, name: str, *, groups: Sequence[str] = ()) -> Agent:
        """A new agent that may read these groups' records; it starts with the tenant's prompt."""
        self.lab.refuse_closed()
        full = self.full(name)
        if isinstance(groups, str):
            raise BadInput(f"groups is a list of names: groups=[{groups!r}]")
        teams = tuple(map(self.full, groups))
        for short, team in zip(groups, teams, strict=True):
            if team not in self.groups:
                raise UnknownGroup(
                    f"there is no group {short!r}: make it with lab.group({short!r})"
                )
        return self.lab.driver.call(lambda: self._make_agent(full, teams))

    def _make_agent(self, full: str, groups: tuple[str, ...]) -> Agent:
        lab = self.lab
        same = (known for known in (*lab.agents.values(), *lab.forks) if known.name == full)
        if any(known.state != "reclaimed" for known in same):
            raise BadInput(
                f"an agent called {full!r} exists, or a fork of it: close it, or run the cells "
                "from `Lab(...)` on"
            )
        self._promise(full)
        clearance = join(private(full), *map(group, groups))
        seq_id = lab.engine.register("agent", full, clearance, self.name)
        lab.agents[full] = made = Agent(lab, full, seq_id, groups, self.name)
        for prompt in self.prompts:
            lab.submit(prompt.request(seq_id))
        return made

    def _promise(self, full: str) -> None:
        """Raises `PoolExhausted` where the floors of all agents would not fit the private pool."""
        engine = self.lab.engine
        floor = engine.shares[self.name].floor
        pool = engine.ledger.pools.get(pool_of(self.name, PRIVATE))
        if not floor or pool is None:
            return
        live = (s for s in engine.ledger.holders() if s.is_live and s.tenant == self.name)
        count = sum(s.kind == "agent" and s.parent_id < 0 for s in live)
        if (count + 1) * floor > pool.spec.num_blocks:
            raise PoolExhausted(
                f"{full} cannot have a floor of {floor} blocks: {count} agents have theirs, and "
                f"{pool.spec.pool_id} has {pool.spec.num_blocks} blocks; close agents, or give "
                "more private_bytes or a smaller floor_bytes"
            )

    def __repr__(self) -> str:
        return f"<tenant {self.name}: {len(self.agents)} agents, {len(self.groups)} groups>"


def tenant(lab: Lab, name: str, settings: dict[str, Any]) -> Tenant:
    """The lab's tenant called `name`, made if it is new. Raises `BadInput`."""
    check_name(name)
    if "/" in name or ":" in name:
        raise BadInput(f"a tenant's name has no slash and no colon: {name!r}")
    if name in lab.tenants:
        if settings:
            raise BadInput(f"the tenant {name} exists: its settings are chosen once")
        return lab.tenants[name]
    taken = [n for n in (*lab.agents, *lab.groups) if n.startswith(f"{name}/")]
    if taken:
        raise BadInput(f"{taken[0]!r} would be a name of this tenant: choose another name")
    wrong = next((key for key in settings if key not in TENANTS_OWN), None)
    if wrong is not None:
        raise BadInput(f"a tenant has no setting {wrong!r}; there are: {', '.join(TENANTS_OWN)}")
    own = with_settings(lab.config, settings)
    per_token = lab.engine.cache.store.bytes_per_token
    floor, blocks = own.floor_blocks(per_token), own.num_blocks(PRIVATE, per_token)
    if floor > blocks:
        raise BadInput(
            f"floor_bytes of {own.floor_bytes} are {floor} blocks, private_bytes of "
            f"{own.private_bytes} are {blocks}: give a smaller floor, or more private bytes"
        )
    return lab.driver.call(lambda: lab.tenants.setdefault(name, Tenant(lab, name, own)))
