"""Capped sparsemax in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.threshold.reference import steps_for

__all__ = ["poor_row", "solve", "tolerance", "upper_jvp", "upper_vjp", "vjp"]


def solve(scores: Tensor, upper: Tensor) -> Tensor:
    r"""Weights (..., N) of scores (..., N); ``upper`` broadcasts to the scores.

    Let the p-th best score be the first at which the upper bounds of the best add up to one. The
    threshold lies between it and one below it: a bisection there finds which entries are free, and one
    division gives the threshold exactly.
    """
    kept = scores > -torch.inf
    spoiled = scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True)
    upper = upper.to(scores).clamp_max(1).expand(scores.shape)
    caps = torch.where(kept & ~spoiled, upper, 0.0)
    d = torch.where(kept & ~spoiled, scores - _pivot(scores, caps), -torch.inf)
    low, high = -torch.ones_like(d[..., :1]), torch.zeros_like(d[..., :1])
    for _ in range(steps_for(scores.dtype)):
        middle = (low + high) / 2
        above = _precise_sum(_clipped(d - middle, caps)) >= 1
        low = torch.where(above, middle, low)
        high = torch.where(above, high, middle)
    weights = _clipped(d - _exact_threshold(d, caps, low), caps)
    poor = _precise_sum(caps) <= 1
    weights = torch.where(poor, caps, weights)
    return torch.where(spoiled, torch.nan, weights)


def _pivot(scores: Tensor, caps: Tensor) -> Tensor:
    ordered = scores.sort(-1, descending=True)
    wide = None if caps.device.type == "mps" else torch.float64
    room = caps.gather(-1, ordered.indices).cumsum(-1, dtype=wide)
    place = (room < 1 - tolerance(scores.dtype, scores.shape[-1])).sum(-1, keepdim=True)
    pivot = ordered.values.gather(-1, place.clamp_max(scores.shape[-1] - 1))
    return torch.where(pivot > -torch.inf, pivot, 0.0)


def _clipped(rooms: Tensor, caps: Tensor) -> Tensor:
    return torch.minimum(rooms.clamp_min(0), caps)


def _exact_threshold(d: Tensor, caps: Tensor, tau: Tensor) -> Tensor:
    """Solve the linear piece that ``tau`` lies on; where it is flat, ``tau`` already is exact."""
    full = (d - tau) >= caps
    free = (d > tau) & ~full
    count = free.sum(-1, keepdim=True)
    total = _precise_sum(torch.where(free, d, torch.where(full, caps, 0.0))) - 1
    return torch.where(count > 0, total / count.clamp_min(1), tau).to(d.dtype)


def _precise_sum(rows: Tensor) -> Tensor:
    return rows.sum(-1, keepdim=True, dtype=None if rows.device.type == "mps" else torch.float64)


def tolerance(dtype: torch.dtype, size: int) -> float:
    """How far the sum of upper bounds may miss one by rounding alone."""
    return float(torch.finfo(dtype).eps) * max(size, 64)


def poor_row(row: int) -> ValueError:
    """The error for a row whose upper bounds leave no room for a total of one."""
    return ValueError(
        f"expected upper bounds that add up to 1 or more over the unmasked entries of every row, but "
        f"those of row {row} add up to less (counting rows over all leading dimensions); raise them "
        "or unmask entries."
    )


# --- derivatives ----------------------------------------------------------------------------------


def vjp(weights: Tensor, upper: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores: the cotangent, centered over the free entries."""
    free, _ = _parts(weights, upper)
    centered = torch.where(free, cotangent - _mean(free, cotangent), 0.0)
    return torch.where(weights.isnan(), torch.nan, centered)


def upper_vjp(weights: Tensor, upper: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the upper bounds, one for each entry (..., N).

    A full entry takes what the free ones lose, each the same: :math:`v_j - \bar v` with the mean over
    the free entries. Where none is free, there is no derivative: the full ones then share the loss,
    so that the weights still add up to one.
    """
    free, full = _parts(weights, upper)
    return torch.where(full, cotangent - _mean(_giving(free, full), cotangent), 0.0)


def upper_jvp(weights: Tensor, upper: Tensor, tangent: Tensor) -> Tensor:
    """Change (..., N) of the weights with the upper bounds."""
    free, full = _parts(weights, upper)
    giving = _giving(free, full)
    gained = torch.where(full, tangent.to(weights.dtype), 0.0)
    lost = gained.sum(-1, keepdim=True) / giving.sum(-1, keepdim=True).clamp_min(1)
    return gained - torch.where(giving, lost, 0.0)


def _parts(weights: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries are free, and which are at an upper bound that binds."""
    upper = upper.to(weights)
    positive = weights > 0
    return positive & (weights < upper), positive & (weights >= upper) & (upper < 1)


def _giving(free: Tensor, full: Tensor) -> Tensor:
    """Which entries lose what the full ones gain: the free ones, or all full ones if none is free."""
    return torch.where(free.any(-1, keepdim=True), free, full)


def _mean(free: Tensor, cotangent: Tensor) -> Tensor:
    total = torch.where(free, cotangent, 0.0).sum(-1, keepdim=True)
    return total / free.sum(-1, keepdim=True).clamp_min(1)
