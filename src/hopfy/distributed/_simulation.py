"""One update over many shards in one process: what would be sent, and the critical path.

The shards first agree on the best scores, a few bytes per query. Two ways to bring the candidates
within reach of them together are run and compared. In an *all-gather* every process receives the
candidates of every other, padded to the largest part. In a *tree* pairs of processes join what they
have and pass it on, and the root's candidates go back the same way. Joining is associative, so both
give the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._facts import Reach
from hopfy.distributed._files import share
from hopfy.distributed._merge import joined
from hopfy.distributed._shard import Shard
from hopfy.omega import Omega
from hopfy.search import SparseRows, weights_on

__all__ = ["Simulation", "simulate"]

_CANDIDATE = 16
"""Bytes of an id and a score."""
_COUNT = 4
"""Bytes of the number of candidates of one query."""
_BEYOND = 1e300
"""A score that nothing reaches."""


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
        search_seconds: CPU time of the slowest shard's search, which all others wait for.
        merge_seconds: joining all candidates and solving the small problems, after an all-gather.
        tree_seconds: the same in a tree: the slowest join of each round, and the small problems.
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

        Both exchange the best scores in ceil(log2 P) messages one after the other (recursive
        doubling). An all-gather takes as many again; a tree takes its rounds up and down, with the
        largest message in each.
        """
        rounds = self.tree_rounds
        sent = 8 * self.weights.rows * rounds
        if how == "all-gather":
            messages, sent = 2 * rounds, sent + self.all_gather_bytes
            local = self.search_seconds + self.merge_seconds
        elif how == "tree":
            messages, sent = 3 * rounds, sent + 2 * rounds * self.tree_link_bytes
            local = self.search_seconds + self.tree_seconds
        else:
            raise ValueError(f"expected how to be 'all-gather' or 'tree', got {how!r}.")
        return local + messages * latency + sent / bytes_per_second


@torch.no_grad()
def simulate(
    memories: Tensor, queries: Tensor, omega: Omega, beta: float, shards: int
) -> Simulation:
    """Share ``memories`` (N, D) out to ``shards`` shards and merge their candidates in both ways.

    For maps that know their reach. The searches run one after the other and CPU time is counted, so
    the times are those of processes that do not disturb each other.

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
    together, slowest = _searched(memories, queries, reach, shards)
    begun = time.process_time()
    weights = weights_on(joined([_message(part) for part in together], len(memories)), omega, betas)
    merged = time.process_time() - begun
    tree = _climbed(together, len(memories))
    begun = time.process_time()
    tree_weights = weights_on(tree.root, omega, betas)
    solved = time.process_time() - begun
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
    """What each shard sends once all agree on the best scores, and the time of the slowest."""
    distance = torch.full((len(queries),), reach.distance, dtype=torch.float64)
    parts = [share(len(memories), rank, shards) for rank in range(shards)]
    held = [Shard(memories[first:stop]) for first, stop in parts]
    tops: list[Tensor] = []

    def listen(best: Tensor) -> Tensor:
        """Note what a shard says, and let it go on as if nothing were within reach."""
        tops.append(best)
        return torch.full((len(best),), _BEYOND, dtype=torch.float64)

    for shard in held:
        shard.near_best(queries, distance, reach.rank, agree=listen)  # indexes, compiles
    best = torch.cat(tops, 1).topk(reach.rank, 1).values[:, -1]
    sent, seconds = [], []
    for (first, _), shard in zip(parts, held, strict=True):
        begun = time.process_time()
        kept = shard.near_best(queries, distance, reach.rank, agree=lambda _: best)
        seconds.append(time.process_time() - begun)
        indices = kept.indices + first
        sent.append(SparseRows(kept.offsets, indices, kept.values, len(memories)))
    return sent, max(seconds)


@dataclass
class _Tree:
    root: SparseRows
    root_bytes: int = 0
    link_bytes: int = 0
    rounds: int = 0
    seconds: float = 0.0


def _climbed(found: Sequence[SparseRows], columns: int) -> _Tree:
    """Join pairs until one is left; the first process is the root."""
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
            begun = time.process_time()
            pair = [_message(part) for part in level[place : place + 2]]
            above.append(joined(pair, columns))
            slowest = max(slowest, time.process_time() - begun)
        level = above
        tree.rounds += 1
        tree.seconds += slowest
    tree.root = level[0]
    return tree


def _message(part: SparseRows) -> list[Tensor]:
    return [part.counts.to(torch.int32), part.indices, part.values]
