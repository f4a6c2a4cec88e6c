"""Normmax in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.threshold.reference import distances, power_of_rest, solve_convex

__all__ = ["logarithms", "solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    exponent = 1 / (alpha - 1)
    x = distances(scores, 1.0)
    s = solve_convex(x, 1 + exponent)
    weights = power_of_rest(x / s, exponent)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores, :math:`J v`.

    With :math:`r = y / \|y\|_\alpha` and :math:`\kappa = \|y\|_\alpha\, r^{2-\alpha} / (\alpha-1)`
    on the support, :math:`J = (I - y 1^\top)\, \mathrm{diag}(\kappa)\, (I - 1 y^\top)`.
    """
    support, alpha, _, log_norm, log_r = logarithms(weights, alpha)
    limit = torch.finfo(weights.dtype).max ** 0.5
    kappa = torch.exp(log_norm + (2 - alpha) * log_r).clamp_max(limit) / (alpha - 1)
    inner = torch.where(support, cotangent, 0.0)
    y = torch.where(support, weights, 0.0)
    centered = torch.where(support, kappa * (inner - (y * inner).sum(-1, keepdim=True)), 0.0)
    gradient = centered - y * centered.sum(-1, keepdim=True)
    return torch.where(weights.isnan(), torch.nan, gradient)


def logarithms(weights: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The support, a finite alpha, log y, log ||y|| and log r, with harmless values outside."""
    finite = alpha < torch.inf
    alpha = torch.where(finite, alpha, 2.0)
    support = (weights > 0) & finite
    logs = torch.log(torch.where(support, weights, 1.0))
    nothing = ~support.any(-1, keepdim=True)
    terms = torch.where(nothing, 0.0, torch.where(support, alpha * logs, -torch.inf))
    log_norm = torch.logsumexp(terms, -1, keepdim=True) / alpha
    return support, alpha, logs, log_norm, torch.where(support, logs - log_norm, 0.0)
