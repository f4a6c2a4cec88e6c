"""At most k in plain torch, around `hopfy._kernels.ksubsets`, whatever backend serves that."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels import ksubsets

__all__ = ["rounding", "slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    available = (scores > -torch.inf).sum(-1, keepdim=True)
    return _either(scores, k, ksubsets.solve(scores, torch.minimum(k, available.to(k.dtype))))


def _either(scores: Tensor, k: Tensor, tight: Tensor) -> Tensor:
    clipped = scores.clamp(0, 1)
    slack = clipped.sum(-1, keepdim=True) <= k.to(scores.dtype)
    spoiled = tight.isnan().any(-1, keepdim=True)
    return torch.where(slack & ~spoiled, clipped, tight)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores; a row that spends less than k only clips."""
    clipped = torch.where((weights > 0) & (weights < 1), cotangent, 0.0)
    return torch.where(_has_slack(weights, k), clipped, ksubsets.vjp(weights, k, cotangent))


def slope(weights: Tensor, k: Tensor) -> Tensor:
    """Derivative by k, which does not matter to a row that spends less."""
    return torch.where(_has_slack(weights, k), 0.0, ksubsets.slope(weights, k))


def _has_slack(weights: Tensor, k: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True) < k.to(weights.dtype) - rounding(weights)


def rounding(weights: Tensor) -> float:
    """How far below k the sum of a row may come out that spends all of it."""
    return 8 * torch.finfo(weights.dtype).eps * weights.shape[-1]
