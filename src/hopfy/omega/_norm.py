from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import NORMMAX_ALPHA, as_dim, as_parameter, check_parameter, number_of
from hopfy._facts import Reach
from hopfy.omega._simplex import SimplexOmega

__all__ = ["Norm"]


@dataclass(frozen=True, eq=False)
class Norm(SimplexOmega):
    r"""Norm negentropy :math:`\Omega(y) = \|y\|_\alpha - 1` on the simplex (Eq. 5).

    Its prediction is `hopfy.functional.normmax`; its margin is 1 for every alpha. alpha = inf is the
    Berger-Parker dominance index.

    >>> import torch, hopfy
    >>> hopfy.Norm(5)(torch.tensor([1.0, 0.9, -3.0]))
    tensor([0.5109, 0.4891, 0.0000])
    """

    family = "normmax"
    alpha: float | Tensor = 2.0
    margin = 1.0
    merges_by_support = True

    def __post_init__(self) -> None:
        check_parameter(self.alpha, NORMMAX_ALPHA)

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.normmax(scores, self.alpha, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        alpha = as_parameter(self.alpha, weights, as_dim(dim, weights.ndim), NORMMAX_ALPHA)
        weights = weights.movedim(dim, -1)
        top = weights.amax(-1, keepdim=True)
        finite = torch.where(alpha == torch.inf, 1.0, alpha)
        # Powers of the ratio to the largest weight cannot underflow all at once.
        ratios = weights / torch.where(top > 0, top, 1.0)
        norm = top * ratios.pow(finite).sum(-1, keepdim=True).pow(1 / finite)
        return torch.where(alpha == torch.inf, top, norm).squeeze(-1) - 1

    @property
    def closed_form(self) -> tuple[str, float | Tensor]:
        return "normmax", self.alpha

    @property
    def name(self) -> str:
        alpha = number_of(self.alpha)
        return "normmax" if alpha is None else f"{alpha:g}-normmax"

    def reach(self, beta: float = 1.0) -> Reach:
        """A score that trails the best by the margin, 1, gets weight 0."""
        return Reach(1, 1 / beta)

    def exact_margin(self, size: int = 1) -> Fraction | None:
        return Fraction(1) if size == 1 else None
