r"""One small problem from the candidates of all shards.

Adding entries raises the threshold of a map, so the support on all memories lies in the union of
the supports on the shards. Where the map says how far below the best scores its support can lie
(`Omega.reach`), the shards first agree on the best scores and then send only what lies within reach
of them: the very candidates that one index over all memories would have found, with the same scores,
so the weights agree bit for bit with those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.distributed._group import Group
from hopfy.distributed._shard import TIES, Layout, Promising, Shard, kth_best
from hopfy.omega import Omega
from hopfy.search import Metric, SparseRows

__all__ = ["Cues", "all_scores", "candidates", "joined"]


class Cues(NamedTuple):
    """Queries (M, D) in the memories' dtype and their beta (M,), float64, replicated.

    Scores are computed from the queries in float64, and beta multiplies them there.
    """

    queries: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return self.queries.shape[0]

    def detach(self) -> Cues:
        return Cues(self.queries.detach(), self.beta.detach())

    def scaled(self, dtype: torch.dtype | None = None) -> Tensor:
        """Queries times beta, rounded once."""
        product = self.queries.double() * self.beta.unsqueeze(1)
        return product.to(self.queries.dtype if dtype is None else dtype)


def candidates(
    cues: Cues,
    omega: Omega,
    shard: Shard,
    layout: Layout,
    group: Group,
    metric: Metric = "inner",
    known: Tensor | None = None,
) -> SparseRows:
    """Scores of all memories that may have a weight, by global id, equal on all processes."""
    reach = omega.reach(1.0)
    if reach is None or reach.rank > layout.total:
        return _supports(cues, omega, shard, layout, group, metric, known)
    distance = reach.distance / cues.beta
    seen: list[Promising] = []

    def best_here() -> Tensor:
        seen.append(shard.promising(cues.queries, distance, reach.rank, metric, known))
        return kth_best(seen[0].found, reach.rank)

    if reach.rank == 1:
        best = group.maximum(best_here).squeeze(1)
    else:
        tops = group.gather(lambda: [best_here().T.contiguous()])
        every = torch.cat([part[0] for part in tops]).T
        best = every.topk(reach.rank, 1).values[:, -1]

    def send() -> Sequence[Tensor]:
        floor = best - distance - TIES * (best.abs() + distance)
        floor = torch.where(best.isfinite(), floor, -torch.inf)
        return _message(shard.above(floor, seen[0], cues.queries, metric, known), layout)

    return joined(group.gather(send), layout.columns)


def _supports(
    cues: Cues,
    omega: Omega,
    shard: Shard,
    layout: Layout,
    group: Group,
    metric: Metric,
    known: Tensor | None,
) -> SparseRows:
    """The candidates of a map without a known reach: the supports of the shards' own problems."""

    def send() -> Sequence[Tensor]:
        scores = shard.scores(cues.queries, metric, known)
        if not len(shard):
            return _message(shard.nothing(len(scores)), layout)
        live = scores.isfinite().all(1, keepdim=True)
        clipped = omega.clip(len(shard))  # a shard with fewer than k memories sends all
        weights = clipped(torch.where(live, scores, 0.0) * cues.beta.unsqueeze(1))
        inside = SparseRows.from_dense(torch.where(live, weights, 0.0))
        return _message(inside.with_values(scores[inside.row_of_entry, inside.indices]), layout)

    return joined(group.gather(send), layout.columns)


def all_scores(queries: Tensor, shard: Shard, group: Group) -> Tensor:
    """Every score (M, N), float64, on every process."""
    parts = group.gather(lambda: [shard.scores(queries).T.contiguous()])
    return torch.cat([part[0] for part in parts]).T.contiguous()


def _message(found: SparseRows, layout: Layout) -> list[Tensor]:
    """Candidates per query, their ids and their scores: 16 bytes each and 4 for each query."""
    return [found.counts.to(torch.int32), layout.ids(found.indices), found.values]


def joined(messages: Sequence[Sequence[Tensor]], columns: int) -> SparseRows:
    """All candidates of each query, by increasing id."""
    rows = torch.cat([torch.repeat_interleave(counts.long()) for counts, *_ in messages])
    ids = torch.cat([message[1] for message in messages])
    scores = torch.cat([message[2] for message in messages])
    order = ids.argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]
    counts = torch.stack([counts.long() for counts, *_ in messages]).sum(0)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return SparseRows(offsets, ids[order], scores[order], columns)
