"""How an agent takes shared text into its context: a team's records, one record, a text to share.

Only what to ask is decided here; whether a record is mounted exactly, as a fragment or computed is
settled when the request enters the books (reuse.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from inms_lab.books.lifecycle import LIVE
from inms_lab.decisions.policy import GROUP, PRIVATE
from inms_lab.errors import AgentClosed, BadInput, NotAMember, UnknownGroup
from inms_lab.publishing.records import Record
from inms_lab.serving.entering import check_length
from inms_lab.serving.pending import Pending
from inms_lab.serving.request import Request

if TYPE_CHECKING:
    from inms_lab.notebook.agent import Agent
    from inms_lab.notebook.group import Group


def attach(
    agent: Agent,
    what: Group | Record | str | Sequence[int],
    tier: str,
    group: Group | None,
    role: str | None,
    recompute: float | Sequence[int],
) -> Pending[int]:
    """See `Agent.attach`."""
    if agent.state not in LIVE:
        raise AgentClosed(f"{agent.name} is {agent.state}: make a new agent")
    if tier not in (GROUP, PRIVATE):
        raise BadInput(f"a text is attached as 'group' or 'private', not {tier!r}")
    if isinstance(what, Record):
        team = _team(agent, agent.lab.groups.get(what.group))
        return agent.lab.driver.call(lambda: _record(agent, team, what, recompute))
    if not isinstance(what, (str, list, tuple, array)):
        team = _team(agent, what)  # type: ignore[arg-type]
        return agent.lab.driver.call(lambda: _records(agent, team, recompute))
    if tier == PRIVATE:
        return agent.read(what, role=role, seal=True)
    team = _team(agent, group if group is not None else _only_group(agent))
    tokens = agent.lab.text.encode(what, role)
    return agent.lab.driver.call(lambda: _text(agent, team, tokens, recompute))


def outdated(agent: Agent) -> list[Record]:
    """See `Agent.outdated`."""
    with agent.lab.engine.cache.lock:
        held = {s.source for s in agent.lab.engine.ledger.sequences[agent.seq_id].segments}
    groups = list(agent.lab.groups.values())
    olds = ((g, old) for g in groups for old in list(g.superseded.values()))
    return [o for g, o in olds if o.seq_id in held and g.newest(o).tokens != o.tokens]


def deviating(agent: Agent, record: Record, share: float) -> list[int]:
    """See `Agent.deviating`."""
    from inms_lab.publishing.deviation import deviations, most_deviating

    if not isinstance(record, Record):
        raise BadInput(f"a record is wanted, not {record!r}")
    team = _team(agent, agent.lab.groups.get(record.group))

    def find() -> list[float]:
        team.check(record)
        return deviations(agent.lab.engine, agent.seq_id, record)

    return most_deviating(agent.lab.look(find), share)


def _team(agent: Agent, team: Group | None) -> Group:
    if team is None or getattr(team, "lab", None) is not agent.lab:
        raise BadInput(f"{team!r} is no group of this agent's lab")
    if team.name not in agent.groups:
        raise NotAMember(f"{agent.name} is not in {team.name}: make it with its `agents(...)`")
    return team


def _only_group(agent: Agent) -> Group:
    if len(agent.groups) != 1:
        mine = ", ".join(agent.groups) or "none"
        raise UnknownGroup(f"say for whom: `group=...`; {agent.name} is in {mine}")
    return agent.lab.groups[agent.groups[0]]


def _records(agent: Agent, team: Group, recompute: float | Sequence[int]) -> Pending[int]:
    for record in team.records:
        _afresh(agent, record, recompute)  # raises before anything is asked for
    pending = [_ask(agent, team, record, recompute) for record in team.refreshed()]
    return (pending or [_nothing(agent)])[-1]  # answered in order: the last is enough


def _record(
    agent: Agent, team: Group, record: Record, recompute: float | Sequence[int]
) -> Pending[int]:
    team.check(record)
    at = team.records.index(record)
    return _ask(agent, team, team.refreshed()[at], recompute)


def _text(
    agent: Agent, team: Group, tokens: Sequence[int], recompute: float | Sequence[int]
) -> Pending[int]:
    record = team.find(tokens)
    if record is not None:
        return _record(agent, team, record, recompute)
    blocks_afresh(len(tokens), agent.lab.config.block_size, recompute)
    engine = agent.lab.engine  # what could not enter is not released either
    check_length(engine.ledger.sequences[agent.seq_id], len(tokens), engine.context)
    return _ask(agent, team, team.offer(tokens, agent), recompute)


def _ask(
    agent: Agent, team: Group, record: Record, recompute: float | Sequence[int]
) -> Pending[int]:
    """Attach a record, unless its text is in the context when the request enters."""
    request = record.request(agent.seq_id, _afresh(agent, record, recompute))
    request.versions = frozenset(r.seq_id for r in (record, *team.versions(record)))
    return agent.ask(request)


def _afresh(agent: Agent, record: Record, recompute: float | Sequence[int]) -> tuple[int, ...]:
    return blocks_afresh(len(record.tokens), agent.lab.config.block_size, recompute)


def _nothing(agent: Agent) -> Pending[int]:
    done = Request(agent.seq_id, "append")
    done.future.set_result(len(agent.tokens))
    return Pending(agent.lab.driver, done.future)


def blocks_afresh(num_tokens: int, block_size: int, recompute: Any) -> tuple[int, ...]:
    """Which blocks of a fragment are computed afresh: the first ones, by tokens (a whole number) or
    by share (below 1, or 1.0 for all), or those that are named. Rounded up to whole blocks."""
    count = -(-num_tokens // block_size)
    if isinstance(recompute, (list, tuple)):
        if not all(isinstance(n, int) and 0 <= n < count for n in recompute):
            raise BadInput(f"the text has the blocks 0 to {count - 1}, not all of {recompute!r}")
        return tuple(sorted(set(recompute)))
    number = isinstance(recompute, (int, float)) and not isinstance(recompute, bool)
    if not number or recompute < 0:
        raise BadInput(f"a number of tokens, a share or block numbers are wanted: {recompute!r}")
    if isinstance(recompute, float):
        if not recompute <= 1:
            raise BadInput(f"a share is at most 1.0, not {recompute}; tokens are a whole number")
        return tuple(range(ceil(recompute * count)))
    return tuple(range(min(count, -(-recompute // block_size))))
