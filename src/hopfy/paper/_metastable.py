"""Sizes of metastable states: how many patterns take part after a few updates."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork

__all__ = ["metastable_sizes"]

_COUNTED = 0.01
"""Weights of softmax that count, as in the paper: every one of them is positive."""
_SCORES = 1 << 23
"""Scores of softmax held at once."""


def metastable_sizes(network: HopfieldNetwork, queries: Tensor, max_steps: int = 5) -> Tensor:
    r"""How many weights :math:`\hat y(\beta X q)` of the last update count, (Q,) int64.

    Sparse maps count weights > 0, softmax those > 0.01, of which there may be none. A query whose
    state no longer changes is done: its weights stay what they are.

    >>> import torch, hopfy
    >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    >>> network = hopfy.HopfieldNetwork(corners, "sparsemax", beta=9.0)
    >>> metastable_sizes(network, torch.tensor([[1.0, 0.0], [1.0, 0.5]]))
    tensor([2, 1])
    """
    if network.omega.margin < torch.inf:
        return network.retrieve(queries, max_steps=max_steps, tol=0.0).size
    # The weights of softmax are not kept by `retrieve`, and all are positive.
    states = queries
    if max_steps > 1:
        states = network.retrieve(queries, max_steps=max_steps - 1, tol=0.0).state
    rows = max(1, _SCORES // network.memories.shape[0])
    counts = [(network.weights(part) > _COUNTED).sum(1) for part in torch.split(states, rows)]
    return torch.cat(counts) if counts else torch.zeros(0, dtype=torch.int64)
