"""What is looked for: which score, and how far below the best ones."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hopfy._kernels.select import Measure

__all__ = ["TIES", "Problem"]

TIES = 1e-12
"""Widens a reach by this share of the best score, so that ties survive rounding."""


class Problem(NamedTuple):
    """M queries and what is looked for: scores above the rank-th best one minus ``reach``.

    Attributes:
        queries: (M, S) float64, what exact scores are computed from.
        bounded: (M, W) float64, the same in the coordinates of the stored rows.
        constant: (M,) float64, what an exact score adds to ``bounded . row + bias``.
        known: (M, W) or (1, W) booleans for `Measure.PARTIAL`, else None.
        bias: (N,) float32 and ``bias_error`` (blocks,), how far it may be off; None: zero.
        measure: which score.
        rank: at least 1.
        reach: (M,) float64.
        floors: (M,) float64; scores at or below have no part in the answer.
        nudge: `TIES`, or 0: a tie with the rank-th best loses to the memory stored first.
    """

    queries: Tensor
    bounded: Tensor
    constant: Tensor | None
    known: Tensor | None
    bias: Tensor | None
    bias_error: Tensor | None
    measure: Measure
    rank: int
    reach: Tensor
    floors: Tensor
    nudge: float

    def take(self, places: Tensor) -> Problem:
        """The same for some of the queries."""
        if places.numel() == self.queries.shape[0]:
            return self  # places increase: they are all of them
        known = self.known
        return self._replace(
            queries=self.queries[places],
            bounded=self.bounded[places],
            constant=None if self.constant is None else self.constant[places],
            known=known[places] if known is not None and known.shape[0] > 1 else known,
            reach=self.reach[places],
            floors=self.floors[places],
        )
