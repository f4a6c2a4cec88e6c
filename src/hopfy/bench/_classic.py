"""Classic and dense networks against the two products that an update cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hopfy
from hopfy import models
from hopfy.bench._timing import best_times, on_threads

__all__ = ["ClassicRow", "bench_classic"]

_PATTERNS, _SIZE, _QUERIES = 10_000, 1_000, 256
_LIMIT = 1.1


class ClassicRow(NamedTuple):
    """One network: milliseconds of an update and of its products, their ratio and its limit."""

    name: str
    threads: int
    update_ms: float
    products_ms: float
    ratio: float
    limit: float


def bench_classic(progress: Callable[[str], None] = lambda _: None) -> list[ClassicRow]:
    """An update of 256 queries with 10,000 patterns of 1,000 signs; the states are checked first."""
    torch.manual_seed(0)
    patterns = torch.randn(_PATTERNS, _SIZE).sign()
    queries = patterns[:_QUERIES] * (torch.rand(_QUERIES, _SIZE) > 0.1).float().mul(2).sub(1)
    networks = {
        "classic": models.classic(patterns),
        "dense, n = 3": models.dense(patterns, 3),
        "dense, n = 4": models.dense(patterns, 4),
    }
    rows = []
    for name, network in networks.items():
        progress(name)
        _check(name, network, patterns, queries[:16])
        rows += [_row(name, network, patterns, queries, threads) for threads in (1, 2)]
    return rows


def _row(
    name: str, network: hopfy.HopfieldNetwork, patterns: Tensor, queries: Tensor, threads: int
) -> ClassicRow:
    contestants: dict[str, Callable[[], Any]] = {
        "update": partial(network.update, queries),
        "products": lambda: (queries @ patterns.T) @ patterns,
    }
    with torch.no_grad(), on_threads(threads):
        times = best_times(contestants, rounds=40, seconds=12.0, in_a_row=1)
    ours, theirs = 1e3 * times["update"], 1e3 * times["products"]
    return ClassicRow(name, threads, ours, theirs, ours / theirs, _LIMIT)


def _check(name: str, network: hopfy.HopfieldNetwork, patterns: Tensor, queries: Tensor) -> None:
    """The update against its formula in float64."""
    scores = queries.double() @ patterns.double().T
    power = {"classic": 1, "dense, n = 3": 3, "dense, n = 4": 4}[name]
    weights = scores.clamp_min(0) ** power if power % 2 == 0 else scores**power
    expected = (weights @ patterns.double()).sign().float()
    if not torch.equal(network.update(queries), expected):
        raise AssertionError(f"{name} differs from its formula: no speed is reported for it")
