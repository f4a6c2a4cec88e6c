from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import Rule, check_parameter, masked, number_of, values_can_be_read
from hopfy._facts import Reach
from hopfy.omega._by_parameter import GradientByParameter
from hopfy.omega._simplex import SimplexOmega

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Capped"]

_UPPER = Rule("upper", ">= 0", lambda u: u >= 0)


@dataclass(frozen=True, eq=False)
class Capped(GradientByParameter, SimplexOmega):
    r"""Half the squared norm, :math:`\tfrac12(\|y\|^2 - 1)`, on the simplex below upper bounds.

    Its prediction is `hopfy.functional.capped_sparsemax`. ``upper`` is a number, or a tensor that
    broadcasts to the scores with a bound for each entry. If all bounds are 1 or more it is
    sparsemax with its margin of 1; else no one-hot answer exists and there is no margin.

    >>> import torch, hopfy
    >>> hopfy.omega.Capped(0.5)(torch.tensor([2.0, 0.5, 0.25, -1.0]))
    tensor([0.5000, 0.3750, 0.1250, 0.0000])
    """

    upper: float | Tensor = 1.0
    family = "capped"

    def __post_init__(self) -> None:
        check_parameter(self.upper, _UPPER)

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.capped_sparsemax(scores, self.upper, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return (weights.square() - weights).sum(dim) / 2  # the weights sum to one

    @property
    def margin(self) -> float:
        return 1.0 if self._is_sparsemax else math.inf

    @property
    def _is_sparsemax(self) -> bool:
        if not isinstance(self.upper, Tensor):
            return self.upper >= 1
        return values_can_be_read(self.upper) and bool((self.upper.detach() >= 1).all())

    @property
    def name(self) -> str:
        upper = number_of(self.upper)
        return "capped sparsemax" if upper is None else f"{upper:g}-capped"

    def reach(self, beta: float = 1.0) -> Reach | None:
        r"""In units of u this is k-subsets with k = 1/u: within u of the best of that rank."""
        upper = 1.0 if self._is_sparsemax else number_of(self.upper)
        if upper is None or not upper > 0:
            return None
        return Reach(math.ceil(1 / upper), upper / beta)

    def exact_margin(self, size: int = 1) -> Fraction | None:
        return Fraction(1) if size == 1 and self._is_sparsemax else None

    def clip(self, counts: int | Tensor) -> Self:
        """Bounds of at least 1 / count, so that every row with an entry has room."""
        upper = self.upper
        if not isinstance(counts, Tensor):
            least = 1 / max(counts, 1)
            if not isinstance(upper, Tensor):
                return replace(self, upper=max(upper, least))
            return replace(self, upper=upper.clamp_min(least))
        wide = torch.float64 if counts.device.type == "cpu" else torch.float32
        bounds = torch.as_tensor(upper, dtype=wide, device=counts.device)
        return replace(self, upper=torch.maximum(bounds, 1 / counts.clamp_min(1).to(wide)))

    def violation(self, weights: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        outside = super().violation(weights, mask, dim=dim)
        return torch.maximum(outside, (weights.detach() - self._bounds(weights)).amax(dim))

    def _bounds(self, weights: Tensor) -> Tensor | float:
        return self.upper.detach().to(weights) if isinstance(self.upper, Tensor) else self.upper

    def _by_parameter(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        r"""Zero, with the conjugate's gradient in u: :math:`\langle\theta - y, dy/du\rangle`."""
        theta = masked(scores.detach(), mask)
        weights = self(theta, dim=dim)
        steepness = torch.where(theta > -torch.inf, theta - weights.detach(), 0.0)
        return (steepness * (weights - weights.detach())).sum(dim)
