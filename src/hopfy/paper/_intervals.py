"""95% intervals: of a mean over runs, of a share of independent cases."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Interval", "of_mean", "of_share"]

_NORMAL = 1.959963984540054
# The 97.5% quantiles of Student's distribution with 1, 2, ... degrees of freedom.
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


class Interval(NamedTuple):
    """From ``low`` to ``high``."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2

    def holds(self, value: float, unit: float = 0.0) -> bool:
        """Whether ``value``, printed in multiples of ``unit``, may lie inside."""
        return self.low - unit / 2 <= value <= self.high + unit / 2


def of_mean(mean: float, deviation: float, runs: int) -> Interval:
    """Student's interval for the mean of ``runs`` results with this standard deviation.

    Two runs at least.

    >>> interval = of_mean(64.0, 2.0, 5)
    >>> round(interval.low, 2), round(interval.high, 2)
    (61.52, 66.48)
    """
    if runs < 2:
        raise ValueError(f"expected at least 2 runs for the interval of their mean, got {runs}.")
    quantile = _STUDENT[runs - 2] if runs - 2 < len(_STUDENT) else _NORMAL
    half = quantile * deviation / math.sqrt(runs)
    return Interval(mean - half, mean + half)


def of_share(share: float, cases: int) -> Interval:
    """Wilson's interval for a share of ``cases`` independent cases.

    >>> [round(end, 3) for end in of_share(0.0, 1000)]
    [0.0, 0.004]
    """
    if cases < 1:
        raise ValueError(f"expected at least 1 case for the interval of a share, got {cases}.")
    weight = _NORMAL**2 / cases
    middle = (share + weight / 2) / (1 + weight)
    spread = math.sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    return Interval(max(0.0, middle - spread), min(1.0, middle + spread))
