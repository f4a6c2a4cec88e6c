from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.omega._simplex import SimplexOmega

__all__ = ["Shannon"]


@dataclass(frozen=True, eq=False)
class Shannon(SimplexOmega):
    r"""Shannon's negentropy :math:`\Omega(y) = \sum_i y_i \log y_i` on the simplex.

    Its prediction is softmax and its loss the cross-entropy (up to the target's entropy). It has no
    margin: softmax is never sparse, so retrieval is never exact.

    >>> import torch, hopfy
    >>> hopfy.Shannon()(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    family = "softmax"
    name = "softmax"
    is_softmax = True
    merges_by_support = True
    margin = math.inf

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.softmax(scores, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return torch.xlogy(weights, weights).sum(dim)

    @property
    def closed_form(self) -> tuple[str, float | Tensor]:
        return "softmax", 1.0
