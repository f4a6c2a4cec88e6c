r"""Alpha-normmax: the argmax of :math:`\langle\theta, y\rangle - \Omega^N_\alpha(y)` (Eq. 5, App. B).

With :math:`r_i = (\theta_i - \mu)_+^{1/(\alpha-1)}` the solution is :math:`y = r / \sum r`, where
:math:`\mu` solves :math:`\sum (\theta_i - \mu)_+^{\alpha/(\alpha-1)} = 1`: the threshold equation
with :math:`\gamma = \alpha/(\alpha-1) > 1`. At :math:`\alpha = \infty` the threshold is
sparsemax's and the weights are uniform over its support (the Berger-Parker limit).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.row_calls import run_backward, run_forward
from hopfy._kernels.threshold.reference import distances, power_of_rest, solve_convex
from hopfy._runtime.compilation import compiled, runs_compiled

__all__ = ["reference", "slope", "solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    loops = compiled("threshold.cpu") if runs_compiled(scores) else None
    if loops is None:
        return reference(scores, alpha)
    return run_forward(loops.normmax_forward, scores, alpha)[0]


def reference(scores: Tensor, alpha: Tensor) -> Tensor:
    """The same in plain torch, on any device, without reading a value back."""
    exponent = 1 / (alpha - 1)
    x = distances(scores, 1.0)
    s = solve_convex(x, 1 + exponent)
    weights = power_of_rest(x / s, exponent)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores, :math:`J v`.

    With :math:`r = y / \|y\|_\alpha` and :math:`\kappa = \|y\|_\alpha\, r^{2-\alpha} / (\alpha-1)`
    on the support, :math:`J = (I - y 1^\top)\, \mathrm{diag}(\kappa)\, (I - 1 y^\top)`. In
    differentiable torch operations while a graph is recorded, else compiled.
    """
    loops = (
        compiled("threshold.cpu")
        if runs_compiled(weights) and not torch.is_grad_enabled()
        else None
    )
    if loops is not None:
        return run_backward(loops.normmax_backward, weights, alpha, cotangent)
    support, alpha, _, log_norm, log_r = _logarithms(weights, alpha)
    limit = torch.finfo(weights.dtype).max ** 0.5
    kappa = torch.exp(log_norm + (2 - alpha) * log_r).clamp_max(limit) / (alpha - 1)
    inner = torch.where(support, cotangent, 0.0)
    y = torch.where(support, weights, 0.0)
    centred = torch.where(support, kappa * (inner - (y * inner).sum(-1, keepdim=True)), 0.0)
    gradient = centred - y * centred.sum(-1, keepdim=True)
    return torch.where(weights.isnan(), torch.nan, gradient)


def slope(weights: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\partial y / \partial\alpha = -J\, \partial_\alpha \nabla\Omega(y)`, as for any regulariser.

    Here :math:`\nabla\Omega = r^{\alpha-1}` with :math:`r = y / \|y\|_\alpha`.
    """
    support, alpha, logs, log_norm, log_r = _logarithms(weights, alpha)
    mass = torch.where(support, torch.exp(alpha * log_r), 0.0)  # r^alpha sums to one
    slope_of_norm = ((mass * logs).sum(-1, keepdim=True) - log_norm) / alpha
    change = torch.exp((alpha - 1) * log_r) * (log_r - (alpha - 1) * slope_of_norm)
    return -vjp(weights, alpha, change)


def _logarithms(weights: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The support, a finite alpha, log y, log ||y|| and log r, with harmless values outside."""
    finite = alpha < torch.inf
    alpha = torch.where(finite, alpha, 2.0)
    support = (weights > 0) & finite
    logs = torch.log(torch.where(support, weights, 1.0))
    nothing = ~support.any(-1, keepdim=True)
    terms = torch.where(nothing, 0.0, torch.where(support, alpha * logs, -torch.inf))
    log_norm = torch.logsumexp(terms, -1, keepdim=True) / alpha
    return support, alpha, logs, log_norm, torch.where(support, logs - log_norm, 0.0)
