"""Timing on a noisy machine: interleave the contestants and keep each one's best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["best_times", "geometric_mean"]


def best_times(
    contestants: Mapping[str, Callable[[], Any]], *, rounds: int = 15, seconds: float = 2.0
) -> dict[str, float]:
    """Best time in seconds of each contestant over interleaved rounds.

    Stops after ``rounds`` rounds, or once all contestants together took ``seconds`` (but never
    before the second round). A slow contestant therefore cannot hold up the rest for long.
    """
    for call in contestants.values():
        call()
    best = dict.fromkeys(contestants, math.inf)
    begun = time.perf_counter()
    for done in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
        if done >= 1 and time.perf_counter() - begun > seconds:
            break
    return best


def geometric_mean(values: Iterable[float]) -> float:
    """The mean that ratios deserve."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
