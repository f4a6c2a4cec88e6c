"""Entropic k-subsets: soft choices of k entries."""

from __future__ import annotations

from torch import Tensor

from hopfy._kernels import entropic_ksubsets as kernel
from hopfy.functional._rows import along_rows, budget_of_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["entropic_ksubsets"]

_apply = symmetric_map("entropic_ksubsets", kernel.solve, kernel.vjp, kernel.slope)


def entropic_ksubsets(
    scores: Tensor, k: float | Tensor, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Weights in (0, 1) that sum to k, :math:`y_i = \sigma(\theta_i - \tau)`:
    :math:`\arg\max_y \theta^\top y - \sum_i y_i \log y_i + (1 - y_i) \log(1 - y_i)` over
    :math:`\{y \in [0, 1]^N : 1^\top y = k\}`.

    The smooth relative of `ksubsets`: no weight is exactly 0 or 1 (until a float cannot tell), and all
    entries receive gradients. Scores divided by a temperature that falls to zero give the top k.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        k: from 0 to the number of unmasked entries of a row; fractions are allowed. A tensor
            broadcasts over the rows (``scores.shape`` without ``dim``, or with size 1 there) and
            receives the exact gradient.
        dim: the dimension that sums to k.
        mask: True where an entry may be selected; broadcasts to the scores. A fully masked row
            gives zeros whatever k is.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.entropic_ksubsets(torch.tensor([3.0, 1.0, 1.0, -1.0]), k=2)
    tensor([0.8808, 0.5000, 0.5000, 0.1192])
    """
    dim = checked(scores, dim)
    k_rows = budget_of_rows(k, scores, dim)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, k_rows), k_rows)
