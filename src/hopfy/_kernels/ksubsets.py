r"""K-subsets: the projection of the scores onto :math:`\{y \in [0,1]^N : 1^\top y = k\}` (Example 1).

The solution is :math:`y_i = \min(1, (\theta_i - \tau)_+)`. With :math:`K = \lceil k \rceil` and the
K-th largest score :math:`\theta_{(K)}`, the threshold lies in
:math:`[\theta_{(K)} - 1, \theta_{(K)}]`: a bisection there finds which entries are 0, 1 or between,
and one division by the number of entries between gives the threshold exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels._threshold import steps_for

__all__ = ["reference", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    return reference(scores, k)


def reference(scores: Tensor, k: Tensor) -> Tensor:
    """The same in plain torch; a row with fewer than k finite scores takes all of them."""
    kept = scores > -torch.inf
    available = kept.sum(-1, keepdim=True)
    spoiled = scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True)
    k = torch.minimum(k.to(scores.dtype), available.to(scores.dtype))
    last = (torch.ceil(k).long() - 1).clamp(0, max(scores.shape[-1] - 1, 0))
    pivot = scores.sort(-1, descending=True).values.gather(-1, last)
    d = torch.where(kept & ~spoiled, scores - pivot, -torch.inf)
    low = -torch.ones_like(pivot)
    high = torch.zeros_like(pivot)
    for _ in range(steps_for(scores.dtype)):
        middle = (low + high) / 2
        above = (d - middle).clamp(0, 1).sum(-1, keepdim=True) >= k
        low = torch.where(above, middle, low)
        high = torch.where(above, high, middle)
    tau = _exact_threshold(d, low, k)
    weights = torch.where(kept & (k > 0), (d - tau).clamp(0, 1), 0.0)
    return torch.where(spoiled, torch.nan, weights)


def _exact_threshold(d: Tensor, tau: Tensor, k: Tensor) -> Tensor:
    """Solve the linear piece that ``tau`` lies on; where it is flat, ``tau`` already is exact."""
    ones = (d - tau) >= 1
    between = (d > tau) & ~ones
    count = between.sum(-1, keepdim=True)
    total = torch.where(between, d, 0.0).sum(-1, keepdim=True) + ones.sum(-1, keepdim=True) - k
    return torch.where(count > 0, total / count.clamp_min(1), tau)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Gradients with respect to the scores and to k, as differentiable torch operations.

    Between 0 and 1 the map is :math:`\theta - \tau` with one shared :math:`\tau`, so the Jacobian
    centres the cotangent over those entries, and :math:`\partial y / \partial k` is uniform there.
    """
    between = (weights > 0) & (weights < 1)
    inner = torch.where(between, cotangent, 0.0)
    count = between.sum(-1, keepdim=True).clamp_min(1)
    mean = inner.sum(-1, keepdim=True) / count
    grad = torch.where(between, inner - mean, 0.0)
    return torch.where(weights.isnan(), torch.nan, grad), mean.expand(*mean.shape[:-1], 1)
