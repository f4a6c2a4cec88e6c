"""Updates that need every score: softmax, structured maps, and supports too large to collect.

Nothing here holds more than a few rows of scores, or one block of them, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search._bounds import BLOCK
from hopfy.search._weights import SparseWeights

__all__ = ["dense_top", "dense_update", "softmax_update"]

_SCORES = 1 << 21
"""Scores held at once by `dense_update`; a map may need ten times as much while it works."""
_QUERIES = 1024


def softmax_update(memories: Tensor, queries: Tensor, beta: float) -> Tensor:
    r""":math:`X^\top \mathrm{softmax}(\beta X q)` for each query, with one pass over the memories.

    Each block adds :math:`e^{\beta x_j^\top q - c}` and its mixture of memories under a running
    maximum c; when c rises, what was summed so far is scaled down.
    """
    queries = queries.to(memories.dtype) * beta
    parts = [_softmax_rows(memories, rows) for rows in torch.split(queries, _QUERIES)]
    return torch.cat(parts) if parts else torch.empty_like(queries)


def _softmax_rows(memories: Tensor, queries: Tensor) -> Tensor:
    rows = queries.shape[0]
    top = queries.new_full((rows, 1), -torch.inf)
    total = queries.new_zeros(rows, 1)
    states = torch.zeros_like(queries)
    buffer = queries.new_empty(rows * min(BLOCK, memories.shape[0]))
    for block in torch.split(memories, BLOCK):
        scores = buffer[: rows * block.shape[0]].view(rows, -1)
        torch.mm(queries, block.mT, out=scores)
        higher = torch.maximum(top, scores.amax(1, keepdim=True))
        scale = torch.exp(top - higher)
        weights = scores.sub_(higher).exp_()
        total = total.mul_(scale).add_(weights.sum(1, keepdim=True))
        states.mul_(scale).addmm_(weights, block)
        top = higher
    return states / total


def dense_update(
    memories: Tensor, queries: Tensor, omega: Omega, beta: float
) -> tuple[Tensor, SparseWeights]:
    """The update on whole rows of scores, a few queries at a time, in float64 on the CPU."""
    parts, states, start = [], [], 0
    for scores in _score_rows(memories, queries):
        weights = omega(scores.mul_(beta))
        places = torch.arange(start, start + scores.shape[0])
        parts.append((places, SparseWeights.from_dense(weights)))
        states.append(_mixed(weights, memories))
        start += scores.shape[0]
    if not states:
        states.append(memories.new_empty(0, memories.shape[1]))
    return torch.cat(states), SparseWeights.assemble(parts, memories.shape[0])


def dense_top(memories: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best scores and their memories on whole rows; of equal scores the first counts."""
    scores, indices = [queries.new_empty(0, k)], [torch.empty(0, k, dtype=torch.int64)]
    for rows in _score_rows(memories, queries):
        values, places = rows.sort(dim=1, descending=True, stable=True)
        scores.append(values[:, :k].to(queries.dtype))
        indices.append(places[:, :k].to("cpu"))
    return torch.cat(scores), torch.cat(indices)


def _score_rows(memories: Tensor, queries: Tensor) -> Iterator[Tensor]:
    wide = torch.float64 if memories.device.type == "cpu" else memories.dtype
    count = memories.shape[0]
    for some in torch.split(queries, max(1, _SCORES // count)):
        scores = torch.empty(some.shape[0], count, dtype=wide, device=memories.device)
        for first in range(0, count, BLOCK):
            block = memories[first : first + BLOCK].to(wide)
            scores[:, first : first + BLOCK] = some.to(wide) @ block.mT
        yield scores


def _mixed(weights: Tensor, memories: Tensor) -> Tensor:
    states = weights.new_zeros(weights.shape[0], memories.shape[1])
    for first in range(0, memories.shape[0], BLOCK):
        block = memories[first : first + BLOCK].to(weights.dtype)
        states.addmm_(weights[:, first : first + BLOCK], block)
    return states.to(memories.dtype)
