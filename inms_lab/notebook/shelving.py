"""From a lab onto a shelf (shelf.py), and from a shelf into a lab.

What is loaded was tried as a whole first, on books of its own: a file that is refused leaves no
trace. Then it enters like any text that comes from a file (importing.py). Whoever loads a file
answers for it, as the operator, for a digest finds damage and is no signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inms_lab.attention.store import KVStore
from inms_lab.books import label
from inms_lab.books.events import Commanded
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.decisions.freeing import aborted
from inms_lab.decisions.outcome import Plan
from inms_lab.errors import BadInput, ShelfRefused, UnknownGroup
from inms_lab.logs.log import Log
from inms_lab.publishing import parcel
from inms_lab.publishing.importing import FAILED, IMPORTED, fill, foreign, root_of, take
from inms_lab.publishing.parcel import Parcel
from inms_lab.publishing.records import Prompt, Record
from inms_lab.publishing.shelf import Shelf
from inms_lab.serving.cache import KVCache
from inms_lab.serving.commands import entry
from inms_lab.serving.desk import Desk
from inms_lab.serving.engine import Engine

if TYPE_CHECKING:
    from inms_lab.notebook.tenants import Tenant

OPERATOR = "operator"  # who releases what a lab loads, as the log names him


def names_of(tenant: Tenant, groups: Sequence[str] | None) -> list[str]:
    """The names of a lab's own groups, no other tenant's. Raises `BadInput`, `UnknownGroup`."""
    if isinstance(groups, str):
        raise BadInput(f"groups is a list of names: groups=[{groups!r}]")
    names = [*tenant.groups] if groups is None else list(groups)
    for name in names:
        if name not in tenant.groups:
            raise UnknownGroup(f"there is no group {name!r}: there are {', '.join(tenant.groups)}")
    return names


def pack(tenant: Tenant, teams: Sequence[str]) -> Shelf:
    """What a lab holds for everybody and for these teams (on its thread, between two steps).
    Raises `ParcelRefused` where KV is missing, or is not what another lab would compute."""
    engine, store = tenant.lab.engine, tenant.lab.engine.cache.store
    if not isinstance(store, KVStore) or not engine.policy.encodes_records:
        raise ShelfRefused("this lab keeps no KV of prompts and records: there is nothing to save")
    mine = (s for s in engine.ledger.holders() if s.namespace == engine.namespace.root())
    held = [s for s in mine if s.kind == "prompt" and s.is_live]
    segments = held[-1].segments if held else []
    if [tuple(s.tokens) for s in segments] != [prompt.tokens for prompt in tenant.prompts]:
        raise ShelfRefused("the prompt has no KV of its own in this lab (yet)")
    prompts = []
    for own in segments:
        if own.computed < len(own.tokens):
            raise ShelfRefused("the prompt is being computed: wait for that")
        if why := parcel.unfit(engine, held[-1], own, tuple(own.tokens)):
            raise ShelfRefused(f"the prompt is not saved: {why}")
        prompts.append(parcel.taken(engine, store, own))
    known, found = {_what(one) for one in prompts}, {}
    for name in teams:
        if records := tenant.groups[name].records:
            reader = label.group(name)
            found[name] = tuple(_with_aside(engine, record, reader, known) for record in records)
    shelf = Shelf(engine.tile, tuple(prompts), found)
    if not shelf.parcels:
        raise ShelfRefused("there is nothing to save: preload a prompt, or publish a record first")
    return shelf


def _what(one: Parcel | Segment) -> tuple[bytes, int, tuple[int, ...]]:
    """Text at its place."""
    return one.root, one.encoded, tuple(one.tokens)


def _with_aside(
    engine: Engine, record: Record, reader: label.Label, known: set[Any]
) -> tuple[Parcel, ...]:
    """A record, and before it what it stands behind that is not on the shelf: another record may
    have been encoded elsewhere, and here again for this one."""
    last, store = parcel.pack(engine, record, reader), engine.cache.store
    assert isinstance(store, KVStore)
    before = engine.ledger.sequences[record.seq_id].segments[:-1]
    aside = [parcel.taken(engine, store, own) for own in before if _what(own) not in known]
    known |= {_what(one) for one in (*aside, last)}
    return (*aside, last)


class _Nowhere(KVStore):
    """A store of the same shape that keeps nothing: for a trial."""

    def __init__(self, like: KVStore) -> None:
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device
        self.regions = {}

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None:
        """Nothing to clear."""

    def write(
        self, pool_id: str, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Nothing to write."""


def put(tenant: Tenant, shelf: Shelf, teams: Sequence[str] | None) -> Shelf:
    """Take a shelf into a lab, all of it or, with `teams`, the prompt and these teams' records (on
    the lab's thread, between two steps); gives what was taken. Raises `ShelfRefused`, and then
    nothing has happened."""
    wanted = _wanted(tenant, shelf, teams)
    try:
        trial = _trial(tenant.lab.engine)
        if why := _other_sizes(tenant.lab.engine, wanted):
            raise ShelfRefused(f"this file cannot be taken in: {why}")
        _Loading(tenant, trial).run(wanted)
    except ShelfRefused:
        raise
    except BadInput as error:
        raise ShelfRefused(f"nothing was taken in: {error}") from error
    loading = _Loading(tenant, tenant.lab.engine)
    loading.run(wanted)
    tenant.prompts.extend(loading.prompts)
    for name, records in loading.records.items():
        tenant.groups[name].add(records)
    return wanted


def _wanted(tenant: Tenant, shelf: Shelf, teams: Sequence[str] | None) -> Shelf:
    """What the lab's operator lets in."""
    names = [*shelf.teams] if teams is None else names_of(tenant, teams)
    for name in names:
        if name not in shelf.teams:
            raise ShelfRefused(f"the file holds no record of {name!r}: {shelf!r}")
        if name not in tenant.groups:
            raise ShelfRefused(
                f"the file holds records of {name!r}, which this lab does not have: make it with "
                f"lab.group({name!r}), or name those whose records may enter, as groups=[]"
            )
    return replace(shelf, teams={name: shelf.teams[name] for name in names})


def _other_sizes(engine: Engine, shelf: Shelf) -> str:
    """In which sizes it differs from what this lab would compute; "": in none."""
    if shelf.tile != engine.tile:
        return f"its KV comes of tiles of {shelf.tile} tokens, here they have {engine.tile}"
    size = engine.config.block_size
    for one in shelf.parcels:
        if one.block_size != size:
            return f"its blocks have {one.block_size} tokens, here they have {size}"
    return ""


def _trial(engine: Engine) -> Engine:
    """An engine over a copy of the books, with a log of its own and without memory."""
    store = engine.cache.store
    if not isinstance(store, KVStore) or not engine.policy.encodes_prompts:
        raise ShelfRefused("this lab keeps no KV of prompts and records: give it the texts instead")
    trial, log = copy(engine), Log(first=len(engine.log))
    log.tokens = engine.log.tokens[:]
    trial.cache, trial.desk = KVCache(_Nowhere(store)), Desk()
    trial.cache.log = log
    trial.cache.ledger = Ledger.replay(engine.ledger.snapshot(), (), log.tokens)
    trial.log, trial.ledger = log, trial.cache.ledger
    return trial


class _Loading:
    """A shelf on its way into an engine: the lab's own, or a trial."""

    def __init__(self, tenant: Tenant, engine: Engine) -> None:
        self.tenant, self.engine = tenant, engine
        self.prompts: list[Prompt] = []
        self.records: dict[str, list[Record]] = {}

    def run(self, shelf: Shelf) -> None:
        """Everything, in order; if something fails, what came before ends again."""
        first = len(self.engine.ledger.sequences)
        try:
            self._seal(shelf.prompts)
            for name, parcels in shelf.teams.items():
                self._publish(name, parcels)
        except BaseException:
            for event in aborted(self.engine.ledger, None, FAILED):
                self.engine.cache.record(event)
            for seq_id in range(first, len(self.engine.ledger.sequences)):
                self.engine.end(seq_id, "fail", FAILED)
            raise

    def _seal(self, parcels: Sequence[Parcel]) -> None:
        """The prompt, unless the lab has the same already."""
        tenant, engine = self.tenant, self.engine
        if tenant.prompts or not parcels:
            mine = [prompt.tokens for prompt in tenant.prompts]
            if parcels and [one.tokens for one in parcels] != mine:
                raise ShelfRefused("this lab has another prompt than the file: load into a new one")
            return
        if tenant.agents:
            raise ShelfRefused("load before the first agent: contexts that exist do not change")
        holder = engine.register("prompt", "prompt", label.PUBLIC)
        place = engine.policy.place("global", "prompt", "", label.PUBLIC)
        for one in parcels:
            engine.check(one.tokens)
            if why := foreign(engine, one, place.label, "a prompt"):
                raise ShelfRefused(f"this lab cannot take this prompt: {why}")
            seq = engine.ledger.sequences[holder]
            if (root_of(seq, one.block_size), seq.num_tokens) != one.place:
                raise ShelfRefused("the parts of its prompt do not stand behind each other")
            prompt = Prompt(one.tokens, engine.log.add_tokens(one.tokens)[0])
            where = (engine.ledger, engine.log, engine.policy)
            plan = entry(*where, prompt.request(holder), engine.context, engine.terms)
            events = [replace(e, cause=IMPORTED) for e in plan.events if isinstance(e, Commanded)]
            assert len(events) == len(plan.events)
            stale = engine.cache.commit(Plan(len(engine.log), tuple(events)))
            assert stale is None, "one thread owns the ledger"
            fill(engine, (one,), holder)
            self.prompts.append(prompt)

    def _publish(self, name: str, parcels: Sequence[tuple[Parcel, ...]]) -> None:
        """A team's records, behind those that it has."""
        team, mine = self.tenant.groups[name], self.records.setdefault(name, [])
        prompts = [*self.tenant.prompts, *self.prompts]
        place = self.engine.policy.place("group", name, name, label.PUBLIC)
        for *aside, one in parcels:
            for other in aside:
                if why := foreign(self.engine, other, place.label, "a record"):
                    raise ShelfRefused(f"{name} cannot take what a record stands behind: {why}")
            draft = team.draft(one.tokens, OPERATOR, len(mine))
            earlier = [*team.records, *mine]
            mine.append(take(self.engine, one, draft, prompts, earlier, aside))
