"""Timing on a noisy machine: interleave the contestants and keep each one's best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["best_times", "geometric_mean", "on_threads"]


def best_times(
    contestants: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 12,
    seconds: float = 3.0,
    in_a_row: int = 4,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Best time in seconds of each contestant over interleaved rounds.

    In a round every contestant runs ``in_a_row`` times: right after another's call its threads may
    still be spinning, which would be charged to the wrong side. Stops after ``rounds`` rounds, or once
    all contestants together took ``seconds``. With ``clock=time.process_time`` the time is that of
    the process on all cores, whatever else the machine computes.
    """
    for call in contestants.values():
        call()
    best = dict.fromkeys(contestants, math.inf)
    begun = time.perf_counter()
    for _ in range(rounds):
        for name, call in contestants.items():
            for _ in range(in_a_row):
                start = clock()
                call()
                best[name] = min(best[name], clock() - start)
        if time.perf_counter() - begun > seconds:
            break
    return best


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean, which treats a ratio and its inverse alike."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Torch with this many threads, and again with as many as before when the block ends.

    >>> with on_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
