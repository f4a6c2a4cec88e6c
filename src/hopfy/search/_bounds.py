r"""Upper bounds on scores that a block product delivers.

A `Bounds` writes the score of query q and memory j as an inner product of two short vectors plus a
slack, :math:`q^\top x_j \le l(q)^\top r(x_j) + s(q, \text{block of } j)`, with every rounding error
inside the slack. The product itself is `Plain`: l(q) = q, and the slack is rounding alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["BLOCK", "Bounds", "Left", "Plain", "block_maxima", "rounding"]

BLOCK = 1024
"""Memories per block: a block of scores for as many queries stays in the cache."""


class Left(NamedTuple):
    """The queries' side of the bounds.

    Attributes:
        vectors: l(q), (M, K).
        slack: (blocks, M) float64.
        fine: the queries' side of a second, tighter bound (M, W); W = 0 where there is none.
        safe: (M,) False where a number could overflow and nothing is promised.
    """

    vectors: Tensor
    slack: Tensor
    fine: Tensor
    safe: Tensor


class Bounds(Protocol):
    """Upper bounds for a fixed set of memories."""

    right: Tensor
    """r(x), (N, K)."""
    fine: Tensor
    """The memories' side of the second bound, (N, W)."""

    def left(self, queries: Tensor) -> Left:
        """The side of ``queries`` (M, D), given in float64."""


def rounding(terms: int, dtype: torch.dtype) -> float:
    r"""A bound on the relative error of an inner product of so many terms in any order.

    :math:`|fl(a^\top b) - a^\top b| \le \gamma_n \|a\| \|b\|`, :math:`\gamma_n = n u / (1 - n u)`
    (Higham, 2002, section 3.1), fused or not; two more terms pay for what surrounds the product.
    """
    n_u = (terms + 2) * torch.finfo(dtype).eps / 2
    return n_u / (1 - n_u) if n_u < 0.5 else np.inf


def block_maxima(sizes: Tensor) -> Tensor:
    """The largest of each block of ``BLOCK`` rows of ``sizes`` (N, S): shape (blocks, S)."""
    blocks = -(-sizes.shape[0] // BLOCK)
    padded = sizes.new_zeros(blocks * BLOCK, sizes.shape[1])
    padded[: sizes.shape[0]] = sizes
    return padded.view(blocks, BLOCK, -1).amax(1)


class Plain:
    """The scores themselves: one full product in the memories' dtype."""

    def __init__(self, memories: Tensor, norms: Tensor) -> None:
        self.right = memories
        self.fine = torch.empty(memories.shape[0], 0)
        self._norms = block_maxima(norms.unsqueeze(1)).squeeze(1)

    def left(self, queries: Tensor) -> Left:
        dtype, terms = self.right.dtype, self.right.shape[1]
        norms = queries.norm(dim=1)
        # The exact score is a float64 sum with an error of its own.
        relative = rounding(terms, dtype) + rounding(terms, torch.float64)
        underflow = 4 * terms * torch.finfo(dtype).tiny
        slack = relative * self._norms.unsqueeze(1) * norms + underflow
        largest = norms * (self._norms.max() if self._norms.numel() else 0.0)
        safe = torch.isfinite(slack).all(0) & (largest < 0.01 * torch.finfo(dtype).max)
        return Left(queries.to(dtype), slack, torch.empty(queries.shape[0], 0), safe)
