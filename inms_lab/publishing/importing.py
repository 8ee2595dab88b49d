"""Taking a parcel in: a record whose KV comes from a file. No forward is run.

The inputs are tried on books of their own first, so what is refused leaves no trace. Then blocks
are taken through the door like any others: plan, commit, write, publish; what is there already is
mounted. Who imports answers for the record as who publishes it does: `Released` names him.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields, replace

from inms_lab.attention.store import KVStore
from inms_lab.books import label
from inms_lab.books.events import Commanded, Event, Registered, Released
from inms_lab.books.fingerprint import Namespace
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence as Holder
from inms_lab.decisions.completion import Done, completed
from inms_lab.decisions.freeing import aborted
from inms_lab.decisions.outcome import Chunk, NoRoom, Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import DEFAULT, GROUP
from inms_lab.errors import BadInput, ParcelRefused
from inms_lab.publishing.parcel import Parcel, slots
from inms_lab.publishing.records import Prompt, Record
from inms_lab.serving.commands import entry
from inms_lab.serving.engine import Engine
from inms_lab.serving.request import Request

IMPORTED = "its KV came from a file"  # the reason beside "computed": here nobody computed it
FAILED = "the record could not be imported"


def take(
    engine: Engine,
    parcel: Parcel,
    draft: Record,
    prompts: Sequence[Prompt],
    earlier: Sequence[Record],
    aside: Sequence[Parcel] = (),
    tenant: str = DEFAULT,
) -> Record:
    """Release a parcel's text to the draft's group and put its KV into blocks; gives the record.

    The draft says everything but the holder, the offset and what it stands behind: the prompts
    alone or the `earlier` records too; `aside`: KV of what stands before where it is nobody else's
    (a record that was encoded behind the prompt alone, behind others here). On the lab's thread,
    between two steps. Raises `ParcelRefused`, and then nothing has happened.
    """
    place = engine.policy.place(GROUP, draft.name, draft.group, label.PUBLIC)
    if why := foreign(engine, parcel, place.label, "a record", tenant):
        raise ParcelRefused(f"{draft.group} cannot take this record: {why}")
    trial = _placed(engine, parcel, draft, prompts, earlier, tenant)
    parcels = (*aside, parcel)
    _check_room(trial, parcels)
    record = trial.record
    engine.log.add_tokens(record.tokens)
    stale = engine.cache.commit(Plan(len(engine.log), tuple(trial.events)))
    assert stale is None, "one thread owns the ledger"
    try:
        fill(engine, parcels, record.seq_id)
    except BaseException:
        for event in aborted(engine.ledger, None, FAILED):
            engine.cache.record(event)
        engine.end(record.seq_id, "fail", FAILED)
        raise
    return record


def foreign(
    engine: Engine, parcel: Parcel, mark: label.Label, what: str, tenant: str = DEFAULT
) -> str:
    """Why no text of this tenant with the label `mark` is like this parcel, wherever it stands; "":
    `what` could be."""
    own = engine.namespace_of(tenant)
    for name in (f.name for f in fields(Namespace)):
        theirs, mine = getattr(parcel.namespace, name), getattr(own, name)
        if theirs != mine:
            return f"it is of another {name.replace('_', ' ')}: {theirs!r:.60}, here {mine!r:.60}"
    policy, store = engine.policy, engine.cache.store
    if not policy.encodes_records or not isinstance(store, KVStore):
        return "this lab keeps no KV of records: publish the text instead"
    if frozenset(parcel.label) != mark:
        return f"its label is {sorted(parcel.label)!s:.80}, {what} here has {sorted(mark)}"
    _, layers, heads, dim = store.shape
    here = (store.dtype, (layers, heads, len(parcel.tokens), dim))
    for half in (parcel.keys, parcel.values):
        if (half.dtype, tuple(half.shape)) != here:
            return f"its KV is {half.dtype} {tuple(half.shape)}, here it is {here[0]} {here[1]}"
    return ""


class _Trial:
    """A record's inputs, tried on books of their own: `events`, and `seq` as they leave it."""

    def __init__(
        self, engine: Engine, draft: Record, before: Sequence[Prompt | Record], tenant: str
    ) -> None:
        self.engine, self.books = engine, engine.ledger.overlay()
        self.books.tokens = engine.log.tokens + array("i", draft.tokens)
        seq_id, offset = len(engine.ledger.sequences), len(engine.log.tokens)
        self.record = replace(draft, seq_id=seq_id, offset=offset)
        self.events: list[Event] = []
        who = (seq_id, "record", draft.name, tenant, tuple(label.group(draft.group)))
        off = tuple(sorted(engine.policy.off))
        self._add(Registered(*who, engine.namespace_of(tenant).root(), off=off))
        self._add(Released(seq_id, draft.by, draft.group, offset, len(draft.tokens)))
        self.seq = self.books.sequences[seq_id]
        for text in before:
            self.read(text.request(seq_id))

    def _add(self, event: Event) -> None:
        self.books.apply(event)
        self.events.append(event)

    def read(self, request: Request, cause: str = "") -> None:
        """A text comes into the record's context."""
        engine, where = self.engine, (self.books, self.engine.log, self.engine.policy)
        for event in entry(*where, request, engine.context, engine.terms).events:
            assert isinstance(event, Commanded)
            self._add(replace(event, cause=cause or event.cause))

    def read_own(self) -> None:
        """The record's text comes last, as itself: no KV of another place in its stead."""
        made = self.record
        request = Request(made.seq_id, "append", made.tokens, GROUP, made.group, offset=made.offset)
        request.seal = request.fresh = True
        self.read(request, IMPORTED)


def _placed(
    engine: Engine,
    parcel: Parcel,
    draft: Record,
    prompts: Sequence[Prompt],
    earlier: Sequence[Record],
    tenant: str,
) -> _Trial:
    """The inputs that bring the parcel's text to the place where it was encoded."""
    for chained in (False, True):
        before: list[Prompt | Record] = [*prompts, *(earlier if chained else ())]
        try:  # too long, too large, no tokens of this model
            engine.check(draft.tokens)
            trial = _Trial(engine, replace(draft, chained=chained), before, tenant)
            if (root_of(trial.seq, parcel.block_size), trial.seq.num_tokens) == parcel.place:
                trial.read_own()
                return trial
        except BadInput as error:
            raise ParcelRefused(f"{draft.group} cannot take this record: {error}") from error
    raise ParcelRefused(
        "it was encoded behind another prompt, or other records, than this lab has: preload the "
        "same prompt, and import a team's records in their order"
    )


def root_of(seq: Holder, block_size: int) -> bytes:
    """The digest of a context as it would be in blocks of this size."""
    end = seq.namespace
    for s in seq.segments:
        end = replace(s, block_size=block_size, blocks=[], keys=[], behind=end, root=end).end()
    return end


def _check_room(trial: _Trial, parcels: Sequence[Parcel]) -> None:
    """Raises `ParcelRefused` unless all that has no parcel can be mounted and the rest has room."""
    seq = trial.seq
    outcome = plan_extend(trial.books, len(trial.engine.log), seq.seq_id, seq.num_tokens)
    if isinstance(outcome, NoRoom):
        raise ParcelRefused(
            f"{outcome.pool_id} has {outcome.available} blocks to give, the record needs "
            f"{outcome.needed}: give the lab a larger group pool"
        )
    if not isinstance(outcome, Plan):
        raise ParcelRefused("it, or what it stands behind, is being computed here: wait for that")
    if outcome.chunk is not None:
        _sources(seq, outcome.chunk, parcels)


def _sources(seq: Holder, chunk: Chunk, parcels: Sequence[Parcel]) -> list[tuple[Segment, Parcel]]:
    """The segments that the chunk writes into, each with its parcel; the last one's is the last.
    Raises `ParcelRefused` where one has none: it would have to be computed."""
    out = []
    for own in seq.segments:
        if chunk.start < own.first_position + len(own.tokens) and own.first_position < chunk.stop:
            fits = (p for p in parcels if (own.root, own.encoded) == p.place)
            found = parcels[-1] if own is seq.segments[-1] else next(fits, None)
            if found is None or tuple(own.tokens) != found.tokens:
                raise ParcelRefused(
                    "what it stands behind is not all here: wait for it, or import it first"
                )
            out.append((own, found))
    return out


def fill(engine: Engine, parcels: Sequence[Parcel], seq_id: int) -> None:
    """The parcels are a holder's last texts: mount what is there, write what is not, publish it."""
    seq = engine.ledger.sequences[seq_id]
    while seq.num_computed < seq.num_tokens:
        outcome = plan_extend(engine.ledger, len(engine.log), seq_id, seq.num_tokens)
        engine.log.decide(seq_id, seq.num_tokens, outcome)
        if not isinstance(outcome, Plan):
            raise ParcelRefused(f"{FAILED}: {outcome}")
        engine.cache.commit(outcome)
        if outcome.chunk is not None:
            for own, parcel in _sources(seq, outcome.chunk, parcels):
                _write(engine.cache.store, parcel, own, outcome.chunk)
            done = [Done(outcome.chunk, 0, False)]
            for event in completed(engine.ledger, len(engine.log.tokens), done):
                engine.cache.record(event)


def _write(store: object, parcel: Parcel, own: Segment, chunk: Chunk) -> None:
    assert isinstance(store, KVStore)
    first = own.first_position
    start, stop = max(0, chunk.start - first), min(len(own.tokens), chunk.stop - first)
    where = slots(own, start, stop).to(store.device)
    for layer in range(store.shape[1]):
        key, value = (x[layer, :, start:stop] for x in (parcel.keys, parcel.values))
        store.write(own.pool_id, layer, where, key.to(store.device), value.to(store.device))
