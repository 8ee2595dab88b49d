"""How a text enters a context: where it is placed, what of it is a fragment, what is computed.

Bad input is refused here, with a named exception, before anything is logged.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from inms_lab.books.events import Commanded, PoolOpened
from inms_lab.books.label import join
from inms_lab.books.ledger import Ledger
from inms_lab.books.sequence import READ_ONLY
from inms_lab.books.sequence import Sequence as Holder
from inms_lab.decisions.policy import DEFAULT, GLOBAL, PRIVATE, Place, Policy, placed
from inms_lab.decisions.reuse import AFRESH, Reuse, Terms, command, own_place, place_of, reuse
from inms_lab.errors import ContextTooLong, EmptyText, TextTooLarge
from inms_lab.logs.log import Log
from inms_lab.serving.request import Request


def texts(
    books: Ledger,
    log: Log,
    policy: Policy,
    request: Request,
    seq: Holder,
    max_context: int,
    terms: Terms,
) -> tuple[Commanded, ...]:
    """The commands that take the request's text in: one, or several where a part of a fragment is
    to be computed afresh."""
    require_text(seq, len(request.tokens))
    more = len(request.tokens) + (request.count if request.verb == "write" else 0)
    check_length(seq, more, max_context)
    known = _reuse(books, request, seq, terms)
    parts = list(_parts(books, policy, request, seq, known))
    if known.piece < 0:
        check_room(books, seq, parts[0].place, more, max_context)
    offset = request.offset
    if offset is None:
        offset, _ = log.add_tokens(request.tokens)
    count = request.count if request.verb == "write" else 0
    source = known.source if known.source >= 0 else _prompt_of(books, request, seq)
    out = []
    for number, part in enumerate(parts, 1):
        made = command(seq, request.verb, part.place, offset + part.start, part.stop - part.start)
        made = replace(made, number=seq.number + number, count=count, source=source)
        made = replace(made, seal=request.seal, fresh=request.fresh, cause=known.why)
        if part.encoded >= 0:
            made = replace(made, piece=known.piece, encoded=part.encoded)
        elif known.piece >= 0:
            made = replace(made, cause=AFRESH)
        out.append(made)
    return tuple(out)


def _reuse(books: Ledger, request: Request, seq: Holder, terms: Terms) -> Reuse:
    sealed = request.seal and not request.fresh and request.verb == "append"
    sealed &= request.tier not in READ_ONLY or seq.kind == "record"
    if request.record < 0 and not sealed:
        return Reuse()
    tokens = as_bytes(request.tokens)
    return reuse(books, terms, seq, tokens, request.record, sealed)


def _prompt_of(books: Ledger, request: Request, seq: Holder) -> int:
    """The holder of the sealed prompt, where this is its text in somebody else's context."""
    if request.tier != GLOBAL or seq.kind == "prompt":
        return -1
    ours = (s for s in books.holders() if s.kind == "prompt" and s.tenant == seq.tenant)
    return next((s.seq_id for s in ours if s.is_live), -1)


class _Part:
    """Tokens `[start, stop)` of a text: a fragment encoded at `encoded`, or computed (-1)."""

    def __init__(self, place: Place, start: int, stop: int, encoded: int = -1) -> None:
        self.place, self.start, self.stop, self.encoded = place, start, stop, encoded


def _parts(
    books: Ledger, policy: Policy, request: Request, seq: Holder, known: Reuse
) -> Iterator[_Part]:
    """A text in runs of blocks: mounted from where its KV lies, or computed here."""
    length, behind = len(request.tokens), seq.label()
    if known.piece < 0:
        alone = request.record >= 0 and not known.exact and seq.kind == "agent"
        tier = PRIVATE if alone else request.tier
        where = (tier, seq.name, request.group, behind)
        yield _Part(placed(policy, seq.tenant, *where), 0, length)
        return
    donor = books.sequences[known.source].segments[known.piece]
    size, afresh = donor.block_size, frozenset(request.afresh)
    blocks = range(-(-length // size))
    for is_afresh, run in groupby(blocks, afresh.__contains__):
        numbers = list(run)
        start, stop = numbers[0] * size, min(length, (numbers[-1] + 1) * size)
        place = own_place(policy, seq, request.group, join(behind, donor.label))
        if is_afresh:
            yield _Part(place, start, stop)
        else:
            yield _Part(place_of(donor), start, stop, donor.encoded + start)


def as_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as int32 bytes, as pools keep them."""
    return array("i", tokens).tobytes()


def require_text(seq: Holder, more: int) -> None:
    """Raises `EmptyText` where there would be no token to go on from."""
    if not seq.num_tokens + more:
        raise EmptyText(f"{seq.name} has read nothing yet: pass at least one word to go on from")


def check_room(books: Ledger, seq: Holder, place: Place, more: int, max_context: int) -> None:
    """Raises `ContextTooLong` or `TextTooLarge` where `more` tokens can never have their KV."""
    check_length(seq, more, max_context)
    pool = books.pools[place.pool_id]
    size = pool.block_size
    mine = [s for s in seq.segments if s.pool_id == place.pool_id]
    held = sum(-(-len(s.tokens) // size) for s in mine)
    free = -len(mine[-1].tokens) % size if mine and mine[-1].open else 0  # text may be packed
    needed = -(-max(0, more - free) // size)
    if held + needed > pool.spec.num_blocks:
        raise TextTooLarge(
            f"{more} tokens need {needed} blocks more, {seq.name} has {held}, and the pool "
            f"{place.pool_id} has {pool.spec.num_blocks} in all: {larger(pool.spec)}"
        )


def larger(spec: PoolOpened) -> str:
    """What to do where a pool is too small, in words."""
    if spec.tenant == DEFAULT:
        return "give the lab a larger pool"
    which = spec.tier if spec.tier in READ_ONLY else PRIVATE
    return f"give the tenant {spec.tenant} more {which}_bytes"


def check_length(seq: Holder, more: int, max_context: int) -> None:
    """Raises `ContextTooLong` where `more` tokens would be too many for the context."""
    if seq.num_tokens + more > max_context:
        instead = "publish it with behind='prompt'" if seq.kind == "record" else "roll back"
        raise ContextTooLong(
            f"{seq.name} would have {seq.num_tokens + more} tokens, the limit is {max_context}: "
            f"shorten the text, {instead}, or open the lab with a larger context"
        )
