"""The map on candidates only."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.select import Found
from hopfy.omega import Omega
from hopfy.search._weights import SparseWeights

__all__ = ["best_first", "weights_of"]


def weights_of(
    found: Found, rows: Tensor, omega: Omega, beta: float, columns: int
) -> SparseWeights:
    """``omega`` on the candidates of ``rows``, as if every other score were minus infinity.

    Rows with about as many candidates share one small padded block. Scores are taken from the row's
    best one, which changes no weight and keeps all digits.
    """
    counts = torch.from_numpy(found.counts)[rows]
    order = torch.argsort(counts, stable=True)
    # Doubling widths: padding at most doubles the work.
    width_class = torch.ceil(torch.log2(counts[order].double())).long()
    sizes = torch.unique_consecutive(width_class, return_counts=True)[1].tolist()
    parts = []
    for group in torch.split(order, sizes):
        parts.append((group, _solve_group(found, rows[group], omega, beta, columns)))
    return SparseWeights.assemble(parts, columns)


def _solve_group(
    found: Found, rows: Tensor, omega: Omega, beta: float, columns: int
) -> SparseWeights:
    counts = torch.from_numpy(found.counts)[rows]
    width = int(counts.max())
    scores = torch.from_numpy(found.scores)[rows, :width]
    indices = torch.from_numpy(found.indices)[rows, :width]
    inside = torch.arange(width) < counts.unsqueeze(1)
    scores = torch.where(inside, scores, -torch.inf)
    if width > 1 or found.best.shape[1] > 1:
        weights = omega((scores - scores.amax(1, keepdim=True)) * beta)
    else:
        weights = torch.ones_like(scores)  # alone within the margin (Prop. 2)
    here = weights > 0
    offsets = torch.nn.functional.pad(here.sum(1).cumsum(0), (1, 0))
    return SparseWeights(offsets, indices[here].long(), weights[here], columns)


def best_first(found: Found, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best candidates of ``rows``, best first; of equal scores the first stored counts."""
    width = int(found.counts[rows.numpy()].max()) if rows.numel() else k
    inside = torch.arange(width) < torch.from_numpy(found.counts)[rows].unsqueeze(1)
    scores = torch.from_numpy(found.scores)[rows, :width]
    indices = torch.from_numpy(found.indices)[rows, :width].long()
    scores, order = torch.where(inside, scores, -torch.inf).sort(
        dim=1, descending=True, stable=True
    )
    return scores[:, :k], indices.gather(1, order)[:, :k]
