r"""At most k: the projection of the scores onto :math:`\{y \in [0,1]^N : 1^\top y \le k\}`.

Clipping to [0, 1] is the answer where it spends no more than k; elsewhere the budget is tight and the
answer is that of `hopfy._kernels.ksubsets`.
"""

from __future__ import annotations

from torch import Tensor

from hopfy._kernels.at_most_k.reference import slope
from hopfy._runtime.backends import kernels_for
from hopfy._runtime.dispatch import records_gradients

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    weights: Tensor = kernels_for("at_most_k", scores).solve(scores, k)
    return weights


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores; a row that spends less than k only clips."""
    recorded = records_gradients(weights, k, cotangent)
    gradient: Tensor = kernels_for("at_most_k", weights, recorded).vjp(weights, k, cotangent)
    return gradient
