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

from collections.abc import Callable

import torch
from torch import Tensor

from hopfy._kernels.row_calls import run_backward, run_forward
from hopfy._kernels.threshold.reference import distances, power_of_rest, solve_convex, steps_for
from hopfy._runtime.compilation import compiled, runs_compiled

__all__ = ["reference", "slope", "solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    loops = compiled("threshold.cpu") if runs_compiled(scores) else None
    if loops is None:
        return reference(scores, alpha)
    return run_forward(loops.entmax_forward, scores, alpha)[0]


def reference(scores: Tensor, alpha: Tensor) -> Tensor:
    """The same in plain torch, on any device, without reading a value back."""
    weights = torch.zeros_like(scores)
    regimes: list[tuple[Tensor, Callable[[Tensor, Tensor], Tensor], float]] = [
        (alpha == 1, _softmax, 1.0),
        ((alpha > 1) & (alpha <= 2), _convex, 1.5),
        ((alpha > 2) & (alpha < torch.inf), _concave, 3.0),
        (alpha == torch.inf, _argmax, torch.inf),
    ]
    for here, regime, harmless in regimes:
        if here.device.type == "cpu" and not bool(here.any()):
            continue
        answer = regime(scores, torch.where(here, alpha, harmless))
        weights = torch.where(here, answer, weights)
    return weights


def _softmax(scores: Tensor, _: Tensor) -> Tensor:
    x = distances(scores, 1.0)
    weights = torch.exp(-x)
    return _normalise(weights)


def _convex(scores: Tensor, alpha: Tensor) -> Tensor:
    gamma = 1 / (alpha - 1)
    x = distances(scores, gamma)
    s = solve_convex(x, gamma)
    return _normalise(power_of_rest(x / s, gamma))


def _argmax(scores: Tensor, _: Tensor) -> Tensor:
    x = distances(scores, 1.0)
    return _normalise(torch.where(x.isnan(), x, (x == 0).to(x.dtype)))


def _concave(scores: Tensor, alpha: Tensor) -> Tensor:
    a = alpha - 1
    within = distances(scores, 1 / a) < 1
    # The edge of the support is sharp: its position needs all the digits that there are.
    precise = scores if scores.device.type == "mps" else scores.double()
    x = torch.where(within, distances(precise, 1 / a), torch.inf)
    x = torch.where(
        scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True),
        torch.nan,
        x,
    )
    inside = x < torch.pow(_largest_weight(x.pow(1 / a), a), a)
    inside = inside | (x == 0)  # the power may underflow; the maxima always belong
    edge = torch.where(inside, x, -torch.inf).amax(-1, keepdim=True)
    rest = torch.where(inside, edge - x, 0.0).pow(1 / a)
    w = 1 / inside.sum(-1, keepdim=True).clamp_min(1).to(x.dtype)
    for _ in range(steps_for(x.dtype)):
        weights, slopes = _norm_with(w, rest, a, inside)
        excess = weights.sum(-1, keepdim=True) - 1
        w = (w - excess / slopes.sum(-1, keepdim=True).clamp_min(1)).clamp_min(0)
    weights = _norm_with(w, rest, a, inside)[0]
    return torch.where(x.isnan(), torch.nan, weights).to(scores.dtype)


def _largest_weight(t: Tensor, a: Tensor) -> Tensor:
    r"""Bisection for P = max p in :math:`\sum (P^a - t_i^a)_+^{1/a} = 1`."""
    high = torch.ones_like(t[..., :1])
    low = torch.zeros_like(high)
    for _ in range(steps_for(t.dtype)):
        middle = (low + high) / 2
        ratio = (t / middle).pow(a)
        above = middle * power_of_rest(ratio, 1 / a).sum(-1, keepdim=True) >= 1
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return high


def _norm_with(w: Tensor, rest: Tensor, a: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`p = (w^a + \text{rest}^a)^{1/a}` and :math:`dp/dw = (w / p)^{a-1}`, free of overflow."""
    large, small = torch.maximum(w, rest), torch.minimum(w, rest)
    large = torch.where(large > 0, large, 1.0)
    weights = large * (1 + (small / large).pow(a)).pow(1 / a)
    weights = torch.where(inside & (torch.maximum(w, rest) > 0), weights, 0.0)
    slopes = torch.where(weights > 0, w / torch.where(weights > 0, weights, 1.0), 0.0).pow(a - 1)
    return weights, torch.where(inside, slopes, 0.0)


def _normalise(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores: :math:`g (v - \bar v)`, averaged with weights g.

    The Jacobian is :math:`J = \mathrm{diag}(g) - g g^\top / \sum g` with :math:`g = p^{2-\alpha}` on the
    support. In differentiable torch operations while a graph is recorded, else compiled.
    """
    loops = (
        compiled("threshold.cpu")
        if runs_compiled(weights) and not torch.is_grad_enabled()
        else None
    )
    if loops is not None:
        return run_backward(loops.entmax_backward, weights, alpha, cotangent)
    support = (weights > 0) & (alpha < torch.inf)
    logs = torch.log(torch.where(support, weights, 1.0))
    finite_alpha = torch.where(alpha < torch.inf, alpha, 2.0)
    limit = torch.finfo(weights.dtype).max ** 0.5  # tiny weights have huge slopes when alpha > 2
    g = torch.where(support, torch.exp((2 - finite_alpha) * logs).clamp_max(limit), 0.0)
    total = g.sum(-1, keepdim=True)
    # Past alpha = 2 one slope may dwarf the others: centred there, the difference keeps its digits.
    origin = cotangent.gather(-1, g.argmax(-1, keepdim=True))
    inner = torch.where(support, cotangent - origin, 0.0)
    mean = (g * inner).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return torch.where(weights.isnan(), torch.nan, g * (inner - mean))


def slope(weights: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\partial p / \partial\alpha = -J\, \partial_\alpha \nabla\Omega(p)`, as for any regulariser.

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
