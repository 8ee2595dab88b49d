"""How much of each request was seen before: from its start, as whole messages, at any place.

    prefix      leading blocks of 16 tokens that an earlier request began with too
    messages    the prefix, and whole messages that stood anywhere in an earlier request
    runs        tokens among 16 equal neighbours that stood anywhere in an earlier request

Each holds the one before it; messages of fewer than 16 tokens are not looked for. A prefix is what
a prefix cache finds, a message what `attach` can mount by reference; runs bound what any reuse of
fragments could find. What an agent answered was computed too, so it counts as seen from then on.
Pure functions of tokens, which are compared by 64-bit digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pandas as pd

RUN = 16  # tokens: the least that is worth a lookup, and the default block
WAYS = ("prefix", "messages", "runs")
SCOPES = ("session", "file")  # seen in the same session; seen in any

_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]
_BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


@dataclass(frozen=True, slots=True)
class Encoded:
    """One request as tokens, message by message, and the tokens of its answer."""

    session: str
    agent: str
    messages: tuple[tuple[int, ...], ...]
    answer: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Tokens of the request, without the answer."""
        return sum(map(len, self.messages))

    def cut(self, limit: int) -> Encoded:
        """Its first `limit` tokens; the answer stays."""
        kept, left = [], limit
        for message in self.messages:
            if left > 0:
                kept.append(message[:left])
            left -= len(message)
        return Encoded(self.session, self.agent, tuple(kept), self.answer)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found, a line a request.

    Columns of `requests`: session, agent, first (the agent's first in its session), tokens, and for
    each scope and way a number of tokens, as "file prefix". `fragments`: (request, message) of each
    whole message that was seen in the file, with its first token behind the prefix.
    """

    requests: pd.DataFrame
    fragments: tuple[tuple[int, int], ...]

    def tokens(self, way: str = "", scope: str = "file", first: bool = False) -> int:
        """Tokens of all (of first) requests that were seen before; without `way`, all tokens.

        `way` is one of `WAYS`, `scope` of `SCOPES`.
        """
        return int(self._of(first)[f"{scope} {way}" if way else "tokens"].sum())

    def share(self, way: str, scope: str = "file", first: bool = False) -> float:
        """Those tokens as a share of all; 0 where there are none."""
        return self.tokens(way, scope, first) / max(1, self.tokens(first=first))

    def mean_share(self, way: str, scope: str = "file", first: bool = False) -> float:
        """The mean share of a request: each counts alike, however long it is."""
        rows = self._of(first)
        return float((rows[f"{scope} {way}"] / rows["tokens"].clip(lower=1)).mean())

    def _of(self, first: bool) -> pd.DataFrame:
        return self.requests[self.requests["first"]] if first else self.requests


def look_back(requests: Sequence[Encoded], answers: bool = True) -> Seen:
    """What each request has in common with those before it. `answers`: these count as seen."""
    streams = _Streams(requests, answers)
    table = pd.DataFrame([(r.session, r.agent) for r in requests], columns=["session", "agent"])
    table["first"] = ~table.duplicated(["session", "agent"])
    table["tokens"] = [len(r) for r in requests]
    fragments: list[tuple[int, int]] = []
    for scope in SCOPES:
        numbers = table["session"].factorize()[0].astype(np.uint64)
        among = numbers if scope == "session" else np.zeros_like(numbers)
        prefix, runs = streams.prefix(among), streams.runs(among)
        found, fragments = streams.whole(among, prefix)
        for way, mask in zip(WAYS, (prefix, prefix | found, runs), strict=True):
            table[f"{scope} {way}"] = streams.count(mask)
    return Seen(table, tuple(fragments))  # of the last scope, the file


class _Streams:
    """All requests one behind the other, each followed by its answer; digests of their pieces.

    With m the mixed token ids and i an index in a stream, `running` sums m B^i modulo 2^64: a
    difference of two sums, times B^-i of its first token, names tokens wherever they stand.
    """

    def __init__(self, requests: Sequence[Encoded], answers: bool) -> None:
        pieces = [(*r.messages, r.answer) if answers else r.messages for r in requests]
        lengths = np.array([sum(map(len, p)) for p in pieces], dtype=np.int64)
        flat = chain.from_iterable(chain.from_iterable(pieces))
        tokens = np.fromiter(flat, dtype=np.uint64, count=lengths.sum())
        begins = np.cumsum(lengths) - lengths
        self.owner = np.repeat(np.arange(len(pieces)), lengths)  # of each token: its request
        self.index = np.arange(len(tokens)) - begins[self.owner]
        self.num_requests = len(pieces)
        asked = np.array([len(r) for r in requests], dtype=np.int64)
        self.is_asked = self.index < asked[self.owner]
        longest = int(lengths.max(initial=0)) + 1
        self.inverses = _powers(pow(_BASE, -1, 1 << 64), longest)
        weighed = _mixed(tokens) * _powers(_BASE, longest)[self.index]
        self.running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(weighed)))
        sizes = [(r, m, len(piece)) for r, p in enumerate(pieces) for m, piece in enumerate(p)]
        self.request, self.message, self.size = np.array(sizes, dtype=np.int64).reshape(-1, 3).T

    def prefix(self, among: _Words) -> _Mask:
        """Tokens of leading blocks that an earlier request began with."""
        last = np.flatnonzero(self.index % RUN == RUN - 1)  # of each full block
        seen = self._seen(last - self.index[last], last + 1, among) & self.is_asked[last]
        blocks = np.bincount(self.owner[last][seen], minlength=len(among))  # leading ones only
        return self.index < RUN * blocks[self.owner]

    def whole(self, among: _Words, prefix: _Mask) -> tuple[_Mask, list[tuple[int, int]]]:
        """Tokens of messages that stood whole in an earlier request; those behind the prefix."""
        is_long = self.size >= RUN
        stop = np.cumsum(self.size)[is_long]
        start = stop - self.size[is_long]
        seen = self._seen(start, stop, among) & self.is_asked[start]
        found = zip(self.request[is_long], self.message[is_long], strict=True)
        behind = seen & ~prefix[start]
        fragments = [
            (int(r), int(m)) for (r, m), is_one in zip(found, behind, strict=True) if is_one
        ]
        return self._covered(start[seen], stop[seen]), fragments

    def runs(self, among: _Words) -> _Mask:
        """Tokens within `RUN` neighbours that stood anywhere in an earlier request."""
        start = np.arange(max(0, len(self.owner) - RUN + 1))
        start = start[self.owner[start] == self.owner[start + RUN - 1]]
        seen = self._seen(start, start + RUN, among) & self.is_asked[start + RUN - 1]
        return self._covered(start[seen], start[seen] + RUN)

    def count(self, mask: _Mask) -> _Ints:
        """Marked tokens of each request."""
        return np.bincount(self.owner[mask], minlength=self.num_requests)

    def _seen(self, start: _Ints, stop: _Ints, among: _Words) -> _Mask:
        """Which pieces [start, stop) an earlier request of the same session (`among`) had too."""
        owner = self.owner[start]
        digests = (self.running[stop] - self.running[start]) * self.inverses[self.index[start]]
        keys = _mixed(_mixed(digests) + _mixed(among[owner]))
        _, earliest, kind = np.unique(keys, return_index=True, return_inverse=True)
        return owner[earliest][kind] < owner

    def _covered(self, start: _Ints, stop: _Ints) -> _Mask:
        """Tokens within any of the pieces [start, stop)."""
        edges = np.zeros(len(self.owner) + 1, dtype=np.int64)
        np.add.at(edges, start, 1)
        np.add.at(edges, stop, -1)
        return np.cumsum(edges)[:-1] > 0


def _powers(base: int, count: int) -> _Words:
    """base^0, base^1, ... modulo 2^64."""
    return np.cumprod(np.array([1, *[base] * (count - 1)], dtype=np.uint64), dtype=np.uint64)


def _mixed(x: _Words) -> _Words:
    """Spread over 64 bits: the finaliser of SplitMix64 (Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
