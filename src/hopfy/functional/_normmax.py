"""Alpha-normmax."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import NORMMAX_ALPHA, as_parameter
from hopfy._kernels import normmax as kernel
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["normmax"]

_apply = symmetric_map("normmax", kernel.solve, kernel.vjp, kernel.slope)


def normmax(
    scores: Tensor, alpha: float | Tensor = 2.0, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Sparse, nearly uniform probabilities,
    :math:`\arg\max_{y \in \triangle} \theta^\top y - \|y\|_\alpha` (Eqs. 5 and 14).

    The solution is :math:`y_i = (\theta_i - \mu)_+^{1/(\alpha-1)} / \sum_j
    (\theta_j - \mu)_+^{1/(\alpha-1)}` (Eq. 18), where :math:`\mu` solves
    :math:`\sum_i (\theta_i - \mu)_+^{\alpha/(\alpha-1)} = 1` (Eq. 19). The paper bisects (Alg. 1);
    Newton's steps within the same bounds need fewer.

    Scores that trail the maximum by 1 or more get exactly 0, whatever alpha is. The larger alpha,
    the more uniform the weights on the support; alpha = inf gives the uniform distribution over the
    top set of the best size.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        alpha: above 1, up to infinity. A tensor broadcasts over the rows (``scores.shape`` without
            ``dim``, or with size 1 there) and receives the exact gradient.
        dim: the dimension that sums to one.
        mask: True where an entry may be selected; broadcasts to the scores.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.normmax(torch.tensor([1.0, 0.5, -1.0]), alpha=5.0)
    tensor([0.5597, 0.4403, 0.0000])
    """
    dim = checked(scores, dim)
    alpha_rows = as_parameter(alpha, scores, dim, NORMMAX_ALPHA)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, alpha_rows), alpha_rows)
