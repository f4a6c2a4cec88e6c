"""Bipartite matchings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure

__all__ = ["Matching"]


@dataclass(frozen=True)
class Matching(Structure):
    r"""Matchings between m rows and n columns; best matching by shortest augmenting paths.

    Scores are (..., m, n). Every member of the smaller side is matched to one of the other, and
    nobody twice; :math:`\Omega(y) = \tfrac12\|y\|^2` over the pairs. For m = n the hull is the Birkhoff
    polytope of doubly stochastic matrices.

    A row or column that is all masked is not there.

    >>> import torch, hopfy
    >>> hopfy.structures.Matching().argmax(torch.tensor([[3.0, 2.0, 0.0], [3.0, 0.0, 0.0]]))
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
    """

    event_dims = 2

    @property
    def oracle_key(self) -> Hashable:
        return type(self)

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        bits = oracles.assignment(rows.scores)
        return bits, torch.zeros((bits.shape[0], 0), dtype=torch.int8)
