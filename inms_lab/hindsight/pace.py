"""How long a token takes, by what a log measured."""

from __future__ import annotations

from inms_lab.books.events import Stepped
from inms_lab.logs.log import Log

MANY = 8  # tokens of a step, or of a part, from which on it is prefill


def seconds_per_token(log: Log) -> tuple[float, float] | None:
    """What a token takes in a step that computes `MANY` tokens or more (prefill), and in one that
    computes fewer (decode): medians over tokens. Where one was not measured, the other stands for
    it; None: neither was."""
    steps = ((e.step, sum(n for _, n, *_ in e.items)) for e in log.events if type(e) is Stepped)
    rates = sorted((log.durations[s] / n, n) for s, n in steps if n and s in log.durations)
    prefill = _median([rate for rate in rates if rate[1] >= MANY])
    decode = _median([rate for rate in rates if rate[1] < MANY])
    if prefill is None or decode is None:
        known = decode if prefill is None else prefill
        return None if known is None else (known, known)
    return prefill, decode


def _median(rates: list[tuple[float, int]]) -> float | None:
    half = sum(count for _, count in rates) / 2
    for rate, count in rates:
        half -= count
        if half <= 0:
            return rate
    return None
