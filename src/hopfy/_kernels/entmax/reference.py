"""Entmax in plain torch; the three regimes are derived in `hopfy._kernels.entmax`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hopfy._kernels.threshold.reference import distances, power_of_rest, solve_convex, steps_for
from hopfy._runtime.dispatch import values_can_be_read

__all__ = ["solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    weights = torch.zeros_like(scores)
    regimes: list[tuple[Tensor, Callable[[Tensor, Tensor], Tensor], float]] = [
        (alpha == 1, _softmax, 1.0),
        ((alpha > 1) & (alpha <= 2), _convex, 1.5),
        ((alpha > 2) & (alpha < torch.inf), _concave, 3.0),
        (alpha == torch.inf, _argmax, torch.inf),
    ]
    for here, regime, harmless in regimes:
        if values_can_be_read(here) and not bool(here.any()):
            continue
        answer = regime(scores, torch.where(here, alpha, harmless))
        weights = torch.where(here, answer, weights)
    return weights


def _softmax(scores: Tensor, _: Tensor) -> Tensor:
    x = distances(scores, 1.0)
    weights = torch.exp(-x)
    return _normalize(weights)


def _convex(scores: Tensor, alpha: Tensor) -> Tensor:
    gamma = 1 / (alpha - 1)
    x = distances(scores, gamma)
    s = solve_convex(x, gamma)
    return _normalize(power_of_rest(x / s, gamma))


def _argmax(scores: Tensor, _: Tensor) -> Tensor:
    x = distances(scores, 1.0)
    return _normalize(torch.where(x.isnan(), x, (x == 0).to(x.dtype)))


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


def _normalize(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores: :math:`g (v - \bar v)`, averaged with weights g.

    The Jacobian is :math:`J = \mathrm{diag}(g) - g g^\top / \sum g` with :math:`g = p^{2-\alpha}` on the
    support.
    """
    support = (weights > 0) & (alpha < torch.inf)
    logs = torch.log(torch.where(support, weights, 1.0))
    finite_alpha = torch.where(alpha < torch.inf, alpha, 2.0)
    limit = torch.finfo(weights.dtype).max ** 0.5  # tiny weights have huge slopes when alpha > 2
    g = torch.where(support, torch.exp((2 - finite_alpha) * logs).clamp_max(limit), 0.0)
    total = g.sum(-1, keepdim=True)
    # Past alpha = 2 one slope may dwarf the others: centered there, the difference keeps its digits.
    origin = cotangent.gather(-1, g.argmax(-1, keepdim=True))
    inner = torch.where(support, cotangent - origin, 0.0)
    mean = (g * inner).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return torch.where(weights.isnan(), torch.nan, g * (inner - mean))
