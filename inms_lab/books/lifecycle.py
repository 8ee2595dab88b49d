"""The states of a holder (a sequence, a sealed prompt, a published record) and the moves between.

    registered -> prefilling -> ready <-> decoding -> finished | failed | expired -> reclaimed

registered   known, without a token
prefilling   tokens that somebody asked for wait for their KV; preempted work comes back here
ready        nothing is asked for (KV that an idle holder lost comes back when it is next asked)
decoding     every token but the newest has its KV; new tokens are being generated
finished     ended by its owner         failed   ended by an error
expired      ended by the lab           reclaimed   its blocks are back in their pools
"""

from __future__ import annotations

from inms_lab.errors import IllegalMove

REGISTERED, PREFILLING, READY, DECODING = "registered", "prefilling", "ready", "decoding"
FINISHED, FAILED, EXPIRED, RECLAIMED = "finished", "failed", "expired", "reclaimed"

LIVE = frozenset((REGISTERED, PREFILLING, READY, DECODING))
ENDED = frozenset((FINISHED, FAILED, EXPIRED))

MOVES: dict[str, frozenset[str]] = {
    # decoding: one opening token to go on; ready: a fork of an idle holder that lost its KV
    REGISTERED: frozenset((PREFILLING, DECODING, READY)) | ENDED,
    PREFILLING: frozenset((READY, DECODING, REGISTERED)) | ENDED,  # registered: rolled back to none
    READY: frozenset((PREFILLING, DECODING, REGISTERED)) | ENDED,  # prefilling: text, or preempted
    DECODING: frozenset((PREFILLING, READY, REGISTERED)) | ENDED,  # prefilling: preempted
    FINISHED: frozenset((RECLAIMED,)),
    FAILED: frozenset((RECLAIMED,)),
    EXPIRED: frozenset((RECLAIMED,)),
    RECLAIMED: frozenset(),
}


def check_move(old: str, new: str) -> None:
    """Raises `IllegalMove` unless `old -> new` is a move of the state machine (or no move)."""
    if old != new and new not in MOVES[old]:
        raise IllegalMove(f"a holder that is {old} cannot become {new}")


def state_of(num_tokens: int, num_computed: int, wanted: int, to_generate: int) -> str:
    """The state of a live holder, from the counts alone."""
    if num_tokens == 0:
        return REGISTERED
    if to_generate:
        return DECODING if num_tokens - num_computed <= 1 else PREFILLING
    return PREFILLING if num_computed < wanted else READY
