"""What if: one decision of a log, planned again in another mode, block size or tier. Pure.

The inputs of the log are re-enacted on books of their own (reenact.py); then the same decision is
planned there, and the two plans are compared. `parts_of` plans again to find what an answer that
is no plan speaks of.
"""

from __future__ import annotations

from dataclasses import dataclass

from inms_lab.books.events import Allocated, Commanded, Copied, Event, Registered, Shared, Stepped
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.lookup import hits
from inms_lab.decisions.outcome import Decided, Decision, Deferred, NoRoom, Outcome, Plan, Refused
from inms_lab.decisions.outcome import decided as decided_of
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import GLOBAL, GROUP, PRIVATE, Policy
from inms_lab.errors import BadInput, PlanInvalid
from inms_lab.hindsight.reenact import Reenactment
from inms_lab.hindsight.reopened import policy_of
from inms_lab.logs.log import Log


@dataclass(frozen=True, slots=True)
class Side:
    """The decision in one world: what planning answers, and its counts of blocks.

    `num_bytes` of KV are taken by the plan (None: the log does not say how large a token is);
    `held`: the blocks that somebody held before it, by pool.
    """

    mode: str
    block_size: int
    decided: Decided
    events: tuple[Event, ...]
    num_shared: int
    num_copied: int
    num_allocated: int
    num_bytes: int | None
    held: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The decision as it was and as it would be, and the difference in words."""

    real: Side
    other: Side
    words: str


def what_if(
    log: Log,
    made: Decided,
    *,
    mode: str | Policy | None = None,
    block_size: int | None = None,
    tier: str | None = None,
    part: int = -1,
) -> Comparison:
    """Plan this decision again under another mode (or policy), with another block size (tokens), or
    as if a text that it decides were of another tier ("private", "group:NAME", "global"): the text
    that its part number `part` begins with, the last part if none is named.

    Where mode and block size stay as they are the pools are those of the log; otherwise they have
    ample room, so that sharing differs and never eviction. Raises `BadInput` where the log does not
    say enough: it begins with a snapshot, or its mode does not keep what was global.
    """
    books, play = log.replay(made.at), Reenactment(log, mode, block_size)
    if tier is not None:
        _check_tier(play, tier)
        play.instead = (_text_of(log, books, made, part), tier)
    try:
        play.move(made.at)
        answer = plan_extend(play.books, made.at, made.seq_id, made.budget, made.copies)
    except PlanInvalid as error:  # the text may not stand there at all
        if tier is None:
            raise
        unknown = tier.startswith(GROUP) and tier not in books.pools
        answer = Refused(made.seq_id, 4, "that group is not there yet" if unknown else str(error))
    was = plan_extend(books, made.at, made.seq_id, made.budget, made.copies)
    edit = _edit_before(log, made)
    real = _side(log, books, policy_of(log), made, was, edit)
    again = edit if play.exact and tier is None else ()
    other = _side(log, play.books, play.policy, made, answer, again)
    notes = [_difference(real, other)]
    if edit and not again:
        notes.append("what the edit copied is computed anew here")
    if tier not in (None, PRIVATE) and play.placed == PRIVATE:
        notes.append("it stays private: what stands before it is more secret")
    if books.sequences[made.seq_id].kind != "agent" and not play.policy.encodes_prompts:
        notes.append("in this mode nobody encodes prompts and records")
    return Comparison(real, other, "; ".join(notes))


def _edit_before(log: Log, made: Decided) -> tuple[Event, ...]:
    """The copy-on-write of an edit by this holder that led to the decision."""
    for event in reversed(log.events[: made.at - log.first]):
        if getattr(event, "seq_id", -1) != made.seq_id or isinstance(event, Commanded):
            return ()
        if isinstance(event, Copied) and event.src_pool != event.pool_id:
            return (event,)
    return ()


def parts_of(books: Ledger, decided: Decided) -> tuple[Decision, ...]:
    """What was decided for each run of blocks, on books as they were then.

    An answer that is no plan speaks of one run: in the first segment with which planning gives no
    plan any longer, behind what could be mounted of it.
    """
    if decided.parts:
        return decided.parts
    over = books.overlay()
    seq, computes = over.sequences[decided.seq_id], False
    segments, seq.segments = seq.segments, []
    for number, segment in enumerate(segments):
        seq.segments.append(segment)
        outcome = plan_extend(over, decided.at, decided.seq_id, decided.budget, decided.copies)
        if isinstance(outcome, Plan):
            computes = outcome.chunk is not None and not outcome.chunk.recompute
            continue
        pool, size, here = over.pools[segment.pool_id], segment.block_size, segment.computed
        copies = here % size > 0 and pool.refs[segment.blocks[here // size]] > 1
        first = here // size if copies else -(-here // size)
        if not (computes or here % size):
            first += len(hits(pool, segment, first, seq))
        num_blocks = 1 if isinstance(outcome, Deferred) else -(-len(segment.tokens) // size) - first
        num_blocks = outcome.needed if isinstance(outcome, NoRoom) else num_blocks
        return (Decision(number, first, num_blocks, decided.outcome, decided.reason),)
    raise BadInput(f"holder {decided.seq_id} could go on at {decided.at}: is this another log's?")


def _check_tier(play: Reenactment, tier: str) -> None:
    known = {GLOBAL, PRIVATE, *(f"{GROUP}:{name}" for name in play.groups)}
    if play.policy.name != "inms":
        raise BadInput(f"mode {play.policy.name} has no tiers: ask with mode inms")
    if tier not in known:
        raise BadInput(f"no tier is called {tier!r}; there are: {', '.join(sorted(known))}")


def _text_of(log: Log, books: Ledger, made: Decided, number: int) -> int:
    """The index of the command whose text a part of the decision begins with."""
    parts, seq = parts_of(books, made), books.sequences[made.seq_id]
    if not -len(parts) <= number < len(parts):
        raise BadInput(f"this decision has no part {number}: it has {len(parts)}")
    part, segment = parts[number], seq.segments[parts[number].segment]
    position = segment.first_position + part.first * segment.block_size
    counts: dict[int, int] = {}  # tokens of each holder so far
    starts: list[tuple[int, int]] = []  # (position, index of the command) of the holder's texts
    for index, event in enumerate(log.until(made.at)):
        if isinstance(event, Registered):
            counts[event.seq_id] = counts.get(event.parent_id, 0)
        elif isinstance(event, Commanded):
            own, count = event.seq_id == made.seq_id, counts[event.seq_id]
            if event.verb == "rollback":
                count = event.count
                starts = [s for s in starts if s[0] < count] if own else starts
            elif own and event.length:
                starts.append((count, index))
            counts[event.seq_id] = count + event.length
        elif isinstance(event, Stepped):
            for seq_id, _, num_sampled, _ in event.items:
                counts[seq_id] += num_sampled
    before = [index for start, index in starts if start <= position]
    if not before:
        raise BadInput(f"{seq.name} was forked: its text was said by holder {seq.parent_id}")
    return before[-1]


def _side(
    log: Log,
    books: Ledger,
    policy: Policy,
    made: Decided,
    answer: Outcome,
    before: tuple[Event, ...],
) -> Side:
    """What planning answered there; `before`: the copy of the edit that the decision is about."""
    events = (*before, *(answer.events if isinstance(answer, Plan) else ()))
    said = decided_of(made.at, made.seq_id, made.budget, answer)
    plain = Decided(made.at, made.at + len(events), made.seq_id, made.budget, "planned")
    shared = sum(len(e.blocks) for e in events if isinstance(e, Shared))
    copied = sum(isinstance(e, Copied) for e in events)
    allocated = sum(len(e.blocks) for e in events if isinstance(e, Allocated))
    size = next(iter(books.pools.values())).block_size
    per_token = log.about.get("bytes_per_token")
    held = tuple((pool_id, pool.num_held) for pool_id, pool in books.pools.items())
    return Side(
        *(policy.name, size, said or plain, events, shared, copied, allocated),
        num_bytes=None if per_token is None else (copied + allocated) * size * per_token,
        held=held,
    )


def _difference(real: Side, other: Side) -> str:
    if (real.decided.outcome, real.events) == (other.decided.outcome, other.events):
        return "the same plan"
    if real.decided.outcome != other.decided.outcome:
        reason = f": {other.decided.reason}" if other.decided.reason else ""
        return f"{other.decided.outcome} instead of {real.decided.outcome}{reason}"
    counts = (
        (verb, getattr(other, name), getattr(real, name))
        for verb, name in (
            ("shares", "num_shared"),
            ("copies", "num_copied"),
            ("allocates", "num_allocated"),
            ("takes", "num_bytes"),
        )
    )
    said = [
        f"takes {_size(new)} instead of {_size(old)}"
        if verb == "takes"
        else f"{verb} {new} blocks instead of {old}"
        for verb, new, old in counts
        if new != old
    ]
    return "; ".join(said) or "the same counts, other blocks"


def _size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "an unknown size"
    small = num_bytes < 1 << 20
    return f"{num_bytes / 1024:.4g} KiB" if small else f"{num_bytes / 2**20:.2f} MiB"
