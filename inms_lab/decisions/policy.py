"""What is shared with whom: the modes, as values. The engine asks; it never says `if mode`.

A policy places text (which pool, under which label, findable or not) for a tier, behind a context.
    independent   every holder on its own: one private pool, nothing findable
    global        one pool for all, no labels: equal prefixes are shared whoever wrote them
    inms          own pools per tier, tenant and group; labels; private text findable by its owner
`without` switches single checks off, for lessons only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from inms_lab.books.label import PUBLIC, Label, group, join, private
from inms_lab.errors import BadInput

GLOBAL, GROUP, PRIVATE, COMMON = "global", "group", "private", "common"
DEFAULT = "default"  # the tenant of a lab that speaks of none
SWITCHES = ("label", "tokens", "position", "gate", "pending")


@dataclass(frozen=True, slots=True)
class Place:
    """Where text goes: its pool and tier, the label that its blocks carry, and whether they are
    findable."""

    pool_id: str
    tier: str
    label: Label
    indexed: bool


def pool_of(tenant: str, pool_id: str) -> str:
    """A tenant's own pool that the policy calls `pool_id` (a group's name tells whose it is)."""
    own = tenant == DEFAULT or pool_id.startswith(f"{GROUP}:")
    return pool_id if own else f"{tenant}/{pool_id}"


class Policy(Protocol):
    """The decisions that differ between modes."""

    @property
    def name(self) -> str:
        """What the mode is called."""

    @property
    def off(self) -> frozenset[str]:
        """Checks that are switched off, for a lesson."""

    def place(self, tier: str, owner: str, group_name: str, behind: Label) -> Place:
        """Where `owner` puts text of `tier` when its context so far carries the label `behind`.

        `group_name`: whose text it is, where it is a group's (also if it is put privately).
        """

    def pools(self, groups: tuple[str, ...]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """(pool id, tier, label ceiling) of the pools that this mode needs for these groups."""

    @property
    def encodes_prompts(self) -> bool:
        """Whether a sealed prompt gets KV of its own, for others to mount."""

    @property
    def encodes_records(self) -> bool:
        """Whether a published record gets KV of its own (else only its text is shared)."""

    @property
    def forgets_private(self) -> bool:
        """Whether the blocks of a holder that ended lose their identity at once."""


@dataclass(frozen=True, slots=True)
class Independent:
    """No sharing at all: what every engine without a prefix cache does."""

    name: str = "independent"
    off: frozenset[str] = frozenset()
    encodes_prompts: bool = False
    encodes_records: bool = False
    forgets_private: bool = True

    def place(self, tier: str, owner: str, group_name: str, behind: Label) -> Place:
        """Everything is private text of its owner."""
        return Place(PRIVATE, PRIVATE, join(behind, private(owner)), False)

    def pools(self, groups: tuple[str, ...]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """One private pool."""
        return ((PRIVATE, PRIVATE, ("*",)),)


@dataclass(frozen=True, slots=True)
class Global:
    """Every equal prefix is shared, by content alone: no tiers, no labels."""

    name: str = "global"
    off: frozenset[str] = frozenset()
    encodes_prompts: bool = True
    encodes_records: bool = True
    forgets_private: bool = False

    def place(self, tier: str, owner: str, group_name: str, behind: Label) -> Place:
        """Everything is public, in one pool."""
        return Place(COMMON, COMMON, PUBLIC, True)

    def pools(self, groups: tuple[str, ...]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """One pool for all."""
        return ((COMMON, COMMON, ()),)


@dataclass(frozen=True, slots=True)
class Inms:
    """Three tiers with labels: text is shared with those who may read all of its context."""

    name: str = "inms"
    off: frozenset[str] = frozenset()
    encodes_prompts: bool = True
    encodes_records: bool = True
    forgets_private: bool = True

    def place(self, tier: str, owner: str, group_name: str, behind: Label) -> Place:
        """The tier's own pool, unless the context before it is more secret: then private."""
        own = group(group_name) if group_name else PUBLIC  # whose the text is, beside its reader
        label = join(behind, own)
        if tier == PRIVATE or label != own:
            return Place(PRIVATE, PRIVATE, join(label, private(owner)), True)
        pool_id = GLOBAL if tier == GLOBAL else f"{GROUP}:{group_name}"
        return Place(pool_id, tier, label, True)

    def pools(self, groups: tuple[str, ...]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """One pool for the global tier, one for each group, one for private text."""
        teams = tuple((f"{GROUP}:{g}", GROUP, tuple(sorted(group(g)))) for g in groups)
        return ((GLOBAL, GLOBAL, ()), *teams, (PRIVATE, PRIVATE, ("*",)))

    def without(self, *checks: str) -> Inms:
        """The same policy with single checks switched off: for lessons, never for serving."""
        unknown = sorted(set(checks) - set(SWITCHES))
        if unknown:
            raise BadInput(f"no check is called {unknown[0]!r}; there are: {', '.join(SWITCHES)}")
        return replace(self, off=self.off | frozenset(checks))


MODES: dict[str, Policy] = {p.name: p for p in (Independent(), Global(), Inms())}


def by_name(name: str) -> Policy:
    """The mode called `name`."""
    if name not in MODES:
        raise BadInput(f"no mode is called {name!r}; there are: {', '.join(MODES)}")
    return MODES[name]


def placed(
    policy: Policy, tenant: str, tier: str, owner: str, group_name: str, behind: Label
) -> Place:
    """Where text goes in the tenant's own pools."""
    place = policy.place(tier, owner, group_name, behind)
    return replace(place, pool_id=pool_of(tenant, place.pool_id))
