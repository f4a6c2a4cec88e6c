from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hopfy import functional as F
from hopfy.omega._base import Omega
from hopfy.structures import Structure

__all__ = ["SparseMAP"]


@dataclass(frozen=True)
class SparseMAP(Omega):
    r"""The SparseMAP regulariser :math:`\Omega(y) = \tfrac12\|y\|^2` over a set of structures (Eq. 10).

    Its prediction is `hopfy.functional.sparsemap` and its structured margin is 1 (Prop. 4).

    >>> import torch, hopfy
    >>> omega = hopfy.SparseMAP(hopfy.structures.KSubsets(2))
    >>> omega(torch.tensor([3.0, 2.0, 1.0, -1.0]))
    tensor([1., 1., 0., 0.])
    """

    structure: Structure

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.sparsemap(scores, self.structure, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return weights.square().sum(dim) / 2

    @property
    def margin(self) -> float:
        return 1.0
