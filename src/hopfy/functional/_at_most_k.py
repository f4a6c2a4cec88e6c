"""At most k entries: SparseMAP over all choices of up to k."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import SUBSET_SIZE, as_parameter
from hopfy._kernels import at_most_k as kernel
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["at_most_k"]

_apply = symmetric_map("at_most_k", kernel.solve, kernel.vjp, kernel.slope)


def at_most_k(
    scores: Tensor, k: float | Tensor, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Weights in [0, 1] that sum to k or less:
    :math:`\arg\max_y \theta^\top y - \tfrac12\|y\|^2` over
    :math:`\{y \in [0, 1]^N : 1^\top y \le k\}`.

    The scores clipped to [0, 1] if that spends no more than k, else `hopfy.functional.ksubsets`. It is
    the SparseMAP of `hopfy.structures.AtMostK`.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        k: at least 0; fractions are allowed. A tensor broadcasts over the rows (``scores.shape``
            without ``dim``, or with size 1 there).
        dim: the dimension of the entries.
        mask: True where an entry may be selected; broadcasts to the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.at_most_k(torch.tensor([0.75, 0.25, -1.0]), k=2)
    tensor([0.7500, 0.2500, 0.0000])
    >>> F.at_most_k(torch.tensor([3.0, 1.0, 0.5]), k=1)
    tensor([1., 0., 0.])
    """
    dim = checked(scores, dim)
    k_rows = as_parameter(k, scores, dim, SUBSET_SIZE)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, k_rows), in_steps=True)
