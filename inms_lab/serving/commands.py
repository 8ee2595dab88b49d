"""How each request enters the books at a step boundary: its events, as a plan. Pure.

Bad input is refused here, with a named exception, before anything is logged.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, groupby
from operator import index

from inms_lab.books.checks import may_write
from inms_lab.books.events import Commanded, Copied, Event, Registered, Shared
from inms_lab.books.ledger import Ledger
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.freeing import forgotten, freed
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.policy import Policy
from inms_lab.decisions.reuse import AFRESH, Terms, command, own_place
from inms_lab.errors import BadInput, EmptyText, SealedTier, TokenOutOfRange
from inms_lab.logs.log import Log
from inms_lab.serving.entering import check_room, require_text, texts
from inms_lab.serving.request import Request

ALONE = Terms()  # of a cache without a model: no fragments


def check_request(request: Request, vocab_size: int) -> None:
    """Raises for an empty text, for token ids that are none, and for counts that make no sense."""
    if request.verb in ("append", "rewrite") and not len(request.tokens):
        raise EmptyText("the text has no token: pass at least one word")
    for name in ("count", "start"):
        if not isinstance(getattr(request, name), int):
            raise BadInput(f"{name} must be a whole number, not {getattr(request, name)!r}")
    if request.verb == "write" and request.count < 1:
        raise BadInput(f"{request.count} tokens cannot be generated: ask for at least one")
    try:
        request.tokens = [index(token) for token in request.tokens]
    except TypeError:
        raise BadInput("token ids are whole numbers: pass a list of them, or text") from None
    for token in request.tokens:
        if not 0 <= token < vocab_size:
            raise TokenOutOfRange(
                f"token id {token} is not in the vocabulary (0 to {vocab_size - 1}): "
                "were these tokens made by another model's tokenizer?"
            )


def entry(
    books: Ledger,
    log: Log,
    policy: Policy,
    request: Request,
    max_context: int,
    terms: Terms = ALONE,
) -> Plan:
    """The plan that takes `request` into the books now. Token ids go into the table."""
    seq = books.sequences[request.seq_id]
    events: tuple[Event, ...]
    if request.verb in ("append", "write"):
        events = texts(books, log, policy, request, seq, max_context, terms)
    elif request.verb == "rewrite":
        events = _rewrite(books, log, policy, request, seq, max_context, terms.tile)
    elif request.verb == "rollback":
        keep = request.count if request.drop is None else seq.num_tokens - request.drop
        if not 0 <= keep <= seq.num_tokens:
            raise BadInput(f"{seq.name} has {seq.num_tokens} tokens, it cannot keep {keep}")
        events = _rollback(log, policy, seq, keep, terms.tile)
    elif request.verb in ("close", "fail", "expire"):
        made = Commanded(seq.seq_id, seq.number + 1, request.verb, cause=request.cause)
        left = forgotten(books, seq) if policy.forgets_private else ()
        events = (made, *left, *freed(seq, 0, request.verb, policy.forgets_private))
    elif request.verb == "fork":
        events = _fork(books, seq)
    else:
        if request.verb == "logits":
            require_text(seq, 0)
        events = (Commanded(seq.seq_id, seq.number + 1, request.verb),)
    return Plan(len(log), events)


def stands(seq: Sequence, request: Request) -> bool:
    """Whether the record to attach is in the context: the newest of its versions there ends in just
    this text, whole and unedited (a cut copy may stand before it)."""
    if not request.versions:
        return False
    runs = groupby(seq.segments, key=lambda segment: segment.source)
    ours = [list(run) for source, run in runs if source in request.versions]
    newest = [*chain(*(segment.tokens for segment in ours[-1]))] if ours else []
    return newest[-len(request.tokens) :] == list(request.tokens)


def _rollback(log: Log, policy: Policy, seq: Sequence, keep: int, tile: int) -> tuple[Event, ...]:
    """Keep the first `keep` tokens. A cut inside a fragment's block leaves what could not be found
    again: those few tokens become the holder's own at once, whether or not their KV is lost. So do
    those of text that the holder may not write, from the tile that is cut, where it is not mounted
    yet: half of a sealed block is nowhere to be found."""
    cut = next((s for s in seq.segments if keep < s.first_position + len(s.tokens)), None)
    offset = keep - cut.first_position if cut is not None else 0
    rest = 0
    if cut is not None and cut.is_fragment:
        rest = offset % cut.block_size
    elif cut is not None and not may_write(seq, cut.tier) and cut.computed < offset:
        rest = offset % max(cut.block_size, tile)
    made = Commanded(seq.seq_id, seq.number + 1, "rollback", count=keep - rest)
    events: tuple[Event, ...] = (made, *freed(seq, keep - rest, "rolled back"))
    if cut is None or not rest:
        return events
    place = own_place(policy, seq, "", seq.label())
    own = command(seq, "append", place, *log.add_tokens(cut.tokens[offset - rest : offset]))
    own = replace(own, number=seq.number + 2, seal=True)
    if cut.is_fragment:
        own = replace(own, source=cut.source, cause=AFRESH)
    return (*events, own)


def _rewrite(
    books: Ledger,
    log: Log,
    policy: Policy,
    request: Request,
    seq: Sequence,
    max_context: int,
    tile: int,
) -> tuple[Event, ...]:
    """Replace tokens in the middle: what stands before stays mounted; the block that the edit goes
    through is copied up to the edit if it belongs to a tier that this holder may only read. Where a
    tile is several blocks the new segment begins with the tile: so the tile grid, and with it every
    bit, is the same whether its KV is copied or computed again."""
    if seq.kind != "agent":
        raise SealedTier(f"{seq.name} is sealed: preload or publish a new version instead")
    tokens, start = seq.tokens(), request.start
    if not (0 <= start < len(tokens) and request.count >= 0):
        raise BadInput(
            f"tokens {start} to {start + request.count} cannot be replaced: {seq.name} has "
            f"{len(tokens)} tokens"
        )
    segment = next(s for s in seq.segments if start < s.first_position + len(s.tokens))
    offset_in = start - segment.first_position
    size = segment.block_size
    inside = offset_in % (size if segment.is_fragment else max(size, tile))
    own = may_write(seq, segment.tier) and not segment.is_fragment
    keep = start if own else start - inside
    tail = [*tokens[keep:start], *request.tokens, *tokens[start + request.count :]]
    rollback = Commanded(seq.seq_id, seq.number + 1, "rollback", count=keep)
    releases = freed(seq, keep, "rewritten")
    trial = books.overlay()
    trial.apply(rollback)
    for release in releases:
        trial.apply(release)
    behind = seq.label()  # of all of it: what comes behind the edit has seen the same texts
    seq = trial.sequences[seq.seq_id]
    place = own_place(policy, seq, "", behind)
    check_room(trial, seq, place, len(tail), max_context)
    append = command(seq, "append", place, *log.add_tokens(tail))
    trial.apply(append)
    events: tuple[Event, ...] = (rollback, *releases, append)
    free = trial.pools[place.pool_id].next_free(1)
    if keep == start or segment.is_fragment or segment.computed < offset_in or not free:
        return events  # a fragment's KV is not copied
    source = segment.blocks[(offset_in - inside) // size]
    number = len(trial.sequences[seq.seq_id].segments) - 1
    there = (segment.pool_id, source, place.pool_id, free[0], min(inside, size))
    return (*events, Copied(seq.seq_id, number, 0, *there))


def _fork(books: Ledger, seq: Sequence) -> tuple[Event, ...]:
    child = len(books.sequences)
    principal = (seq.kind, seq.name, seq.tenant, tuple(sorted(seq.clearance)), seq.namespace)
    shared = tuple(
        Shared(child, number, s.pool_id, tuple(s.blocks), s.computed, "fork")
        for number, s in enumerate(seq.segments)
        if s.blocks
    )
    return (Registered(child, *principal, seq.seq_id, tuple(sorted(seq.off))), *shared)
