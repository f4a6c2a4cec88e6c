r"""The one equation behind every map onto the simplex, in plain torch.

Entmax, sparsemax and normmax all need the root :math:`s \in (0, 1]` of

.. math:: \sum_i (s - x_i)_+^{\gamma} = 1, \qquad x_i = (\max_j \theta_j - \theta_i) / m \ge 0,

with the map's margin :math:`m`: for entmax :math:`\gamma = m = 1/(\alpha - 1)`, for normmax
:math:`\gamma = \alpha / (\alpha - 1)` and :math:`m = 1` (App. B). Entries with
:math:`x_i \ge 1` can never take part, which is why scores separated by the margin give one-hot
answers exactly.

For :math:`\gamma \ge 1`, :math:`g(s) = \| (s - x)_+ \|_\gamma` is convex and increasing, so Newton
started on the right of the root walks down to it and never crosses: every iterate bounds the root.
A bisection step beside each Newton step bounds the number of iterations for adversarial rows.
Powers are written as :math:`(1 - x_i / s)^\gamma = \exp(\gamma \log(1 - x_i / s))` through
``log1p``, which keeps full precision as :math:`\gamma \to \infty` (entmax's limit, softmax).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distances", "power_of_rest", "solve_convex", "steps_for"]


def distances(scores: Tensor, margin: Tensor | float) -> Tensor:
    """Distances below the row's maximum in units of ``margin``; +inf for -inf scores.

    A row of only ``-inf`` gives +inf everywhere; a row with NaN or +inf gives NaN everywhere.
    """
    top = scores.amax(-1, keepdim=True)
    below = torch.where(scores == top, 0.0, (top - scores) / margin)
    below = torch.where(scores == -torch.inf, torch.inf, below)
    return torch.where(top.isnan() | (top == torch.inf), torch.nan, below)


def steps_for(dtype: torch.dtype) -> int:
    """Bisections that reach the dtype's precision; Newton gets there much sooner."""
    return 56 if dtype is torch.float64 else 28


def power_of_rest(z: Tensor, exponent: Tensor | float) -> Tensor:
    r""":math:`(1 - z)_+^{\text{exponent}}`, zero outside even for exponent 0, accurate at z = 0."""
    inside = z < 1
    power = torch.exp(exponent * torch.log1p(-torch.where(inside, z, 0.0)))
    return torch.where(inside, power, torch.where(z.isnan(), z, 0.0))


def solve_convex(x: Tensor, gamma: Tensor) -> Tensor:
    r"""Root s of :math:`\sum (s - x)_+^\gamma = 1` for :math:`\gamma \ge 1`, shape (..., 1)."""
    high = torch.ones_like(x[..., :1])
    low = torch.zeros_like(high)
    for _ in range(steps_for(x.dtype)):
        high = _newton(x, gamma, high)
        middle = (low + high) / 2
        total = power_of_rest(x / middle, gamma).sum(-1, keepdim=True)
        above = middle * total.pow(1 / gamma) >= 1
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return _newton(x, gamma, high)


def _newton(x: Tensor, gamma: Tensor, s: Tensor) -> Tensor:
    """One Newton step for ``g(s) = 1`` from the right; it never moves up."""
    z = x / s
    slope = power_of_rest(z, gamma - 1)
    first = slope.sum(-1, keepdim=True)
    total = torch.where(z < 1, slope * (1 - z), slope).sum(-1, keepdim=True)
    lower = s * (1 - total / first) + total.pow(1 - 1 / gamma) / first
    return torch.where(lower < s, lower, s)
