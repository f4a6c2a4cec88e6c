"""The bound on rounding errors that proofs and searches share."""

from __future__ import annotations

import math

import torch

__all__ = ["gamma"]


def gamma(terms: int, dtype: torch.dtype) -> float:
    r""":math:`\gamma_n = n u / (1 - n u)`: the relative error of n operations (Higham, 2002, section 3.1).

    :math:`|fl(a^\top b) - a^\top b| \le \gamma_n \|a\| \|b\|` for n terms in any order, fused or not.

    >>> import torch
    >>> from hopfy._runtime.rounding import gamma
    >>> gamma(3, torch.float64) == 3 * 2**-53 / (1 - 3 * 2**-53)
    True
    """
    n_u = terms * torch.finfo(dtype).eps / 2
    return n_u / (1 - n_u) if n_u < 0.5 else math.inf
