r"""Entropic k-subsets: :math:`\arg\max_y \langle\theta, y\rangle + H(y)` over :math:`1^\top y = k`.

H is the sum of binary entropies, so that :math:`y_i = \sigma(\theta_i - \tau)` where the threshold
:math:`\tau` makes the weights sum to k. Every weight lies strictly between 0 and 1 until it is too
close to them for a float.
"""

from __future__ import annotations

from torch import Tensor

from hopfy._kernels.entropic_ksubsets import reference
from hopfy._kernels.entropic_ksubsets.reference import slope
from hopfy._kernels.ksubsets import refuse_short_rows
from hopfy._kernels.rows.operation import solve_checked, vjp_of

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1).

    A row with fewer finite scores than k is refused where values can be read without waiting for a
    device; elsewhere it takes all of them.
    """
    return solve_checked("entropic_ksubsets", scores, k, reference, refuse_short_rows)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores, :math:`(\mathrm{diag}(g) - g g^\top / 1^\top g)\, v`.

    :math:`g = y (1 - y)` is the slope of the sigmoid.
    """
    return vjp_of("entropic_ksubsets", weights, k, cotangent)
