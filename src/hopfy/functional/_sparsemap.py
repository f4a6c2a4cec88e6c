"""SparseMAP over any structure."""

from __future__ import annotations

from torch import Tensor

from hopfy.functional._ksubsets import ksubsets
from hopfy.structures import KSubsets

__all__ = ["sparsemap"]


def sparsemap(
    scores: Tensor, structure: KSubsets, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r""":math:`\arg\max_y \theta^\top y - \tfrac12 \|y\|^2` over the hull of the structures (Eq. 10).

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> F.sparsemap(torch.tensor([3.0, 1.0, 0.5, -1.0]), hopfy.structures.KSubsets(2))
    tensor([1.0000, 0.7500, 0.2500, 0.0000])
    """
    if not isinstance(structure, KSubsets):
        raise TypeError(f"expected a structure such as KSubsets(k), got {structure!r}.")
    return ksubsets(scores, structure.k, dim=dim, mask=mask)
