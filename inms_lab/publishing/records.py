"""Sealed texts and how they come about: published once, re-encoded behind public context, mounted.

The one way to publish and to attach, for a lab and for whoever drives an engine alone. A record's
holder reads the sealed prompt, the group's earlier records if they are to stand before it, and its
own text: so its KV attended to nothing private, whoever published it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inms_lab.books import label
from inms_lab.books.events import Released
from inms_lab.decisions.policy import DEFAULT, placed
from inms_lab.errors import TextTooLarge
from inms_lab.serving.engine import Engine
from inms_lab.serving.request import Request

Submit = Callable[[Request], Request]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sealed part of the global tier: its tokens and their place in the token table."""

    tokens: tuple[int, ...]
    offset: int

    def request(self, seq_id: int) -> Request:
        """Take it into a holder's context."""
        return Request(seq_id, "append", self.tokens, "global", offset=self.offset, seal=True)


@dataclass(frozen=True, slots=True)
class Record:
    """A published text: whose it was, its tokens, its holder and its place in the token table.

    `chained`: whether it was encoded behind the group's earlier records too.
    """

    name: str
    by: str
    tokens: tuple[int, ...]
    seq_id: int
    offset: int
    group: str = ""
    version: int = 1
    chained: bool = True

    def __repr__(self) -> str:
        return f"<record {self.name}, version {self.version}: {len(self.tokens)} tokens>"

    def request(self, seq_id: int, afresh: Iterable[int] = ()) -> Request:
        """Attach it to a holder's context: mounted where that may be, else computed."""
        request = Request(seq_id, "append", self.tokens, "group", self.group, seal=True)
        request.record, request.offset = self.seq_id, self.offset
        request.afresh = tuple(afresh)
        return request


def publish(
    engine: Engine,
    submit: Submit,
    draft: Record,
    prompts: Sequence[Prompt],
    earlier: Sequence[Record],
    replaces: Record | None = None,
    tenant: str = DEFAULT,
) -> tuple[Record, Request]:
    """Release a text to its group and have it encoded; gives the record and its last request.

    `draft` says everything but the holder and the offset. `earlier`: records to stand before it.
    Raises `EmptyText`, `TokenOutOfRange`, and `TextTooLarge` before anything is logged.
    """
    engine.check(draft.tokens)
    if engine.policy.encodes_records:
        _check_size(engine, draft, tenant)
    name = draft.name if draft.version == 1 else f"{draft.name} v{draft.version}"
    seq_id = engine.register("record", name, label.group(draft.group), tenant)
    offset, length = engine.log.add_tokens(draft.tokens)
    old = replaces.seq_id if replaces is not None else -1
    engine.cache.record(Released(seq_id, draft.by, draft.group, offset, length, old))
    what = (draft.name, draft.by, draft.tokens, seq_id, offset, draft.group)
    record = Record(*what, draft.version, draft.chained)
    last = Request(seq_id, "append", record.tokens, "group", record.group, offset=offset, seal=True)
    last.fresh = replaces is not None  # the old version's KV is not reused
    if engine.policy.encodes_records:
        before: list[Prompt | Record] = [*prompts, *(earlier if record.chained else ())]
        for text in before:
            submit(text.request(seq_id))
        submit(last)
    else:
        last.future.set_result(None)
    if replaces is not None:
        engine.retired.add(old)
    return record, last


def is_stale(engine: Engine, record: Record) -> bool:
    """Whether something that the record was encoded behind does not hold any longer."""
    books = engine.ledger
    behind = {s.source for s in books.sequences[record.seq_id].segments if s.source >= 0}
    held = {i for i in behind if books.sequences[i].kind == "record"}
    return not held <= {*books.records.get(record.group, ())}


def _check_size(engine: Engine, draft: Record, tenant: str) -> None:
    where = ("group", draft.name, draft.group, label.PUBLIC)
    pool_id = placed(engine.policy, tenant, *where).pool_id
    pool = engine.ledger.pools[pool_id]
    blocks = -(-len(draft.tokens) // pool.block_size)
    if blocks > pool.spec.num_blocks:
        raise TextTooLarge(
            f"{len(draft.tokens)} tokens need {blocks} blocks, and {pool_id} has "
            f"{pool.spec.num_blocks} in all: publish less, or give the lab a larger group pool"
        )
