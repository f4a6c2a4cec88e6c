"""Sizes of metastable states: how many patterns take part after a few updates."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search import ExactIndex

__all__ = ["metastable_sizes"]

_COUNTED = 0.01
"""Weights of softmax that count, as in the paper: every one of them is positive."""
_SCORES = 1 << 23
"""Scores of softmax held at once."""


def metastable_sizes(
    index: ExactIndex, queries: Tensor, omega: Omega, beta: float, updates: int = 5
) -> Tensor:
    r"""How many weights :math:`\hat y(\beta X q)` of the last update count, (Q,) int64.

    Sparse maps count weights > 0, softmax those > 0.01, of which there may be none. A query whose
    state no longer changes, bit for bit, is done: its weights stay what they are.

    >>> import torch, hopfy
    >>> corners = ExactIndex(torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]]))
    >>> metastable_sizes(corners, torch.tensor([[1.0, 0.0], [1.0, 0.5]]), hopfy.Tsallis(2.0), 9.0)
    tensor([2, 1])
    """
    states = queries.clone()
    sizes = torch.zeros(queries.shape[0], dtype=torch.int64)
    active = torch.arange(queries.shape[0])
    dense = omega.margin == torch.inf
    for _ in range(updates - 1):
        update = index.update(states[active], omega, beta)
        if update.weights is not None:
            sizes[active] = update.weights.counts
        moved = (update.states != states[active]).any(1)
        states[active] = update.states
        active = active[moved]
    if dense:  # these weights are streamed, not kept, so they are counted now and for everyone
        return _dense_sizes(index.memories, states, omega, beta)
    last = index.update(states[active], omega, beta).weights
    if last is not None:
        sizes[active] = last.counts
    return sizes


def _dense_sizes(memories: Tensor, states: Tensor, omega: Omega, beta: float) -> Tensor:
    counts = []
    for rows in torch.split(states * beta, max(1, _SCORES // memories.shape[0])):
        counts.append((omega(rows @ memories.mT) > _COUNTED).sum(1))
    return torch.cat(counts) if counts else torch.zeros(0, dtype=torch.int64)
