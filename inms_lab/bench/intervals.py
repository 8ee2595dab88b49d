"""Intervals of measurements: of a ratio of paired runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


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
