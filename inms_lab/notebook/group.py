"""A team: its agents, and the records that it shares."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inms_lab.books.lifecycle import LIVE
from inms_lab.decisions.policy import DEFAULT
from inms_lab.errors import AgentClosed, BadInput, NotAMember, RecordSuperseded, StepInterrupted
from inms_lab.notebook.agent import Agent
from inms_lab.publishing import parcel
from inms_lab.publishing.importing import take
from inms_lab.publishing.records import Record, is_stale, publish
from inms_lab.serving.pending import Pending
from inms_lab.serving.request import Request

if TYPE_CHECKING:
    from inms_lab.notebook.tenants import Tenant

BEHIND = ("records", "prompt")


class Group:
    """Made by `lab.group(name)`. `records`: those that hold, in the order of publishing."""

    def __init__(self, tenant: Tenant, name: str) -> None:
        self.lab, self.tenant, self.name = tenant.lab, tenant, name
        self.records: list[Record] = []
        self.newer: dict[int, Record] = {}  # superseded record's holder -> what replaced it
        self.superseded: dict[int, Record] = {}  # by holder: what held once
        self._count = 0

    def __repr__(self) -> str:
        return f"<group {self.name}: {len(self.records)} records>"

    def agents(self, *names: str) -> list[Agent]:
        """New agents that may read this group's records."""
        own = self.name if self.tenant.name == DEFAULT else self.name.partition("/")[2]
        return [self.tenant.agent(name, groups=(own,)) for name in names]

    def publish(
        self,
        text: str | Sequence[int],
        *,
        by: Agent,
        role: str | None = "user",
        behind: str = "records",
        replaces: Record | None = None,
    ) -> Record:
        """Make `text` readable by the whole group: the one way out of privacy.

        It is encoded afresh behind public context only, never copied from the author's KV: behind
        the global tier and the group's earlier records ("records", so that who attaches all of them
        in order has an exact prefix), or behind the global tier alone ("prompt"). `replaces` names
        the record that holds no longer: whoever has read it is told (`Agent.outdated`), and what
        was encoded behind it is encoded again before anybody attaches it. Published output keeps
        its token ids. Raises `NotAMember`, `AgentClosed`, `RecordSuperseded`, `TextTooLarge`.
        """
        record, done = self.publishing(text, by=by, role=role, behind=behind, replaces=replaces)
        if not self.lab.driver.is_inside:
            done.result()
        else:
            done.future.add_done_callback(self._unheard)
        return record

    def publishing(
        self,
        text: str | Sequence[int],
        *,
        by: Agent,
        role: str | None = "user",
        behind: str = "records",
        replaces: Record | None = None,
    ) -> tuple[Record, Pending[Any]]:
        """`publish` for who does not want to wait: the record, and what is answered when its text
        has its KV."""
        self._admit(by, "publish there")
        if behind not in BEHIND:
            raise BadInput(f"a record is encoded behind 'records' or 'prompt', not {behind!r}")
        tokens = tuple(self.lab.text.encode(text, role))
        chained = behind == "records"
        record, last = self.lab.driver.call(
            lambda: self._publish(tokens, by.name, chained, replaces)
        )
        return record, Pending(self.lab.driver, last.future)

    def _publish(
        self,
        tokens: tuple[int, ...],
        by: str,
        chained: bool,
        old: Record | None,
        again: bool = False,
    ) -> tuple[Record, Request]:
        """`again`: the text has held before, and holds even if it cannot be encoded now."""
        if old is not None:
            self.check(old)
        at = len(self.records) if old is None else self.records.index(old)
        name = f"{self.name}/{self._count + 1}" if old is None else old.name
        version = 1 if old is None else old.version + 1
        draft = Record(name, by, tokens, -1, -1, self.name, version, chained)
        engine, earlier = self.lab.engine, self.records[:at]
        where = (self.tenant.prompts, earlier, old, self.tenant.name)
        record, last = publish(engine, self.lab.submit, draft, *where)
        self.records[at : at + (old is not None)] = [record]
        if old is None:
            self._count += 1
        else:
            self.newer[old.seq_id], self.superseded[old.seq_id] = record, old

        def ended(future: Future[Any]) -> None:
            if not again and (future.cancelled() or future.exception() is not None):
                self._withdraw(record, old)

        last.future.add_done_callback(ended)
        return record, last

    def export(self, record: Record, path: str | Path, *, by: Agent) -> Path:
        """Write a record that holds to one safetensors file, its KV with it; gives the path.

        For a lab of the same model, tenant and prompt, and a team of the same name, which then need
        not compute it. Raises `NotAMember`, `AgentClosed`, `RecordSuperseded`, and `ParcelRefused`
        where another lab would compute other KV.
        """
        self._admit(by, "export its records")

        def packed() -> parcel.Parcel:
            self.check(record)
            return parcel.pack(self.lab.engine, record, by.clearance)

        target = parcel.path_of(path)
        return parcel.save(self.lab.driver.call(packed), target)

    def import_record(self, path: str | Path, *, by: Agent) -> Record:
        """The record in a file that `export` wrote becomes this team's; nothing is computed.

        It must have been encoded behind this lab's prompt, or behind the team's records as they are
        now too; then it is as if it had been published here, and whoever publishes or reads the
        same text finds its KV: `by` answers for it, for a file that was forged with care cannot be
        told from a real one. Raises `NotAMember`, `AgentClosed`, and `ParcelRefused` with the
        reason.
        """
        self._admit(by, "import there")
        found = parcel.load(parcel.path_of(path))
        return self.lab.driver.call(lambda: self._take(found, by.name))

    def _take(self, found: parcel.Parcel, by: str) -> Record:
        draft = self.draft(found.tokens, by)
        record = take(
            self.lab.engine,
            found,
            draft,
            self.tenant.prompts,
            self.records,
            tenant=self.tenant.name,
        )
        self.add([record])
        return record

    def draft(self, tokens: tuple[int, ...], by: str, ahead: int = 0) -> Record:
        """A record to be: the next one, or with `ahead` others before it."""
        return Record(f"{self.name}/{self._count + 1 + ahead}", by, tokens, -1, -1, self.name)

    def add(self, records: Sequence[Record]) -> None:
        """Records that came from a file hold from now on."""
        self.records += records
        self._count += len(records)

    def _admit(self, by: Agent, what: str) -> None:
        """Raises unless `by` is a member of this lab's group and lives."""
        if not isinstance(by, Agent) or by.lab is not self.lab:
            raise BadInput("`by` must be an agent of this lab")
        if by.state not in LIVE:
            raise AgentClosed(f"{by.name} is {by.state} and cannot {what}")
        if self.name not in by.groups:
            raise NotAMember(f"{by.name} is not in {self.name} and cannot {what}")

    def find(self, tokens: Sequence[int]) -> Record | None:
        """The record with just this text, if one holds."""
        wanted = tuple(tokens)
        return next((record for record in self.records if record.tokens == wanted), None)

    def check(self, record: Record) -> None:
        """Raises `RecordSuperseded` or `BadInput` unless `record` holds in this group."""
        if record in self.records:
            return
        if not isinstance(record, Record) or record.seq_id not in self.newer:
            raise BadInput(f"{record!r} is no record of {self.name}")
        raise RecordSuperseded(
            f"version {record.version} of {record.name} holds no longer: use version "
            f"{self.newest(record).version} (it is in `team.records`)"
        )

    def newest(self, record: Record) -> Record:
        """The version of a record that came last."""
        while record.seq_id in self.newer:
            record = self.newer[record.seq_id]
        return record

    def versions(self, record: Record) -> list[Record]:
        """The versions of a record that hold no longer."""
        return [old for old in self.superseded.values() if old.name == record.name]

    def refreshed(self) -> list[Record]:
        """The records that hold, those encoded again that stood behind one that holds no longer
        (lab's thread only). Their texts are the same."""
        for old in list(self.records):
            if is_stale(self.lab.engine, old):
                self._publish(old.tokens, old.by, old.chained, old, again=True)
        return list(self.records)

    def offer(self, tokens: Sequence[int], by: Agent) -> Record:
        """A record of a text that a member shares as it attaches it (lab's thread only)."""
        return self._publish(tuple(tokens), by.name, False, None)[0]

    def _unheard(self, future: Future[Any]) -> None:
        """No program waits for what it publishes: `lab.assert_clean()` tells of a failure."""
        error = None if future.cancelled() else future.exception()
        if error is not None and not self.lab.closed and not isinstance(error, StepInterrupted):
            self.lab.engine.desk.hook_errors.append(error)

    def _withdraw(self, record: Record, old: Record | None) -> None:
        """A new record that could not be encoded is nobody's to attach. The text that it was to
        replace holds again, as a later version; if that cannot be encoded either, it is there
        without KV, and whoever attaches it computes it."""
        if self.lab.violation is not None:
            return
        if record in self.records and not self.lab.closed:
            if old is None:
                self.records.remove(record)
            else:
                self._publish(old.tokens, old.by, old.chained, record, again=True)
        self.lab.engine.end(record.seq_id, "fail", "the record could not be encoded")
