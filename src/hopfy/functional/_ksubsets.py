"""K-subsets: SparseMAP over all choices of k entries."""

from __future__ import annotations

from torch import Tensor

from hopfy._kernels import ksubsets as kernel
from hopfy.functional._rows import along_rows, budget_of_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["ksubsets"]

_apply = symmetric_map("ksubsets", kernel.solve, kernel.vjp, kernel.slope)


def ksubsets(
    scores: Tensor, k: float | Tensor, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Weights in [0, 1] that sum to k:
    :math:`\arg\max_y \theta^\top y - \tfrac12\|y\|^2` over
    :math:`\{y \in [0, 1]^N : 1^\top y = k\}` (Example 1).

    It is the SparseMAP of the k-subsets. If the k-th score leads the next by 1 or more, the answer
    is exactly k-hot; k = 1 is `sparsemax`.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        k: from 0 to the number of unmasked entries of a row; fractions are allowed. A tensor
            broadcasts over the rows (``scores.shape`` without ``dim``, or with size 1 there).
        dim: the dimension that sums to k.
        mask: True where an entry may be selected; broadcasts to the scores. A fully masked row
            gives zeros whatever k is.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.ksubsets(torch.tensor([3.0, 1.0, 0.5, -1.0]), k=2)
    tensor([1.0000, 0.7500, 0.2500, 0.0000])
    """
    dim = checked(scores, dim)
    k_rows = budget_of_rows(k, scores, dim)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, k_rows), k_rows)
