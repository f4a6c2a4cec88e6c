r"""Upper bounds on scores that a block product delivers.

A `Bounds` writes the score of query q and memory j as an inner product of two short vectors plus a
slack, :math:`q^\top x_j \le l(q)^\top r(x_j) + s(q, \text{block of } j)`, with every rounding error
inside the slack. The product itself is `Plain`: l(q) = q, and the slack is rounding alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hopfy._runtime.rounding import gamma

__all__ = ["BLOCK", "Bounds", "Left", "Partial", "Plain", "block_maxima", "rounding", "widened"]

BLOCK = 1024
"""Memories per block of norms: bounds on rounding errors are kept for each."""


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
    """Upper bounds for a fixed set of memories; ``fine`` (N, W) belongs to a second bound."""

    fine: Tensor

    def left(self, queries: Tensor) -> Left:
        """The side of ``queries`` (M, D), given in float64."""

    def right(self, first: int, stop: int) -> Tensor:
        """r(x) for the memories ``first .. stop``."""


def rounding(terms: int, dtype: torch.dtype) -> float:
    r"""A bound on the relative error of an inner product of so many terms in any order.

    :math:`|fl(a^\top b) - a^\top b| \le \gamma_n \|a\| \|b\|`, :math:`\gamma_n = n u / (1 - n u)`
    (Higham, 2002, section 3.1), fused or not; two more terms pay for what surrounds the product.
    """
    return gamma(terms + 2, dtype)


def block_maxima(sizes: Tensor) -> Tensor:
    """The largest of each block of `BLOCK` rows of ``sizes`` (N, S): shape (blocks, S)."""
    return torch.stack([block.amax(0) for block in torch.split(sizes, BLOCK)])


def widened(rows: Tensor) -> Tensor:
    """Halves as float32, everything else as it is."""
    return rows.float() if rows.element_size() == 2 else rows


class Plain:
    """The scores themselves: one full product in the memories' dtype (halves in float32).

    ``norms`` (blocks,) are the largest norms of each block of memories, float64.
    """

    def __init__(self, memories: Tensor, norms: Tensor) -> None:
        self._memories = memories
        self.fine = torch.empty(memories.shape[0], 0, device="cpu", dtype=torch.float32)
        self._norms = norms

    def right(self, first: int, stop: int) -> Tensor:
        return widened(self._memories[first:stop])

    def left(self, queries: Tensor) -> Left:
        dtype = torch.float32 if self._memories.element_size() == 2 else self._memories.dtype
        terms = self._memories.shape[1]
        norms = queries.norm(dim=1)
        # The exact score is a float64 sum with an error of its own; the queries were float64.
        relative = rounding(terms + 2, dtype) + rounding(terms, torch.float64)
        underflow = 4 * terms * torch.finfo(dtype).tiny
        slack = relative * self._norms.unsqueeze(1) * norms + underflow
        largest = norms * self._norms.max()
        safe = torch.isfinite(slack).all(0) & (largest < 0.01 * torch.finfo(dtype).max)
        none = torch.empty(queries.shape[0], 0, device="cpu", dtype=torch.float32)
        return Left(queries.to(dtype), slack, none, safe)


class Partial:
    r"""Scores :math:`\sum_{known} q_d x_d + \frac12 \sum_{unknown} x_d^2`, each query its own mask.

    Written as one product :math:`[q \cdot known,\ 1 - known]^\top [x,\ x^2 / 2]`; ``known`` (M, D)
    belongs to the queries that `left` will be given.
    """

    def __init__(self, memories: Tensor, norms: Tensor, known: Tensor) -> None:
        self._memories, self._norms, self._known = memories, norms, known
        self.fine = torch.empty(memories.shape[0], 0, device="cpu", dtype=torch.float32)

    def right(self, first: int, stop: int) -> Tensor:
        rows = widened(self._memories[first:stop])
        return torch.cat([rows, rows.square() / 2], 1)

    def left(self, queries: Tensor) -> Left:
        dtype = torch.float32 if self._memories.element_size() == 2 else self._memories.dtype
        terms = 2 * self._memories.shape[1]
        size = self._norms.unsqueeze(1) * queries.norm(dim=1) + self._norms.square().unsqueeze(1)
        slack = (rounding(terms + 4, dtype) + rounding(terms, torch.float64)) * size
        slack += 4 * terms * torch.finfo(dtype).tiny
        safe = torch.isfinite(slack).all(0) & (size.amax(0) < 0.01 * torch.finfo(dtype).max)
        vectors = torch.cat([queries, (~self._known).double()], 1).to(dtype)
        none = torch.empty(queries.shape[0], 0, device="cpu", dtype=torch.float32)
        return Left(vectors, slack, none, safe)
