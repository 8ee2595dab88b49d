"""A team: its agents, and the records that it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inms_lab import label
from inms_lab.agent import Agent
from inms_lab.errors import AgentClosed, BadInput, NotAMember
from inms_lab.events import Released
from inms_lab.lifecycle import LIVE
from inms_lab.request import Request

if TYPE_CHECKING:
    from inms_lab.lab import Lab


@dataclass(frozen=True, slots=True)
class Record:
    """A published text: whose it was, its tokens, its holder and its place in the token table."""

    name: str
    by: str
    tokens: tuple[int, ...]
    seq_id: int
    offset: int


class Group:
    """Made by `lab.group(name)`."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name
        self.records: list[Record] = []

    def __repr__(self) -> str:
        return f"<group {self.name}: {len(self.records)} records>"

    def agents(self, *names: str) -> list[Agent]:
        """New agents that may read this group's records."""
        return [self.lab.agent(name, groups=(self.name,)) for name in names]

    def publish(self, text: str | Sequence[int], *, by: Agent, role: str | None = "user") -> Record:
        """Make `text` readable by the whole group: the one way out of privacy.

        It is encoded afresh behind public context only (the global tier, then the group's earlier
        records), never copied from the author's KV. Published output keeps its token ids.
        """
        if not isinstance(by, Agent) or by.lab is not self.lab:
            raise BadInput("`by` must be an agent of this lab")
        if by.state not in LIVE:
            raise AgentClosed(f"{by.name} is {by.state} and cannot publish")
        if self.name not in by.groups:
            raise NotAMember(f"{by.name} is not in {self.name} and cannot publish there")
        tokens = self.lab.text.encode(text, role)
        record, last = self.lab.driver.call(lambda: self._publish(tokens, by))
        if not self.lab.driver.is_inside:
            self.lab.driver.drive_sync(last.future)
        return record

    def _publish(self, tokens: list[int], by: Agent) -> tuple[Record, Request]:
        engine = self.lab.engine
        engine.check(tokens)
        name = f"{self.name}/{len(self.records) + 1}"
        seq_id = engine.register("record", name, label.group(self.name))
        offset, length = engine.log.add_tokens(tokens)
        record = Record(name, by.name, tuple(tokens), seq_id, offset)
        engine.cache.record(Released(seq_id, by.name, self.name, offset, length))
        last = Request(seq_id, "append", tokens, "group", self.name, offset=offset, seal=True)
        if engine.policy.encodes_prompts:
            for prompt in self.lab.prompts:
                self.lab.submit(prompt.request(seq_id))
            for earlier in self.records:
                self.lab.submit(
                    Request(
                        seq_id, "append", earlier.tokens, "group", self.name,
                        offset=earlier.offset, seal=True, record=earlier.seq_id,
                    )
                )  # fmt: skip
            self.lab.submit(last)
        else:
            last.future.set_result(None)
        self.records.append(record)
        last.future.add_done_callback(lambda f: self._withdraw(record) if f.exception() else None)
        return record, last

    def _withdraw(self, record: Record) -> None:
        """A record that could not be encoded is nobody's to attach."""
        self.records.remove(record)
        self.lab.engine.end(record.seq_id, "fail", "the record could not be encoded")
