from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import SUBSET_SIZE, as_dim, as_parameter, check_parameter, masked, number_of
from hopfy.omega._by_parameter import GradientByParameter
from hopfy.structures import KSubsets

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EntropicKSubsets"]


@dataclass(frozen=True, eq=False)
class EntropicKSubsets(GradientByParameter):
    r"""Binary negentropies :math:`\sum_i y_i \log y_i + (1 - y_i) \log(1 - y_i)` where y sums to k.

    Its prediction is `hopfy.functional.entropic_ksubsets`,
    :math:`\sigma(\theta_i - \tau)`: the entropic top k (after Davydov et al., 2023). No margin: weights
    are never exactly 0 or 1.

    >>> import torch, hopfy
    >>> hopfy.omega.EntropicKSubsets(2)(torch.tensor([1.0, 0.0, 0.0, -1.0]))
    tensor([0.7311, 0.5000, 0.5000, 0.2689])
    """

    k: float | Tensor
    family = "entropic-subsets"
    margin = math.inf
    has_fixed_mass = True

    def __post_init__(self) -> None:
        check_parameter(self.k, SUBSET_SIZE)
        if number_of(self.k) == math.inf:
            raise ValueError("expected k to be at most the number of entries, got inf.")

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.entropic_ksubsets(scores, self.k, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        rest = 1 - weights
        return (torch.xlogy(weights, weights) + torch.xlogy(rest, rest)).sum(dim)

    @property
    def name(self) -> str:
        k = number_of(self.k)
        return "entropic-k-subsets" if k is None else f"entropic-{k:g}-subsets"

    @property
    def largest_mass(self) -> float | Tensor:
        return self.k

    def clip(self, counts: int | Tensor) -> Self:
        return replace(self, k=KSubsets(self.k).clip(counts).k)

    def violation(self, weights: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        weights = weights.detach().movedim(dim, -1)
        present = torch.ones_like(weights, dtype=torch.bool)
        if mask is not None:
            present = mask.movedim(dim, -1)
        return KSubsets(self.k).violation(weights, present)

    def _by_parameter(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        r"""Zero, with the gradient of the conjugate in k, which is the threshold :math:`\tau`."""
        theta = masked(scores.detach(), mask)
        weights = self(theta, dim=dim).detach()
        # The entry nearest to 1/2 knows tau = theta - logit(y) with the most digits.
        place = (weights - 0.5).abs().argmin(dim, keepdim=True)
        tau = (theta.gather(dim, place) - torch.logit(weights.gather(dim, place))).squeeze(dim)
        k = as_parameter(self.k, theta, as_dim(dim, theta.ndim), SUBSET_SIZE)
        k = k.squeeze(-1) if k.ndim else k
        return torch.where(tau.isfinite(), tau, 0.0) * (k - k.detach())
