r"""K-subsets: the projection of the scores onto :math:`\{y \in [0,1]^N : 1^\top y = k\}` (Example 1).

The solution is :math:`y_i = \min(1, (\theta_i - \tau)_+)`. With :math:`K = \lceil k \rceil` and the
K-th largest score :math:`\theta_{(K)}`, the threshold lies in
:math:`[\theta_{(K)} - 1, \theta_{(K)}]`: a bisection there finds which entries are 0, 1 or between,
and one division by the number of entries between gives the threshold exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.ksubsets import reference
from hopfy._kernels.ksubsets.reference import slope
from hopfy._kernels.rows.operation import solve_checked, vjp_of
from hopfy._runtime.dispatch import values_can_be_read

__all__ = ["refuse_short_rows", "slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1).

    A row with fewer finite scores than k is refused where values can be read without waiting for a
    device; elsewhere it takes all of them.
    """
    return solve_checked("ksubsets", scores, k, reference, refuse_short_rows)


def refuse_short_rows(scores: Tensor, k: Tensor) -> None:
    """Raise a ValueError if a row has entries, but fewer than k of them."""
    if not values_can_be_read(scores):
        return
    available = (scores > -torch.inf).sum(-1, keepdim=True)
    short = ((available > 0) & (available < k)).flatten().nonzero()
    if len(short):
        raise reference.short_row(int(short[-1]))


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores.

    Between 0 and 1 the map is :math:`\theta - \tau` with one shared :math:`\tau`, so the Jacobian
    centers the cotangent over those entries; elsewhere it is zero.
    """
    return vjp_of("ksubsets", weights, k, cotangent)
