"""An event of a log in words: its type, who, what."""

from __future__ import annotations

from collections.abc import Iterable

from inms_lab.books.events import (
    Aborted,
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    PoolOpened,
    Published,
    Registered,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.sequence import Sequence
from inms_lab.decisions.compact import is_move
from inms_lab.logs.log import Log
from inms_lab.notebook.pieces import text_of
from inms_widgets import snapshot

MOST = 60  # characters of a text that are told


def said(log: Log, tokens: Iterable[int]) -> str:
    """Token ids as the words that they stand for."""
    piece = log.piece or (lambda token: b" %d" % token)
    return text_of([piece(token) for token in tokens]).strip()


def told(log: Log, number: int) -> str:
    """Event `number` of a log in a line of words."""
    event = log.events[number - log.first]
    what = _what(log, event)
    if isinstance(event, Copied) and is_move(log.replay(number + 1), event):
        who = names_of(log)[event.seq_id]
        what = f"{who} has block {event.dst} of {event.pool_id} in place of {event.src}: it moved"
    return f"event {number}, {type(event).__name__}: {what}"


def names_of(log: Log) -> dict[int, str]:
    """Who each holder is, as the pictures say it: forks of an agent are numbered."""
    books = log.beginning()[1]  # who was there before the oldest event that is left
    holders: list[Sequence | Registered] = []
    holders += [] if books is None else books.sequences.values()
    holders += [event for event in log.events if isinstance(event, Registered)]
    return dict(zip((who.seq_id for who in holders), snapshot.names_of(holders), strict=True))


def _what(log: Log, e: Event) -> str:
    if isinstance(e, PoolOpened):
        return f"the pool {e.pool_id} is opened with {e.num_blocks} blocks"
    if isinstance(e, Stepped):
        count = sum(item[1] for item in e.items)
        return f"step {e.step} computes {count} token{'s' * (count != 1)} of {_holders(log, e)}"
    if isinstance(e, Evicted):
        return f"{_blocks(e)} can no longer be found ({e.cause})"
    who = names_of(log)[e.seq_id]
    if isinstance(e, Registered):
        off = f", without the check of the {' and '.join(e.off)}" if e.off else ""
        return f"{who} comes, {_an(e.kind)}{off}"
    if isinstance(e, Commanded):
        return f"{who} {_command(log, e)}"
    if isinstance(e, Released):
        instead = f" in place of {names_of(log)[e.replaces]}" if e.replaces >= 0 else ""
        return f"{e.by} publishes to {e.group}, as {who}{instead}: {_text(log, e)}"
    return f"{who} {_done(e)}"


def _command(log: Log, e: Commanded) -> str:
    cause = f" ({_short(e.cause)})" if e.cause else ""
    if e.verb == "append":
        text = f"is given {e.length} tokens of {e.tier} text: {_text(log, e)}"
        return f"{text}, {_fragment(log, e)}" if e.piece >= 0 else f"{text}{cause}"
    if e.verb == "detach":
        return f"makes what is left of a fragment of {names_of(log)[e.source]} its own text{cause}"
    if e.verb == "write":
        return f"is to write up to {e.count} tokens"
    if e.verb == "rollback":
        return f"rolls back to its first {e.count} tokens"
    ends = {"close": "is closed", "fail": "fails", "expire": "expires"}
    return f"{ends.get(e.verb, e.verb)}{cause}"


def _fragment(log: Log, e: Commanded) -> str:
    return f"a fragment of {names_of(log)[e.source]}, encoded for position {e.encoded}"


def _done(e: Shared | Allocated | Copied | Freed | Published | Aborted) -> str:
    if isinstance(e, Copied):
        return f"copies block {e.src} of {e.src_pool} to block {e.dst} of {e.pool_id}"
    verbs = {Shared: "mounts", Allocated: "takes", Freed: "lets go of", Published: "publishes"}
    cause = getattr(e, "cause", "")
    where = f"{verbs.get(type(e), 'gives back')} {_blocks(e)}"
    return f"{where} ({cause})" if cause else where


def _blocks(e: Shared | Allocated | Freed | Published | Aborted | Evicted) -> str:
    if len(e.blocks) == 1:
        return f"block {e.blocks[0]} of {e.pool_id}"
    first = f" (the first is {e.blocks[0]})" if e.blocks else ""
    return f"{len(e.blocks) or 'no'} blocks of {e.pool_id}{first}"


def _holders(log: Log, e: Stepped) -> str:
    names = names_of(log)
    return " and ".join(names[item[0]] for item in e.items)


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _text(log: Log, e: Commanded | Released) -> str:
    text = said(log, log.tokens[e.offset : e.offset + e.length])
    return f"“{_short(text)}”"


def _short(text: str) -> str:
    return f"{text[:MOST]}…" if len(text) > MOST else text
