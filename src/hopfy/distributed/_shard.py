"""The memories of one process and exact searches among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.search import ExactIndex, Metric, SparseRows

__all__ = ["TIES", "Layout", "Numbered", "Promising", "Shard", "kth_best"]

TIES = 1e-12
"""A reach is widened by this share of the best score, so that ties survive rounding."""
_SCRATCH = 1 << 31
"""Bytes of candidates that one search may return before the shards have agreed on a bound."""


_FEW = 16
_OFTEN = 4
"""A shard that has to search again for one query in four searches by its own reach next time."""
_WASTED = 8
"""And back again where it finds more than eight times what is sent."""


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

    @property
    def columns(self) -> int:
        """One more than the largest id."""
        return self.total

    def is_own(self, ids: Tensor) -> Tensor:
        """Which ids belong to this process."""
        return (ids >= self.first) & (ids < self.stop)

    def places(self, own: Tensor) -> Tensor:
        """The rows of this process's memories with these ids."""
        return own - self.first

    def ids(self, places: Tensor) -> Tensor:
        """The ids of this process's memories in these rows."""
        return places + self.first

    @property
    def needs_ids(self) -> bool:
        """Whether only the owner knows which ids are its own."""
        return False


class Numbered(Layout):
    """Memories that carry numbers, increasing on each process and different on all.

    Which process has which number is known to that process alone.
    """

    def __init__(self, counts: list[int], rank: int, numbers: Tensor, columns: int) -> None:
        super().__init__(counts, rank)
        self._numbers, self._columns = numbers, columns

    @property
    def columns(self) -> int:
        return self._columns

    def is_own(self, ids: Tensor) -> Tensor:
        if not len(self._numbers):
            return torch.zeros_like(ids, dtype=torch.bool)
        return self._numbers[self.places(ids)] == ids

    def places(self, own: Tensor) -> Tensor:
        last = max(0, len(self._numbers) - 1)
        return torch.searchsorted(self._numbers, own).clamp_max(last)

    def ids(self, places: Tensor) -> Tensor:
        return self._numbers[places]

    @property
    def needs_ids(self) -> bool:
        return True


class Promising(NamedTuple):
    """Scores above a shard's own reach, or its ``few`` best of each query."""

    found: SparseRows
    few: int | None


class Shard:
    """Memories (n, D) of one process; n may be 0. Scores are float64, by the index's one rule.

    ``index``, if given, is one of these memories, which do not change.
    """

    def __init__(self, memories: Tensor, index: ExactIndex | None = None) -> None:
        self.memories = memories
        self._index = None if index is None else (self._version, index)
        self._norm: tuple[int, Tensor] | None = None
        self._by_own_reach = False

    def __len__(self) -> int:
        return self.memories.shape[0]

    @property
    def index(self) -> ExactIndex:
        """An index of the memories as they are now."""
        if self._index is None or self._index[0] != self._version:
            self._index = (self._version, ExactIndex(self.memories.detach()))
        return self._index[1]

    @property
    def _version(self) -> int:
        return 0 if self.memories.is_inference() else self.memories._version

    @property
    def largest_norm(self) -> Tensor:
        """The largest norm of a memory, (1,) float64; 0 where there is none."""
        if self._norm is None or self._norm[0] != self._version:
            norms = torch.linalg.vector_norm(self.memories.detach(), dim=-1)
            largest = torch.cat([norms, norms.new_zeros(1)]).amax(0, keepdim=True).double()
            self._norm = (self._version, largest)
        return self._norm[1]

    def near_best(
        self,
        queries: Tensor,
        reach: Tensor,
        rank: int,
        metric: Metric = "inner",
        known: Tensor | None = None,
    ) -> SparseRows:
        """Scores above the ``rank``-th best one of this shard minus ``reach`` (M,).

        All memories if there are no more than ``rank``. ``known`` (M, D) or (1, D): see
        `ExactIndex.near_best`.
        """
        if not len(self) or not len(queries):
            return self.nothing(len(queries))
        size = max(1, _SCRATCH // (16 * len(self)))
        parts = []
        for some in torch.split(torch.arange(len(queries)), size):
            own = known if known is None or len(known) == 1 else known[some]
            least = min(rank, len(self))
            parts.append(
                self.index.near_best(queries[some], reach[some], least, metric=metric, mask=own)
            )
        return SparseRows.stack(parts)

    def promising(
        self, queries: Tensor, reach: Tensor, rank: int, metric: Metric, known: Tensor | None
    ) -> Promising:
        """What to look at before the shards have agreed on the best scores.

        What is within reach of a shard's own best score may be a large part of it where the query's
        pattern is elsewhere; its few best scores mostly hold what is within reach of the global
        best. Which of the two is found follows from the calls before; answers do not depend on it.
        """
        if self._by_own_reach:
            return Promising(self.near_best(queries, reach, rank, metric, known), None)
        few = max(_FEW, rank)
        nowhere = torch.zeros(len(queries), dtype=torch.float64)
        return Promising(self.near_best(queries, nowhere, few, metric, known), few)

    def above(
        self,
        floor: Tensor,
        promising: Promising,
        queries: Tensor,
        metric: Metric,
        known: Tensor | None,
    ) -> SparseRows:
        """All scores above ``floor`` (M,), which is no lower than this shard's own reach."""
        found, few = promising
        kept = found.kept(found.values > floor[found.row_of_entry])
        if few is None:
            useful = kept.values.numel() + _FEW * kept.rows
            self._by_own_reach = found.values.numel() <= _WASTED * useful
            return kept
        cut = kept.counts >= min(few, len(self) + 1)  # there may be more where these come from
        if not bool(cut.any()):
            return kept
        rows = cut.nonzero().flatten()
        self._by_own_reach = _OFTEN * len(rows) > len(cut)
        top = kth_best(found, 1)[rows, 0]
        own = known if known is None or len(known) == 1 else known[rows]
        more = self.near_best(queries[rows], (top - floor[rows]).clamp_min(0.0), 1, metric, own)
        more = more.kept(more.values > floor[rows][more.row_of_entry])
        whole = (~cut).nonzero().flatten()
        return SparseRows.assemble([(whole, kept.take(whole)), (rows, more)])

    def scores(
        self, queries: Tensor, metric: Metric = "inner", known: Tensor | None = None
    ) -> Tensor:
        """All scores (M, n), float64; NaN where a query is not finite."""
        if not len(self) or not len(queries):
            return torch.zeros(len(queries), len(self), dtype=torch.float64)
        anywhere = torch.full((len(queries),), torch.inf, dtype=torch.float64)
        found = self.near_best(queries, anywhere, 1, metric, known).dense()
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
