"""Subset sizes that follow the length of each sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import as_dim, as_mask, as_scores
from hopfy.omega import Omega, SparseMAP
from hopfy.structures import KSubsets

__all__ = ["ShareOfLength"]


@dataclass(frozen=True)
class ShareOfLength(Omega):
    r"""SparseMAP over subsets of :math:`k = \mathrm{round}(\text{share} \cdot n)` entries (>= 1).

    n counts the entries that a row's mask lets through, so that every sample of a padded batch
    selects its own k: a rationale of 20 % of the words of each text, for example.

    Args:
        share: between 0 and 1.
        structure: what to select, as a function of k: `KSubsets`, or any other structure with its
            further arguments bound, for example ``functools.partial(Structure, ...)``.

    >>> import torch, hopfy
    >>> omega = hopfy.nn.ShareOfLength(0.5)
    >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    >>> omega(torch.tensor([5.0, 3.0, 2.0, 1.0]).expand(2, 4), mask)
    tensor([[1., 0., 0., 0.],
            [1., 1., 0., 0.]])
    """

    share: float
    structure: Callable[[Any], Any] = KSubsets

    def __post_init__(self) -> None:
        share = self.share
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise TypeError(f"expected share to be a number, got {share!r}.")
        if not 0 < share <= 1:
            raise ValueError(f"expected share above 0 and at most 1, got {share}.")

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        dim = as_dim(dim, as_scores(scores).ndim)
        if mask is None:
            length = torch.full_like(scores.select(dim, 0), scores.shape[dim])
        else:
            length = as_mask(mask, scores).sum(dim).to(torch.get_default_dtype())
        k = torch.minimum((self.share * length).round().clamp_min(1), length)
        return SparseMAP(self.structure(k))(scores, mask, dim=dim)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        k = weights.detach().sum(dim).round()
        return SparseMAP(self.structure(k)).value(weights, dim=dim)

    @property
    def margin(self) -> float:
        return SparseMAP(self.structure(1)).margin
