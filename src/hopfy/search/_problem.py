"""What is looked for: which score, and how far below the best ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._kernels.select import Measure
from hopfy.omega import Omega

__all__ = ["TIES", "Problem", "Reach", "gives_all_to_one", "is_softmax", "reach_of"]

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


class Reach(NamedTuple):
    """Only scores above the ``rank``-th best one minus ``distance`` can get weight."""

    rank: int
    distance: Tensor


def reach_of(omega: Omega, beta: float | Tensor, queries: int) -> Reach | None:
    r"""Where the support of ``omega`` must lie, in units of the scores; None: anywhere.

    ``beta`` is a number or (M,); the distance is (M,), float64.
    """
    reach = _asked(omega)
    if reach is None:
        return None
    rank, distance = reach
    betas = torch.as_tensor(beta, dtype=torch.float64, device="cpu").expand(queries)
    return Reach(rank, distance / betas)


def _asked(omega: Omega) -> tuple[int, float] | None:
    import math

    from hopfy.omega import Norm, SparseMAP, Tsallis
    from hopfy.structures import KSubsets

    if isinstance(omega, SparseMAP) and isinstance(omega.structure, KSubsets):
        k = omega.structure.k
        if isinstance(k, Tensor) and k.ndim:
            raise ValueError(f"expected an omega with one k for all queries, got {omega!r}.")
        return max(1, math.ceil(float(k))), 1.0
    if isinstance(omega, Tsallis | Norm):
        if isinstance(omega.alpha, Tensor) and omega.alpha.ndim:
            raise ValueError(f"expected an omega with one alpha for all queries, got {omega!r}.")
        return (1, omega.margin) if math.isfinite(omega.margin) else None
    return None


def is_softmax(omega: Omega) -> bool:
    import math

    from hopfy.omega import Shannon, Tsallis

    return isinstance(omega, Shannon) or (isinstance(omega, Tsallis) and omega.margin == math.inf)


def gives_all_to_one(omega: Omega) -> bool:
    """Whether a score alone within reach gets weight 1."""
    from hopfy.omega import Norm, Tsallis

    return isinstance(omega, Norm | Tsallis)
