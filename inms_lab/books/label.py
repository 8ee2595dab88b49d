"""Labels: whose words a block has seen. The order is set inclusion, the join is set union.

A label is the set of principals whose non-public text was in the context when a block was computed:
the empty set is public (the global tier), `{"group:checkout"}` is a team's, `{"group:checkout",
"agent:backend"}` is private text behind a team's. A reader's clearance is a set of the same kind.
Source: decentralised labels for information flow (Myers and Liskov 1997), reduced to secrecy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Label: TypeAlias = frozenset[str]

PUBLIC: Label = frozenset()


def group(name: str) -> Label:
    """The label of a group's text."""
    return frozenset((f"group:{name}",))


def private(agent: str) -> Label:
    """The label of one agent's own text."""
    return frozenset((f"agent:{agent}",))


def join(*labels: Iterable[str]) -> Label:
    """The least label above all of `labels`: what a context carries that has read all of them."""
    return frozenset().union(*labels)


def is_shared(label: Iterable[str]) -> bool:
    """Whether no single agent's text is in it: it is public or a team's."""
    return not any(principal.startswith("agent:") for principal in label)


def may_hold(label: Iterable[str], clearance: Label) -> bool:
    """Whether a reader with `clearance` may hold a block with `label` (check 4 of a decision)."""
    return clearance.issuperset(label)
