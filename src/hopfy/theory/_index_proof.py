"""Proofs of exact retrieval through an index."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.theory._proof import exact_margin, proves_fixed_point

__all__ = ["proves_with_index"]


def proves_with_index(index: ExactIndex, members: Tensor, omega: Omega, beta: Tensor) -> Tensor:
    """`proves_fixed_point` for sets ``members`` (P, k) of rows of an index, at ``beta`` (P,).

    One search decides most sets: nothing comes within the margin of their members, or something
    clearly does. What is too close for float64 is settled in rational arithmetic.
    """
    margin = exact_margin(omega, members.shape[1])
    memories = index.memories
    if margin is None or members.shape[0] == 0:
        return proves_fixed_point(memories, members, omega, beta)
    rivals, slack = index.rivals(members, float(margin) / beta)
    row = rivals.row_of_entry
    refuted = torch.zeros_like(beta, dtype=torch.bool)
    refuted[row[rivals.values > slack[row]]] = True
    proven = rivals.counts == 0
    rest = (~proven & ~refuted).nonzero().flatten()
    if rest.numel():
        proven[rest] = proves_fixed_point(memories, members[rest], omega, beta[rest])
    return proven
