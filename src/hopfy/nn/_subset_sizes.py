"""Subset sizes that follow the length of each sample."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import as_dim, as_mask, as_scores
from hopfy.omega import Omega, SparseMAP
from hopfy.structures import KSubsets, Structure

__all__ = ["ShareOfLength"]


@dataclass(frozen=True, eq=False)
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

    family = "share-of-length"
    share: float
    structure: Callable[[Any], Any] = KSubsets
    varies_by_row = True

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

    def spec(self) -> dict[str, Any]:
        """Its structure must be a class with a ``family``, alone or in a ``functools.partial``."""
        bound = self.structure
        made = bound(1) if isinstance(bound, type | functools.partial) else None
        if not isinstance(made, Structure):
            raise TypeError(
                f"expected a structure that a file can describe, such as KSubsets, got {bound!r}."
            )
        structure = {key: value for key, value in made.spec().items() if key != "k"}
        return {"family": self.family, "share": float(self.share), "structure": structure}

    @classmethod
    def _decoded(cls, key: str, value: Any) -> Any:
        if key != "structure":
            return super()._decoded(key, value)
        made = Structure.from_spec({**value, "k": 1})
        others = {name: each for name, each in vars(made).items() if name != "k"}
        return functools.partial(type(made), **others) if others else type(made)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        k = weights.detach().sum(dim).round()
        return SparseMAP(self.structure(k)).value(weights, dim=dim)

    @property
    def margin(self) -> float:
        return SparseMAP(self.structure(1)).margin
