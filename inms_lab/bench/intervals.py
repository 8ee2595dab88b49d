"""Intervals of measurements: of a ratio of paired runs, of how well values tell two classes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of paired ratios with its 95 % interval (Student's t of the logarithms);
    without an interval where there is one pair only."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    half = t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def t_95(freedom: int) -> float:
    """Student's t at 97.5 %: what two-sided 95 % intervals of so many degrees of freedom take."""
    low, high = 0.0, 1000.0

    def tail(t: float) -> float:
        """The density integrated from 0 to `t`, Simpson's rule in the angle atan(t / sqrt(n))."""
        angle, steps = math.atan(t / math.sqrt(freedom)), 400
        width = angle / steps
        values = [math.cos(step * width) ** (freedom - 1) for step in range(steps + 1)]
        area = (
            width / 3 * (values[0] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]) + values[-1])
        )
        scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(math.pi)
        return scale * area

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < 0.475 else (low, middle)
    return (low + high) / 2


def auc(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """How well values tell two classes apart, with the 95 % interval.

    The probability that one of `slow`'s values is above one of `fast`'s (ties count half). The
    variance is DeLong's (DeLong, DeLong and Clarke-Pearson 1988): of each value's mean standing
    against the other class, in both classes.
    """
    above, below = np.asarray(slow, float), np.asarray(fast, float)
    wins = (above[:, None] > below[None, :]) + 0.5 * (above[:, None] == below[None, :])
    value = float(wins.mean())
    variance = 0.0
    for standing in (wins.mean(axis=1), wins.mean(axis=0)):
        if len(standing) > 1:
            variance += float(standing.var(ddof=1)) / len(standing)
    half = 1.96 * math.sqrt(variance)
    return value, max(0.0, value - half), min(1.0, value + half)
