"""Alpha-entmax and its best-known member, sparsemax."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import ENTMAX_ALPHA, as_parameter, constant
from hopfy._kernels import entmax as kernel
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["entmax", "sparsemax"]

_apply = symmetric_map("entmax", kernel.solve, kernel.vjp, kernel.slope)


def entmax(
    scores: Tensor, alpha: float | Tensor = 1.5, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Sparse probabilities, :math:`\arg\max_{y \in \triangle} \theta^\top y - \Omega^T_\alpha(y)`.

    :math:`\Omega^T_\alpha` is the Tsallis negentropy (Eq. 4). The solution is
    :math:`y_i = [(\alpha - 1)\theta_i - \tau]_+^{1/(\alpha - 1)}`; scores that trail the maximum by
    the margin :math:`1/(\alpha - 1)` or more get exactly 0.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        alpha: from 1 (softmax) over 2 (sparsemax) to infinity (argmax, ties shared). A tensor
            broadcasts over the rows (``scores.shape`` without ``dim``, or with size 1 there), and
            receives the exact gradient, at alpha = 1 too.
        dim: the dimension that sums to one.
        mask: True where an entry may be selected; broadcasts to the scores.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.entmax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.6740, 0.3260, 0.0000])
    """
    dim = checked(scores, dim)
    alpha_rows = as_parameter(alpha, scores, dim, ENTMAX_ALPHA)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, alpha_rows), alpha_rows)


def sparsemax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""The Euclidean projection onto the simplex, :math:`\arg\min_{y \in \triangle} \|y - \theta\|`.

    This is `entmax` with alpha = 2 (Martins & Astudillo, 2016); its margin is 1.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    dim = checked(scores, dim)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, constant(2.0, rows)))
