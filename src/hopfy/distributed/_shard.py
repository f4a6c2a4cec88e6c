"""The memories of one process and exact searches among them."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.search import ExactIndex, SparseRows

__all__ = ["TIES", "Layout", "Shard", "kth_best"]

TIES = 1e-12
"""A reach is widened by this share of the best score, so that ties survive rounding."""
_SCRATCH = 1 << 31
"""Bytes of candidates that one search may return before the shards have agreed on a bound."""


class Layout:
    """How many memories each process holds; ids count them in the order of the ranks."""

    def __init__(self, counts: list[int], rank: int) -> None:
        self.counts, self.rank = counts, rank
        self.starts = [sum(counts[:r]) for r in range(len(counts) + 1)]

    @property
    def total(self) -> int:
        return self.starts[-1]

    @property
    def first(self) -> int:
        """The id of the first memory of this process."""
        return self.starts[self.rank]

    @property
    def stop(self) -> int:
        return self.starts[self.rank + 1]

    def is_own(self, ids: Tensor) -> Tensor:
        """Which ids belong to this process."""
        return (ids >= self.first) & (ids < self.stop)


class Shard:
    """Memories (n, D) of one process; n may be 0. Scores are float64, by the index's one rule."""

    def __init__(self, memories: Tensor) -> None:
        self.memories = memories
        self._index: tuple[int, ExactIndex] | None = None

    def __len__(self) -> int:
        return self.memories.shape[0]

    @property
    def index(self) -> ExactIndex:
        """An index of the memories as they are now."""
        version = 0 if self.memories.is_inference() else self.memories._version
        if self._index is None or self._index[0] != version:
            self._index = (version, ExactIndex(self.memories.detach()))
        return self._index[1]

    def near_best(self, queries: Tensor, reach: Tensor, rank: int) -> SparseRows:
        """Scores above the ``rank``-th best one of this shard minus ``reach`` (M,).

        All memories if there are no more than ``rank``.
        """
        if not len(self) or not len(queries):
            return self.nothing(len(queries))
        size = max(1, _SCRATCH // (16 * len(self)))
        parts = [
            self.index.near_best(some, far, min(rank, len(self)))
            for some, far in zip(torch.split(queries, size), torch.split(reach, size), strict=True)
        ]
        return SparseRows.stack(parts)

    def scores(self, queries: Tensor) -> Tensor:
        """All scores (M, n), float64; NaN where a query is not finite."""
        if not len(self) or not len(queries):
            return torch.zeros(len(queries), len(self), dtype=torch.float64)
        anywhere = torch.full((len(queries),), torch.inf, dtype=torch.float64)
        found = self.index.near_best(queries, anywhere, 1).dense()
        return torch.where(queries.isfinite().all(-1, keepdim=True), found, torch.nan)

    def nothing(self, rows: int) -> SparseRows:
        """No candidates."""
        like = torch.empty(0, dtype=torch.float64)
        return SparseRows.empty(rows, len(self), like)


def kth_best(found: SparseRows, k: int) -> Tensor:
    """The k best values (rows, k) of each row, best first; -inf where a row has fewer."""
    best = torch.full((found.rows, k), -torch.inf, dtype=torch.float64)
    if not found.values.numel():
        return best
    order = found.values.argsort(descending=True, stable=True)
    row = found.row_of_entry[order]
    order = order[row.argsort(stable=True)]
    place = torch.arange(order.numel()) - found.offsets[:-1][found.row_of_entry]
    kept = place < k
    best[found.row_of_entry[kept], place[kept]] = found.values[order[kept]]
    return best
