from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import ENTMAX_ALPHA, as_dim, as_parameter, check_parameter, number_of
from hopfy._facts import Reach
from hopfy.omega._simplex import SimplexOmega

__all__ = ["Tsallis"]


@dataclass(frozen=True, eq=False)
class Tsallis(SimplexOmega):
    r"""Tsallis negentropy :math:`\Omega(y) = \frac{\|y\|_\alpha^\alpha - 1}{\alpha(\alpha - 1)}` (Eq. 4).

    Its prediction is `hopfy.functional.entmax` and its margin :math:`1/(\alpha - 1)`. alpha = 1 is
    Shannon's negentropy, alpha = 2 gives sparsemax.

    >>> import torch, hopfy
    >>> omega = hopfy.Tsallis(1.5)
    >>> omega
    Tsallis(alpha=1.5)
    >>> omega.margin
    2.0
    >>> omega(torch.tensor([2.0, 0.0]))  # the margin makes it one-hot
    tensor([1., 0.])
    """

    family = "entmax"
    alpha: float | Tensor = 1.5
    merges_by_support = True

    def __post_init__(self) -> None:
        check_parameter(self.alpha, ENTMAX_ALPHA)

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.entmax(scores, self.alpha, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        alpha = as_parameter(self.alpha, weights, as_dim(dim, weights.ndim), ENTMAX_ALPHA)
        weights = weights.movedim(dim, -1)
        finite = torch.where(alpha < torch.inf, alpha, 2.0)
        # sum (y^alpha - y) / (alpha - 1), as the weights sum to one: no loss near alpha = 1.
        logs = torch.log(torch.where(weights > 0, weights, 1.0))
        value = (weights * logs * _expm1_ratio((finite - 1) * logs)).sum(-1) / _flat(finite)
        return torch.where(_flat(alpha) < torch.inf, value, 0.0)

    @property
    def closed_form(self) -> tuple[str, float | Tensor]:
        return "entmax", self.alpha

    @property
    def margin(self) -> float:
        alpha = self.alpha
        alpha = float(alpha.detach().min()) if isinstance(alpha, Tensor) else alpha
        return math.inf if alpha == 1 else 1 / (alpha - 1)

    @property
    def name(self) -> str:
        alpha = number_of(self.alpha)
        return "entmax" if alpha is None else f"{alpha:g}-entmax"

    @property
    def is_softmax(self) -> bool:
        return number_of(self.alpha) == 1

    def reach(self, beta: float = 1.0) -> Reach | None:
        """A score that trails the best by the margin of the smallest alpha gets weight 0."""
        return Reach(1, self.margin / beta) if math.isfinite(self.margin) else None

    def exact_margin(self, size: int = 1) -> Fraction | None:
        """1 / (alpha - 1); None at alpha = 1 (never sparse) and alpha = inf (ties are shared)."""
        alpha = number_of(self.alpha)
        if size != 1 or alpha is None or not 1 < alpha < math.inf:
            return None
        return 1 / (Fraction(alpha) - 1)


def _expm1_ratio(t: Tensor) -> Tensor:
    """``(e^t - 1) / t``, smooth at 0."""
    small = t.abs() < 1e-5
    safe = torch.where(small, 1.0, t)
    return torch.where(small, 1 + t / 2, torch.expm1(safe) / safe)


def _flat(alpha: Tensor) -> Tensor:
    return alpha.squeeze(-1) if alpha.ndim else alpha
