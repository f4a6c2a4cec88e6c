"""K-subsets in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.threshold.reference import steps_for

__all__ = ["short_row", "slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); a row with fewer than k finite scores takes all of them."""
    kept = scores > -torch.inf
    available = kept.sum(-1, keepdim=True)
    spoiled = scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True)
    k = torch.minimum(k, available.to(k.dtype))
    last = (torch.ceil(k).long() - 1).clamp(0, max(scores.shape[-1] - 1, 0))
    pivot = scores.sort(-1, descending=True).values.gather(-1, last)
    d = torch.where(kept & ~spoiled, scores - pivot, -torch.inf)
    low = -torch.ones_like(pivot)
    high = torch.zeros_like(pivot)
    for _ in range(steps_for(scores.dtype)):
        middle = (low + high) / 2
        above = _precise_sum((d - middle).clamp(0, 1)) >= k
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
    total = _precise_sum(torch.where(between, d, 0.0)) + ones.sum(-1, keepdim=True) - k
    return torch.where(count > 0, total / count.clamp_min(1), tau).to(d.dtype)


def _precise_sum(rows: Tensor) -> Tensor:
    """Sums in float64 where the device has it: many entries near 1 leave few digits for k."""
    return rows.sum(-1, keepdim=True, dtype=None if rows.device.type == "mps" else torch.float64)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores.

    Between 0 and 1 the map is :math:`\theta - \tau` with one shared :math:`\tau`, so the Jacobian
    centers the cotangent over those entries; elsewhere it is zero.
    """
    between = (weights > 0) & (weights < 1)
    mean = (slope(weights, k) * cotangent).sum(-1, keepdim=True)
    return torch.where(weights.isnan(), torch.nan, torch.where(between, cotangent - mean, 0.0))


def slope(weights: Tensor, k: Tensor) -> Tensor:
    r""":math:`\partial y / \partial k`: one more unit is shared by the entries between 0 and 1."""
    between = (weights > 0) & (weights < 1)
    share = 1 / between.sum(-1, keepdim=True).clamp_min(1).to(weights.dtype)
    return torch.where(between, share, 0.0)


def short_row(row: int) -> ValueError:
    """The error for a row that has fewer entries to select from than k."""
    return ValueError(
        f"expected k <= the number of unmasked entries of every row, but row {row} has "
        "fewer (counting rows over all leading dimensions); lower k there or unmask entries."
    )
