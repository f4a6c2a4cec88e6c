"""One update over many shards in one process: what would be sent, and the critical path.

Two ways to bring the candidates together are run and compared. In an *all-gather* the shards first
agree on the best scores, then every process receives the candidates of every other. In a *tree* pairs
of processes merge what they have, keep what is within reach of the better best scores, and pass it
on; the root's answer goes back the same way. Merging is associative, so both give the same answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._facts import Reach
from hopfy.distributed._files import share
from hopfy.distributed._merge import joined
from hopfy.distributed._shard import TIES, Shard, kth_best
from hopfy.omega import Omega
from hopfy.search import SparseRows, weights_on

__all__ = ["Simulation", "simulate"]

_CANDIDATE = 16
"""Bytes of an id and a score."""
_COUNT = 4
"""Bytes of the number of candidates of one query."""


@dataclass(frozen=True)
class Simulation:
    """One update of M queries over ``shards`` shards.

    Attributes:
        shards: how many.
        candidates: of all shards and queries together, within reach of the global best scores.
        most: candidates of the shard that has most, to which an all-gather pads the others.
        all_gather_bytes: what each process receives in an all-gather of the candidates.
        tree_bytes: what the busiest process, the root, receives on the way up.
        tree_link_bytes: the largest message on the way up.
        tree_rounds: rounds up; the way down takes as many.
        search_seconds: the slowest shard's search, which all others wait for.
        merge_seconds: joining all candidates and solving the small problems, after an all-gather.
        tree_seconds: the same in a tree: the slowest merge of each round, and the small problems.
        weights: the answer by all-gather, by global id.
        tree_weights: the answer by the tree; the same numbers.
    """

    shards: int
    candidates: int
    most: int
    all_gather_bytes: int
    tree_bytes: int
    tree_link_bytes: int
    tree_rounds: int
    search_seconds: float
    merge_seconds: float
    tree_seconds: float
    weights: SparseRows
    tree_weights: SparseRows

    def planned_seconds(
        self, how: str = "all-gather", *, latency: float = 5e-5, bytes_per_second: float = 1e9
    ) -> float:
        """The critical path on a network with this latency per message and this bandwidth.

        An all-gather takes one exchange for the best scores and one for the candidates, each in
        ceil(log2 P) messages one after the other (recursive doubling); a tree takes its rounds up
        and down, and the largest message in each.
        """
        if how == "all-gather":
            messages = 2 * math.ceil(math.log2(self.shards)) if self.shards > 1 else 0
            sent = self.all_gather_bytes + 8 * self.weights.rows
            local = self.search_seconds + self.merge_seconds
        elif how == "tree":
            messages = 2 * self.tree_rounds
            sent = messages * self.tree_link_bytes
            local = self.search_seconds + self.tree_seconds
        else:
            raise ValueError(f"expected how to be 'all-gather' or 'tree', got {how!r}.")
        return local + messages * latency + sent / bytes_per_second


@torch.no_grad()
def simulate(
    memories: Tensor, queries: Tensor, omega: Omega, beta: float, shards: int
) -> Simulation:
    """Share ``memories`` (N, D) out to ``shards`` shards and merge their candidates in both ways.

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
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise ValueError(f"expected shards to be an integer >= 1, got {shards!r}.")
    reach = Reach(reach.rank, reach.distance / beta)
    betas = torch.full((len(queries),), beta, dtype=torch.float64)
    found, slowest = _searched(memories, queries, reach, shards)
    begun = time.perf_counter()
    together = _all_gathered(found, reach, len(memories))
    weights = weights_on(joined([_message(part) for part in together], len(memories)), omega, betas)
    merged = time.perf_counter() - begun
    tree = _climbed(found, reach, len(memories))
    begun = time.perf_counter()
    tree_weights = weights_on(tree.root, omega, betas)
    solved = time.perf_counter() - begun
    counts = [int(part.indices.numel()) for part in together]
    return Simulation(
        shards=shards,
        candidates=sum(counts),
        most=max(counts),
        all_gather_bytes=(shards - 1) * (_CANDIDATE * max(counts) + _COUNT * len(queries)),
        tree_bytes=tree.root_bytes,
        tree_link_bytes=tree.link_bytes,
        tree_rounds=tree.rounds,
        search_seconds=slowest,
        merge_seconds=merged,
        tree_seconds=tree.seconds + solved,
        weights=weights,
        tree_weights=tree_weights,
    )


def _searched(
    memories: Tensor, queries: Tensor, reach: Reach, shards: int
) -> tuple[list[SparseRows], float]:
    """The candidates of every shard, by global id, and the time of the slowest."""
    distance = torch.full((len(queries),), reach.distance, dtype=torch.float64)
    found, slowest = [], 0.0
    for rank in range(shards):
        first, stop = share(len(memories), rank, shards)
        shard = Shard(memories[first:stop])
        if len(shard):
            _ = shard.index  # built once, not part of a query
        begun = time.perf_counter()
        own = shard.near_best(queries, distance, reach.rank)
        slowest = max(slowest, time.perf_counter() - begun)
        found.append(SparseRows(own.offsets, own.indices + first, own.values, len(memories)))
    return found, slowest


def _all_gathered(found: Sequence[SparseRows], reach: Reach, columns: int) -> list[SparseRows]:
    """What each shard sends once all agree on the best scores."""
    if reach.rank > columns:
        return list(found)
    tops = torch.cat([kth_best(part, reach.rank) for part in found], 1)
    best = tops.topk(reach.rank, 1).values[:, -1]
    return [_within(part, best, reach) for part in found]


def _within(part: SparseRows, best: Tensor, reach: Reach) -> SparseRows:
    floor = best - reach.distance - TIES * (best.abs() + reach.distance)
    floor = torch.where(best.isfinite(), floor, -torch.inf)
    return part.kept(part.values > floor[part.row_of_entry])


@dataclass
class _Tree:
    root: SparseRows
    root_bytes: int = 0
    link_bytes: int = 0
    rounds: int = 0
    seconds: float = 0.0


def _climbed(found: Sequence[SparseRows], reach: Reach, columns: int) -> _Tree:
    """Merge pairs until one is left; the first process is the root."""
    level = list(found)
    tree = _Tree(level[0])
    while len(level) > 1:
        above, slowest = [], 0.0
        for place in range(0, len(level), 2):
            if place + 1 == len(level):
                above.append(level[place])
                continue
            size = _CANDIDATE * level[place + 1].indices.numel() + _COUNT * level[place + 1].rows
            tree.link_bytes = max(tree.link_bytes, size)
            tree.root_bytes += size if place == 0 else 0
            begun = time.perf_counter()
            above.append(_merged(level[place], level[place + 1], reach, columns))
            slowest = max(slowest, time.perf_counter() - begun)
        level = above
        tree.rounds += 1
        tree.seconds += slowest
    tree.root = level[0]
    return tree


def _merged(one: SparseRows, other: SparseRows, reach: Reach, columns: int) -> SparseRows:
    """The candidates of two parts that are candidates of both together."""
    both = joined([_message(one), _message(other)], columns)
    return _within(both, kth_best(both, reach.rank)[:, -1], reach)


def _message(part: SparseRows) -> list[Tensor]:
    return [part.counts.to(torch.int32), part.indices, part.values]
