r"""One small problem from the candidates of all shards.

Adding entries raises the threshold of a map, so the support on all memories lies in the union of
the supports on the shards. Where the map says how far below the best scores its support can lie
(`Omega.reach`), the shards first agree on the best scores and then send only what lies within reach
of them: the very candidates that one index over all memories would have found, with the same scores,
so the weights agree bit for bit with those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.distributed._files import share
from hopfy.distributed._group import Group
from hopfy.distributed._shard import Layout, Shard
from hopfy.omega import Omega
from hopfy.search import Agreement, Metric, SparseRows, peak_bytes, weights_on

__all__ = ["Cues", "agreement", "all_scores", "candidates", "joined", "merged_weights"]

_AT_ONCE = 1024
"""Queries that are looked for together."""
_WORTH_SHARING = 1 << 13
"""Candidates from which on the processes share the small problems out."""
_PEAKS = 1 << 28
"""Bytes that their search may keep between its two passes."""


class Cues(NamedTuple):
    """Queries (M, D) in the memories' dtype and their beta (M,), float64, replicated.

    Scores are computed from the queries in float64, and beta multiplies them there.
    """

    queries: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return self.queries.shape[0]

    def at(self, places: Tensor) -> Cues:
        """Some of them; ``places`` increase."""
        if len(places) == len(self):
            return self
        return Cues(self.queries[places], self.beta[places])

    def detach(self) -> Cues:
        return Cues(self.queries.detach(), self.beta.detach())

    def scaled(self, dtype: torch.dtype | None = None) -> Tensor:
        """Queries times beta, rounded once."""
        product = self.queries.double() * self.beta.unsqueeze(1)
        return product.to(self.queries.dtype if dtype is None else dtype)


def merged_weights(
    cues: Cues,
    omega: Omega,
    shard: Shard,
    layout: Layout,
    group: Group,
    metric: Metric = "inner",
    known: Tensor | None = None,
) -> SparseRows:
    """The weights of all queries on their support, by global id, equal on all processes.

    Where there are many candidates each process solves the problems of some queries, receives their
    candidates only, and all exchange the solutions. No gradients.
    """
    parts = [
        _solved(cues.at(places), omega, message, layout, group)
        for places, message in _messages(cues, omega, shard, layout, group, metric, known)
    ]
    return SparseRows.stack(parts)


def _solved(
    cues: Cues, omega: Omega, message: Sequence[Tensor], layout: Layout, group: Group
) -> SparseRows:
    """The weights of some queries, from the candidates of each process."""
    first, stop = share(len(cues), group.rank, group.size)
    found, is_own = _of_all(message, layout, group, deal=True)
    if not is_own and (group.size == 1 or found.indices.numel() < _WORTH_SHARING):
        return weights_on(found, omega, cues.beta)

    def solve() -> Sequence[Tensor]:
        own = torch.arange(first, stop)
        solved = weights_on(found if is_own else found.take(own), omega, cues.beta[own])
        return [solved.counts, solved.indices, solved.values]

    parts = group.gather(solve)
    return SparseRows.stack([_compressed(part, layout.columns) for part in parts])


def _compressed(part: Sequence[Tensor], columns: int) -> SparseRows:
    counts, indices, values = part
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return SparseRows(offsets, indices, values, columns)


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
    messages = _messages(cues, omega, shard, layout, group, metric, known)
    parts = [_of_all(message, layout, group, deal=False)[0] for _, message in messages]
    return SparseRows.stack(parts)


def _messages(
    cues: Cues,
    omega: Omega,
    shard: Shard,
    layout: Layout,
    group: Group,
    metric: Metric,
    known: Tensor | None,
) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """The candidates of this process, some queries at a time; all processes must ask for the next."""
    reach = omega.reach(1.0)
    if reach is None or reach.rank > layout.total:
        yield (
            torch.arange(len(cues)),
            _supports(cues, omega, shard, layout, group, metric, known),
        )
        return
    distance = reach.distance / cues.beta
    size = max(1, min(_AT_ONCE, _PEAKS // peak_bytes(max(layout.counts))))
    for some in torch.split(torch.arange(len(cues)), size) if len(cues) else [torch.arange(0)]:
        own = known if known is None or len(known) == 1 else known[some]
        found = shard.near_best(
            cues.queries[some], distance[some], reach.rank, metric, own, agreement(group)
        )
        yield some, _message(found, layout)


def agreement(group: Group) -> Agreement:
    """From the best scores (M, k) of this process to the k-th best ones (M,) of all."""

    def agree(best: Tensor) -> Tensor:
        if best.shape[1] == 1:
            return group.maximum(lambda: best).squeeze(1)
        tops = group.gather(lambda: [best.T.contiguous()])
        every = torch.cat([part[0] for part in tops]).T
        return every.topk(best.shape[1], 1).values[:, -1]

    return agree


def _supports(
    cues: Cues,
    omega: Omega,
    shard: Shard,
    layout: Layout,
    group: Group,
    metric: Metric,
    known: Tensor | None,
) -> Sequence[Tensor]:
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

    return group.together(send)


def _of_all(
    message: Sequence[Tensor], layout: Layout, group: Group, deal: bool
) -> tuple[SparseRows, bool]:
    """The candidates of all processes; True: those of this process's share of the queries only.

    With ``deal``, where there are so many that each process should solve the problems of its share.
    """

    def join(messages: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        found = joined(messages, layout.columns)
        return [found.counts.to(torch.int32), found.indices, found.values]

    def dealt(own: Sequence[Tensor]) -> list[list[Tensor]]:
        counts, ids, scores = own
        rows = [stop - first for first, stop in (share(len(counts), r, group.size) for r in ranks)]
        entries = [int(part.sum()) for part in torch.split(counts, rows)]
        columns = (
            torch.split(counts, rows),
            torch.split(ids, entries),
            torch.split(scores, entries),
        )
        return [list(part) for part in zip(*columns, strict=True)]

    ranks = range(group.size)
    (counts, indices, values), is_own = group.joined(lambda: message, join, dealt if deal else None)
    return _compressed([counts.long(), indices, values], layout.columns), is_own


def all_scores(queries: Tensor, shard: Shard, group: Group) -> Tensor:
    """Every score (M, N), float64, on every process."""
    parts = group.gather(lambda: [shard.scores(queries).T.contiguous()])
    return torch.cat([part[0] for part in parts]).T.contiguous()


def _message(found: SparseRows, layout: Layout) -> list[Tensor]:
    """Candidates per query, their ids and their scores: 16 bytes each and 4 for each query."""
    return [found.counts.to(torch.int32), layout.ids(found.indices), found.values]


def joined(messages: Sequence[Sequence[Tensor]], columns: int) -> SparseRows:
    """All candidates of each query, by increasing id."""
    counts = torch.stack([counts.long() for counts, *_ in messages])
    ids = torch.cat([message[1] for message in messages])
    scores = torch.cat([message[2] for message in messages])
    offsets = torch.nn.functional.pad(counts.sum(0).cumsum(0), (1, 0))
    # Ids of a message increase within a query; where those of the messages follow each other, the
    # place of an entry is known without sorting.
    before = offsets[:-1] + counts.cumsum(0) - counts  # (messages, queries)
    starts = counts.flatten().cumsum(0) - counts.flatten()
    place = torch.repeat_interleave(before.flatten() - starts, counts.flatten())
    place += torch.arange(place.numel())
    ordered = torch.empty_like(ids).index_copy_(0, place, ids)
    values = torch.empty_like(scores).index_copy_(0, place, scores)
    found = SparseRows(offsets, ordered, values, columns)
    row = found.row_of_entry
    if bool(((ordered.diff() < 0) & (row.diff() == 0)).any()):
        order = ordered.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        found = SparseRows(offsets, ordered[order], values[order], columns)
    return found
