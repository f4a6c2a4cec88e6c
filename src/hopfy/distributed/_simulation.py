"""One update over many shards in one process: what would be sent, and the critical path."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.distributed._files import share
from hopfy.distributed._merge import joined
from hopfy.distributed._shard import TIES, Shard, kth_best
from hopfy.omega import Omega
from hopfy.search import SparseRows, weights_on

__all__ = ["Simulation", "simulate"]

_CANDIDATE = 16
"""Bytes of an id and a score."""


@dataclass(frozen=True)
class Simulation:
    """One update of M queries over ``shards`` shards.

    Attributes:
        shards: how many.
        candidates: of all shards and queries together, within reach of the global best scores.
        most: candidates of the shard that has most, to which an all-gather pads the others.
        all_gather_bytes: what each process receives in an all-gather of the candidates.
        tree_bytes: what the root receives in all rounds of a binary tree that merges two parts and
            keeps what is within reach; no link carries more than the last round.
        tree_rounds: the rounds of the tree.
        search_seconds: the slowest shard's search, which all others wait for.
        merge_seconds: joining the candidates and solving the small problems.
        weights: the answer, by global id.
    """

    shards: int
    candidates: int
    most: int
    all_gather_bytes: int
    tree_bytes: int
    tree_rounds: int
    search_seconds: float
    merge_seconds: float
    weights: SparseRows


@torch.no_grad()
def simulate(
    memories: Tensor, queries: Tensor, omega: Omega, beta: float, shards: int
) -> Simulation:
    """Share ``memories`` (N, D) out to ``shards`` shards and merge their candidates.

    For maps that know their reach. The searches run one after the other, so the times are those of
    processes that do not disturb each other.

    >>> import hopfy
    >>> from hopfy.distributed import simulate
    >>> run = simulate(torch.eye(8), torch.eye(8)[:2], hopfy.Tsallis(2.0), 2.0, shards=4)
    >>> run.candidates, run.tree_rounds, run.weights.indices
    (2, 2, tensor([0, 1]))
    """
    reach = omega.reach(1.0)
    if reach is None or not omega.merges_by_support:
        raise ValueError(f"expected an omega that knows its reach, got {omega.name}.")
    distance = torch.full((len(queries),), reach.distance / beta, dtype=torch.float64)
    ranges = [share(len(memories), rank, shards) for rank in range(shards)]
    found, slowest = [], 0.0
    for first, stop in ranges:
        shard = Shard(memories[first:stop])
        if len(shard):
            _ = shard.index  # built once, not part of a query
        begun = time.perf_counter()
        found.append(shard.near_best(queries, distance, reach.rank))
        slowest = max(slowest, time.perf_counter() - begun)
    begun = time.perf_counter()
    tops = torch.cat([kth_best(part, reach.rank) for part in found], 1)
    best = tops.topk(min(reach.rank, tops.shape[1]), 1).values[:, -1]
    floor = best - distance - TIES * (best.abs() + distance)
    kept = [part.kept(part.values > floor[part.row_of_entry]) for part in found]
    messages = [
        [part.counts.to(torch.int32), part.indices + first, part.values]
        for part, (first, _) in zip(kept, ranges, strict=True)
    ]
    scores = joined(messages, len(memories))
    weights = weights_on(scores, omega, torch.full((len(queries),), beta, dtype=torch.float64))
    merged = time.perf_counter() - begun
    counts = [int(part.indices.numel()) for part in kept]
    most, total = max(counts), sum(counts)
    padded = _CANDIDATE * most + 4 * len(queries)
    rounds = math.ceil(math.log2(shards)) if shards > 1 else 0
    return Simulation(
        shards, total, most, (shards - 1) * padded,
        _CANDIDATE * (total - counts[0]) + 4 * len(queries) * rounds, rounds, slowest, merged, weights,
    )  # fmt: skip
