r"""Alpha-entmax: the argmax of :math:`\langle\theta, y\rangle - \Omega^T_\alpha(y)` (Eq. 4).

The solution is :math:`p_i = [(\alpha - 1)\theta_i - \tau]_+^{1/(\alpha-1)}`. Three regimes share it:

* :math:`1 < \alpha \le 2`: the convex root search of `hopfy._kernels.threshold.reference`;
* :math:`\alpha > 2`: the exponent is below one and the search in :math:`\tau` is ill-conditioned at
  the edge of the support. With :math:`w`, the smallest positive weight, every other weight is
  :math:`p_i = (w^{a} + x_k - x_i)^{1/a}`, :math:`a = \alpha - 1`: the :math:`\ell_a` norm of
  :math:`(w, (x_k - x_i)^{1/a})`, convex in :math:`w` with slope in [0, 1]. Newton in w is exact;
* :math:`\alpha = 1` is softmax and :math:`\alpha = \infty` shares the mass among the maxima.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.rows.operation import vjp_of
from hopfy._runtime.backends import kernels_for

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    weights: Tensor = kernels_for("entmax", scores).solve(scores, alpha)
    return weights


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores: :math:`g (v - \bar v)`, averaged with weights g.

    The Jacobian is :math:`J = \mathrm{diag}(g) - g g^\top / \sum g` with :math:`g = p^{2-\alpha}` on
    the support. In differentiable torch operations while autograd records.
    """
    return vjp_of("entmax", weights, alpha, cotangent)


def slope(weights: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\partial p / \partial\alpha = -J\, \partial_\alpha \nabla\Omega(p)`, as for any regularizer.

    Here :math:`\partial_\alpha\nabla\Omega = \ell^2 \varphi((\alpha - 1)\ell)` with
    :math:`\ell = \log p` and :math:`\varphi(t) = (t e^t - e^t + 1) / t^2`: finite at alpha = 1.
    """
    logs = torch.log(torch.where(weights > 0, weights, 1.0))
    finite_alpha = torch.where(alpha < torch.inf, alpha, 2.0)
    return -vjp(weights, alpha, logs.square() * _phi((finite_alpha - 1) * logs))


def _phi(t: Tensor) -> Tensor:
    r""":math:`(t e^t - e^t + 1)/t^2 = \sum_n t^n / (n!\,(n + 2))`."""
    small = t.abs() < 0.5
    far = torch.where(small, 1.0, t)
    direct = (far * torch.exp(far) - torch.expm1(far)) / far.square()
    near = torch.where(small, t, 0.0)
    term, series = torch.ones_like(near), torch.zeros_like(near)
    for n in range(14):
        series = series + term / (n + 2)
        term = term * near / (n + 1)
    return torch.where(small, series, direct)
