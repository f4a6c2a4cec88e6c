r"""Alpha-normmax: the argmax of :math:`\langle\theta, y\rangle - \Omega^N_\alpha(y)` (Eq. 14).

The Lagrangian is stationary (Eq. 15) where :math:`y_i = r_i \|y\|_\alpha` (Eq. 16) with
:math:`r_i = (\theta_i - \mu)_+^{1/(\alpha-1)}`; as y sums to 1, its norm is :math:`1 / \sum r`
(Eq. 17) and :math:`y = r / \sum r` (Eq. 18). Taking the norm of both sides of Eq. 16,
:math:`\mu` solves :math:`\sum (\theta_i - \mu)_+^{\alpha/(\alpha-1)} = 1` (Eq. 19), between
:math:`\theta_{\max} - 1` and :math:`\theta_{\max} - N^{1-\alpha}` (Eq. 20): the threshold equation
with :math:`\gamma = \alpha/(\alpha-1) > 1`. At :math:`\alpha = \infty` the threshold is
sparsemax's and the weights are uniform over its support (the Berger-Parker limit).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.normmax.reference import logarithms
from hopfy._kernels.rows.operation import vjp_of
from hopfy._runtime.backends import kernels_for

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    weights: Tensor = kernels_for("normmax", scores).solve(scores, alpha)
    return weights


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores, :math:`J v`.

    With :math:`r = y / \|y\|_\alpha` and :math:`\kappa = \|y\|_\alpha\, r^{2-\alpha} / (\alpha-1)`
    on the support, :math:`J = (I - y 1^\top)\, \mathrm{diag}(\kappa)\, (I - 1 y^\top)`. In
    differentiable torch operations while autograd records.
    """
    return vjp_of("normmax", weights, alpha, cotangent)


def slope(weights: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\partial y / \partial\alpha = -J\, \partial_\alpha \nabla\Omega(y)`, as for any regularizer.

    Here :math:`\nabla\Omega = r^{\alpha-1}` with :math:`r = y / \|y\|_\alpha`.
    """
    support, alpha, logs, log_norm, log_r = logarithms(weights, alpha)
    mass = torch.where(support, torch.exp(alpha * log_r), 0.0)  # r^alpha sums to one
    slope_of_norm = ((mass * logs).sum(-1, keepdim=True) - log_norm) / alpha
    change = torch.exp((alpha - 1) * log_r) * (log_r - (alpha - 1) * slope_of_norm)
    return -vjp(weights, alpha, change)
