"""What an agent asks of the engine: one request, answered by a future at a step boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from inms_lab.serving.sample import Sampling


@dataclass(slots=True, eq=False)
class Request:
    """A command of one holder. `verb` and what it uses, with the future's result:

    append    tokens, tier, group                      -> number of tokens, once they have their KV
    write     tokens (the turn's opening), count, ...  -> list of the generated token ids
    logits                                             -> logits [vocab] of the next token
    rollback  count: tokens kept; or drop: tokens less -> None
    rewrite   start, count: tokens replaced; tokens    -> None
    fork                                               -> the new sequence's id
    close, fail, expire   cause                        -> None
    """

    seq_id: int
    verb: str
    tokens: Sequence[int] = ()
    tier: str = "private"
    group: str = ""
    start: int = 0
    count: int = 0
    seal: bool = False
    fresh: bool = False
    record: int = -1  # attach: the record's holder, whose KV is mounted: exact, or as a fragment
    versions: frozenset[int] = frozenset()  # attach: not again where one of these has this text
    afresh: tuple[int, ...] = ()  # blocks of the fragment that are computed all the same
    cause: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()
    on_token: Callable[[int], None] | None = None
    drop: int | None = None
    before: Callable[[], list[int]] | None = None  # tokens that come first, known on entry only
    offset: int | None = None  # where the tokens lie in the token table, if they do
    future: Future[Any] = field(default_factory=Future)
    generated: list[int] = field(default_factory=list)
    asked_at: float = 0.0  # seconds, of the side table
    first_token_at: float = 0.0
    target: int = 0  # append: tokens that must have their KV
