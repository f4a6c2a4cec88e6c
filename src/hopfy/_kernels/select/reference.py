"""Selection in plain torch: what a score is, which scores count, and sums of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.select.types import Measure

__all__ = ["above_floor", "exact_scores", "mix"]

_AT_ONCE = 1 << 22  # products held by `mix`


def exact_scores(memories: Tensor, queries: Tensor, known: Tensor, measure: Measure) -> Tensor:
    """Scores (M, N) of queries (M, Q) with memories (N, D) in float64, see `Measure`.

    ``known`` (M or 1, Q) tells the known coordinates, for ``Measure.PARTIAL``.
    """
    x, q = memories[:, : queries.shape[1]].double(), queries.double()
    if measure == Measure.EUCLIDEAN:
        return -0.5 * (q[:, None] - x).square().sum(-1)
    if measure == Measure.PARTIAL:
        return torch.where(known[:, None].bool(), q[:, None] * x, 0.5 * x.square()).sum(-1)
    return q @ x.mT


def above_floor(scores: Tensor, rank: int, reach: float) -> Tensor:
    """True where a score (..., N) is above the floor: the rank-th best minus the reach.

    >>> above_floor(torch.tensor([[3.0, 2.5, 1.0]]), rank=1, reach=1.0)
    tensor([[ True,  True, False]])
    """
    best = scores.topk(rank, -1).values[..., -1:]
    return scores > best - reach


def mix(offsets: Tensor, indices: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """Sums (R, E) of rows of ``table`` (N, E) with the weights of compressed rows."""
    wide = torch.float32 if table.device.type == "mps" else torch.float64
    out = torch.zeros(offsets.numel() - 1, table.shape[1], dtype=wide, device=table.device)
    where = torch.repeat_interleave(offsets.diff())
    size = max(1, _AT_ONCE // max(1, table.shape[1]))
    for start in range(0, indices.numel(), size):
        part = slice(start, start + size)
        products = values[part].to(wide).unsqueeze(-1) * table[indices[part]].to(wide)
        out.index_add_(0, where[part], products)
    return out
