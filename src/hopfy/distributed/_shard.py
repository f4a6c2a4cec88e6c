"""The memories of one process and exact searches among them."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._runtime.dispatch import with_version
from hopfy.search import Agreement, ExactIndex, Metric, SparseRows

__all__ = ["Layout", "Numbered", "Shard"]


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


class Shard:
    """Memories (n, D) of one process; n may be 0. Scores are float64, by the index's one rule.

    ``index``, if given, is one of these memories, which do not change.
    """

    def __init__(self, memories: Tensor, index: ExactIndex | None = None) -> None:
        self._never_changes = index is not None
        self.memories = memories if self._never_changes else with_version(memories)
        self._index = None if index is None else (self._version, index)
        self._norm: tuple[int, Tensor] | None = None

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
        return 0 if self._never_changes else self.memories._version

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
        agree: Agreement | None = None,
    ) -> SparseRows:
        """Scores above the ``rank``-th best one of this shard minus ``reach`` (M,).

        All memories if there are no more than ``rank``. ``known`` (M, D) or (1, D), and ``agree``, which
        is called once in any case: see `ExactIndex.near_best`.
        """
        if not len(self) or not len(queries):
            if agree is not None:
                agree(torch.full((len(queries), rank), -torch.inf, dtype=torch.float64))
            return self.nothing(len(queries))
        least = min(rank, len(self))
        if agree is None:
            return self.index.near_best(queries, reach, least, metric=metric, mask=known)

        def agree_on(best: Tensor) -> Tensor:
            return agree(torch.nn.functional.pad(best, (0, rank - least), value=-torch.inf))

        return self.index.near_best(
            queries, reach, least, metric=metric, mask=known, agree=agree_on
        )

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
