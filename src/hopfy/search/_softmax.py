r"""Softmax over many memories, a block of them at a time, under a running log-sum-exp.

Every memory has weight, so nothing can be left out; what never exists is the matrix of all weights.
One pass gives mixtures :math:`T^\top \mathrm{softmax}(\beta (X q + b))` of tables and the logarithm
of the total; with that logarithm a second pass yields the weights themselves, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.search._bounds import BLOCK, widened

__all__ = ["Mixed", "SoftmaxRows"]

# Scores held at once: they should stay in the cache between the two products.
_SCORES = 1 << 19


class Mixed(NamedTuple):
    """Mixtures (M, E) of each table, and the logarithms (M, 1) of the sums of exponentials."""

    mixtures: list[Tensor]
    log_total: Tensor


class SoftmaxRows:
    r"""Scores beta (X q + b) of ``queries`` (M, W), a moderate number of them.

    Removed memories keep their places in the sums, with weight zero: the same memories without them
    give the same mixtures up to rounding.

    Args:
        memories: (N, W).
        alive: (N,), zero where a memory was removed; None: all are there.
        queries: (M, W).
        beta: a number or (M,).
        bias: (N,), or (M, W): then each query adds :math:`b_j = \frac12 \sum_d bias_d x_{jd}^2`.
    """

    def __init__(
        self,
        memories: Tensor,
        alive: Tensor | None,
        queries: Tensor,
        beta: float | Tensor,
        bias: Tensor | None = None,
    ) -> None:
        dtype = torch.float32 if memories.element_size() == 2 else memories.dtype
        betas = torch.as_tensor(beta, dtype=torch.float64, device=queries.device)
        betas = betas.expand(queries.shape[0]).unsqueeze(1)
        self._memories, self._gone = memories, None if alive is None else alive == 0
        self._scaled = (queries.double() * betas).to(dtype)
        self._betas, self._bias = betas.to(dtype), bias
        self._squares = None
        if bias is not None and bias.ndim == 2:
            self._squares = (bias.double() * betas / 2).to(dtype)
        group = max(1, min(16, _SCORES // (max(1, queries.shape[0]) * BLOCK)))
        self._step = group * BLOCK

    def scores(self, order: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Places in the ``order`` of memories (their own by default) and scores (M, block)."""
        for first in range(0, self._memories.shape[0], self._step):
            part = slice(first, min(first + self._step, self._memories.shape[0]))
            chosen = part if order is None else order[part]
            rows = widened(self._memories[chosen])
            scores = self._scaled @ rows.mT
            if self._squares is not None:
                scores.addmm_(self._squares, rows.square().mT)
            elif self._bias is not None:
                scores.addcmul_(self._betas, self._bias[chosen].to(scores.dtype).unsqueeze(0))
            if self._gone is not None:
                scores.masked_fill_(self._gone[chosen], -torch.inf)
            yield part, scores

    def mixed(self, tables: Sequence[Tensor]) -> Mixed:
        """One pass: each block adds its exponentials under a running maximum.

        When the maximum rises, what was summed so far is scaled down.
        """
        like = self._scaled
        top = like.new_full((like.shape[0], 1), -torch.inf)
        total = torch.zeros_like(top, dtype=torch.float64)
        sums = [like.new_zeros(like.shape[0], table.shape[1]) for table in tables]
        for part, scores in self.scores():
            higher = torch.maximum(top, scores.amax(1, keepdim=True))
            fixed = higher.clamp_min(torch.finfo(scores.dtype).min)  # a block of removed rows only
            scale = torch.exp(top - fixed)
            weights = scores.sub_(fixed).exp_()
            total = total.mul_(scale).add_(weights.sum(1, keepdim=True))
            for mixture, table in zip(sums, tables, strict=True):
                mixture.mul_(scale).addmm_(weights, widened(table[part]).to(weights.dtype))
            top = higher
        return Mixed([(each / total).to(like.dtype) for each in sums], total.log() + top)

    def weights(
        self, log_total: Tensor, order: Tensor | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """The weights (M, block), block by block."""
        offset = log_total.to(self._scaled.dtype)
        for part, scores in self.scores(order):
            yield part, scores.sub_(offset).exp_()
