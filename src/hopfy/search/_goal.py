r"""How far below the best scores a map looks."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis
from hopfy.structures import KSubsets

__all__ = ["Goal", "goal_of", "is_softmax"]


class Goal(NamedTuple):
    """All scores above the ``rank``-th best one minus ``reach``.

    With ``ties`` False a tie with the rank-th best loses to the memory stored first, so exactly
    ``rank`` memories are found.
    """

    rank: int
    reach: float
    ties: bool = True


def goal_of(omega: Omega, beta: float) -> Goal | None:
    r"""Where the support of ``omega`` must lie, in units of :math:`X q`; None: anywhere.

    Entmax and normmax give weight 0 to scores that trail the best by the margin, k-subsets to
    those that trail the k-th best by 1: there :math:`\tau \ge \theta_{(k)} - 1`.

    >>> import hopfy
    >>> goal_of(hopfy.Tsallis(1.5), beta=4.0)
    Goal(rank=1, reach=0.5, ties=True)
    >>> goal_of(hopfy.SparseMAP(hopfy.structures.KSubsets(3)), beta=4.0)
    Goal(rank=3, reach=0.25, ties=True)
    """
    if isinstance(omega, SparseMAP) and isinstance(omega.structure, KSubsets):
        k = omega.structure.k
        if isinstance(k, Tensor) and k.ndim:
            raise ValueError(f"expected an omega with one k for all queries, got {omega!r}.")
        return Goal(max(1, math.ceil(float(k))), 1 / beta)
    if isinstance(omega, Tsallis | Norm):
        if isinstance(omega.alpha, Tensor) and omega.alpha.ndim:
            raise ValueError(f"expected an omega with one alpha for all queries, got {omega!r}.")
        return Goal(1, omega.margin / beta) if math.isfinite(omega.margin) else None
    return None


def is_softmax(omega: Omega) -> bool:
    """Whether the map is softmax, which streams in its own way."""
    return isinstance(omega, Shannon) or (isinstance(omega, Tsallis) and omega.margin == math.inf)
